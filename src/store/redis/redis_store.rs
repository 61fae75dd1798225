//! The Redis store: its settings, and the way of each request to Redis.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::batch::Batchers;
use super::block_list::{DEFAULT_REFRESH_INTERVAL, SharedBlockList};
use super::client::{Client, current_runtime};
#[cfg(feature = "redis-1")]
use super::connection::Connector;
use super::connection::{ConnectionPool, KEYLESS, PerRuntime};
use super::protocol::KeyNames;
use super::script::Scripts;
use super::topology::{BREAKERS, Topology};
use super::url;
use crate::clock::Clock;
use crate::decision::{Answer, StoreId};
use crate::error::{ConfigError, Error, ErrorKind};
use crate::store::block_list::BlockList;
use crate::store::circuit_breaker::CircuitBreaker;
use crate::store::future::StoreFuture;
use crate::store::memory::DEFAULT_MAX_KEYS;
use crate::store::refusal_cache::{DEFAULT_MAX_AGE, RefusalCache};
use crate::store::requests::{Block, Check, Credit, OwnedCheck, Refund, Reset};
use crate::store::store::Store;
use crate::telemetry::StoreMeter;

/// The default deadline of a call: a hundred times a call to a healthy server nearby, and too short
/// for people to notice.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

/// A store in Redis. Counts are exact over all processes that share it.
///
/// Each check is decided by one Lua script. Redis runs it as one atomic step and by its own clock;
/// the clocks of clients do not matter. Cloning is cheap, and clones share their connections.
///
/// Runs on Redis 6.0 and later, and on Valkey.
///
/// # Settings
///
/// Settings follow [`open`](Self::open) or [`with_connection`](Self::with_connection), before the store is
/// cloned or given to a limiter. Later, its handles would no longer be one store: a handle on which a setting
/// is changed then fails each call with an error of kind
/// [`ErrorKind::Misconfigured`](crate::ErrorKind::Misconfigured). For another setting beside the first, such as
/// a longer deadline for one route, change it on a [fork](Self::fork).
///
/// # Load on Redis
///
/// All processes share Redis, so a decision should cost it little. Three mechanisms reduce its
/// load. None of them admits more than Redis would. Units that another store gives back are noticed
/// within a second.
///
/// - **Batches.** Checks that wait at the same time share one call, which takes about 300 µs of
///   Redis and has room for some eighty keys. No check waits for others: one that finds no call in
///   flight is sent at once, and at most two calls are in flight. A check whose future is dropped
///   before it is sent never reaches Redis.
/// - **Coalescing.** Waiting checks of the same key, quotas and cost become one entry of a call.
///   Redis decides them together, in order of arrival, each with its own numbers. So a busy key
///   costs Redis little more than a quiet one.
/// - **Refusal cache.** A refused check is refused again by this process, without asking Redis, for
///   0.8 of the wait that Redis replied and for [at most a second](Self::refusal_cache). It has to
///   be the same check, of the same cost and limits.
///   [`Source::RefusalCache`](crate::Source::RefusalCache) marks such decisions. A reset, a refund
///   or an admission by this store ends them at once. With a wait of a second, a client that sends
///   a check every millisecond reaches Redis six times.
///
/// # Connections
///
/// [`open`](Self::open) does not connect, so a service starts while Redis is down. The first check
/// connects. One connection for each tokio runtime carries all checks, multiplexed, unless you ask
/// for [more](Self::connections); no pool is needed. A store may outlive the runtime that first
/// used it.
///
/// Every call has a [`deadline`](Self::deadline), which includes connecting. A lost connection is
/// replaced at once, in RESP3, or in RESP2 if the server does not know RESP3. A connection that
/// reaches a replica is replaced as well, once it is 500 ms old: Sentinel, or the host name, may
/// lead to another server by now.
///
/// Neither the kernel nor the client notices a server that **hangs**. So a call that was not
/// answered within its deadline has the connection probed with a PING, and nothing else is sent on
/// it. The probe may take 300 ms, or the deadline if that is longer, up to 5 s; then the connection
/// is given up. That bounds what a hung server still executes when it wakes: two calls for each
/// connection, each of about 80 keys or 370 checks of one key. (Refunds, credits, resets and checks
/// without [batches](Self::batches) are calls of their own, with at most 256 in flight. A caller
/// that gives up before half of the deadline leaves one call behind.)
///
/// A command that may have been executed is never sent again, neither to a single server nor to a
/// cluster. Nothing is charged twice, and nothing is given back twice. A check whose reply was lost
/// may have been charged. A refund, credit, settlement or reset whose reply was lost may not have
/// happened; its units count until they leave their window.
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
/// Percent-encode all but letters and digits in a user or a password. `?protocol=resp2` or `resp3`
/// fixes the protocol. `rediss+sentinel` and `rediss+cluster` use TLS.
///
/// - **Sentinel:** each new connection asks the sentinels for the master, and they are asked again
///   every second. So a new master is found when the old one died, hangs, or was replaced on
///   purpose. The master is the server that most sentinels name and that says so of itself. User
///   and password are those of the servers; set those of the sentinels, if any, with
///   `?sentinel_username=…&sentinel_password=…`.
/// - **Cluster:** redirects are followed, also while slots move. Checks in the same slot share
///   calls, see [`hash_tags`](Self::hash_tags). If a master hangs, its replica is used once it was
///   promoted.
/// - **TLS:** rustls with the crypto provider that the application has installed, or else ring. The
///   roots of Mozilla are trusted, or only the file `ca` if it is set; `cert` and `key` are the
///   client's certificate and key.
///
/// # Rights
///
/// A Redis user needs no more rights than these, and fewer if only the default algorithm is used:
///
/// ```text
/// ACL SETUSER limiter on >password resetkeys ~tollgate:* -@all +eval +evalsha +time +unlink +ping
///   +exists +get +mget +set +setrange +append +pexpire +llen +lindex +lset +ltrim +rpush
///   +zadd +zcard +zcount +zrange +zrangebyscore +zrem +zremrangebyrank
/// ```
///
/// A cluster also needs `+cluster|slots`, and `+asking` for slots that move. A database other than
/// 0 needs `+select`. With Sentinel, add `+role`, and `+sentinel|get-master-addr-by-name` for the
/// user of the sentinels. A missing right is an error of kind
/// [`ErrorKind::Misconfigured`](crate::ErrorKind::Misconfigured), which names the right from Redis
/// 7.2 on.
///
/// # Keys
///
/// All counts of a limiter and a key are packed in one value, `prefix:v2:{limiter,key}`, with a TTL of at
/// most two windows and a second. A log of more than 128 charges continues in a list,
/// `prefix:v2:{limiter,key}:log:window`; [`SortedSetLog`](crate::Algorithm::SortedSetLog) has a key of its
/// own, `…:set:window`. Names are printable ASCII. All keys of a check are in one slot. Run Redis with
/// `maxmemory-policy noeviction`: a client whose key is evicted gets a fresh quota.
/// [Blocked](crate::Admin::block) keys are listed under `prefix:v2:{blocks}` until the last block
/// has ended.
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
#[derive(Clone)]
pub struct RedisStore {
    pub(super) shared: Arc<Shared>,
}

