//! The IETF's `RateLimit` fields in draft 11: lists of policy names with parameters.
//!
//! Drafts 8 to 10 have the same syntax.

use std::fmt::Write;

use http::{HeaderMap, HeaderValue};

use super::field_names::{POLICY, RATELIMIT};
use super::policy_names::{named_quotas, quota_names};
use super::structured_fields::{FieldSyntax, integer, quoted};
use super::times::{refill_time, whole_seconds};
use crate::decision::{DecisionView, QuotaDecision};
use crate::quota::Quota;

/// Appends to both lists, which may contain the policies of an inner layer.
pub(super) fn append(decision: &DecisionView, headers: &mut HeaderMap) {
    let names = quota_names(decision);
    let names: Vec<_> = names.iter().map(|name| quoted(name)).collect();
    let lists = [
        (POLICY, policies(decision, &names)),
        (RATELIMIT, limits(decision, &names)),
    ];
    for (name, list) in lists {
        if let Ok(list) = HeaderValue::try_from(list.join(", "))
            && FieldSyntax::Named.is_of_field(&name, headers)
        {
            headers.append(name, list);
        }
    }
}

/// Returns the policies: `"burst";q=100;w=60` and `"daily";q=1000;w=86400`.
fn policies(decision: &DecisionView, names: &[String]) -> Vec<String> {
    let quotas = decision.levels().flat_map(|level| level.quota_list());
    let are_all_soft = quotas.clone().all(Quota::is_soft);
    let named = quotas.zip(names);
    let listed = named.filter(|(quota, _)| are_all_soft || !quota.is_soft());
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
fn limits(decision: &DecisionView, names: &[String]) -> Vec<String> {
    // A soft quota is reported only if all are soft.
    let reported = decision.reported();
    let are_all_soft = reported.is_some_and(|quota| quota.quota().is_soft());
    let listed = named_quotas(decision, names).filter(|(quota, _)| {
        let is_shown = are_all_soft || !quota.quota().is_soft();
        is_shown && quota.is_allowed() == decision.is_allowed()
    });
    listed.map(|(quota, name)| limit(name, quota)).collect()
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
