//! The result of a check: what a store answers, and the [`Decision`] that is made of it.
//!
//! This room knows `quota` and `key`.

mod answer;
mod decision;
mod pool;

pub use answer::{Answer, QuotaAnswer, Source};
pub(crate) use answer::{Counted, Receipt, Wait};
pub(crate) use decision::{ChargedKey, DecisionBuilder, LimiterId, StoreId};
pub use decision::{Decision, DecisionView, QuotaDecision};
