//! The settings of a Redis store, which are chosen before it is used.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use super::protocol::HashTags;
use super::redis_store::{RedisSettings, RedisStore, SharedState};
#[cfg(feature = "test-util")]
use super::script::Scripts;
use super::transport::{CredentialSource, Credentials};
#[cfg(feature = "test-util")]
use crate::clock::{Clock, TestClock};
use crate::error::{Code, Error};

/// The longest deadline: as good as none, and can still be added to the current time.
const MAX_DEADLINE: Duration = Duration::from_secs(366 * 86_400);

impl RedisStore {
    /// Changes a setting of a store before it is shared.
    ///
    /// A store in use is left as it is: its handles would no longer be one store. The returned handle then
    /// fails each call, so that the misuse shows.
    fn with(mut self, setting: &'static str, change: impl FnOnce(&mut RedisSettings)) -> Self {
        let misuse = match Arc::get_mut(&mut self.shared) {
            Some(shared) => shared.misuse.take(),
            None => Some(set_in_use(setting)),
        };
        let mut settings = self.shared.settings.clone();
        change(&mut settings);
        Self::with_settings(settings, misuse)
    }

    /// Returns another store with the same settings and on the same connections, to change a setting for some
    /// limiters only.
    ///
    /// Both stores count in the same keys, unless you change the prefix or the hash tags. The fork has its own
    /// circuit breakers, refusal cache and batches.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Quota, RateLimitLayer, RedisStore};
    ///
    /// let store = RedisStore::open("redis://127.0.0.1:6379")?.prefix("shop");
    /// let api = RateLimitLayer::new(store.clone(), Quota::per_minute(100));
    /// // Logins may wait longer for Redis than other requests. Both count in the same keys.
    /// let patient = store.fork().deadline(Duration::from_millis(500));
    /// let login = RateLimitLayer::new(patient, Quota::per_minute(5)).name("login");
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn fork(&self) -> Self {
        let SharedState {
            settings, misuse, ..
        } = &*self.shared;
        Self::with_settings(settings.clone(), misuse.clone())
    }

