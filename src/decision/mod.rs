//! The answers of stores, and the record of a level: what was asked, and the answer.
//!
//! Stores write it, and telemetry reads it. Depends only on `quota`, `key` and `error`. The decision on a check, which knows its
//! limiters, is in `limiter`.

mod answer;
mod answers;
mod holding;
mod levels;
mod record;
#[cfg(feature = "serde")]
mod serde;

pub use answer::{Answer, QuotaAnswer, Receipt, Source, StoreId};
pub(crate) use answer::{CountScope, GrantUse, Wait};
pub use answers::Answers;
pub use holding::Holding;
pub(crate) use holding::{HoldingNote, holder_for};
pub use levels::{LevelDecision, QuotaDecision};
pub(crate) use levels::{QuotaIndex, least_remaining, reported_index};
pub(crate) use record::{GrantUnits, LimiterFacts, LimiterId, Record};
