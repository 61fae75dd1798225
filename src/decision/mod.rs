//! The result of a check: what a store answers, and the [`Decision`] that is made of it.
//!
//! This room knows `quota` and `key`.

mod answer;
mod builder;
mod decision;
mod pool;

pub use answer::{Answer, QuotaAnswer, Receipt, Source, StoreId};
pub(crate) use answer::{CountScope, Wait};
pub(crate) use builder::DecisionBuilder;
pub(crate) use decision::{ChargedKey, LimiterId};
pub use decision::{Decision, DecisionView, QuotaDecision};
