//! The IETF's `RateLimit` fields in draft 11: lists of policy names with parameters.
//!
//! Drafts 8 to 10 have the same syntax.

use std::fmt::Write;

use http::{HeaderMap, HeaderValue};

use super::field_names::{POLICY, RATELIMIT};
use super::policy_names::{listed_limits, policy_names};
use super::structured_fields::{FieldSyntax, integer, quoted};
use super::times::{refill_time, whole_seconds};
use crate::decision::{DecisionView, QuotaDecision, Source};
use crate::quota::Quota;

/// Appends to both lists, which may contain the policies of an inner layer.
pub(super) fn append(decision: &DecisionView, headers: &mut HeaderMap) {
    let limits = listed_limits(decision);
    let names = policy_names(&limits);
    let names: Vec<_> = names.iter().map(|name| quoted(name)).collect();
    let quotas = limits.iter().flat_map(|limit| limit.quotas.iter().copied());
    let lists = [
        (POLICY, policies(quotas, &names)),
        (RATELIMIT, limits_of(decision, &names)),
    ];
    for (name, list) in lists {
        if let Ok(list) = HeaderValue::try_from(list.join(", ")) {
            FieldSyntax::Named.append(name, list, headers);
        }
    }
}

/// Returns the policies: `"burst";q=100;w=60` and `"daily";q=1000;w=86400`.
fn policies<'a>(quotas: impl Iterator<Item = &'a Quota> + Clone, names: &[String]) -> Vec<String> {
    let are_all_soft = quotas.clone().all(Quota::is_soft);
    let listed = quotas.zip(names);
    let listed = listed.filter(|(quota, _)| are_all_soft || !quota.is_soft());
    let policy = |(quota, name): (&Quota, &String)| {
        let limit = quota.limit();
        match window_seconds(quota) {
            _ if quota.is_in_flight() => format!("{name};q={limit};qu=\"concurrent-requests\""),
            Some(window) => format!("{name};q={limit};w={}", integer(window)),
            None => format!("{name};q={limit}"),
        }
    };
    listed.map(policy).collect()
}

/// Lists all quotas if the request was admitted, or else those that refused it: `"burst";r=42;t=17` and
/// `"daily";r=913;t=36000`.
///
/// Leaves out the quotas of levels that nothing counted, and of levels that were not asked.
fn limits_of(decision: &DecisionView, names: &[String]) -> Vec<String> {
    let mut names = names.iter();
    // A soft quota is reported only if all are soft.
    let reported = decision.reported();
    let are_all_soft = reported.is_some_and(|quota| quota.quota().is_soft());
    let mut limits = Vec::new();
    for level in decision.levels() {
        let own = names.by_ref().take(level.quota_list().len());
        let own: Vec<_> = own.collect();
        if level.source() == Source::None {
            continue;
        }
        for (quota, name) in level.quotas().zip(own) {
            let is_told = are_all_soft || !quota.quota().is_soft();
            if is_told && quota.is_allowed() == decision.is_allowed() {
                limits.push(limit(name, quota));
            }
        }
    }
    limits
}

/// Returns the remaining units and the effective window of a policy.
fn limit(name: &str, quota: QuotaDecision<'_>) -> String {
    let mut text = format!("{name};r={}", quota.remaining());
    if let Some(seconds) = effective_window(quota) {
        // Writing to a string does not fail.
        let _ = write!(text, ";t={}", integer(seconds));
    }
    text
}

/// Returns the window if it is whole seconds. The draft has no fractions of seconds, and `w` is optional.
fn window_seconds(quota: &Quota) -> Option<u64> {
    let window = quota.window();
    (window.subsec_nanos() == 0).then_some(window.as_secs())
}

/// Returns the effective window, in seconds: the time in which at most the remaining units can be used.
///
/// After a refusal, it is the wait until the request is admitted. `None` if it is 0, or if no wait helps.
fn effective_window(quota: QuotaDecision<'_>) -> Option<u64> {
    if quota.quota().is_in_flight() {
        return None;
    }
    let time_to_full = || refill_time(quota.quota(), quota.used());
    let wait = match quota.is_allowed() {
        true => time_to_full().unwrap_or_else(|| quota.reset_after()),
        false => quota.retry_after()?,
    };
    Some(whole_seconds(wait)).filter(|seconds| *seconds > 0)
}
