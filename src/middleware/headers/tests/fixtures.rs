//! Decisions for the tests, and the headers that are written for them.

use std::time::Duration;

use http::HeaderMap;

use crate::decision::{Answer, QuotaAnswer, Source};
use crate::limiter::{Decision, DecisionView};
use crate::middleware::headers::{Headers, IetfDraft, Tightness};
use crate::quota::{Quota, Quotas};

pub(super) const DRAFTS: [IetfDraft; 4] = [
    IetfDraft::Draft03,
    IetfDraft::Draft06,
    IetfDraft::Draft07,
    IetfDraft::Draft11,
];

pub(super) const MILLISECOND: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn decide<const N: usize>(answers: [(Quota, QuotaAnswer); N]) -> DecisionView {
    let (quotas, answers): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
    decided("search", &quotas.into(), answers)
}

pub(super) fn decided(limiter: &str, quotas: &Quotas, answers: Vec<QuotaAnswer>) -> DecisionView {
    let answer = Answer::new(Source::Memory, answers);
    Decision::by(limiter, quotas, answer).into_view()
}

/// A quota that admits. More units are left after `reset`.
pub(super) fn left(quota: Quota, remaining: u32, reset: Duration) -> (Quota, QuotaAnswer) {
    let used = quota.limit() - remaining;
    (quota, QuotaAnswer::admitted(used, reset))
}

pub(super) fn used_up(quota: Quota, wait: Duration) -> (Quota, QuotaAnswer) {
    let refused = QuotaAnswer::refused(quota.limit(), Some(wait), wait);
    (quota, refused)
}

pub(super) fn burst() -> Quota {
    Quota::per_minute(100).with_name("burst")
}

pub(super) fn daily() -> Quota {
    Quota::per_day(1_000).with_name("daily")
}

/// Returns an admitted request: 42 of 100 units are left for 17 s, and 913 of 1 000 for 10 h.
pub(super) fn admitted() -> DecisionView {
    decide([
        left(burst(), 42, 16 * SECOND + MILLISECOND),
        left(daily(), 913, 36_000 * SECOND),
    ])
}

/// Returns a refused request: the burst has no units left for 3 s.
pub(super) fn refused() -> DecisionView {
    decide([
        used_up(burst(), 2 * SECOND + MILLISECOND),
        left(daily(), 913, 36_000 * SECOND),
    ])
}

/// Returns `X-RateLimit-*` with a draft. No header depends on the clock of this machine.
pub(super) fn both(draft: IetfDraft) -> Headers {
    Headers::x_ratelimit()
        .delta_reset()
        .and(Headers::ietf(draft))
}

pub(super) fn write(
    headers: &Headers,
    decision: &DecisionView,
    place: Tightness,
    map: &mut HeaderMap,
) {
    let wait = decision.retry_after().unwrap_or_default();
    headers.write_beside(place, decision, wait, map);
}

pub(super) fn lines(map: &HeaderMap) -> Vec<String> {
    map.iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect()
}

pub(super) fn written(headers: &Headers, decision: &DecisionView) -> Vec<String> {
    let mut map = HeaderMap::new();
    write(headers, decision, Tightness::Tightest, &mut map);
    lines(&map)
}
