//! Opens a store by its URL.

use std::sync::Arc;

use super::memory::MemoryStore;
#[cfg(feature = "redis")]
use super::redis::RedisStore;
use super::store::Store;
use crate::error::ConfigError;

/// Opens the store of a URL, for configuration. Does not connect.
///
/// | URL | store |
/// |---|---|
/// | `memory:` | a [`MemoryStore`] for 100 000 keys |
/// | `redis://[user][:password@]host[:port][/database]` | a [`RedisStore`] on one server (feature `redis`) |
/// | `unix:///path/to/redis.sock` | the same over a Unix socket |
/// | `rediss://…` | the same over TLS (feature `tls`) |
/// | `redis+sentinel://host[:port],…/master[/database]` | the master that Redis Sentinel names (feature `sentinel`) |
/// | `redis+cluster://host[:port],…` | the Redis Cluster with these nodes (feature `cluster`) |
///
/// The [docs of `RedisStore`](RedisStore#sentinel-cluster-tls) have the parameters of each URL. `valkey` may
/// replace `redis`, and `valkeys` `rediss`.
///
/// A URL sets no prefix: all stored keys begin with `tollgate`. If several services share a Redis, open the
/// store with [`RedisStore::open`] and set a [`prefix`](RedisStore::prefix). Otherwise, limiters of the same
/// name in two services share their counts.
///
/// # Errors
///
/// Returns an error of kind [`ConfigErrorKind::Url`](crate::ConfigErrorKind::Url) if the URL is malformed, or
/// needs a feature that this build does not have. The text never contains a part that could be a password.
///
/// # Examples
///
/// ```
/// let url = std::env::var("TOLLGATE_STORE").unwrap_or_else(|_| "memory:".into());
/// let store = tollgate::store::from_url(&url)?;
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
pub fn from_url(url: &str) -> Result<Arc<dyn Store>, ConfigError> {
    let (scheme, rest) = split(url)?;
    match scheme {
        "memory" if rest.is_empty() => Ok(Arc::new(MemoryStore::new())),
        "memory" => Err(ConfigError::url(
            "memory:…",
            "the memory store takes no address: use `memory:`",
        )),
        _ => redis(url),
    }
}

#[cfg(feature = "redis")]
fn redis(url: &str) -> Result<Arc<dyn Store>, ConfigError> {
    Ok(Arc::new(RedisStore::open(url)?))
}

#[cfg(not(feature = "redis"))]
fn redis(url: &str) -> Result<Arc<dyn Store>, ConfigError> {
    // Without a `//`, the text before the first colon may be a password.
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    Err(ConfigError::url(
        &format!("{scheme}…"),
        "this build supports only `memory:`: for Redis, enable the feature `redis`",
    ))
}

