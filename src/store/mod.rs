//! Stores keep the counts of a limiter and decide its checks.
//!
//! | store | counts | for |
//! |---|---|---|
//! | [`RedisStore`] | in Redis or Valkey, shared by all processes | services with several processes |
//! | [`MemoryStore`] | in the memory of this process | services with one process, tests |
//! | [`TestStore`] (feature `test-util`) | in memory; refuses, fails or hangs when the test wants it | tests of a service |
//! | [`StoreOn`] any [`Rows`] | in your database, shared by all processes | services that have a database already |
//!
//! [`RedisStore`] and [`MemoryStore`] make the same decisions, to the microsecond. [`from_url`] opens either
//! by a URL from a configuration.
//!
//! # Examples
//!
//! ```
//! use tollgate::{Quota, RateLimitLayer, store};
//!
//! let url = std::env::var("TOLLGATE_STORE").unwrap_or_else(|_| "memory:".into());
//! let layer = RateLimitLayer::new(store::from_url(&url)?, Quota::per_minute(100));
//! # Ok::<(), tollgate::ConfigError>(())
//! ```
//!
//! # Write a store
//!
//! 1. Implement [`Rows`] for your database. One method is required: it reads rows, lets a [`Batch`] decide, and writes rows,
//!    in one transaction.
//! 2. Wrap it: `StoreOn::new(rows).name("sqlite")` is a store with every rule of this crate.
//! 3. Run the kit of the package `tollgate-conformance` in a test: it checks every rule that limiters rely on.

mod any_store;
mod block_list;
mod circuit_breaker;
mod counters;
mod fingerprint_cache;
mod from_url;
mod future;
mod memory;
mod protected_store;
mod real_time;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod refusal_cache;
mod requests;
mod rows;
#[expect(clippy::module_inception, reason = "the file of the trait `Store`")]
mod store;
#[cfg(feature = "test-util")]
mod testing;
mod url_scheme;

pub use any_store::AnyStore;
pub use block_list::BlockList;
pub use circuit_breaker::CircuitBreaker;
pub use counters::{Counters, Decided};
pub use from_url::from_url;
pub use future::{Answerer, StoreFuture};
pub(crate) use future::{FutureState, WaitingAnswer, join_all};
pub use memory::MemoryStore;
pub(crate) use protected_store::{ProtectedStore, SendMarks};
pub use real_time::timeout;
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use redis::{Credentials, HashTags, RedisStore};
pub use refusal_cache::RefusalCache;
pub(crate) use requests::OwnedSubject;
pub use requests::{Adjust, Block, Change, Check, OwnedAdjust, OwnedCheck, Subject};
#[doc(hidden)]
pub use rows::for_kit as rows_for_kit;
pub use rows::{Batch, RowName, Rows, StoreOn, Write, Written};
pub use store::{Store, StoreParts};
#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub use testing::TestStore;

#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub use crate::clock::TestClock;
pub use crate::decision::{Answer, Answers, Holding, QuotaAnswer, Receipt, Source, StoreId};
pub use crate::key::Fingerprint;
