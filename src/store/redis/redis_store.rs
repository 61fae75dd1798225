//! The store in Redis: each check is decided in one atomic Lua call.
//!
//! The only folder that names `redis::`.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::num::{NonZeroU16, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;

use super::batch::Batchers;
use super::batch::OwnedCheck;
use super::batch::{Batcher, DirectSend};
use super::block_list::{BlockedKey, Seen};
use super::client::Client;
use super::connection::PerRuntime;
use super::connection::{Connection, ConnectionIndex};
use super::protocol::KeyNames;
use super::protocol::{BatchEntry, EntryReply};
use super::script::Scripts;
use crate::clock::Clock;
#[cfg(feature = "test-util")]
use crate::clock::TestClock;
use crate::decision::Answer;
use crate::error::{ConfigError, Error, ErrorKind};
use crate::store::block_list::BlockList;
use crate::store::circuit_breaker::CircuitBreaker;
use crate::store::future::StoreFuture;
use crate::store::memory::DEFAULT_MAX_KEYS;
use crate::store::refusal_cache::RefusalCache;
use crate::store::requests::Subject;
use crate::store::requests::{Block, Check, Credit, Refund, Reset};
use crate::store::store::Store;
use crate::telemetry::StoreMeter;

/// How long a call may take unless told otherwise: a hundred times a call to a healthy server near
/// by, and little beside what people notice.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

/// Of a cluster.
const SLOTS: usize = 16_384;

/// Masters serve whole ranges of slots, most of them many times as long.
pub(crate) const SLOTS_OF_PART: usize = 256;

/// As good as none, and still a time that can be added to now.
const LONGEST_DEADLINE: Duration = Duration::from_secs(366 * 86_400);

