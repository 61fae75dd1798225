//! Drafts 3, 6 and 7 of the IETF's `RateLimit` fields: policies without names, and the numbers of one quota.

use std::cmp::Reverse;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};

use super::dialect::{IetfDraft, Tightness};
use super::field_names::{LIMIT, POLICY, RATELIMIT, REMAINING, RESET};
use super::numbers::{number, number_value};
use super::structured_fields::{FieldSyntax, integer};
use super::times::{reported_wait, whole_seconds};
use crate::decision::QuotaDecision;
use crate::limiter::DecisionView;
use crate::quota::Quota;

/// Appends to the list of policies, if the draft has a field for it, and replaces the numbers if this layer is the tightest. The
/// reset is at least `least`.
pub(super) fn write(
    draft: IetfDraft,
    place: Tightness,
    decision: &DecisionView,
    reported: QuotaDecision<'_>,
    least: Duration,
    headers: &mut HeaderMap,
) {
    let policies = policies(decision);
    if policies.is_empty() {
        return;
    }
    if draft != IetfDraft::Draft03
        && FieldSyntax::Unnamed.is_field(&POLICY, headers)
        && let Ok(policies) = HeaderValue::from_str(&policies)
    {
        headers.append(POLICY, policies);
    }
    if place == Tightness::Behind {
        return;
    }
    let Some(numbers) = numbers(decision, reported, least) else {
        return;
    };
    match draft {
        IetfDraft::Draft03 => insert_numbers(numbers, Some(&policies), headers),
        IetfDraft::Draft06 => insert_numbers(numbers, None, headers),
        IetfDraft::Draft07 => {
            let [limit, remaining, reset] = numbers.map(integer);
            let text = format!("limit={limit}, remaining={remaining}, reset={reset}");
            if let Ok(text) = HeaderValue::try_from(text)
                && FieldSyntax::Unnamed.is_field(&RATELIMIT, headers)
            {
                headers.insert(RATELIMIT, text);
            }
        }
        // Written by `draft_11`.
        IetfDraft::Draft11 => {}
    }
}

/// Inserts a field for each number. In draft 3, the policies follow the limit.
fn insert_numbers(numbers: [u64; 3], policies: Option<&str>, headers: &mut HeaderMap) {
    let [limit, remaining, reset] = numbers;
    let with_policies = policies
        .and_then(|policies| HeaderValue::try_from(format!("{}, {policies}", integer(limit))).ok());
    headers.insert(LIMIT, with_policies.unwrap_or_else(|| number_value(limit)));
    headers.insert(REMAINING, number_value(remaining));
    headers.insert(RESET, number_value(reset));
}

/// Raises a reset that is there to at least `least`.
pub(super) fn raise(least: Duration, headers: &mut HeaderMap) {
    let least = whole_seconds(least);
    if number(&RESET, headers).is_some_and(|reset| reset < least) {
        headers.insert(RESET, number_value(least));
    }
    if !FieldSyntax::Unnamed.is_field(&RATELIMIT, headers) {
        return;
    }
    let Some(dictionary) = headers.get(RATELIMIT).and_then(|line| line.to_str().ok()) else {
        return;
    };
    let raised: Vec<_> = dictionary
        .split(", ")
        .map(|member| match member.strip_prefix("reset=") {
            Some(reset) if reset.parse().is_ok_and(|reset: u64| reset < least) => {
                format!("reset={}", integer(least))
            }
            _ => member.to_owned(),
        })
        .collect();
    if let Ok(dictionary) = HeaderValue::try_from(raised.join(", ")) {
        headers.insert(RATELIMIT, dictionary);
    }
}

/// Returns the policies as a list: `10;w=1, 100;w=60`. It is empty if there are only slots and totals, because they have no
/// window, which these drafts require.
fn policies(decision: &DecisionView) -> String {
    let quotas = decision.levels().flat_map(|level| level.quota_list());
    let are_all_soft = quotas.clone().all(Quota::is_soft);
    let quotas: Vec<_> = quotas
        .filter(|quota| quota.is_rate() && (are_all_soft || !quota.is_soft()))
        .collect();
    quotas
        .iter()
        .enumerate()
        .filter(|(index, quota)| !is_implied(quota, *index, &quotas))
        .map(|(_, quota)| policy(quota))
        .collect::<Vec<_>>()
        .join(", ")
}

fn policy(quota: &Quota) -> String {
    // These drafts require a window, and have no fractions of seconds.
    let window = whole_seconds(quota.window());
    format!("{};w={}", quota.limit(), integer(window))
}

/// Returns whether a policy is omitted because another one has the same limit, which the drafts forbid. The
/// one with the longer window is kept, since it implies the other.
fn is_implied(quota: &Quota, index: usize, quotas: &[&Quota]) -> bool {
    let own = (quota.window(), Reverse(index));
    quotas.iter().enumerate().any(|(index, other)| {
        other.limit() == quota.limit() && (other.window(), Reverse(index)) > own
    })
}

/// Returns limit, remaining units and reset, or `None` if there are only slots and totals, because they have no window.
///
/// The limit is that of the quota with the fewest units left, which is mostly the reported one. On a 429, the reset is the
/// wait of `Retry-After`, as draft 7 requires, and at least `least`.
fn numbers(
    decision: &DecisionView,
    reported: QuotaDecision<'_>,
    least: Duration,
) -> Option<[u64; 3]> {
    // A soft quota is reported only if all are soft.
    let are_all_soft = reported.quota().is_soft();
    let reported = Some(reported).filter(|quota| is_rate(*quota, are_all_soft));
    // It is the first of several with as few units left.
    let rates = decision
        .quotas()
        .filter(|quota| is_rate(*quota, are_all_soft));
    let fewest_left = reported
        .into_iter()
        .chain(rates)
        .min_by_key(|quota| quota.remaining())?;
    let reported = reported.unwrap_or(fewest_left);
    // The drafts require a reset even if no wait helps.
    let wait = reported_wait(reported).or_else(|| reported.retry_after());
    let reset = wait.unwrap_or_else(|| reported.quota().window()).max(least);
    Some([
        fewest_left.limit().into(),
        fewest_left.remaining().into(),
        whole_seconds(reset),
    ])
}

fn is_rate(quota: QuotaDecision<'_>, is_soft: bool) -> bool {
    let quota = quota.quota();
    quota.is_rate() && quota.is_soft() == is_soft
}
