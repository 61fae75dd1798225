//! Stores of counts: the [`Store`] trait, and the stores of this crate.
//!
//! [`RedisStore`] shares its counts between all processes,
//! [`MemoryStore`] counts in this one, by the same rules.
//!
//! This room knows `telemetry` and what is below it.

mod block_list;
mod circuit_breaker;
mod counters;
mod from_url;
mod future;
mod memory;
mod protected_store;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod refusal_cache;
mod requests;
#[expect(
    clippy::module_inception,
    reason = "a room's main file is named like the room"
)]
mod store;
#[cfg(feature = "test-util")]
mod testing;

pub use block_list::{BlockList, RefreshTrigger};
pub use circuit_breaker::CircuitBreaker;
pub use counters::Counters;
pub use from_url::from_url;
pub use future::StoreFuture;
pub use memory::MemoryStore;
pub(crate) use protected_store::{PendingAnswer, ProtectedStore};
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use redis::RedisStore;
pub use refusal_cache::RefusalCache;
pub(crate) use refusal_cache::SendMark;
pub(crate) use requests::Subject;
pub use requests::{Block, Check, Credit, Refund, Reset};
pub use store::Store;
#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub use testing::{Checked, Conformance, ConformanceReport, RuleOutcome, TestStore};

#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub use crate::clock::TestClock;
pub use crate::decision::{Answer, QuotaAnswer, Receipt, Source, StoreId};