/// Counts in Redis, exact over all processes that share it.
///
/// Each check is decided by one Lua script, which Redis runs as one step, on its own clock: the
/// clocks of the clients do not matter. Cloning is cheap; clones share a connection.
///
/// Runs on Redis 6.0 and later, and on Valkey.
///
/// # What Redis is spared
///
/// Redis is what all processes share, so a decision should cost it little. Three things see to it, and
/// none of them admits more than Redis would; what is given back elsewhere is seen within a second:
///
/// - **Batches.** Checks that wait at the same time travel in one call, of about 300 µs of Redis, for
///   which it has room for some eighty keys. Nothing waits for company: a check that finds nothing on its way is sent at once, and at
///   most two calls are on their way. A check whose future is dropped before is not sent.
/// - **One entry for checks that are alike.** Those of one key, quotas and cost that wait together are
///   decided in one go, in order of their arrival, each with its own numbers. So a busy key costs
///   Redis not much more than a quiet one.
/// - **Refusals are remembered.** What Redis refused is refused here, without asking, for 0.8 of the
///   wait that it told, and [a second at most](Self::refusal_cache): the same check, of the same cost,
///   under the same limits. [`Source::RefusalCache`](crate::Source::RefusalCache) tells. A reset, a
///   refund or an admission by this store ends it at once. A client that asks each millisecond reaches
///   Redis six times in a wait of a second.
///
/// # Connections
///
/// [`open`](Self::open) does not connect, so that a service starts while Redis is down: the first
/// check connects. One connection carries all checks of a tokio runtime, interleaved, unless
/// [more](Self::connections) are asked for; no pool is needed. A store may outlive the runtime that first
/// used it.
///
/// Every call has a [`deadline`](Self::deadline), connecting included. A connection that is lost is made
/// anew at once, in RESP3, or in RESP2 where the server knows no other. So is one at the other end of
/// which a replica is found, 500 ms old or more: Sentinel, or the name of the server, may lead elsewhere
/// now.
///
/// A server that **hangs** is noticed neither by the kernel nor by the client. When a call was not
/// answered within its deadline, the connection is asked by a PING, and nothing else is sent on it: if
/// that is not answered within 300 ms either, or within the deadline if that is longer, up to 5 s, the
/// connection is given up. So what a hung server still runs when it wakes is small: two calls for each
/// connection, each of about 80 keys or 370 checks of one key. (Refunds, gifts, resets and checks without
/// [batches](Self::batches) are calls of their own, of which at most 256 are on their way at once; a
/// caller that gives up before half of the deadline leaves one call behind.)
///
/// What may have been executed is never sent again, neither to one server nor to a cluster: nothing is
/// charged twice, and nothing is given back twice. A check whose reply was lost may have been charged. A
/// refund, a gift, a settlement or a reset whose reply was lost may not have happened; units that were
/// not given back count until they leave their window.
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
/// What is no letter or digit in a user or a password is percent-encoded. `?protocol=resp2` or `resp3`
/// has that one spoken. `rediss+sentinel` and `rediss+cluster` speak TLS.
///
/// - **Sentinel:** the master is asked for with each connection, and looked at each second, so that it is
///   found when it died, hangs, or was changed on purpose. It is who most of the sentinels name, and who
///   takes itself for it. User and password are those of the servers; the sentinels have theirs, if any,
///   in `?sentinel_username=…&sentinel_password=…`.
/// - **Cluster:** redirects are followed, while slots move, too. Checks of one slot share calls: see
///   [`hash_tags`](Self::hash_tags). Where a master hangs, its replica is found once it was promoted.
/// - **TLS:** by rustls and the cryptography that the application has installed, else ring. Trusted are
///   the roots of Mozilla, or the file `ca` alone; `cert` and `key` say who we are.
///
/// # Rights
///
/// A user of Redis needs no more than this, and for other algorithms than the default one not all of it:
///
/// ```text
/// ACL SETUSER limiter on >password resetkeys ~tollgate:* -@all +eval +evalsha +time +unlink +ping
///   +exists +get +set +pexpire +llen +lindex +lrem +ltrim +rpush
///   +zadd +zcard +zcount +zrange +zrangebyscore +zrem +zremrangebyrank
/// ```
///
/// In a cluster `+cluster|slots` as well, and `+asking` for slots that move; for a database other than 0 `+select`; with Sentinel
/// `+role`, and its own user `+sentinel|get-master-addr-by-name`. A right that is missing is an error of
/// kind [`ErrorKind::Misconfigured`], which names it from Redis 7.2 on.
///
/// # Keys
///
/// A count is stored under `prefix:v1:{limiter,key}:log:window`, in printable ASCII, with a TTL of
/// two windows and a second. All counts of a check are in one slot. Run Redis with
/// `maxmemory-policy noeviction`: where it evicts a key, that client gets a fresh quota. What is
/// [blocked](crate::Admin::block) is listed under `prefix:v1:{blocks}`, until all of it has ended.
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
    pub(crate) shared: Arc<Shared>,
}

/// What clones of a store share.
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) denials: Arc<RefusalCache>,
    lanes: PerRuntime<Arc<Batchers>>,
    /// Whether the server is one of a cluster, by its URL or as it has said.
    pub(crate) is_cluster: Arc<AtomicBool>,
    pub(crate) guard: CircuitBreaker,
    pub(crate) blocks: BlockList,
    pub(crate) seen: Seen,
    settings: Settings,
}

#[derive(Clone, Debug)]
struct Settings {
    denials_for: Duration,
    block_list_refresh: Duration,
    batches: bool,
    fallback_keys: usize,
    /// The clock of this process.
    clock: Clock,
}

impl RedisStore {
    /// The store at a URL: `redis://[user][:password@]host[:port][/database]`, or
    /// `unix:///path/to/redis.sock`, or one of [those of the features](Self#sentinel-cluster-tls).
    ///
    /// # Errors
    ///
    /// When the URL is malformed, or wants a feature that this build has not. That the server is there is not looked at; see
    /// [`ping`](Self::ping).
    pub fn open(url: &str) -> Result<Self, ConfigError> {
        Ok(Self::on(Connection::open(url, DEFAULT_DEADLINE)?))
    }

