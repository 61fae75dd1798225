//! The IETF's `RateLimit` fields in draft 11: lists of policy names with parameters.
//!
//! Drafts 8 to 10 have the same syntax.

use http::{HeaderMap, HeaderValue};
use smallvec::SmallVec;

use super::field_names::{POLICY, RATELIMIT};
use super::number_value::static_text;
use super::policy_names::{ListedLimit, policy_names};
use super::structured_fields::{FieldSyntax, Integer, quoted};
use super::times::{refill_time, whole_seconds};
use crate::decision::{DecisionView, QuotaDecision, Source};
use crate::quota::Quota;

/// The number of fields.
pub(super) const FIELDS: usize = 2;

/// The parts of the fields that depend only on the quotas.
#[derive(Debug)]
pub(super) struct Draft11Template {
    /// `"burst";q=100;w=60, "daily";q=1000;w=86400`
    policies: HeaderValue,
    /// The start of each quota's limit, with the delimiter of the list: `, "burst";r=`. One list has all levels.
    members: Vec<String>,
}

/// The delimiter of a list.
const DELIMITER: &str = ", ";

/// A buffer for a field value. It fits three policies with usual names, so only the final value is allocated.
type Text = SmallVec<[u8; 128]>;

impl Draft11Template {
    pub(super) fn new(limits: &[ListedLimit<'_>]) -> Option<Self> {
        let names = policy_names(limits);
        let names: Vec<_> = names.iter().map(|name| quoted(name)).collect();
        let mut text = Text::new();
        let quotas = limits.iter().flat_map(|limit| &limit.quotas);
        let are_all_soft = quotas.clone().all(|quota| quota.is_soft());
        let told = quotas.zip(&names);
        for (quota, name) in told.filter(|(quota, _)| are_all_soft || !quota.is_soft()) {
            push(&mut text, &format!("{DELIMITER}{name};q="));
            push_integer(&mut text, quota.limit().into());
            if quota.is_in_flight() {
                push(&mut text, ";qu=\"concurrent-requests\"");
            } else if let Some(window) = window_seconds(quota) {
                push(&mut text, ";w=");
                push_integer(&mut text, window);
            }
        }
        let policies = HeaderValue::from_bytes(without_first_delimiter(&text)).ok()?;
        let members = names.iter().map(|name| format!("{DELIMITER}{name};r="));
        let members = members.collect();
        Some(Self { policies, members })
    }

    /// Appends to both lists, which may contain the policies of an inner layer.
    pub(super) fn append(&self, decision: &DecisionView, headers: &mut HeaderMap) {
        FieldSyntax::Named.append(POLICY, self.policies.clone(), headers);
        let limits = self.limits(decision);
        if let Ok(limits) = HeaderValue::from_bytes(without_first_delimiter(&limits)) {
            FieldSyntax::Named.append(RATELIMIT, limits, headers);
        }
    }

    /// Lists all quotas if the request was admitted, or else those that refused it:
    /// `"burst";r=42;t=17, "daily";r=913;t=36000`.
    ///
    /// Leaves out the quotas of levels that nothing counted, and of levels that were not asked.
    fn limits(&self, decision: &DecisionView) -> Text {
        let mut text = Text::new();
        let mut members = &*self.members;
        // A soft quota is reported only if all are soft.
        let reported = decision.reported();
        let are_all_soft = reported.is_some_and(|quota| quota.quota().is_soft());
        for level in decision.levels() {
            let Some((own, others)) = members.split_at_checked(level.quota_list().len()) else {
                break;
            };
            members = others;
            if level.source() == Source::None {
                continue;
            }
            for (quota, member) in level.quotas().zip(own) {
                let is_told = are_all_soft || !quota.quota().is_soft();
                if is_told && quota.is_allowed() == decision.is_allowed() {
                    push(&mut text, member);
                    push_remaining(&mut text, quota);
                }
            }
        }
        text
    }
}

/// Adds the remaining units and the effective window: `42;t=17`.
fn push_remaining(text: &mut Text, quota: QuotaDecision<'_>) {
    push_integer(text, quota.remaining().into());
    if let Some(seconds) = effective_window(quota) {
        push(text, ";t=");
        push_integer(text, seconds);
    }
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

fn push(text: &mut Text, piece: &str) {
    text.extend_from_slice(piece.as_bytes());
}

fn push_integer(text: &mut Text, value: u64) {
    match static_text(value) {
        Some(digits) => push(text, digits),
        None => push(text, Integer::new().format(value)),
    }
}

fn without_first_delimiter(text: &[u8]) -> &[u8] {
    text.strip_prefix(DELIMITER.as_bytes()).unwrap_or(text)
}
