//! A store of either kind, which a URL chose.

use std::time::Duration;

use super::circuit_breaker::CircuitBreaker;
use super::future::StoreFuture;
use super::memory::MemoryStore;
#[cfg(feature = "redis")]
use super::redis::RedisStore;
use super::requests::{Adjust, Block, Check, Subject};
use super::store::{Store, StoreParts, delegate_to_store};
use crate::decision::{Holding, StoreId};
use crate::error::Error;

/// The store of a URL, from [`from_url`](super::from_url): in memory or in Redis.
///
/// # Examples
///
/// A default prefix for all deployments, and a check at startup:
///
/// ```
/// use tollgate::store::{self, AnyStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let url = std::env::var("STORE").unwrap_or_else(|_| "memory:".into());
/// let store = match store::from_url(&url)? {
///     # #[cfg(feature = "redis")]
///     AnyStore::Redis(redis) => AnyStore::from(redis.prefix("shop")),
///     memory => memory,
/// };
/// store.ping().await?;
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(example())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnyStore {
    /// Counts in this process.
    Memory(MemoryStore),
    /// Counts in Redis.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    Redis(RedisStore),
}

impl AnyStore {
    /// Checks that the store answers: see [`RedisStore::ping`](crate::RedisStore::ping). A store in memory does.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis does not answer within the deadline, or replies with an error.
    #[cfg_attr(
        not(feature = "redis"),
        expect(clippy::unused_async, reason = "only Redis is asked")
    )]
    pub async fn ping(&self) -> Result<(), Error> {
        match self {
            Self::Memory(_) => Ok(()),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.ping().await,
        }
    }

    fn store(&self) -> &dyn Store {
        match self {
            Self::Memory(store) => store,
            #[cfg(feature = "redis")]
            Self::Redis(store) => store,
        }
    }
}

impl Store for AnyStore {
    delegate_to_store!(|self| self.store());
}

impl From<MemoryStore> for AnyStore {
    fn from(store: MemoryStore) -> Self {
        Self::Memory(store)
    }
}

#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
impl From<RedisStore> for AnyStore {
    fn from(store: RedisStore) -> Self {
        Self::Redis(store)
    }
}