    /// The store on a connection that the application already has: a
    /// `redis::aio::ConnectionManager`, a
    /// [`MultiplexedConnection`](redis::aio::MultiplexedConnection), or any other of redis 1.x.
    ///
    /// It is cloned for each call. Its settings stay as they are, and whether it connects again
    /// when it is lost is its own business; the deadline holds all the same.
    ///
    /// A connection that sends a command again on its own may run it twice. A
    /// `redis::cluster_async::ClusterConnection` does so when a node is lost, unless it was built with
    /// `retries(0)`, and then it follows no redirect. A check that runs twice is charged twice; a refund, a
    /// gift or a settlement that runs twice frees units that are used. So open a cluster by its
    /// [URL](Self::open).
    #[cfg(feature = "redis-1")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-1")))]
    pub fn with_connection<C>(connection: C) -> Self
    where
        C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
    {
        Self::on(Connection::given(connection))
    }

    fn on(connection: Connection) -> Self {
        let client = Client {
            meter: StoreMeter::new(&format!("{connection:?}")),
            connection: Arc::new(connection),
            scripts: Scripts::shared(),
            names: KeyNames::default(),
            deadline: DEFAULT_DEADLINE,
        };
        let settings = Settings {
            denials_for: crate::store::refusal_cache::DEFAULT_MAX_AGE,
            block_list_refresh: super::block_list::DEFAULT_EVERY,
            batches: true,
            fallback_keys: DEFAULT_MAX_KEYS,
            clock: Clock::monotonic(),
        };
        Self::build(client, settings)
    }

    fn build(mut client: Client, settings: Settings) -> Self {
        client.meter = client.meter.anew();
        let clock = &settings.clock;
        let denials = RefusalCache::new(clock.clone(), settings.denials_for, client.meter.clone());
        let is_cluster = Arc::new(AtomicBool::new(client.connection.is_of_cluster()));
        let guard = guard(&client, &is_cluster, &settings);
        Self {
            shared: Arc::new_cyclic(|shared| Shared {
                blocks: BlockList::shared(
                    settings.clock.clone(),
                    settings.block_list_refresh,
                    super::block_list::list(shared.clone()),
                ),
                seen: Seen::default(),
                client,
                denials: Arc::new(denials),
                lanes: PerRuntime::default(),
                is_cluster,
                guard,
                settings,
            }),
        }
    }

    /// A store that differs in something, on the same connection where that suits it.
    fn with(&self, change: impl FnOnce(&mut Client, &mut Settings)) -> Self {
        let mut client = self.shared.client.clone();
        let mut settings = self.shared.settings.clone();
        change(&mut client, &mut settings);
        Self::build(client, settings)
    }

    /// What metrics call the store: its address unless said otherwise, which for Sentinel and Cluster is the
    /// list that it was given.
    #[must_use]
    pub fn named(self, store: &str) -> Self {
        self.with(|client, _| client.meter = StoreMeter::new(store))
    }

    /// Puts `prefix` before every stored key, `tollgate` unless said otherwise: what keeps apart the
    /// services that share a server.
    #[must_use]
    pub fn prefix(self, prefix: &str) -> Self {
        self.with(|client, _| client.names = client.names.clone().with_prefix(prefix))
    }

    /// Puts the keys under so many hash tags, where otherwise each has one of its own.
    ///
    /// For Redis Cluster, where one call serves one slot only: keys of one tag share a slot, and so
    /// their checks share calls. The tags should be some times as many as the masters, 16 times, say,
    /// so that each master has about as many; with fewer, calls are shared by more. Keys are then
    /// stored as `prefix:v1:{7}:limiter,key:log:window`. Every process must be told the same number:
    /// another one starts all counts anew.
    #[must_use]
    pub fn hash_tags(self, tags: NonZeroU16) -> Self {
        self.with(|client, _| client.names = client.names.clone().with_hash_tags(tags))
    }

