//! The public type of the Redis store, and how it sends each kind of request.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::batch::Sender;
use super::block_list::{DEFAULT_REFRESH_INTERVAL, SharedBlockList};
use super::breakers::Breakers;
use super::client::{Client, current_runtime, prober};
use super::protocol::KeyNames;
use super::script::Scripts;
#[cfg(feature = "redis-1")]
use super::transport::Servers;
use super::transport::{Deployment, PerRuntime};
use crate::clock::Clock;
use crate::decision::{Answer, Holding, StoreId};
use crate::error::Error;
use crate::store::block_list::BlockList;
use crate::store::circuit_breaker::CircuitBreaker;
use crate::store::future::StoreFuture;
use crate::store::refusal_cache::RefusalCache;
use crate::store::requests::{Adjust, Block, Change, Check, Subject};
use crate::store::store::{Store, StoreParts};
use crate::telemetry::StoreMeter;

/// The default deadline of a call: about a hundred times a call to a healthy server in the same network, and
/// too short for people to notice.
pub(super) const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

/// Implemented by nothing: says which feature [`RedisStore::with_connection`] needs.
#[cfg(not(feature = "redis-1"))]
#[diagnostic::on_unimplemented(
    message = "`RedisStore::with_connection` needs the feature `redis-1` of tollgate",
    label = "enable it in Cargo.toml: `features = [\"redis-1\"]`"
)]
pub(crate) trait FeatureRedis1 {
    fn never(self) -> RedisStore;
}

