//! `X-RateLimit-*`: headers without a specification.

use std::time::{Duration, SystemTime};

use http::HeaderMap;

use super::dialect::ResetFormat;
use super::field_names::{X_LIMIT, X_REMAINING, X_RESET};
use super::times::{reported_wait, whole_seconds};
use crate::decision::QuotaDecision;

pub(super) fn write(format: ResetFormat, quota: QuotaDecision<'_>, headers: &mut HeaderMap) {
    // Clients wait only at 0. A refused request may need more units than are left.
    let remaining = match quota.is_allowed() {
        true => quota.remaining(),
        false => 0,
    };
    headers.insert(X_LIMIT, quota.limit().into());
    headers.insert(X_REMAINING, remaining.into());
    match reported_wait(quota) {
        Some(wait) => headers.insert(X_RESET, reset(format, wait).into()),
        None => headers.remove(X_RESET),
    };
}

fn reset(format: ResetFormat, wait: Duration) -> u64 {
    match format {
        ResetFormat::Delta => whole_seconds(wait),
        ResetFormat::Epoch => whole_seconds(since_epoch().saturating_add(wait)),
    }
}

#[expect(clippy::disallowed_methods, reason = "clients expect a Unix time")]
pub(super) fn since_epoch() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}
