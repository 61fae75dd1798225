//! Opens the store of the examples that run with and without Redis.

use std::env;
use std::sync::Arc;

use tollgate::{ConfigError, MemoryStore, RedisStore, Store};

/// Opens the Redis at the URL in `TOLLGATE_STORE`. If it is not set, or is `memory:`, counts in memory.
///
/// The prefix separates the counts from those of other services on the same Redis.
pub(crate) fn open(prefix: &str) -> Result<Arc<dyn Store>, ConfigError> {
    Ok(match env::var("TOLLGATE_STORE").as_deref() {
        Err(_) | Ok("memory:") => Arc::new(MemoryStore::new()),
        Ok(url) => Arc::new(RedisStore::open(url)?.prefix(prefix)),
    })
}