/// A store in Redis or Valkey, which all processes of a service share.
///
/// A Lua script decides each check. Redis runs it as one atomic step, on its own clock. So a limit is exact for
/// any number of processes, and their clocks do not matter.
///
/// It runs on Redis 6.2 or later, and on Valkey. The tests have passed on Redis 6.2 to 8.10 and on Valkey 8.0 to
/// 9.1.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Quota, RateLimitLayer, RedisStore};
///
/// let store = RedisStore::open("redis://127.0.0.1:6379")?
///     .prefix("shop")
///     .deadline(Duration::from_millis(50));
/// let layer = RateLimitLayer::new(store, Quota::per_minute(100));
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
///
/// Give each service that shares a Redis its own [`prefix`](Self::prefix). Without one, limiters of the same
/// name in two services share their counts.
///
/// # Settings
///
/// Call the settings right after [`open`](Self::open) or [`with_connection`](Self::with_connection), before
/// the store is cloned or given to a limiter. A setting that is changed later has no effect on the store in
/// use, and the returned store fails each call with an error of kind
/// [`ErrorKind::Misconfigured`](crate::ErrorKind::Misconfigured).
///
/// A URL may have settings as parameters: `redis://10.0.0.1?prefix=shop&deadline=50ms`. A method that is called
/// later replaces the setting of the URL. An unknown parameter is an error.
///
/// | parameter | value | method |
/// |---|---|---|
/// | `prefix` | text | [`prefix`](Self::prefix) |
/// | `name` | text | [`name`](Self::name) |
/// | `deadline` | a number with a unit: `us`, `ms`, `s`, `m` | [`deadline`](Self::deadline) |
/// | `hash_tags` | a number from 1 to 65535: [`HashTags::Shared`](crate::store::HashTags::Shared); `prefix:` and such a number: [`ByPrefix`](crate::store::HashTags::ByPrefix) | [`hash_tags`](Self::hash_tags) |
/// | `slots` | `on` | [`by_slot`](Self::by_slot) |
/// | `refusal_cache` | a number with a unit | [`refusal_cache`](Self::refusal_cache) |
///
/// If one route needs another setting, such as a longer deadline, change it on a [fork](Self::fork). Cloning is
/// cheap. Clones are the same store and share its connections.
///
/// # Load on Redis
///
/// Four mechanisms reduce the load on Redis. None of them admits more than Redis would.
///
/// - **Batches.** A check is sent at once if no call is in flight on its connection. Otherwise it waits for
///   the next call, together with other checks. At most two calls are in flight on a connection (on a cluster,
///   for a slot). A call has room for about 80 checks of different keys, which take Redis about 300 µs. A
///   check that is cancelled before it is sent never reaches Redis.
/// - **Coalescing.** Waiting checks of the same key, quotas and cost become one entry of a call. Redis
///   decides them in order of arrival, and each gets its own numbers. So a busy key loads Redis little more
///   than a quiet one.
/// - **Several keys.** A check of several keys, all or nothing, is an entry of a call like any other. What the
///   checks of a call share, such as the limit of a tenant or of the whole service, is read and written once for
///   all of them.
/// - **Refusal cache.** For 0.8 of the wait that Redis replied, and for [at most a
///   second](Self::refusal_cache), this process repeats a refusal without asking Redis, to checks of the same
///   key, quotas and cost. The source of such a decision is
///   [`Source::RefusalCache`](crate::Source::RefusalCache). With a wait of one second, a client that sends a
///   check every millisecond reaches Redis six times.
///
/// A reset, a refund, a credit or an admission through this store ends remembered refusals of the key at
/// once. Units that another process or another store returns are seen within a second.
///
/// # Connections
///
/// [`open`](Self::open) does not connect, so a service starts while Redis is down. The first check connects. By
/// default, one multiplexed connection for each tokio runtime carries all checks, so no pool is needed. A store may outlive
/// the runtime that first used it.
///
/// - **Deadline.** Each call has a [`deadline`](Self::deadline), which includes connecting. The default is
///   100 ms.
/// - **Reconnect.** A lost connection is replaced at once, also while no check uses it. So is a connection that
///   turns out to lead to a replica, unless it is younger than 500 ms. The protocol is RESP3, or RESP2 if the
///   server does not know RESP3.
/// - **A server that hangs.** If a call is not answered within its deadline, the store probes the connection
///   with a PING and sends nothing else on it meanwhile. If the PING is not answered within 300 ms, or within
///   the deadline if that is longer (at most 5 s), the store reconnects. So when a server resumes, it executes
///   only the calls that were in flight: at most two with checks for each connection. Refunds, credits, resets
///   and checks [by slot](Self::by_slot) are separate calls, of which at most 256 are in flight.
/// - **Replies of other calls.** A server or a proxy that loses one reply, or sends one twice, gives each call behind it the
///   reply to another one. So each call of a script has a number, which its reply echoes. The first reply with another
///   number ends the connection, and the calls on it fail with `tollgate::E127`. An error reply has no number: one
///   to another call may fail a check, and a `NOSCRIPT` sends a call once more.
/// - **Retries.** The store never resends a command that may have been executed, so nothing is charged or
///   returned twice. If the reply to a check is lost, the check may have been charged. If the reply to a
///   refund, credit, settlement or reset is lost, it may not have happened; its units then count until they
///   leave their window.
///
/// # Sentinel, Cluster, TLS
///
/// | URL | feature |
/// |---|---|
/// | `redis://[user][:password@]host[:port][/database]`, `unix:///path` | |
/// | `rediss://…?ca=/ca.pem&cert=/client.pem&key=/client.key` | `tls` |
/// | `redis+sentinel://[user][:password@]host[:port],…/master[/database]` | `sentinel` |
/// | `redis+cluster://[user][:password@]host[:port],…` | `cluster` |
///
/// A rented server often hides a cluster behind one address. Open it with `redis://` or `rediss://`, and see
/// [`by_slot`](Self::by_slot).
///
/// In a user or a password, percent-encode all characters but letters and digits. `?protocol=resp2` or
/// `?protocol=resp3` sets the protocol. `rediss+sentinel` and `rediss+cluster` use TLS. `valkey` may replace
/// `redis`, and `valkeys` `rediss`. A token that expires replaces the password by [`credentials`](Self::credentials).
///
/// - **Sentinel:** each new connection asks the sentinels for the master. The store connects to the server that
///   most sentinels name, if it has the role of a master. It also subscribes to their events, and asks them
///   again every second. So it finds a new master whether the old one died, hangs, or was replaced on purpose.
///   It also asks the sentinels that those in the URL know, so sentinels may move while the service runs.
///   The user and the password are for the servers. For the sentinels, set
///   `?sentinel_username=…&sentinel_password=…`.
/// - **Cluster:** redirects are followed, also while slots move. Checks in the same slot share calls; see
///   [`hash_tags`](Self::hash_tags). Each node has its own connection, with at most 256 checks in flight, so a
///   lost node delays no check of the others. If a master hangs, the store uses its replica once that is promoted.
/// - **TLS:** rustls with the crypto provider that the application has installed, or with ring. The
///   certificate of the server is always verified, against the roots of Mozilla or, if `ca` is set, against
///   the roots in this file only. `cert` and `key` are the files of the client's certificate and key. Each new
///   connection reads the files again, so renewed certificates need no restart. If a file is missing or
///   broken then, connecting fails with an error that names the file, until it is whole: replace files at once, by a
///   rename.
///
/// # Permissions
///
/// A Redis user needs these permissions, and fewer if only the default algorithm is used. `tollgate` is the
/// [prefix](Self::prefix):
///
/// ```text
/// ACL SETUSER limiter on >password resetkeys ~tollgate:* -@all +eval +evalsha +time +unlink +ping
///   +exists +get +mget +getrange +strlen +set +setrange +append +pexpire +pttl
///   +zadd +zcard +zcount +zrange +zrangebyscore +zrem +zremrangebyrank
/// ```
///
/// In addition:
///
/// - a database other than 0 needs `+select`,
/// - a cluster needs `+cluster|slots`, and `+asking` for slots that move,
/// - Sentinel needs `+role`, and for the user of the sentinels `+sentinel|get-master-addr-by-name`. For their
///   events, this user also needs `+subscribe` and the channels `&+switch-master`, `&+promoted-slave` and
///   `&+failover-state-wait-promotion`. Without them, the store finds a new master up to two seconds later. To find
///   sentinels that are not in the URL, this user also needs `+sentinel|myid` and `+sentinel|sentinels`.
///
/// A missing permission is an error of kind [`ErrorKind::Misconfigured`](crate::ErrorKind::Misconfigured).
/// From Redis 7.2 on, the error names the permission.
/// [`tollgate-doctor`](crate::guide::deployment#settings-of-the-server) names it on every version.
///
/// # Keys
///
/// A limiter and a key have at most one string for each of these, however many quotas there are:
///
/// - all counters, [`FixedWindow`](crate::Algorithm::FixedWindow), [`SlidingCounter`](crate::Algorithm::SlidingCounter),
///   [`Gcra`](crate::Algorithm::Gcra) and the [total](crate::Quota::total): `prefix:v3:{limiter,key}`,
/// - all quotas of [`SlidingLog`](crate::Algorithm::SlidingLog): `prefix:v3:{limiter,key}:log`,
/// - [`SlidingBuckets`](crate::Algorithm::SlidingBuckets) of one length: `prefix:v3:{limiter,key}:buckets:length`,
/// - all quotas [in flight](crate::Quota::in_flight): `prefix:v3:{limiter,key}:in_flight`.
///
/// A [`SortedSetLog`](crate::Algorithm::SortedSetLog) is a sorted set, `prefix:v3:{limiter,key}:set:window`. Lengths and
/// windows are in microseconds, and names are printable ASCII. The repository's `lua/README.md` describes the bytes.
/// A key has at most about 1 100 counters of [`Gcra`](crate::Algorithm::Gcra), or twice as many of another algorithm;
/// a check of more fails.
///
/// Every key has a TTL of at most two windows, idle times of a total or leases of slots, and a second. All keys of a check
/// are in one cluster slot. The [blocked](crate::Admin::block) keys are in `prefix:v3:{blocks}` until the last block has ended. With
/// [`block_after`](crate::RateLimiter::block_after), the refusals and the blocks of a key are counted like units, under
/// the name `blocks=limiter`: in `prefix:v3:{blocks=limiter,key}:buckets:length` and
/// `prefix:v3:{blocks=limiter,key}:log`. An [unblock](crate::Admin::unblock) of the last hour is in
/// `prefix:v3:{blocks=limiter,key}`.
///
/// Run Redis with `maxmemory-policy noeviction`. If Redis evicts a key, its client has the whole limit again.
#[derive(Clone)]
pub struct RedisStore {
    pub(super) shared: Arc<SharedState>,
}

