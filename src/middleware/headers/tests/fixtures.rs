//! Decisions, and the headers that are written for them.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use crate::decision::{Answer, Decision, DecisionView, QuotaAnswer, Source};
use crate::middleware::headers::{Headers, IetfDraft, Place, Templates};
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
    decided(&quotas.into(), answers)
}

pub(super) fn decided(quotas: &Quotas, answers: Vec<QuotaAnswer>) -> DecisionView {
    let answer = Answer::new(Source::Memory, answers);
    Decision::new(quotas, 1, answer).unwrap().into_view()
}

/// An admitting quota with the units that are left, and the time until more are.
pub(super) fn left(quota: Quota, remaining: u32, reset: Duration) -> (Quota, QuotaAnswer) {
    let used = quota.limit() - remaining;
    (quota, QuotaAnswer::admitted(used, reset))
}

/// A quota without units left, and the time until one is.
pub(super) fn used_up(quota: Quota, wait: Duration) -> (Quota, QuotaAnswer) {
    let refused = QuotaAnswer::refused(quota.limit(), Some(wait), wait);
    (quota, refused)
}

pub(super) fn burst() -> Quota {
    Quota::per_minute(100).named("burst")
}

pub(super) fn daily() -> Quota {
    Quota::per_day(1_000).named("daily")
}

/// The admitted request of the examples: 42 of 100 units are left for 17 s, 913 of 1 000 for 10 h.
pub(super) fn admitted() -> DecisionView {
    decide([
        left(burst(), 42, 16 * SECOND + MILLISECOND),
        left(daily(), 913, 36_000 * SECOND),
    ])
}

/// The refused request of the examples: no units of the burst are left for 3 s.
pub(super) fn refused() -> DecisionView {
    decide([
        used_up(burst(), 2 * SECOND + MILLISECOND),
        left(daily(), 913, 36_000 * SECOND),
    ])
}

/// Both families of headers, without the clock of this machine.
pub(super) fn both(draft: IetfDraft) -> Headers {
    Headers::x_ratelimit()
        .delta_reset()
        .and(Headers::ietf(draft))
}

pub(super) fn write(headers: &Headers, decision: &DecisionView, place: Place, map: &mut HeaderMap) {
    let quotas = decision.quota_list().iter().cloned().collect();
    Templates::new(headers, &"search".into(), &quotas).write(decision, place, map);
}

pub(super) fn lines(map: &HeaderMap) -> Vec<String> {
    let line = |(name, value): (&HeaderName, &http::HeaderValue)| {
        format!("{name}: {}", value.to_str().unwrap())
    };
    map.iter().map(line).collect()
}

pub(super) fn written(headers: &Headers, decision: &DecisionView) -> Vec<String> {
    let mut map = HeaderMap::new();
    write(headers, decision, Place::Tightest, &mut map);
    lines(&map)
}
