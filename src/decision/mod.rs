//! The result of a check: the store's [`Answer`], and the [`Decision`] made from it.
//!
//! Depends only on `quota` and `key`.

mod answer;
mod builder;
mod decision;
mod pool;

pub use answer::{Answer, QuotaAnswer, Receipt, Source, StoreId};
pub(crate) use answer::{CountScope, Wait};
pub(crate) use builder::DecisionBuilder;
pub(crate) use decision::{ChargedKey, LimiterId};
pub use decision::{Decision, DecisionView, QuotaDecision};