/// Splits a URL into its scheme and the rest.
pub(super) fn split(url: &str) -> Result<(&str, &str), ConfigError> {
    // The text may begin with a password: show nothing of it.
    url.split_once(':').ok_or_else(|| {
        ConfigError::url(
            "…",
            "a store URL begins with a scheme, like `redis://` or `memory:`",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ConfigErrorKind;

    #[cfg(not(feature = "redis"))]
    #[test]
    fn without_redis_the_error_names_the_feature() {
        assert!(from_url("memory:").is_ok());
        for url in [
            "redis://user:secret@127.0.0.1",
            "valkeys://user:secret@127.0.0.1",
            "redis+cluster://user:secret@a,b",
            "unix:///tmp/redis.sock",
            "secret:6379",
        ] {
            let error = from_url(url).err().unwrap();
            assert_eq!(error.kind(), ConfigErrorKind::Url);
            let text = error.to_string();
            assert!(text.contains("enable the feature `redis`"), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_url_names_a_store() {
        for url in [
            "memory:",
            "redis://127.0.0.1",
            "redis://:secret@[::1]:7000/3",
            "unix:///tmp/redis.sock",
            "valkey://127.0.0.1",
            "redis://:p@ssword@127.0.0.1",
            "redis://:p%23ss@127.0.0.1/3?note=ann@work",
            #[cfg(feature = "tls")]
            "rediss://127.0.0.1",
            #[cfg(feature = "sentinel")]
            "redis+sentinel://a,b,c/mymaster",
            #[cfg(feature = "cluster")]
            "redis+cluster://a,b:7001",
        ] {
            assert!(from_url(url).is_ok(), "{url}");
        }
        let debug = format!("{:?}", RedisStore::open("redis://:secret@[::1]:7000/3"));
        assert!(
            debug.contains("::1:7000") && !debug.contains("secret"),
            "{debug}"
        );
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_malformed_url_is_an_error_that_shows_no_password() {
        for (url, rule) in [
            ("", "begins with a scheme"),
            ("127.0.0.1", "begins with a scheme"),
            ("memory:secret", "takes no address"),
            ("secret@127.0.0.1:6379", "relative URL"),
            ("secret:6379", "not a redis url"),
            (":secret@127.0.0.1:6379", "relative URL"),
            ("user:secret@127.0.0.1:6379", "not a redis url"),
            ("http://user:secret@127.0.0.1", "not a redis url"),
            ("redis://", "missing hostname"),
            ("redis://user:secret@", "empty host"),
            (
                "redis://user:secret@127.0.0.1:notaport",
                "invalid port number",
            ),
            ("redis://user:secret@127.0.0.1:70000", "invalid port number"),
            ("redis://user:secret@[::1", "invalid IPv6 address"),
            (
                "redis://user:secret@127.0.0.1/x",
                "\"redis://127.0.0.1/x\": invalid database number",
            ),
            (
                "redis://user:secret@127.0.0.1/-1",
                "a database is a number from 0",
            ),
            (
                "redis://user:secret@127.0.0.1?protocol=9",
                "invalid protocol version",
            ),
            ("redis://:pa#secret@127.0.0.1", "`#` in a user or password"),
            (
                "redis://user:1#secret@127.0.0.1",
                "percent-encoded as `%23`",
            ),
            ("rediss://secret#secret@127.0.0.1/3", "`%23`"),
            ("redis://:1/secret@127.0.0.1", "percent-encoded as `%2F`"),
            ("redis://user:p@a/secret@127.0.0.1/0", "`%2F`"),
            ("redis://:1?secret@127.0.0.1", "percent-encoded as `%3F`"),
            ("redis+cluster://:1#secret@a,b", "`%23`"),
            ("redis+sentinel://:1/secret@a,b/m", "`%2F`"),
            ("redis://user:secret@0.0.0.0", "wildcard"),
            #[cfg(not(feature = "tls"))]
            ("rediss://user:secret@127.0.0.1", "enable the feature `tls`"),
            #[cfg(feature = "tls")]
            (
                "rediss://user:secret@127.0.0.1#insecure",
                "certificates are always checked",
            ),
            #[cfg(feature = "tls")]
            (
                "rediss://user:secret@127.0.0.1?ca=/nowhere/ca.pem",
                "failed to read `ca` from /nowhere/ca.pem",
            ),
            #[cfg(not(feature = "sentinel"))]
            (
                "redis+sentinel://user:secret@a/m",
                "enable the feature `sentinel`",
            ),
            #[cfg(not(feature = "cluster"))]
            (
                "redis+cluster://user:secret@a",
                "enable the feature `cluster`",
            ),
            #[cfg(feature = "sentinel")]
            ("redis+sentinel://user:secret@a,b", "/master[/database]"),
            #[cfg(feature = "sentinel")]
            (
                "redis+sentinel://user:secret@a,b/m/x",
                "invalid database number",
            ),
            #[cfg(feature = "cluster")]
            ("redis+cluster://user:secret@a,,b", "percent-encoded"),
            #[cfg(feature = "cluster")]
            ("redis+cluster://user:/secret@a,b", "percent-encoded"),
            #[cfg(feature = "cluster")]
            ("redis+cluster://user:secret@a:x,b", "invalid port number"),
            ("redis+http://user:secret@a", "not a redis url"),
        ] {
            let error = from_url(url).err().unwrap();
            assert_eq!(error.kind(), ConfigErrorKind::Url);
            let text = error.to_string();
            assert!(text.contains(rule), "{url}: {text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
