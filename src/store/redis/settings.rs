//! The settings of a Redis store, which are chosen before it is used.

use std::num::{NonZeroU16, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use super::client::Client;
use super::redis_store::{RedisStore, Settings, Shared};
#[cfg(feature = "test-util")]
use super::script::Scripts;
#[cfg(feature = "test-util")]
use crate::clock::{Clock, TestClock};
use crate::error::{Error, ErrorKind};
use crate::telemetry::StoreMeter;

/// The longest deadline: as good as none, and can still be added to the current time.
const MAX_DEADLINE: Duration = Duration::from_secs(366 * 86_400);

impl RedisStore {
    /// Changes a setting of a store before it is shared.
    ///
    /// A store in use is left as it is: its handles would no longer be one store. The returned handle then
    /// fails each call, so that the misuse shows.
    fn with(
        mut self,
        setting: &'static str,
        change: impl FnOnce(&mut Client, &mut Settings),
    ) -> Self {
        let misuse = if Arc::get_mut(&mut self.shared).is_some() {
            self.shared.misuse.clone()
        } else {
            Some(set_in_use(setting))
        };
        let mut client = self.shared.client.clone();
        let mut settings = self.shared.settings.clone();
        change(&mut client, &mut settings);
        Self::build(client, settings, misuse)
    }

    /// Returns another store with the same settings, on the same connections, whose settings can be
    /// changed.
    ///
    /// Both count in the same keys, unless the prefix or the hash tags are changed. The circuit breaker,
    /// the refusal cache and the batches are its own.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Quota, RateLimitLayer, RedisStore};
    ///
    /// let store = RedisStore::open("redis://127.0.0.1:6379")?.prefix("shop");
    /// let api = RateLimitLayer::new(store.clone(), Quota::per_minute(100));
    /// // Logins may wait longer for Redis than other requests.
    /// let patient = store.fork().deadline(Duration::from_millis(500));
    /// let login = RateLimitLayer::new(patient, Quota::per_minute(5)).name("login");
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn fork(&self) -> Self {
        let Shared {
            client,
            settings,
            misuse,
            ..
        } = &*self.shared;
        Self::build(client.clone(), settings.clone(), misuse.clone())
    }

    /// Sets the name of the store in metrics. The default is its address; for Sentinel and Cluster,
    /// the list of addresses in the URL.
    #[must_use]
    pub fn named(self, store: &str) -> Self {
        self.with("named", |client, _| client.meter = StoreMeter::new(store))
    }

    /// Sets the prefix of every stored key; the default is `tollgate`. Use it to separate services
    /// that share a server.
    #[must_use]
    pub fn prefix(self, prefix: &str) -> Self {
        self.with("prefix", |client, _| {
            client.names = client.names.clone().with_prefix(prefix);
        })
    }

    /// Groups the keys under this many hash tags. By default, each key has a hash tag to itself.
    ///
    /// Use this on Redis Cluster, where one call serves one slot only: keys with the same tag share
    /// a slot, so their checks share calls. Choose several times as many tags as masters, for
    /// example 16 times, so that each master has about as many. With fewer tags, more checks share
    /// a call. Keys are then stored as `prefix:v2:{7}:limiter,key`. Every process must
    /// use the same number: another number starts all counts anew.
    #[must_use]
    pub fn hash_tags(self, tags: NonZeroU16) -> Self {
        self.with("hash_tags", |client, _| {
            client.names = client.names.clone().with_hash_tags(tags);
        })
    }

    /// Sets the deadline of a check, which includes connecting and waiting in the queue; the
    /// default is 100 ms. A check that takes longer is an [`Error`] of kind
    /// [`ErrorKind::Timeout`](crate::ErrorKind::Timeout).
    ///
    /// A [fork](Self::fork) with another deadline shares the connections, except to a cluster.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with("deadline", |client, _| {
            client.deadline = deadline.min(MAX_DEADLINE);
            client.connections = client.connections.with_deadline(client.deadline);
        })
    }

    /// Sets the number of connections of each tokio runtime; the default is one.
    ///
    /// With fewer connections, more checks share a call, which spares Redis. Use more if the
    /// network to Redis is slow or loses packets: replies arrive in the order of the calls, so one
    /// lost packet or one slow call delays all calls on its connection. The checks of one key
    /// always use the same connection. A connection of the application stays the only one.
    #[must_use]
    pub fn connections(self, count: NonZeroUsize) -> Self {
        self.with("connections", |client, _| {
            client.connections = Arc::new(client.connections.with_count(count));
        })
    }

    /// Sets the longest time for which this process remembers a refusal and repeats it without
    /// asking Redis; the default is one second. Zero turns the cache off.
    ///
    /// A refusal is remembered for 0.8 of its wait, by the clock of this process, and so never for
    /// longer than Redis would refuse. That holds even while chrony slews this clock and the
    /// server's by 8.3 %, its maximum rate, in opposite directions. A reset, refund, credit or
    /// raised limit by **another** store, in this process or elsewhere, and a jump of the server's
    /// clock are noticed when the refusal expires.
    ///
    /// Clones are one store, and share it. A [fork](Self::fork) has a cache of its own.
    #[must_use]
    pub fn refusal_cache(self, at_most: Duration) -> Self {
        self.with("refusal_cache", |_, settings| {
            settings.refusal_max_age = at_most;
        })
    }

    /// Sets how often this process looks for keys that another process has
    /// [blocked](crate::Admin::block); the default is every second. Zero turns it off.
    ///
    /// The list is refreshed in the background, and only while checks come in: no check waits for
    /// it. Redis replies with the version of the list, and with the list itself if the version has
    /// changed.
    #[must_use]
    pub fn block_list_refresh(self, every: Duration) -> Self {
        self.with("block_list_refresh", |_, settings| {
            settings.block_list_refresh = every;
        })
    }

    /// Sets whether checks that wait at the same time share a call, which is the default. Without
    /// batches, each check is a call of its own, for comparison.
    #[must_use]
    pub fn batches(self, batches: bool) -> Self {
        self.with("batches", |_, settings| settings.batches = batches)
    }

    /// Sets the number of keys that this process counts at most while Redis fails; the default is
    /// 100 000. Zero turns the fallback off. See
    /// [`FailurePolicy::fall_back`](crate::FailurePolicy::fall_back).
    #[must_use]
    pub fn fallback_keys(self, keys: usize) -> Self {
        self.with("fallback_keys", |_, settings| settings.fallback_keys = keys)
    }

    /// Replaces both clocks: `clock` is Lua in front of the script that defines `now`, `local` is
    /// the clock of this process.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    #[must_use]
    pub fn with_clock_source(self, clock: &str, local: TestClock) -> Self {
        self.with("with_clock_source", |client, settings| {
            client.scripts = Arc::new(Scripts::with_clock(clock));
            settings.clock = Clock::Test(local);
        })
    }
}

/// The error of a setting that was changed while the store was in use.
fn set_in_use(setting: &str) -> Error {
    Error::new(
        ErrorKind::Misconfigured,
        format!(
            "`RedisStore::{setting}` was called on a store that is in use: call it right after \
             `RedisStore::open`, before the store is cloned or given to a limiter, or on `store.fork()`"
        ),
    )
}
