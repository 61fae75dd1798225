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
//! The page [Your own database](crate::guide::own_database) has an example, and the reason for each step.
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
#[doc(hidden)]
pub mod protocol;
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
pub(crate) use block_list::BlockList;
pub(crate) use fingerprint_cache::{FingerprintCache, fingerprint_cache};
pub use from_url::from_url;
pub(crate) use future::{FutureState, OutcomeSender, StoreFuture, WaitingAnswer, join_all};
pub use memory::MemoryStore;
pub(crate) use protected_store::{ProtectedStore, SendMarks};
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use redis::{Credentials, HashTags, RedisStore};
pub(crate) use requests::{Block, Change, Check, OwnedCheck, OwnedSubject, Subject};
pub use rows::{Batch, RowName, Rows, StoreOn, Write, Written};
pub use store::Store;
#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub use testing::{ReceivedCheck, TestStore};

#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub use crate::clock::TestClock;
pub use crate::decision::Source;
