//! The result of a check: the store's [`Answer`], and the [`Decision`] made from it.
//!
//! Depends only on `quota` and `key`.

mod answer;
mod answers;
mod builder;
mod decision;
mod holding;
mod levels;
mod pool;

pub use answer::{Answer, QuotaAnswer, Receipt, Source, StoreId};
pub(crate) use answer::{CountScope, GrantUse, Wait};
pub use answers::Answers;
pub(crate) use builder::DecisionBuilder;
pub(crate) use decision::TakenLevel;
pub use decision::{Decision, DecisionView};
pub use holding::Holding;
pub(crate) use holding::{HoldingNote, holder_for};
pub(crate) use levels::{GrantUnits, LevelData, LevelLimiter, LimiterId};
pub use levels::{LevelDecision, QuotaDecision};
