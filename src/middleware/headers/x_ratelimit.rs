//! `X-RateLimit-*`: headers without a specification.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName};

use super::dialect::ResetFormat;
use super::field_names::{X_LIMIT, X_REMAINING, X_RESET};
use super::numbers::{number, number_value};
use super::times::{reported_wait, whole_seconds};
use crate::decision::QuotaDecision;

/// Writes the numbers of a quota. The reset is at least `least` from now.
pub(super) fn write(
    format: ResetFormat,
    quota: QuotaDecision<'_>,
    least: Duration,
    headers: &mut HeaderMap,
) {
    // Clients wait only at 0. A refused request may need more units than are left.
    let remaining = if quota.is_allowed() {
        quota.remaining()
    } else {
        0
    };
    insert(X_LIMIT, quota.limit().into(), headers);
    insert(X_REMAINING, remaining.into(), headers);
    match reported_wait(quota) {
        Some(wait) => insert(X_RESET, reset(format, wait.max(least)), headers),
        None => drop(headers.remove(X_RESET)),
    }
}

/// Raises a reset that is there to at least `least` from now.
pub(super) fn raise(format: ResetFormat, least: Duration, headers: &mut HeaderMap) {
    let least = reset(format, least);
    if number(&X_RESET, headers).is_some_and(|reset| reset < least) {
        insert(X_RESET, least, headers);
    }
}

fn insert(field: HeaderName, number: u64, headers: &mut HeaderMap) {
    headers.insert(field, number_value(number));
}

fn reset(format: ResetFormat, wait: Duration) -> u64 {
    match format {
        ResetFormat::Delta => whole_seconds(wait),
        ResetFormat::Epoch => whole_seconds(since_epoch().saturating_add(wait)),
    }
}

#[expect(clippy::disallowed_methods, reason = "clients expect a Unix time")]
pub(super) fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}