    /// Bounds how long a check may take, connecting and waiting for others included: 100 ms unless
    /// said otherwise. What takes longer is an [`Error`] of kind [`ErrorKind::Timeout`].
    ///
    /// Stores that are told different ones share their connections, but those to a cluster.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with(|client, _| {
            client.deadline = deadline.min(LONGEST_DEADLINE);
            client.connection = client.connection.with_deadline(client.deadline);
        })
    }

    /// How many connections each tokio runtime has, one unless said otherwise.
    ///
    /// One carries all checks, and the fewer there are the more checks share a call, which is what
    /// spares Redis. More of them help where the way to Redis is long or loses packets: answers come in
    /// the order of the calls, so one lost packet, or one slow call, delays all that share its
    /// connection. The checks of one key always take the same one. Of a connection that the
    /// application gave there is one.
    #[must_use]
    pub fn connections(self, count: NonZeroUsize) -> Self {
        self.with(|client, _| {
            client.connection = Arc::new(client.connection.with_count(count));
        })
    }

    /// For how long at most a refusal is remembered and answered here, without asking Redis; one
    /// second unless said otherwise, zero for not at all.
    ///
    /// It never holds longer than Redis itself would refuse, but that a reset, a refund, a gift or a raised
    /// limit by **another** store, in this process or elsewhere, and a jump of the server's clock, are
    /// seen when it has passed. A refusal is answered for 0.8 of its wait, by the clock of this process: so
    /// it ends in time where chrony slews that clock and the server's by 8.3 %, its greatest rate, in
    /// opposite directions. Clones are one store; one that is told something else, like another
    /// deadline, is another.
    #[must_use]
    pub fn refusal_cache(self, at_most: Duration) -> Self {
        self.with(|_, settings| settings.denials_for = at_most)
    }

    /// How often this process looks for keys that another one has [blocked](crate::Admin::block); each
    /// second unless said otherwise, with zero not at all.
    ///
    /// It does so while checks come, beside them: none waits for it. Redis is asked for the version of a
    /// list, and tells the list where that is another one.
    #[must_use]
    pub fn block_list_refresh(self, every: Duration) -> Self {
        self.with(|_, settings| settings.block_list_refresh = every)
    }

    /// Whether checks that wait at the same time travel in one call, which is the default. Else each
    /// is a call of its own, for comparison.
    #[must_use]
    pub fn batches(self, batches: bool) -> Self {
        self.with(|_, settings| settings.batches = batches)
    }

    /// For how many keys this process counts at most while Redis fails; 100 000 unless said
    /// otherwise, none with 0. See [`FailurePolicy::fall_back`](crate::FailurePolicy::fall_back).
    #[must_use]
    pub fn fallback_keys(self, keys: usize) -> Self {
        self.with(|_, settings| settings.fallback_keys = keys)
    }

    /// The same decisions by another clock: Lua that defines `now`, in front of the script, and the
    /// clock of this process.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    #[must_use]
    pub fn with_clock_source(self, clock: &str, local: TestClock) -> Self {
        self.with(|client, settings| {
            client.scripts = Arc::new(Scripts::with_clock(clock));
            settings.clock = Clock::Test(local);
        })
    }

    /// A check that is a call of its own. With `alone` go the others on when it is done.
    fn check_alone(&self, check: Check<'_>, alone: Option<DirectSend>) -> StoreFuture {
        let shared = Arc::clone(&self.shared);
        let asked = OwnedCheck::from(check);
        StoreFuture::boxed(async move {
            let Shared {
                client, denials, ..
            } = &*shared;
            let check = asked.check();
            let sent = denials.sending(check);
            let call = [BatchEntry { check, count: 1 }];
            let way = match &alone {
                Some(alone) => alone.way(),
                None => client.way(check.subject),
            };
            let decided = async {
                let live = client.wait(way).await?;
                client.decide(&live, &call).await
            };
            let outcome = within_deadline(client, decided).await;
            drop(alone);
            let granted = outcome?.into_iter().next().transpose()?;
            let answer = granted.and_then(EntryReply::into_last);
            let answer =
                answer.ok_or_else(|| super::protocol::errors::malformed_reply("no answer"))?;
            denials.note(check, &answer, sent);
            Ok(answer)
        })
    }

    /// A call that lets Redis admit what it has refused.
    fn giving_back(
        &self,
        subject: Subject<'_>,
        call: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) -> StoreFuture<()> {
        let shared = Arc::clone(&self.shared);
        let forgetting = shared.denials.forgetting(subject);
        StoreFuture::boxed(async move {
            let outcome = within_deadline(&shared.client, call).await;
            drop(forgetting);
            outcome
        })
    }

    /// Asks the server whether it is there.
    ///
    /// # Errors
    ///
    /// When it does not answer within the deadline, or answers an error.
    pub async fn ping(&self) -> Result<(), Error> {
        let client = &self.shared.client;
        let ping = ::redis::cmd("PING");
        within_deadline(client, client.query(ConnectionIndex::default(), &ping))
            .await
            .map(drop)
    }
}

