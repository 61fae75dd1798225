//! `X-RateLimit-*`: what most clients know, and nobody has specified.

use std::time::{Duration, SystemTime};

use http::HeaderMap;

use super::dialect::whole_seconds;
use super::field_names::{X_LIMIT, X_REMAINING, X_RESET};
use super::number::value_of;
use crate::decision::{DecisionView, QuotaDecision};

/// How the time is told at which units are back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reset {
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
    // Clients wait where it is 0 and not where it is less than they ask for.
    let remaining = match decision.is_allowed() {
        true => decision.remaining(),
        false => 0,
    };
    to.insert(X_LIMIT, value_of(reported.limit().into()));
    to.insert(X_REMAINING, value_of(remaining.into()));
    match wait(reported) {
        Some(wait) => to.insert(X_RESET, value_of(reset.seconds(wait))),
        None => to.remove(X_RESET),
    };
}

impl Reset {
    fn seconds(self, wait: Duration) -> u64 {
        match self {
            Self::Delta => whole_seconds(wait),
            Self::Epoch => whole_seconds(since_epoch().saturating_add(wait)),
        }
    }
}

/// Until this request is admitted, or where it is, until more units are left. `None` where no wait
/// helps.
pub(super) fn wait(quota: QuotaDecision<'_>) -> Option<Duration> {
    if quota.is_allowed() {
        Some(quota.reset_after())
    } else {
        quota.retry_after()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "an instant has no name but by this clock"
)]
pub(super) fn since_epoch() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}
