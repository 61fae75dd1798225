//! The result of a check: the store's [`Answer`], and the [`Decision`] made from it.
//!
//! Depends only on `quota` and `key`.

mod answer;
mod answers;
mod decision;
mod holding;
mod levels;
mod record;
#[cfg(feature = "serde")]
mod serde;

pub use answer::{Answer, QuotaAnswer, Receipt, Source, StoreId};
pub(crate) use answer::{CountScope, GrantUse, Wait};
pub use answers::Answers;
pub(crate) use decision::TakenLevel;
pub use decision::{Decision, DecisionView};
pub use holding::Holding;
pub(crate) use holding::{HoldingNote, holder_for};
pub use levels::{LevelDecision, QuotaDecision};
pub(crate) use record::{GrantUnits, LimiterFacts, LimiterId, Record, SharedRecord};