    /// Sets a closure that returns the user and the password of connections, for passwords that expire.
    ///
    /// Use it for the tokens of cloud providers: ElastiCache and MemoryDB with IAM, Azure with Entra ID, Memorystore with
    /// IAM. The guide has an [example](crate::guide::rented_servers#tokens-that-expire) for each. The credentials replace
    /// the user and the password in the URL. Sentinels do not get them: they have `sentinel_username` and
    /// `sentinel_password`.
    ///
    /// - **All connections of a store share a call.** Its result is kept for 3/4 of
    ///   [its life](crate::store::Credentials::valid_for), but for at least a second. Without a life, each new connection
    ///   asks, at most once a second.
    /// - **Connections are replaced in time.** At 3/4 of the life, the store connects with new credentials. Calls use the
    ///   old connection until the new one is established, so no check waits. No `AUTH` is sent between calls:
    ///   [Redis 7.2 to 8 and Valkey 8](https://github.com/redis/redis/issues/15640) may leave out the reply to one that
    ///   they refuse, and each later reply would be taken for that of another call.
    /// - **A failure keeps the connection.** If the closure fails, or a server refuses the credentials, the store tries
    ///   again each second, and logs one line, and one when that is over. A new connection uses the last credentials to the
    ///   end of their life, and does not wait for the closure.
    /// - **Rejected credentials are asked for again** at the next attempt to connect, at most once a second.
    ///
    /// The closure has 10 s, because clients of a token service retry for some seconds. It is called in a task of the
    /// runtime that connects. It may take longer than the [deadline](Self::deadline) of a check, whose error then names
    /// the closure. So call [`ping`](Self::ping) when the service starts.
    ///
    /// A [fork](Self::fork) shares closure and credentials. If you set others on it, it has connections of its own. The
    /// setting has no effect on a store [`with_connection`](Self::with_connection).
    ///
    /// # Errors
    ///
    /// A check fails with an error of kind [`Unavailable`](crate::ErrorKind::Unavailable) if a connection needs
    /// credentials and the closure fails, panics, takes longer than 10 s, or has not answered by the deadline. It fails with
    /// [`Misconfigured`](crate::ErrorKind::Misconfigured) if the server rejects them. Both name the server. The text of the
    /// closure's error is a part of errors and of the log, so it must not contain a secret.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::RedisStore;
    /// use tollgate::store::Credentials;
    ///
    /// # async fn token() -> Result<String, std::io::Error> { Ok(String::new()) }
    /// # #[cfg(feature = "tls")]
    /// let store = RedisStore::open("rediss://cache.example:6379")?;
    /// # #[cfg(not(feature = "tls"))]
    /// # let store = RedisStore::open("redis://cache.example:6379")?;
    /// let store = store.credentials(|| async {
    ///     Ok(Credentials::new("app", token().await?).valid_for(Duration::from_secs(900)))
    /// });
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn credentials<F, R>(self, provide: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<Credentials, Box<dyn StdError + Send + Sync>>> + Send + 'static,
    {
        self.with("credentials", |settings| {
            let deployment = &settings.deployment;
            let source = CredentialSource::new(deployment.name.clone(), provide);
            settings.deployment = Arc::new(deployment.with_credentials(source));
        })
    }

    /// Sets the name of the store in metrics. The default is the address of the server, or for Sentinel and
    /// Cluster the addresses in the URL.
    #[must_use]
    pub fn name(self, store: impl AsRef<str>) -> Self {
        self.with("name", |settings| settings.name = store.as_ref().into())
    }

    /// Sets the prefix of every stored key. The default is `tollgate`.
    ///
    /// Set another prefix for each service that shares a Redis. With the same prefix, limiters of the same
    /// name in two services share their counts, and the services share their blocked keys. A new prefix
    /// starts at 0 units. The [permissions](Self#permissions) of the Redis user contain the prefix.
    #[must_use]
    pub fn prefix(self, prefix: impl AsRef<str>) -> Self {
        self.with("prefix", |settings| {
            settings.names = settings.names.clone().with_prefix(prefix.as_ref());
        })
    }

    /// Sets the choice of hash tags. By default, each key has its own.
    ///
    /// Use it on Redis Cluster, so that checks share calls. See [`HashTags`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::num::NonZeroU16;
    /// use tollgate::store::HashTags;
    /// use tollgate::{Quota, RateLimitLayer, RateLimiter, RedisStore, key};
    ///
    /// # #[cfg(feature = "cluster")]
    /// let store = RedisStore::open("redis+cluster://10.0.0.1:7000,10.0.0.2:7000")?;
    /// # #[cfg(not(feature = "cluster"))]
    /// # let store = RedisStore::open("redis://10.0.0.1:7000")?;
    /// const TAGS: NonZeroU16 = NonZeroU16::new(48).unwrap(); // 16 for each of three masters
    /// let store = store.hash_tags(HashTags::ByPrefix(TAGS));
    /// let tenant = key::header("x-tenant-id");
    /// let layer = RateLimitLayer::new(store.clone(), Quota::per_minute(60))
    ///     .name("user")
    ///     .key((tenant.clone(), key::header("x-api-key")))
    ///     .and(RateLimiter::new(store, Quota::per_minute(1_000)).name("tenant"), tenant);
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn hash_tags(self, tags: HashTags) -> Self {
        self.with("hash_tags", |settings| {
            settings.names = settings.names.clone().with_hash_tags(tags);
        })
    }

    /// Sends the checks of each cluster slot in calls of their own, from the first check on.
    ///
    /// Use it with `redis://` or `rediss://` for a server that hides a cluster behind one address, as Azure Managed
    /// Redis and Redis Cloud do. The guide lists [more](crate::guide::rented_servers). In a URL it is `?slots=on`.
    ///
    /// Without it, the store learns from the first call that such a server refuses. That call has charged nothing and
    /// is sent again slot by slot, so the setting saves one round trip after the start. It has no effect on a store
    /// that was opened with `redis+cluster://`, which always does so. On a single server it costs calls: checks of
    /// different keys no longer share them.
    ///
    /// [`hash_tags`](Self::hash_tags) put more keys into one slot.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::RedisStore;
    ///
    /// let store = RedisStore::open("redis://shop.region.redis.azure.net:10000")?.by_slot();
    /// // The same by the URL.
    /// let store = RedisStore::open("redis://shop.region.redis.azure.net:10000?slots=on")?;
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn by_slot(self) -> Self {
        self.with("by_slot", |settings| settings.by_slot = true)
    }

    /// Sets the deadline of a check. The default is 100 ms.
    ///
    /// It includes connecting and waiting for the next call. A check that takes longer fails with an
    /// [`Error`] of kind [`ErrorKind::Timeout`](crate::ErrorKind::Timeout), or of kind
    /// [`ErrorKind::QueueTimeout`](crate::ErrorKind::QueueTimeout) if it waited for its turn in this process while
    /// Redis answered others. The default is about a hundred
    /// times a call to a healthy server in the same network, and too short for people to notice. The longest
    /// deadline is 366 days.
    ///
    /// Only the time in which this process runs counts: one that [stood still](crate::guide::failures#a-process-without-cpu)
    /// reads the replies that have arrived meanwhile.
    ///
    /// An attempt to connect gets nine tenths of it: at least 500 ms, and at most 30 s.
    ///
    /// A [fork](Self::fork) with another deadline uses the same connections.
    #[must_use]
    #[doc(alias("timeout"))]
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with("deadline", |settings| {
            settings.deadline = deadline.min(MAX_DEADLINE);
        })
    }

