//! Opens the store of the examples that run with and without Redis.

use std::env;
use std::sync::Arc;

use tollgate::{ConfigError, MemoryStore, RedisStore, Store};

/// Opens the Redis at the URL in `TOLLGATE_STORE`. If it is not set, or is `memory:`, counts in memory.
///
/// `settings` sets at least a prefix, which separates the counts from those of other services on the same Redis.
pub(crate) fn open(
    settings: impl FnOnce(RedisStore) -> RedisStore,
) -> Result<Arc<dyn Store>, ConfigError> {
    Ok(match env::var("TOLLGATE_STORE").as_deref() {
        Err(_) | Ok("memory:") => Arc::new(MemoryStore::new()),
        Ok(url) => Arc::new(settings(RedisStore::open(url)?)),
    })
}
