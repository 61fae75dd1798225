//! The IETF's `RateLimit` fields in draft 11: lists of policy names with parameters.
//!
//! Drafts 8 to 10 have the same syntax.

use std::cmp::Reverse;
use std::fmt::Write;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};

use super::field_names::{POLICY, RATELIMIT};
use super::policy_names::{named_quotas, quota_names};
use super::structured_fields::{FieldSyntax, find_integers, integer, quoted};
use super::times::{refill_time, whole_seconds};
use crate::decision::QuotaDecision;
use crate::limiter::DecisionView;
use crate::quota::Quota;

/// The parameter of an effective window.
const WINDOW: &str = "t";

/// Appends to both lists, which may contain the policies of an inner layer. The longest effective window of the response is at
/// least `least`.
pub(super) fn append(decision: &DecisionView, least: Duration, headers: &mut HeaderMap) {
    let names = quota_names(decision);
    let names: Vec<_> = names.iter().map(|name| quoted(name)).collect();
    let is_told = longest_window(headers) >= whole_seconds(least);
    let least = if is_told { Duration::ZERO } else { least };
    let lists = [
        (POLICY, policies(decision, &names)),
        (RATELIMIT, limits(decision, &names, least)),
    ];
    for (name, list) in lists {
        if let Ok(list) = HeaderValue::try_from(list.join(", "))
            && FieldSyntax::Named.is_field(&name, headers)
        {
            headers.append(name, list);
        }
    }
}

/// Raises the longest effective window of a list that is there to at least `least`.
pub(super) fn raise(least: Duration, headers: &mut HeaderMap) {
    let longest = longest_window(headers);
    let least = whole_seconds(least);
    if longest == 0 || longest >= least || !FieldSyntax::Named.is_field(&RATELIMIT, headers) {
        return;
    }
    let mut lines: Vec<_> = headers.get_all(RATELIMIT).iter().cloned().collect();
    for line in &mut lines {
        let Ok(text) = line.to_str() else { continue };
        let Some((place, _)) = find_integers(text, WINDOW)
            .into_iter()
            .find(|(_, window)| *window == longest)
        else {
            continue;
        };
        let mut raised = text.to_owned();
        raised.replace_range(place, &integer(least).to_string());
        if let Ok(raised) = HeaderValue::try_from(raised) {
            *line = raised;
        }
        break;
    }
    headers.remove(RATELIMIT);
    for line in lines {
        headers.append(RATELIMIT, line);
    }
}

/// In seconds. 0 if there is none.
fn longest_window(headers: &HeaderMap) -> u64 {
    headers
        .get_all(RATELIMIT)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|text| find_integers(text, WINDOW))
        .map(|(_, window)| window)
        .max()
        .unwrap_or(0)
}

fn policies(decision: &DecisionView, names: &[String]) -> Vec<String> {
    let quotas = decision.levels().flat_map(|level| level.quota_list());
    let are_all_soft = quotas.clone().all(Quota::is_soft);
    quotas
        .zip(names)
        .filter(|(quota, _)| are_all_soft || !quota.is_soft())
        .map(|(quota, name)| policy(name, quota))
        .collect()
}

/// Formats a member of the policies, such as `"burst";q=100;w=60`.
fn policy(name: &str, quota: &Quota) -> String {
    let limit = quota.limit();
    if quota.is_in_flight() {
        return format!("{name};q={limit};qu=\"concurrent-requests\"");
    }
    match window_seconds(quota) {
        Some(window) => format!("{name};q={limit};w={}", integer(window)),
        None => format!("{name};q={limit}"),
    }
}

/// Lists all quotas if the request was admitted, or else those that refused it.
///
/// Leaves out the quotas of levels that nothing counted, and of levels that were not asked. The longest effective window is at
/// least `least`.
fn limits(decision: &DecisionView, names: &[String], least: Duration) -> Vec<String> {
    // A soft quota is reported only if all are soft.
    let reported = decision.reported();
    let are_all_soft = reported.is_some_and(|quota| quota.quota().is_soft());
    let listed: Vec<_> = named_quotas(decision, names)
        .filter(|(quota, _)| are_all_soft || !quota.quota().is_soft())
        .filter(|(quota, _)| quota.is_allowed() == decision.is_allowed())
        .collect();
    // The first of several.
    let longest = listed
        .iter()
        .enumerate()
        .filter_map(|(index, (quota, _))| Some((effective_window(*quota)?, Reverse(index))))
        .max()
        .map(|(_, Reverse(index))| index);
    listed
        .iter()
        .enumerate()
        .map(|(index, (quota, name))| {
            let mut window = effective_window(*quota);
            if Some(index) == longest {
                window = window.max(Some(least));
            }
            limit(name, *quota, window)
        })
        .collect()
}

/// Formats a member of the limits, such as `"burst";r=42;t=17`. An effective window of 0 is omitted.
fn limit(name: &str, quota: QuotaDecision<'_>, window: Option<Duration>) -> String {
    let mut text = format!("{name};r={}", quota.remaining());
    if let Some(window) = window.filter(|window| !window.is_zero()) {
        // Writing to a string does not fail.
        let _ = write!(text, ";{WINDOW}={}", integer(whole_seconds(window)));
    }
    text
}

/// `None` for a total, and if the window is not whole seconds: the draft has no fractions of seconds, and `w` is optional.
fn window_seconds(quota: &Quota) -> Option<u64> {
    let window = quota.window();
    (quota.is_rate() && window.subsec_nanos() == 0).then_some(window.as_secs())
}

/// The time in which at most the remaining units can be used.
///
/// After a refusal, it is the wait until the request is admitted. `None` for slots and totals, and if no wait helps.
fn effective_window(quota: QuotaDecision<'_>) -> Option<Duration> {
    if !quota.quota().is_rate() {
        return None;
    }
    if !quota.is_allowed() {
        return quota.retry_after();
    }
    let time_to_full = refill_time(quota.quota(), quota.used());
    Some(time_to_full.unwrap_or_else(|| quota.reset_after()))
}