/// The state that clones of a store share.
pub(super) struct Shared {
    id: StoreId,
    pub(super) client: Client,
    refusal_cache: RefusalCache,
    topology: Topology,
    batchers: PerRuntime<Arc<Batchers>>,
    circuit_breaker: CircuitBreaker,
    /// The copy in this process of the list in Redis.
    block_list: BlockList,
    shared_block_list: Arc<SharedBlockList>,
    pub(super) settings: Settings,
    /// The error of each call, if a setting was changed while the store was in use.
    pub(super) misuse: Option<Error>,
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) refusal_max_age: Duration,
    pub(super) block_list_refresh: Duration,
    pub(super) batches: bool,
    pub(super) fallback_keys: usize,
    /// The clock of this process.
    pub(super) clock: Clock,
}

impl RedisStore {
    /// Opens the store at a URL without connecting:
    /// `redis://[user][:password@]host[:port][/database]`, `unix:///path/to/redis.sock`, or one of
    /// [those that need a feature](Self#sentinel-cluster-tls).
    ///
    /// # Errors
    ///
    /// Fails if the URL is malformed, or needs a feature that this build does not have. Whether the
    /// server is reachable is not checked; see [`ping`](Self::ping).
    pub fn open(url: &str) -> Result<Self, ConfigError> {
        let connector = url::connector(url)?;
        Ok(Self::on(ConnectionPool::new(connector, DEFAULT_DEADLINE)))
    }