/// The state that clones of a store share.
pub(super) struct SharedState {
    pub(super) settings: RedisSettings,
    /// The error of each call, if a setting was changed while the store was in use.
    pub(super) misuse: Option<Error>,
    /// Made on first use, when all settings are known.
    engine: OnceLock<Engine>,
}

/// The configuration of a store.
#[derive(Clone, Debug)]
pub(super) struct RedisSettings {
    /// The servers. Forks share the connections.
    pub(super) deployment: Arc<Deployment>,
    /// The name of the store in metrics.
    pub(super) name: Arc<str>,
    pub(super) names: KeyNames,
    pub(super) deadline: Duration,
    /// `None` for the default of the cache.
    pub(super) refusal_max_age: Option<Duration>,
    pub(super) block_list_refresh: Duration,
    /// Whether the server divides its keys into the slots of a cluster, even if it is opened as a single one.
    pub(super) by_slot: bool,
    /// `None` for the default of the circuit breaker.
    pub(super) fallback_keys: Option<usize>,
    /// The clock of this process.
    pub(super) clock: Clock,
    pub(super) scripts: Arc<Scripts>,
}

/// The parts of a store in use.
struct Engine {
    id: StoreId,
    client: Arc<Client>,
    refusal_cache: RefusalCache,
    senders: PerRuntime<Arc<Sender>>,
    blocks: Arc<SharedBlockList>,
}

