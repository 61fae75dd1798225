//! The types of the other files for builds without the feature `metrics`. They record nothing.

use std::sync::Arc;
use std::time::Duration;

use crate::decision::Source;
use crate::error::ErrorKind;
use crate::telemetry::marked_keys::Mark;
use crate::telemetry::outcome_label::{OutcomeLabel, WaitOutcome};

#[derive(Debug)]
pub(crate) struct CheckCounts;

impl CheckCounts {
    pub(crate) fn new(_limiter: &Arc<str>, _store: &Arc<str>) -> Self {
        Self
    }

    #[inline]
    pub(crate) fn count(&self, _outcome: OutcomeLabel, _source: Source, _share: Option<&str>) {}
    pub(crate) fn count_blocks(&self, _blocks: u64) {}
    pub(crate) fn count_mark(&self, _mark: Mark, _checks: u64) {}
    pub(crate) fn count_upstream_answer(&self, _makes_sense: bool) {}
}

#[derive(Clone, Debug)]
pub(crate) struct StoreMeter;

impl StoreMeter {
    pub(crate) const IS_ENABLED: bool = false;

    pub(crate) fn new(_store: &str) -> Self {
        Self
    }

    pub(crate) fn unnamed() -> Self {
        Self::new("other")
    }

    pub(crate) fn same_name(&self) -> Self {
        Self
    }

    pub(crate) fn record_duration(&self, _duration: Duration, _outcome: WaitOutcome) {}
    pub(crate) fn record_error(&self, _kind: ErrorKind) {}
    pub(crate) fn record_breaker_opened(&self) {}
    pub(crate) fn record_breaker_closed(&self) {}
    pub(crate) fn record_keys(&self, _before: usize, _now: usize) {}
    pub(crate) fn record_refusals(&self, _count: impl FnOnce() -> usize) {}
    #[cfg(feature = "redis")]
    pub(crate) fn record_batch(&self, _checks: u32) {}
    #[cfg(feature = "redis")]
    pub(crate) fn record_clock_error(&self, _error: Duration) {}
}

#[derive(Debug)]
pub(crate) struct LeaseMeter;

impl LeaseMeter {
    pub(crate) const IS_ENABLED: bool = false;

    pub(crate) fn new(_limiter: &Arc<str>) -> Self {
        Self
    }

    pub(crate) fn record_grant(&self, _units: u32) {}
    pub(crate) fn record_end(&self, _units: u32, _left: u32) {}

    pub(crate) fn begin_return(&self, _units: u32) -> UnitReturn {
        UnitReturn
    }
}

#[derive(Debug)]
pub(crate) struct UnitReturn;

impl UnitReturn {
    pub(crate) fn succeed(self) {}
}

#[derive(Clone, Debug)]
pub(crate) struct PermitMeter;

impl PermitMeter {
    pub(crate) fn new(_limiter: &Arc<str>) -> Self {
        Self
    }

    pub(crate) fn record_grant(&self, _slots: u32) {}
    pub(crate) fn record_release(&self, _slots: u32, _held_for: Duration) {}
    pub(crate) fn record_lost(&self, _slots: u32) {}
    pub(crate) fn record_renewal(&self) {}
}

#[derive(Debug)]
pub(crate) struct PermitWait;

impl PermitWait {
    pub(crate) fn begin(_limiters: impl IntoIterator<Item = PermitMeter>) -> Self {
        Self
    }

    pub(crate) fn succeed(self, _waited: Duration) {}
}
