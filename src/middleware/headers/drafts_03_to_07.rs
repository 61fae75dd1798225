//! Drafts 3, 6 and 7 of the IETF's `RateLimit` fields: policies without names, and the numbers of
//! one of them.

use std::cmp::Reverse;

use http::{HeaderMap, HeaderValue};

use super::dialect::whole_seconds;
use super::field_names::{LIMIT, POLICY, RATELIMIT, REMAINING, RESET};
use super::field_syntax::Form;
use super::number::value_of;
use super::structured_fields::Integer;
use super::templates::Place;
use super::x_ratelimit::wait;
use crate::decision::{DecisionView, QuotaDecision};
use crate::quota::Quota;

/// How many fields these have at most.
pub(super) const FIELDS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A field for each number; the policies follow the limit.
    Three,
    /// A field for each number, and one for the policies.
    Six,
    /// One field for the numbers, and one for the policies.
    Seven,
}

/// What the answers about the same quotas have in common.
#[derive(Debug)]
pub(super) struct Policies {
    shape: Shape,
    /// `10;w=1, 100;w=60`
    field: HeaderValue,
}

/// The numbers, in the words of the drafts.
struct Told {
    limit: u64,
    remaining: u64,
    reset: u64,
}

impl Policies {
    pub(super) fn new(shape: Shape, quotas: &[&Quota]) -> Option<Self> {
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
            // These drafts demand a window, and have no parts of seconds.
            text.push_str(Integer::new().format(whole_seconds(quota.window())));
        }
        let field = HeaderValue::try_from(text).ok()?;
        Some(Self { shape, field })
    }

    pub(super) fn write(
        &self,
        decision: &DecisionView,
        reported: QuotaDecision<'_>,
        place: Place,
        to: &mut HeaderMap,
    ) {
        if self.shape != Shape::Three {
            Form::Nameless.append(POLICY, self.field.clone(), to);
        }
        if place == Place::Behind {
            return;
        }
        let told = Told::of(decision, reported);
        match self.shape {
            Shape::Three => told.insert_fields(self.limit_and_policies(told.limit), to),
            Shape::Six => told.insert_fields(value_of(told.limit), to),
            Shape::Seven => told.insert_dictionary(to),
        }
    }

    /// `100, 10;w=1, 100;w=60`
    fn limit_and_policies(&self, limit: u64) -> HeaderValue {
        let mut text = Integer::new().format(limit).as_bytes().to_vec();
        text.extend_from_slice(b", ");
        text.extend_from_slice(self.field.as_bytes());
        HeaderValue::try_from(text).unwrap_or_else(|_| value_of(limit))
    }
}

/// Whether another policy of the same limit is listed, which the drafts forbid: the one with the
/// longer window implies the other.
fn is_implied(quota: &Quota, index: usize, quotas: &[&Quota]) -> bool {
    let strictness = |quota: &Quota, index| (quota.window(), Reverse(index));
    let own = strictness(quota, index);
    let mut others = quotas.iter().enumerate();
    others.any(|(index, other)| other.limit() == quota.limit() && strictness(other, index) > own)
}

impl Told {
    /// The limit of the quota with the fewest units left, which is mostly the one that is reported;
    /// the wait is the one of `Retry-After`, as draft 7 asks.
    fn of(decision: &DecisionView, reported: QuotaDecision<'_>) -> Self {
        let remaining = decision.remaining();
        let mut quotas = std::iter::once(reported).chain(decision.quotas());
        let expiring = quotas.find(|quota| quota.remaining() == remaining);
        Self {
            limit: expiring.unwrap_or(reported).limit().into(),
            remaining: remaining.into(),
            // Demanded even where no wait helps.
            reset: whole_seconds(wait(reported).unwrap_or_else(|| reported.quota().window())),
        }
    }

    fn insert_fields(&self, limit: HeaderValue, to: &mut HeaderMap) {
        to.insert(LIMIT, limit);
        to.insert(REMAINING, value_of(self.remaining));
        to.insert(RESET, value_of(self.reset));
    }

    /// `limit=100, remaining=42, reset=17`
    fn insert_dictionary(&self, to: &mut HeaderMap) {
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
            Form::Nameless.replace(RATELIMIT, text, to);
        }
    }
}