    /// Sets the longest time for which this process repeats a refusal without asking Redis. The default is one
    /// second. Zero turns the cache off.
    ///
    /// A refusal is repeated for 0.8 of its wait, so never for longer than Redis would refuse the check. That
    /// holds even while chrony slews the clocks of this process and of Redis in opposite directions at its
    /// maximum rate of 8.3 %.
    ///
    /// A reset, refund or credit through this store ends the refusal at once. The following are seen when the
    /// refusal expires: a reset, refund or credit through **another** process or store, a raised limit, and a
    /// jump of the server's clock.
    ///
    /// Clones share the cache. A [fork](Self::fork) has its own.
    #[must_use]
    pub fn refusal_cache(self, at_most: Duration) -> Self {
        self.with("refusal_cache", |settings| {
            settings.refusal_max_age = Some(at_most);
        })
    }

    /// Sets how often this process fetches the list of blocked keys, in place of every second. Zero turns it off.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    #[must_use]
    pub fn block_list_refresh(self, every: Duration) -> Self {
        self.with("block_list_refresh", |settings| {
            settings.block_list_refresh = every;
        })
    }

    /// Sets the most keys of the fallback counts, in place of 100 000.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    #[must_use]
    pub fn fallback_keys(self, keys: usize) -> Self {
        self.with("fallback_keys", |settings| {
            settings.fallback_keys = Some(keys);
        })
    }

    /// Replaces both clocks: `clock` is Lua in front of the script that defines `now`, `local` is
    /// the clock of this process.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    #[must_use]
    pub fn with_clock_source(self, clock: &str, local: TestClock) -> Self {
        self.with("with_clock_source", |settings| {
            settings.scripts = Arc::new(Scripts::with_clock(clock));
            settings.clock = Clock::Test(local);
        })
    }
}

fn set_in_use(setting: &str) -> Error {
    Error::coded(
        Code::IN_USE,
        format!(
            "`RedisStore::{setting}` was called on a store that is in use: call it right after \
             `RedisStore::open`, before the store is cloned or given to a limiter, or on `store.fork()`"
        ),
    )
}
