//! Opens a store by its URL.

use super::any_store::AnyStore;
use super::memory::MemoryStore;
#[cfg(feature = "redis")]
use super::redis::RedisStore;
use super::url_scheme::known_scheme;
use crate::error::ConfigError;

/// Opens the store of a URL, for configuration. Does not connect.
///
/// | URL | store |
/// |---|---|
/// | `memory:` | a [`MemoryStore`] for 100 000 keys; `memory:?max_keys=5000` for another number |
/// | `redis://[user][:password@]host[:port][/database]` | a [`RedisStore`] on one server (feature `redis`) |
/// | `unix:///path/to/redis.sock` | the same over a Unix socket |
/// | `rediss://…` | the same over TLS (feature `tls`) |
/// | `redis+sentinel://host[:port],…/master[/database]` | the master that Redis Sentinel names (feature `sentinel`) |
/// | `redis+cluster://host[:port],…` | the Redis Cluster with these nodes (feature `cluster`) |
///
/// A URL of Redis may have settings as parameters, such as `redis://10.0.0.1?prefix=shop&deadline=50ms`: see
/// [`RedisStore`](crate::RedisStore#settings). The parameters of the connection are
/// [there](crate::RedisStore#sentinel-cluster-tls), too. `valkey` may replace `redis`, and `valkeys` `rediss`.
///
/// For `postgres://…`, the crate `tollgate-postgres` has a function of the same name, which passes all other URLs on to this
/// one. Here, such a URL is an error that names the crate.
///
/// If several services share a Redis, give each its own [`prefix`](crate::RedisStore::prefix). Otherwise, limiters
/// of the same name in two services share their counts.
///
/// # Errors
///
/// Returns an error of kind [`ConfigErrorKind::Url`](crate::ConfigErrorKind::Url) if the URL is malformed, has
/// an unknown parameter, or needs a feature that this build does not have. The text shows no part of the URL but its scheme and
/// the names of known parameters: any other part of a malformed URL may be a password.
///
/// # Examples
///
/// ```
/// let url = std::env::var("STORE").unwrap_or_else(|_| "memory:".into());
/// // In production: "redis://10.0.0.1:6379?prefix=shop&deadline=50ms".
/// let store = tollgate::store::from_url(&url)?;
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
pub fn from_url(url: &str) -> Result<AnyStore, ConfigError> {
    let (_, rest) = split(url)?;
    match known_scheme(url) {
        "memory" => memory(rest),
        _ => redis(url),
    }
}

fn memory(rest: &str) -> Result<AnyStore, ConfigError> {
    if rest.is_empty() {
        return Ok(MemoryStore::new().into());
    }
    let max_keys = rest.strip_prefix("?max_keys=").map(str::parse);
    match max_keys {
        Some(Ok(max_keys)) => Ok(MemoryStore::with_max_keys(max_keys).into()),
        _ => Err(ConfigError::url(
            "memory",
            "a store in memory has no address and one parameter: use `memory:` or `memory:?max_keys=100000`",
        )),
    }
}

#[cfg(feature = "redis")]
fn redis(url: &str) -> Result<AnyStore, ConfigError> {
    Ok(RedisStore::open(url)?.into())
}

#[cfg(not(feature = "redis"))]
fn redis(url: &str) -> Result<AnyStore, ConfigError> {
    Err(ConfigError::url(
        known_scheme(url),
        "this build supports only `memory:`: for Redis, enable the feature `redis`; for Postgres, use the crate \
         `tollgate-postgres`",
    ))
}

/// Splits a URL into its scheme and the rest.
pub(super) fn split(url: &str) -> Result<(&str, &str), ConfigError> {
    url.split_once(':').ok_or_else(|| {
        ConfigError::url(
            "",
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
            assert!(text.contains("`tollgate-postgres`"), "{text}");
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
            "redis://:p%23ss@127.0.0.1/3?name=ann@work",
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
            ("memory:secret", "has no address"),
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
                "\"redis:…\": invalid database number",
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
                "failed to read `ca`: No such file",
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
            ("postgres://user:secret@a/shop", "`tollgate-postgres`"),
            (
                "postgresql://user:secret@a/shop",
                "\"postgresql:…\": open it by `from_url` of the crate `tollgate-postgres`",
            ),
            ("redis-http://user:secret@a", "not a redis url"),
            (
                "redis-sentinel://user:secret@a,b/m",
                "\"…\": write `redis+sentinel://` instead",
            ),
            ("sentinel://:secret@a,b/m", "write `redis+sentinel://`"),
            (
                "redis-cluster://user:secret@a,b",
                "write `redis+cluster://`",
            ),
            ("cluster://user:secret@a,b", "write `redis+cluster://`"),
            ("rediss-cluster://:secret@a,b", "write `rediss+cluster://`"),
            ("sentinel+redis://:secret@a/m", "write `redis+sentinel://`"),
            (
                "redis-sentinel://:1#secret@a/m",
                "write `redis+sentinel://`",
            ),
        ] {
            let error = from_url(url).err().unwrap();
            assert_eq!(error.kind(), ConfigErrorKind::Url);
            let text = error.to_string();
            assert!(text.contains(rule), "{url}: {text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