    /// Creates a store on an existing connection of the application: a
    /// `redis::aio::ConnectionManager`, a
    /// [`MultiplexedConnection`](redis::aio::MultiplexedConnection), or any other of redis 1.x.
    ///
    /// The connection is cloned for each call. It keeps its settings, and has to reconnect on its
    /// own. The deadline of the store applies all the same.
    ///
    /// A connection that resends commands on its own may run them twice. A
    /// `redis::cluster_async::ClusterConnection` does so when it loses a node, unless it was built
    /// with `retries(0)`, and then it follows no redirects. A check that runs twice is charged
    /// twice. A refund, credit or settlement that runs twice frees units that are in use. So open a
    /// cluster by its [URL](Self::open).
    #[cfg(feature = "redis-1")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-1")))]
    pub fn with_connection<C>(connection: C) -> Self
    where
        C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
    {
        let connector = Connector::External(Arc::new(connection));
        Self::on(ConnectionPool::new(connector, DEFAULT_DEADLINE))
    }

    fn on(connections: ConnectionPool) -> Self {
        let client = Client {
            meter: StoreMeter::new(&format!("{connections:?}")),
            connections: Arc::new(connections),
            scripts: Scripts::shared(),
            names: KeyNames::default(),
            deadline: DEFAULT_DEADLINE,
        };
        let settings = Settings {
            refusal_max_age: DEFAULT_MAX_AGE,
            block_list_refresh: DEFAULT_REFRESH_INTERVAL,
            batches: true,
            fallback_keys: DEFAULT_MAX_KEYS,
            clock: Clock::monotonic(),
        };
        Self::build(client, settings, None)
    }

    pub(super) fn build(mut client: Client, settings: Settings, misuse: Option<Error>) -> Self {
        client.meter = client.meter.same_name();
        let clock = &settings.clock;
        let refusal_cache = RefusalCache::new()
            .meter(client.meter.clone())
            .clock(clock.clone())
            .max_age(settings.refusal_max_age);
        let topology = Topology::new(client.connections.is_cluster());
        let circuit_breaker = circuit_breaker(&client, &topology, &settings);
        let shared_block_list =
            SharedBlockList::new(client.clone(), topology.clone(), circuit_breaker.clone());
        let block_list = BlockList::shared_on_clock(
            clock.clone(),
            settings.block_list_refresh,
            shared_block_list.refresher(),
        );
        Self {
            shared: Arc::new(Shared {
                id: StoreId::unique(),
                client,
                refusal_cache,
                topology,
                batchers: PerRuntime::default(),
                circuit_breaker,
                block_list,
                shared_block_list,
                settings,
                misuse,
            }),
        }
    }

    /// Checks that the server answers, by a PING.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer within the deadline, or replies with an error.
    pub async fn ping(&self) -> Result<(), Error> {
        self.verify_settings()?;
        let client = &self.shared.client;
        let ping = redis::cmd("PING");
        let reply = client.within_deadline(client.query(KEYLESS, &ping)).await;
        reply.map(drop)
    }

    /// Bounds a call by the deadline.
    fn send<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> StoreFuture<T> {
        if let Err(error) = self.verify_settings() {
            return StoreFuture::ready(Err(error));
        }
        let client = self.shared.client.clone();
        StoreFuture::boxed(async move { client.within_deadline(call).await })
    }

    /// Fails if a setting was changed while the store was in use.
    fn verify_settings(&self) -> Result<(), Error> {
        self.shared.misuse.clone().map_or(Ok(()), Err)
    }

