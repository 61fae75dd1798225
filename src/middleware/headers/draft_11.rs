//! Draft 11 of the IETF's `RateLimit` fields, whose syntax is that of drafts 8 to 10: lists of the
//! names of policies, with parameters.

use http::{HeaderMap, HeaderValue};
use smallvec::SmallVec;

use super::dialect::whole_seconds;
use super::field_names::{POLICY, RATELIMIT};
use super::field_syntax::Form;
use super::gcra_refill::drain_time;
use super::policy_names::policy_names;
use super::structured_fields::{Integer, quoted};
use crate::decision::{DecisionView, QuotaDecision};
use crate::quota::Quota;

/// How many fields it has.
pub(super) const FIELDS: usize = 2;

/// What the answers about the same quotas have in common.
#[derive(Debug)]
pub(super) struct Policies {
    /// `"burst";q=100;w=60, "daily";q=1000;w=86400`
    field: HeaderValue,
    /// `"burst"`, of each quota.
    names: Vec<String>,
}

/// Long enough for three policies of common names: a value is allocated once, when it is done.
type Text = SmallVec<[u8; 128]>;

impl Policies {
    pub(super) fn new(limiter: &str, quotas: &[&Quota]) -> Option<Self> {
        let names = policy_names(limiter, quotas);
        let names: Vec<_> = names.iter().map(|name| quoted(name)).collect();
        let mut text = Text::new();
        for (quota, name) in quotas.iter().zip(&names) {
            next_member(&mut text, name);
            parameter(&mut text, b";q=", quota.limit().into());
            if let Some(window) = window(quota) {
                parameter(&mut text, b";w=", window);
            }
        }
        let field = HeaderValue::from_bytes(&text).ok()?;
        Some(Self { field, names })
    }

    /// Adds to the lists that are there: a layer further in has policies of its own.
    pub(super) fn append(&self, decision: &DecisionView, to: &mut HeaderMap) {
        Form::Named.append(POLICY, self.field.clone(), to);
        if let Ok(limits) = HeaderValue::from_bytes(&self.limits(decision)) {
            Form::Named.append(RATELIMIT, limits, to);
        }
    }

    /// `"burst";r=42;t=17, "daily";r=913;t=36000`; of a refusal, the quotas that refuse.
    fn limits(&self, decision: &DecisionView) -> Text {
        let mut text = Text::new();
        for (quota, name) in decision.quotas().zip(&self.names) {
            if quota.is_allowed() != decision.is_allowed() {
                continue;
            }
            next_member(&mut text, name);
            parameter(&mut text, b";r=", quota.remaining().into());
            if let Some(seconds) = effective_window(quota) {
                parameter(&mut text, b";t=", seconds);
            }
        }
        text
    }
}

/// The window in seconds. The draft has no parts of them, and lets `w` be left out.
fn window(quota: &Quota) -> Option<u64> {
    let window = quota.window();
    (window.subsec_nanos() == 0).then_some(window.as_secs())
}

/// For how many seconds no more than what is left can be used. A refusal tells the same wait as
/// `Retry-After`, and none where no wait helps.
fn effective_window(quota: QuotaDecision<'_>) -> Option<u64> {
    let time_to_full = || drain_time(quota.quota(), quota.used());
    let wait = match quota.is_allowed() {
        true => time_to_full().unwrap_or_else(|| quota.reset_after()),
        false => quota.retry_after()?,
    };
    Some(whole_seconds(wait)).filter(|seconds| *seconds > 0)
}

fn next_member(text: &mut Text, name: &str) {
    if !text.is_empty() {
        text.extend_from_slice(b", ");
    }
    text.extend_from_slice(name.as_bytes());
}

fn parameter(text: &mut Text, name: &[u8], value: u64) {
    text.extend_from_slice(name);
    text.extend_from_slice(Integer::new().format(value).as_bytes());
}
