//! Opens the store of the examples that run with and without Redis.

use std::env;

use tollgate::store::{AnyStore, from_url};
use tollgate::{ConfigError, RedisStore};

/// Opens the store at the URL in `TOLLGATE_STORE`. If it is not set, counts in memory.
///
/// `settings` sets at least a prefix, which separates the counts from those of other services on the same Redis.
pub(crate) fn open(
    settings: impl FnOnce(RedisStore) -> RedisStore,
) -> Result<AnyStore, ConfigError> {
    let url = env::var("TOLLGATE_STORE").unwrap_or_else(|_| "memory:".into());
    Ok(match from_url(&url)? {
        AnyStore::Redis(store) => settings(store).into(),
        memory => memory,
    })
}