impl Engine {
    fn new(settings: &RedisSettings) -> Self {
        let clock = &settings.clock;
        let meter = StoreMeter::new(&settings.name);
        let mut refusal_cache = RefusalCache::new()
            .meter(meter.clone())
            .clock(clock.clone());
        if let Some(max_age) = settings.refusal_max_age {
            refusal_cache = refusal_cache.max_age(max_age);
        }
        let deployment = &settings.deployment;
        let names = &settings.names;
        let deadline = settings.deadline;
        deployment.longest_deadline.include(deadline);
        let mut circuit_breaker = CircuitBreaker::new()
            .meter(meter.clone())
            .deadline(deadline)
            .clock(clock.clone())
            .recorded_by_store();
        if let Some(keys) = settings.fallback_keys {
            circuit_breaker = circuit_breaker.fallback_keys(keys);
        }
        let probe = prober(deployment, names, deadline);
        let client = Arc::new(Client {
            deployment: Arc::clone(deployment),
            scripts: Arc::clone(&settings.scripts),
            names: names.clone(),
            by_slot: settings.by_slot,
            deadline,
            meter,
            breakers: Arc::new(Breakers::new(circuit_breaker, probe)),
        });
        let block_list = BlockList::on_clock(clock.clone(), Some(settings.block_list_refresh));
        Self {
            id: StoreId::unique(),
            blocks: SharedBlockList::new(Arc::clone(&client), block_list),
            client,
            refusal_cache,
            senders: PerRuntime::default(),
        }
    }
}

impl RedisStore {
    /// Creates a store on a connection that the application already has.
    ///
    /// It takes any asynchronous connection of redis 1.x, such as a `redis::aio::ConnectionManager`. The
    /// connection is cloned for each call and keeps its settings. The store does not replace it, so it must
    /// reconnect on its own. The [`deadline`](Self::deadline) of the store applies. If the connection gives calls the replies to
    /// others, they fail with `tollgate::E127` until you replace the connection and the store.
    ///
    /// Do not pass a `redis::cluster_async::ClusterConnection`: open a cluster by its [URL](Self::open). When
    /// such a connection loses a node, it resends commands that may have been executed, and with `retries(0)`
    /// it follows no redirects. A check that runs twice is charged twice. A refund, credit or settlement that
    /// runs twice frees units that are in use.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tollgate::RedisStore;
    ///
    /// # async fn example() -> Result<(), redis::RedisError> {
    /// let client = redis::Client::open("redis://127.0.0.1:6379")?;
    /// let connection = redis::aio::ConnectionManager::new(client).await?;
    /// let store = RedisStore::with_connection(connection).prefix("shop");
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "redis-1")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-1")))]
    pub fn with_connection<C>(connection: C) -> Self
    where
        C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
    {
        Self::on(Deployment::new(Servers::Given(Arc::new(connection))))
    }

    #[cfg(not(feature = "redis-1"))]
    #[doc(hidden)]
    #[expect(private_bounds, reason = "the trait only words the error")]
    pub fn with_connection<C: FeatureRedis1>(connection: C) -> Self {
        connection.never()
    }

    pub(super) fn on(deployment: Deployment) -> Self {
        let settings = RedisSettings {
            name: format!("{deployment:?}").into(),
            deployment: Arc::new(deployment),
            names: KeyNames::default(),
            deadline: DEFAULT_DEADLINE,
            refusal_max_age: None,
            block_list_refresh: DEFAULT_REFRESH_INTERVAL,
            by_slot: false,
            fallback_keys: None,
            clock: Clock::monotonic(),
            scripts: Scripts::shared(),
        };
        Self::with_settings(settings, None)
    }

    /// The name is not `new`: for `RedisStore::new`, the compiler would then name this function, and not `open`.
    pub(super) fn with_settings(settings: RedisSettings, misuse: Option<Error>) -> Self {
        Self {
            shared: Arc::new(SharedState {
                settings,
                misuse,
                engine: OnceLock::new(),
            }),
        }
    }

    #[inline]
    fn engine(&self) -> &Engine {
        let SharedState {
            settings, engine, ..
        } = &*self.shared;
        engine.get_or_init(|| Engine::new(settings))
    }

    /// Sends a PING, to check that the server answers. Connects if there is no connection yet.
    ///
    /// # Errors
    ///
    /// Returns an error if the server does not answer within the deadline, or replies with an error.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tollgate::RedisStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::open("redis://127.0.0.1:6379")?.prefix("shop");
    /// store.ping().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ping(&self) -> Result<(), Error> {
        self.client()?.ping_all().await.map(drop)
    }

    #[inline]
    fn sender(&self) -> Result<Arc<Sender>, Error> {
        let client = self.client()?;
        let runtime = current_runtime()?;
        let senders = &self.engine().senders;
        Ok(senders.get_or_make(&runtime, || {
            Sender::new(Arc::clone(client), runtime.clone())
        }))
    }

    /// Sends a request, unless a setting was changed while the store was in use.
    fn send<T>(&self, request: impl FnOnce(&Arc<Client>) -> StoreFuture<T>) -> StoreFuture<T> {
        match self.client() {
            Ok(client) => request(client),
            Err(misuse) => StoreFuture::ready(Err(misuse)),
        }
    }

    pub(super) fn client(&self) -> Result<&Arc<Client>, Error> {
        match &self.shared.misuse {
            None => Ok(&self.engine().client),
            Some(misuse) => Err(misuse.clone()),
        }
    }

    /// Returns the name and the text of each Lua script, as Redis gets it.
    ///
    /// Use it to review what runs in Redis, or to find the line of an error: Redis names a line of such a text. Each is
    /// joined from several files, and a line such as `-- lua/log.lua` precedes each of them. The example `script` prints
    /// them with line numbers.
    ///
    /// `log`, `fixed_window`, `sliding_counter`, `gcra` and `sorted_set_log` decide checks, and `mixed` checks of several
    /// algorithms in one call. `in_flight` decides calls with slots [in flight](crate::Quota::in_flight). `refund` returns
    /// units. `block` and `blocked` keep the list of blocked keys, and `holders` lists who holds slots of a key. Each of them
    /// follows once more as `log_clock_argument` and so on, for [servers that refuse TIME in
    /// scripts](crate::guide::rented_servers#servers-that-refuse-time-in-scripts).
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::RedisStore;
    ///
    /// // Redis says: "user_script:7: attempt to …".
    /// let (_, text) = RedisStore::scripts().find(|(name, _)| *name == "log").unwrap();
    /// assert!(text.lines().nth(7 - 1).is_some());
    /// ```
    pub fn scripts() -> impl Iterator<Item = (&'static str, &'static str)> {
        Scripts::texts()
    }
}

