//! The same as `metrics`, for builds without that feature: nothing.

use std::sync::Arc;
use std::time::Duration;

use crate::decision::Source;
use crate::error::ErrorKind;
use crate::telemetry::checks::OutcomeLabel;

#[derive(Debug)]
pub(crate) struct CheckCounts;

impl CheckCounts {
    pub(crate) fn new(_limiter: &Arc<str>) -> Self {
        Self
    }

    #[inline]
    pub(crate) fn count(&self, _outcome: OutcomeLabel, _source: Source) {}
}

#[derive(Clone, Debug)]
pub(crate) struct StoreMeter;

impl StoreMeter {
    pub(crate) const LISTENS: bool = false;

    pub(crate) fn new(_store: &str) -> Self {
        Self
    }

    pub(crate) fn anew(&self) -> Self {
        Self
    }

    pub(crate) fn answered(&self, _after: Duration) {}
    pub(crate) fn failed(&self, _kind: ErrorKind) {}
    pub(crate) fn breaker_opened(&self) {}
    pub(crate) fn breaker_closed(&self) {}
    pub(crate) fn keys_held(&self, _before: usize, _now: usize) {}
    pub(crate) fn refusals(&self, _count: impl FnOnce() -> usize) {}
    pub(crate) fn called(&self, _checks: u32) {}
}