    /// Returns the text of the script that decides checks, as Redis gets it.
    ///
    /// To review what runs in Redis, and to find the line that an error of a script names: Redis counts
    /// the lines of this text. It is joined from several files, and a line such as
    /// `-- lua/sliding_log.lua` precedes each of them. The example `script` prints it with numbers.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::RedisStore;
    ///
    /// // Redis says: "user_script:7: attempt to …".
    /// let line = RedisStore::script().lines().nth(7 - 1);
    /// assert!(line.is_some());
    /// ```
    #[must_use]
    pub fn script() -> &'static str {
        let [(_, decide), ..] = Scripts::texts();
        decide
    }

    /// Returns the texts of all scripts by name: first [`decide`](Self::script), then `refund` and
    /// `credit`, which return units, then `block` and `blocked`, which keep the list of blocked keys.
    pub fn scripts() -> impl Iterator<Item = (&'static str, &'static str)> {
        Scripts::texts().into_iter()
    }
}

/// Fails if two checks have both limiter and key in common: the script would read their counts twice.
fn verify_distinct(checks: &[Check<'_>]) -> Result<(), Error> {
    let mut names = HashSet::new();
    let is_distinct = checks
        .iter()
        .all(|check| names.insert(check.subject.fingerprint()));
    if is_distinct {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Misconfigured,
        "two checks that are decided together have limiter and key in common: send one check with both costs",
    ))
}

/// Builds the circuit breaker: one for a single server, or one for each range of slots of a
/// cluster.
fn circuit_breaker(client: &Client, topology: &Topology, settings: &Settings) -> CircuitBreaker {
    let (names, topology) = (client.names.clone(), topology.clone());
    CircuitBreaker::new()
        .meter(client.meter.clone())
        .deadline_enforced_by_store(client.deadline)
        .clock(settings.clock.clone())
        .fallback_keys(settings.fallback_keys)
        .partitions(BREAKERS, move |subject| {
            topology.breaker_of(|| names.slot(subject))
        })
}

impl Store for RedisStore {
    fn id(&self) -> StoreId {
        self.shared.id
    }

    fn check(&self, check: Check<'_>) -> StoreFuture {
        let Shared {
            client,
            topology,
            batchers,
            settings,
            misuse,
            ..
        } = &*self.shared;
        let runtime = match misuse
            .as_ref()
            .map_or_else(current_runtime, |error| Err(error.clone()))
        {
            Ok(runtime) => runtime,
            Err(error) => return StoreFuture::ready(Err(error)),
        };
        if !settings.batches {
            let (client, check) = (client.clone(), OwnedCheck::from(check));
            return self.send(async move { client.decide_alone(check.check(), None).await });
        }
        let batchers = batchers.get_or_make(&runtime, || {
            Batchers::new(client.clone(), topology.clone(), runtime.clone())
        });
        batchers.check(check)
    }

    fn check_all(&self, checks: &[Check<'_>]) -> StoreFuture<Vec<Answer>> {
        if checks.is_empty() {
            return StoreFuture::ready(self.verify_settings().map(|()| Vec::new()));
        }
        if let Err(error) = verify_distinct(checks) {
            return StoreFuture::ready(Err(error));
        }
        self.send(self.shared.client.decide_all(checks))
    }

    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        self.send(self.shared.client.reset(reset))
    }

    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        if refund.units() == 0 {
            // LREM takes a count of 0 as all.
            return StoreFuture::ready(Ok(()));
        }
        self.send(self.shared.client.refund(&refund))
    }

    fn credit(&self, credit: Credit<'_>) -> StoreFuture<()> {
        self.send(self.shared.client.credit(&credit))
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<()> {
        let Self { shared } = self;
        if let Err(error) = self.verify_settings() {
            return StoreFuture::ready(Err(error));
        }
        let block_list = shared.block_list.clone();
        shared.shared_block_list.block(block_list, block)
    }

    fn block_list(&self) -> BlockList {
        self.shared.block_list.clone()
    }

    fn circuit_breaker(&self) -> CircuitBreaker {
        self.shared.circuit_breaker.clone()
    }

    fn refusal_cache(&self) -> Option<RefusalCache> {
        Some(self.shared.refusal_cache.clone())
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared {
            id: _,
            client,
            refusal_cache: _,
            topology: _,
            batchers: _,
            circuit_breaker: _,
            block_list: _,
            shared_block_list: _,
            settings,
            misuse: _,
        } = &*self.shared;
        f.debug_struct("RedisStore")
            .field("client", client)
            .field("settings", settings)
            .finish_non_exhaustive()
    }
}