impl Store for RedisStore {
    fn id(&self) -> StoreId {
        self.engine().id
    }

    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        if checks.iter().all(|check| check.quotas.is_empty()) && self.shared.misuse.is_none() {
            return StoreFuture::ready(Ok(checks.iter().map(|_| Answer::default()).collect()));
        }
        match Check::verify_distinct(checks).and_then(|()| self.sender()) {
            Ok(sender) => sender.check(checks),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    fn parts(&self) -> StoreParts {
        let engine = self.engine();
        StoreParts {
            block_list: engine.blocks.copy.clone(),
            circuit_breaker: engine.client.breakers.of_store.clone(),
            refusal_cache: Some(engine.refusal_cache.clone()),
            supports_leases: true,
            ends_with_process: false,
        }
    }

    fn circuit_breaker(&self, subject: Subject<'_>) -> Option<CircuitBreaker> {
        self.engine().client.circuit_breaker(subject)
    }

    /// Returns the slot in a cluster, and 0 on a single server.
    fn atomic_group(&self, subject: Subject<'_>) -> u64 {
        let client = &self.engine().client;
        if client.has_slots() {
            client.names.slot(subject).into()
        } else {
            0
        }
    }

    fn adjust(&self, adjust: Adjust<'_>) -> StoreFuture<()> {
        if let Change::Refund { units: 0, .. } | Change::Charge { units: 0 } = adjust.change {
            return StoreFuture::ready(Ok(()));
        }
        self.send(|client| client.adjust(adjust))
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<bool> {
        self.send(|_| self.engine().blocks.block(block))
    }

    fn refresh_blocks(&self, timeout: Duration) -> StoreFuture<()> {
        Arc::clone(&self.engine().blocks).refresh(timeout)
    }

    fn holders(&self, subject: Subject<'_>) -> StoreFuture<Vec<Holding>> {
        self.send(|client| client.holders(subject))
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}