/// One server fails as a whole; of a cluster, one that serves some ranges of slots.
fn guard(client: &Client, is_cluster: &Arc<AtomicBool>, settings: &Settings) -> CircuitBreaker {
    let names = client.names.clone();
    let is_cluster = Arc::clone(is_cluster);
    CircuitBreaker::new()
        .metered(client.meter.clone())
        .kept_deadline(client.deadline)
        .clock(settings.clock.clone())
        .fallback_keys(settings.fallback_keys)
        .in_parts(SLOTS / SLOTS_OF_PART, move |check| {
            if is_cluster.load(Ordering::Relaxed) {
                usize::from(names.slot(check.subject)) / SLOTS_OF_PART
            } else {
                0
            }
        })
}

pub(crate) async fn within_deadline<T>(
    client: &Client,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    runtime()?;
    let answered = tokio::time::timeout(client.deadline, call).await;
    answered.unwrap_or_else(|_| Err(client.late()))
}

fn runtime() -> Result<Handle, Error> {
    Handle::try_current().map_err(|_| {
        Error::new(
            ErrorKind::Misconfigured,
            "a RedisStore can only be asked inside of a tokio runtime",
        )
    })
}

impl Shared {
    fn new_lanes(&self) -> Batchers {
        Batchers::new(self.client.connection.count())
    }

    /// The way of a subject's checks.
    pub(crate) fn lane(&self, runtime: &Handle, subject: Subject<'_>) -> Arc<Batcher> {
        let lanes = self
            .lanes
            .get_or_make(runtime, || Ok::<_, Infallible>(Arc::new(self.new_lanes())));
        let lanes: Arc<Batchers> = lanes.unwrap_or_else(|never| match never {});
        if self.is_cluster.load(Ordering::Relaxed) {
            lanes.of_slot(self.client.names.slot(subject))
        } else {
            Arc::clone(lanes.of_way(self.client.way(subject)))
        }
    }
}

impl Store for RedisStore {
    fn check(&self, check: Check<'_>) -> StoreFuture<Answer> {
        let Self { shared } = self;
        if let Some(refusal) = shared.denials.find(check) {
            return StoreFuture::ready(Ok(refusal));
        }
        let runtime = match runtime() {
            Ok(runtime) => runtime,
            Err(error) => return StoreFuture::ready(Err(error)),
        };
        if !shared.settings.batches {
            return self.check_alone(check, None);
        }
        let lane = shared.lane(&runtime, check.subject);
        match lane.enter(shared, &runtime) {
            Some(alone) => self.check_alone(check, Some(alone)),
            None => StoreFuture::waiting(lane.push(shared, &runtime, check)),
        }
    }

    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        let call = self.shared.client.reset(reset);
        self.giving_back(reset.subject, call)
    }

    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        let call = self.shared.client.refund(&refund);
        self.giving_back(refund.subject, call)
    }

    fn credit(&self, give: Credit<'_>) -> StoreFuture<()> {
        let call = self.shared.client.credit(&give);
        self.giving_back(give.subject, call)
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<()> {
        let (shared, blocked) = (Arc::clone(&self.shared), BlockedKey::from(block));
        StoreFuture::boxed(
            async move { within_deadline(&shared.client, shared.block(blocked)).await },
        )
    }

    fn block_list(&self) -> BlockList {
        self.shared.blocks.clone()
    }

    fn circuit_breaker(&self) -> CircuitBreaker {
        self.shared.guard.clone()
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared {
            client,
            denials: _,
            lanes: _,
            is_cluster: _,
            guard: _,
            blocks: _,
            seen: _,
            settings,
        } = &*self.shared;
        f.debug_struct("RedisStore")
            .field("client", client)
            .field("settings", settings)
            .finish_non_exhaustive()
    }
}
