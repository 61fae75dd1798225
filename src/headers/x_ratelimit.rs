//! `X-RateLimit-*`: what most clients know, and nobody has specified.

use std::time::{Duration, SystemTime};

use http::HeaderMap;

use super::field::{X_LIMIT, X_REMAINING, X_RESET};
use super::{value_of, whole_seconds};
use crate::{DecisionView, QuotaDecision};

/// How the time is told at which units are back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reset {
    Delta,
    Epoch,
}

/// How many fields it has.
pub(super) const FIELDS: usize = 3;

pub(super) fn write(
    reset: Reset,
    decision: &DecisionView,
    reported: QuotaDecision<'_>,
    to: &mut HeaderMap,
) {
    let wait = wait(reported);
    let reset = match reset {
        Reset::Delta => whole_seconds(wait),
        Reset::Epoch => whole_seconds(since_epoch().saturating_add(wait)),
    };
    to.insert(X_LIMIT, value_of(reported.limit().into()));
    to.insert(X_REMAINING, value_of(decision.remaining().into()));
    to.insert(X_RESET, value_of(reset));
}

/// Until this request is admitted, or where it is or never will be, until more units are left.
pub(super) fn wait(quota: QuotaDecision<'_>) -> Duration {
    quota.retry_after().unwrap_or_else(|| quota.reset_after())
}

#[expect(
    clippy::disallowed_methods,
    reason = "an instant has no name but by this clock"
)]
pub(super) fn since_epoch() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}
