//! Drafts 3, 6 and 7 of the IETF's `RateLimit` fields: policies without names, and the numbers of one quota.

use std::cmp::Reverse;

use http::{HeaderMap, HeaderValue};

use super::field_names::{LIMIT, POLICY, RATELIMIT, REMAINING, RESET};
use super::number_value::number_value;
use super::structured_fields::{FieldSyntax, Integer};
use super::times::{reported_wait, whole_seconds};
use crate::decision::{DecisionView, QuotaDecision};
use crate::quota::Quota;

/// The maximum number of fields in these drafts.
pub(super) const FIELDS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EarlyDraft {
    /// A field for each number. The policies follow the limit.
    Draft03,
    /// A field for each number, and one for the policies.
    Draft06,
    /// One field for all numbers, and one for the policies.
    Draft07,
}

/// The parts of the fields that depend only on the quotas.
#[derive(Debug)]
pub(super) struct EarlyDraftTemplate {
    draft: EarlyDraft,
    /// `10;w=1, 100;w=60`
    policies: HeaderValue,
}

/// The numbers of one decision, with the names of the drafts.
struct Numbers {
    limit: u64,
    remaining: u64,
    reset: u64,
}

impl EarlyDraftTemplate {
    pub(super) fn new(draft: EarlyDraft, quotas: &[&Quota]) -> Option<Self> {
        // Slots have no window, which these drafts require.
        let are_all_soft = quotas.iter().all(|quota| quota.is_soft());
        let quotas: Vec<_> = quotas
            .iter()
            .copied()
            .filter(|quota| !quota.is_in_flight() && (are_all_soft || !quota.is_soft()))
            .collect();
        if quotas.is_empty() {
            return None;
        }
        let quotas = &*quotas;
        let mut text = String::new();
        for (index, quota) in quotas.iter().enumerate() {
            if is_implied(quota, index, quotas) {
                continue;
            }
            if !text.is_empty() {
                text.push_str(", ");
            }
            text.push_str(Integer::new().format(quota.limit().into()));
            text.push_str(";w=");
            // These drafts require a window, and have no fractions of seconds.
            text.push_str(Integer::new().format(whole_seconds(quota.window())));
        }
        let policies = HeaderValue::try_from(text).ok()?;
        Some(Self { draft, policies })
    }

    /// Appends to the list of policies, if the draft has a field for it.
    pub(super) fn append_policies(&self, headers: &mut HeaderMap) {
        if self.draft != EarlyDraft::Draft03 {
            FieldSyntax::Unnamed.append(POLICY, self.policies.clone(), headers);
        }
    }

    pub(super) fn write_numbers(
        &self,
        decision: &DecisionView,
        reported: QuotaDecision<'_>,
        headers: &mut HeaderMap,
    ) {
        let Some(numbers) = Numbers::new(decision, reported) else {
            return;
        };
        match self.draft {
            EarlyDraft::Draft03 => {
                numbers.insert_fields(self.limit_and_policies(numbers.limit), headers);
            }
            EarlyDraft::Draft06 => numbers.insert_fields(number_value(numbers.limit), headers),
            EarlyDraft::Draft07 => numbers.insert_dictionary(headers),
        }
    }

    /// Returns a value like `100, 10;w=1, 100;w=60`.
    fn limit_and_policies(&self, limit: u64) -> HeaderValue {
        let mut text = Integer::new().format(limit).as_bytes().to_vec();
        text.extend_from_slice(b", ");
        text.extend_from_slice(self.policies.as_bytes());
        HeaderValue::try_from(text).unwrap_or_else(|_| number_value(limit))
    }
}

/// Returns whether a policy is omitted because another one has the same limit, which the drafts forbid. The
/// one with the longer window is kept, since it implies the other.
fn is_implied(quota: &Quota, index: usize, quotas: &[&Quota]) -> bool {
    let strictness = |quota: &Quota, index| (quota.window(), Reverse(index));
    let own = strictness(quota, index);
    let mut others = quotas.iter().enumerate();
    others.any(|(index, other)| other.limit() == quota.limit() && strictness(other, index) > own)
}

impl Numbers {
    /// Uses the limit of the quota with the fewest units left, which is mostly the reported one. On a 429,
    /// the reset is the wait of `Retry-After`, as draft 7 requires. Slots have no window, so they are left out.
    fn new(decision: &DecisionView, reported: QuotaDecision<'_>) -> Option<Self> {
        // A soft quota is reported only if all are soft.
        let are_all_soft = reported.quota().is_soft();
        let is_rate = |quota: &QuotaDecision<'_>| {
            let quota = quota.quota();
            !quota.is_in_flight() && quota.is_soft() == are_all_soft
        };
        let rates = || decision.quotas().filter(is_rate);
        let reported = Some(reported).filter(is_rate);
        let fewest_left = rates().map(|quota| quota.remaining()).min();
        let remaining = fewest_left.unwrap_or_else(|| decision.remaining());
        let mut quotas = reported.into_iter().chain(rates());
        let fewest_left = quotas.find(|quota| quota.remaining() == remaining);
        let reported = reported.or(fewest_left)?;
        // The drafts require a reset even if no wait helps.
        let reset = reported_wait(reported).or_else(|| reported.retry_after());
        let reset = reset.unwrap_or_else(|| reported.quota().window());
        Some(Self {
            limit: fewest_left.unwrap_or(reported).limit().into(),
            remaining: remaining.into(),
            reset: whole_seconds(reset),
        })
    }

    fn insert_fields(&self, limit: HeaderValue, headers: &mut HeaderMap) {
        headers.insert(LIMIT, limit);
        headers.insert(REMAINING, number_value(self.remaining));
        headers.insert(RESET, number_value(self.reset));
    }

    /// Writes a value like `limit=100, remaining=42, reset=17`.
    fn insert_dictionary(&self, headers: &mut HeaderMap) {
        let mut text = String::with_capacity(64);
        let members = [
            ("limit=", self.limit),
            (", remaining=", self.remaining),
            (", reset=", self.reset),
        ];
        for (key, number) in members {
            text.push_str(key);
            text.push_str(Integer::new().format(number));
        }
        if let Ok(text) = HeaderValue::from_str(&text) {
            FieldSyntax::Unnamed.replace(RATELIMIT, text, headers);
        }
    }
}
