//! The limiter: a name, a store and quotas.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::automatic_blocks::AutomaticBlocks;
use super::conflicts::{LimiterInUse, Owner, warn_if_different};
use super::failure_policy::{FailureHandler, FailurePolicy};
use super::in_flight::LimiterPermits;
use super::lease::Lease;
use super::pauses::{DEFAULT_MAX_PAUSE, DEFAULT_PAUSES, DefaultPauses, Pauses};
use crate::decision::{LimiterFacts, LimiterId, Record};
use crate::error::{ConfigError, Error};
use crate::key::{IntoKey, Key, KeyAliases};
use crate::quota::{BlockRule, IntoQuotas, Quota, Quotas};
use crate::store::{ProtectedStore, Store, Subject};
use crate::telemetry::{LineInterval, Telemetry};

/// A rate limiter without HTTP: it has a name, a [store](mod@crate::store) and quotas.
///
/// Use it for jobs, for calls of an upstream API, or for anything else that costs units. For a service of
/// HTTP requests, use [`RateLimitLayer`](crate::RateLimitLayer). To let a layer and a job share counts,
/// create the layer from a limiter: `RateLimitLayer::from(limiter)`.
///
/// Each check has a [`Key`] and a cost in units. If every quota has room for the cost, the check is admitted
/// and charged to all quotas. Otherwise it is refused and charged to none. The store decides in one atomic
/// step. A refused check writes nothing, so it never extends the wait.
///
/// Limiters with the same store, name and key share their counts. Clones are cheap.
///
/// # Examples
///
/// An upstream API grants 9 500 units a day, and a search costs 100 units:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use tollgate::{MemoryStore, Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_day(9_500)).name("video-api");
///
/// let decision = limiter.check_n("key1", 100).await?;
/// if decision.is_allowed() {
///     println!("searching, {} units are left", decision.remaining());
/// } else {
///     println!("retry in {:?}", decision.retry_after());
/// }
/// # assert_eq!(decision.remaining(), 9_400);
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct RateLimiter(pub(crate) Arc<LimiterInner>, Option<InUse>);

/// Exists as long as the program has a limiter, or a clone of it. A record has none: it only remembers its limiter.
type InUse = Arc<()>;

/// The settings of a limiter, and what clones with other settings share. A setter copies it if there are other clones.
#[derive(Clone)]
pub(crate) struct LimiterInner {
    pub(super) store: ProtectedStore,
    /// The name and the quotas, which decisions tell.
    pub(crate) facts: LimiterFacts,
    /// The stored form of the name.
    pub(super) scope: Key,
    /// `None` if the caller gets the error.
    pub(super) on_failure: Option<Arc<FailureHandler>>,
    /// `None` if no units are taken in advance.
    pub(super) lease: Option<Arc<Lease>>,
    /// How long the store holds reserved units for a process that does not renew them. `None` if they are charged.
    pub(super) reserve_lease: Option<Duration>,
    /// `None` if no key is blocked automatically.
    pub(super) automatic_blocks: Option<Arc<AutomaticBlocks>>,
    /// The keys that upstreams have paused.
    pub(crate) pauses: Arc<Pauses>,
    pub(super) max_pause: Duration,
    pub(super) max_exhausted_pause: Duration,
    pub(super) default_pauses: DefaultPauses,
    /// The lines about waits for units that go on while the store fails. `None` if they end.
    pub(super) waits_through_outages: Option<Arc<LineInterval>>,
    /// How long a permit is waited for, if it was set, and how many calls may wait for a key.
    pub(super) max_wait: Option<Duration>,
    pub(super) line: Option<usize>,
    /// Empty until the first check that takes slots.
    pub(super) permits: Arc<OnceLock<LimiterPermits>>,
    aliases: KeyAliases,
    pub(crate) telemetry: Arc<Telemetry>,
    in_use: Weak<()>,
    /// Whether this limiter or a clone has checked.
    pub(super) first_check: Arc<AtomicBool>,
}

/// The default name of a limiter.
const DEFAULT_NAME: &str = "default";

impl RateLimiter {
    /// Creates a limiter with the name `default`.
    ///
    /// Two limiters of one store that keep this name share their counts. If they are not clones of one limiter, a warning
    /// says so.
    ///
    /// `quotas` is one [`Quota`] or a list of them. An empty list admits everything.
    pub fn new(store: impl Store, quotas: impl IntoQuotas) -> Self {
        let name: Arc<str> = DEFAULT_NAME.into();
        let scope = Key::from(DEFAULT_NAME);
        let store = ProtectedStore::new(store);
        let id = LimiterId {
            name: scope.fingerprint(),
            store: store.id(),
        };
        let aliases = KeyAliases::default();
        let telemetry = Telemetry::new(&name, store.name(), None, aliases.clone());
        let quotas = quotas.into_quotas();
        let inner = LimiterInner {
            aliases,
            telemetry: Arc::new(telemetry),
            store,
            facts: LimiterFacts { name, id, quotas },
            pauses: Pauses::new(&scope),
            max_pause: DEFAULT_MAX_PAUSE,
            max_exhausted_pause: Duration::ZERO,
            default_pauses: DEFAULT_PAUSES,
            scope,
            on_failure: None,
            lease: None,
            reserve_lease: None,
            automatic_blocks: None,
            waits_through_outages: None,
            max_wait: None,
            line: None,
            permits: Arc::default(),
            in_use: Weak::new(),
            first_check: Arc::default(),
        };
        Self(Arc::new(inner), None).distinct()
    }

    /// Makes this another limiter than those that it was cloned from, which it may differ from.
    fn distinct(mut self) -> Self {
        let in_use = InUse::default();
        let inner = Arc::make_mut(&mut self.0);
        inner.in_use = Arc::downgrade(&in_use);
        inner.first_check = Arc::default();
        self.1 = Some(in_use);
        self
    }

    /// Returns the limiter for a record, which keeps it but does not use it: one shared count.
    #[inline]
    pub(super) fn remembered(&self) -> Self {
        Self(Arc::clone(&self.0), None)
    }

    /// Changes settings. Other clones keep theirs.
    pub(super) fn with(mut self, change: impl FnOnce(&mut LimiterInner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Creates a limiter as [`new`](Self::new) does, from quotas that may be text, such as a setting.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is malformed, or if there is no quota.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{MemoryStore, RateLimiter};
    ///
    /// let limiter = RateLimiter::try_new(MemoryStore::new(), "100/minute; 5/second")?;
    /// assert_eq!(limiter.quotas().len(), 2);
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn try_new(
        store: impl Store,
        quotas: impl TryInto<Quotas, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Ok(Self::new(store, Quotas::configured(quotas)?))
    }

    /// Sets the name of the limiter, which is a part of each stored key. The default is `default`.
    ///
    /// Limiters with the same store and name share their counts. Give each separate limit its own name.
    /// Any text is a name.
    #[must_use]
    pub fn name(self, name: impl AsRef<str>) -> Self {
        self.with(|inner| {
            inner.scope = Key::from(name.as_ref());
            let facts = &mut inner.facts;
            facts.name = name.as_ref().into();
            facts.id.name = inner.scope.fingerprint();
            inner.pauses = inner.pauses.renamed(&inner.scope);
            inner.permits = Arc::default();
            if let Some(on_failure) = &inner.on_failure {
                inner.set_policy(on_failure.policy);
            }
            if let Some(lease) = &inner.lease {
                inner.set_lease(lease.duration);
            }
            let tracked = inner.telemetry.tracked_keys();
            inner.set_tracked(tracked);
        })
        .distinct()
    }

    /// Tracks the keys that this process refuses most often, for
    /// [`Admin::top_rejected_keys`](crate::Admin::top_rejected_keys). By default, none are tracked.
    ///
    /// `keys` is the number of tracked keys. With 100, any key with more than 1/100 of all refusals is
    /// found. Each tracked key takes about 250 bytes. Each refusal takes a lock for a few steps, and once a
    /// minute for a scan of the tracked keys.
    ///
    /// Call it before you clone the limiter: earlier clones do not share the list.
    #[doc(alias("track_refused"))]
    #[must_use]
    pub fn track_rejected_keys(self, keys: NonZeroUsize) -> Self {
        self.with(|inner| inner.set_tracked(Some(keys)))
    }

    /// Sets the secret by which all processes give a key the same alias in their logs.
    ///
    /// Log events have no key, but the field `key_alias`: 16 digits that do not reveal it. By default, they are random for each
    /// process, because addresses and mails could be guessed from a public number. With a secret of the service, such as an
    /// environment variable of 32 random bytes, a line of any process leads to the client: [`key_alias`](Self::key_alias)
    /// computes the alias of a key, and [`Admin::find_alias`](crate::Admin::find_alias) finds the key.
    ///
    /// Who has the secret and the logs can test guesses of keys. An empty secret, as of a variable that is not set, leaves the
    /// aliases random. Call it before you clone the limiter: earlier clones keep their aliases.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let secret = std::env::var("ALIAS_SECRET").unwrap_or_default();
    /// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(60)).key_alias_secret(secret);
    /// println!("grep {}", limiter.key_alias("ada"));
    /// ```
    #[must_use]
    pub fn key_alias_secret(self, secret: impl AsRef<[u8]>) -> Self {
        self.with(|inner| {
            inner.aliases = KeyAliases::by_secret(secret.as_ref());
            let tracked = inner.telemetry.tracked_keys();
            inner.set_tracked(tracked);
        })
    }

    /// Returns the alias of a key in log events, 16 hexadecimal digits.
    ///
    /// It is that of this process, unless the limiter has a [secret](Self::key_alias_secret).
    #[must_use]
    pub fn key_alias(&self, key: impl IntoKey) -> String {
        self.0.aliases.alias(&key.into_key())
    }

    /// Blocks keys that are refused too often, for longer each time. By default, only operators block keys.
    ///
    /// A key is blocked in all processes. [`Admin::status`](crate::Admin::status) shows the block, and
    /// [`Admin::unblock`](crate::Admin::unblock) lifts it. See [`BlockRule`] for the refusals that count, and
    /// [the guide](crate::guide::security#growing-blocks) for the choice of the key.
    ///
    /// With a store that cannot [block keys](crate::Store::block), the limiter logs a warning and blocks none.
    ///
    /// The refusals of a key are counted as units of a second limiter, whose stored name is `blocks=` and the name. Give
    /// all limiters of a name the same rule. Call it before you clone the limiter: earlier clones do not count
    /// their refusals.
    ///
    /// # Panics
    ///
    /// Panics if a value of the rule is out of range. For a rule from outside the program, call
    /// [`BlockRule::validated`] first.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{BlockRule, MemoryStore, Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(60))
    ///     .block_after(BlockRule::refusals(600).block_for(Duration::from_secs(3_600)).doubling());
    /// ```
    #[must_use]
    pub fn block_after(self, rule: BlockRule) -> Self {
        let problem = rule.validated().err().map(|error| error.to_string());
        assert!(problem.is_none(), "{}", problem.unwrap_or_default());
        self.with(|inner| inner.set_block_rule(rule))
    }

    /// Sets how this limiter decides while the store fails. By default, checks return the error.
    ///
    /// Earlier clones keep their own policy. All clones still share their counts.
    #[must_use]
    pub fn on_failure(self, policy: FailurePolicy) -> Self {
        self.with(|inner| inner.set_policy(policy))
    }

    /// Lets this process take units of busy keys in advance, and admit checks from memory. By default, each check
    /// asks the store.
    ///
    /// `lease` is the longest time for which units are held. It is cut to a tenth of the shortest window; zero
    /// turns leases off. A twentieth of the window is a good start. See [the guide](crate::guide::leases).
    ///
    /// **The limit is never exceeded**, for any number of processes, crashes and pauses. In exchange, a charged
    /// unit counts for the window and the lease, because it may be used that much later: a client that uses its
    /// whole limit gets `limit / (window + lease)`. Units that a process holds when it crashes count for that
    /// time, too.
    ///
    /// - A key is leased if its limit is above 20, and if at least sixteen checks come within the time of the lease. Far from
    ///   the store, four to six are enough, because each check from memory saves a round trip of 20 ms or more. A lease
    ///   should last several round trips: one of less than 1.25 takes no units.
    /// - The process asks for as many units as the key will use until the lease ends. Of what is left, it
    ///   gets twice the part that it used of the limit in the last window, and at least an eighth. So a process that is
    ///   alone at its limit gets all of it, and several share it by what they used.
    /// - It asks again in the background, a round trip before the units are used up, and returns what is left when the
    ///   lease ends.
    /// - The source of a check from memory is [`Source::Lease`](crate::Source::Lease). Its numbers may be as old
    ///   as the lease.
    /// - A check of more units than are held asks the store for the difference.
    /// - While the store fails, the units at hand may be used until their lease ends. Then the
    ///   [failure policy](Self::on_failure) applies.
    ///
    /// Only a store behind a network, such as [`RedisStore`](crate::RedisStore) or a
    /// [`StoreOn`](crate::store::StoreOn), grants units. With others, the limiter asks the store for each check, and
    /// counts in the same way.
    ///
    /// Give all limiters of a name the same lease. A limiter with another lease counts anew: while both run, a
    /// client may use its limit twice. Slots [in flight](Quota::in_flight), and units of [totals](Quota::total), of
    /// [soft](Quota::soft) quotas and of [shares](Quota::shares), are not held in advance: with such a quota, each check fails
    /// with an error of kind [`Misconfigured`](crate::ErrorKind::Misconfigured).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tollgate::{Quota, RateLimiter, store};
    ///
    /// let store = store::from_url("redis://127.0.0.1:6379?prefix=shop")?;
    /// let limiter = RateLimiter::new(store, Quota::per_second(20_000))
    ///     .name("service")
    ///     .lease(Duration::from_millis(50));
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[doc(alias("try_lease"))]
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|inner| inner.set_lease(lease)).distinct()
    }

    /// Holds the units that are reserved, in place of charging them: what was not used returns, also if the process is killed.
    /// By default, a reservation is a charge, and what was not settled counts until its window ends: for a budget of a month,
    /// up to a month.
    ///
    /// It changes [`acquire`](Self::acquire), [`try_acquire`](Self::try_acquire), those for several keys, and the requests of a
    /// layer: their cost is *held*. It counts as used for all, but the store has it as a number of this process, with a lease
    /// that the process renews in the background, as it does for slots [in flight](Quota::in_flight). The
    /// [`Permit`](crate::Permit) takes what is used from it: [`add`](crate::Permit::add) costs no call, and what was added is
    /// charged with the next renewal, after a third of the lease. When the permit is dropped, the rest returns.
    ///
    /// | event | what happens |
    /// |---|---|
    /// | the permit is dropped after `add` or [`settle`](crate::Permit::settle) | what was used is charged, also beyond the limit; the rest returns |
    /// | it is dropped without a word | all of it is charged |
    /// | the process is killed | what it held returns within one lease; what it used in the last third of a lease is not charged |
    /// | it stands still, or is cut off, for longer than the lease | the permit is [lost](crate::Permit::lost): others may get the units; what it used is charged when it goes on |
    /// | the store fails | what is used is charged when it is back |
    /// | it loses its data | what was charged is gone, as of any count; what is held is held again within a third of a lease |
    ///
    /// [`check`](Self::check) and the calls without a permit charge as always, beside what is held. Set the lease for all
    /// limiters of a name, in all processes: a check without it does not see what others hold.
    ///
    /// While only held units keep a check from its room, nobody knows when it has some: its wait is
    /// [an estimate](crate::DecisionView::is_wait_estimated). [`LevelDecision::reserved`](crate::LevelDecision::reserved) says
    /// how much is held.
    ///
    /// Each check of the limiter reads a second value, which takes Redis about twice the time: use it for budgets, not for the
    /// rate of a service. For many streams of a key, prefer [buckets](crate::Algorithm::SlidingBuckets), a
    /// [calendar](crate::Algorithm::FixedWindow) or a [total](Quota::total) to a log, which keeps a run for each renewal.
    /// Quotas in flight, [soft](Quota::soft) quotas, [shares](Quota::shares), a [lease](Self::lease) and
    /// [`SortedSetLog`](crate::Algorithm::SortedSetLog) cannot stand beside held units: each check fails then with an error of
    /// kind [`Misconfigured`](crate::ErrorKind::Misconfigured).
    ///
    /// `lease` is from 5 seconds to 10 minutes. 15 seconds suit most: a shorter one needs more renewals, and units of a process
    /// that was killed are missed for as long as a longer one.
    ///
    /// # Panics
    ///
    /// Panics if the lease is out of range.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let tokens = RateLimiter::new(MemoryStore::new(), Quota::per_day(50_000))
    ///     .name("tokens")
    ///     .reserve_lease(Duration::from_secs(15));
    ///
    /// // An answer may cost up to 4 000 tokens.
    /// let mut permit = RateLimiter::acquire_all([tokens.level("acme").cost(4_000)]).await?;
    /// for part in [300, 500] {
    ///     permit.add(part);
    /// }
    /// drop(permit);
    /// assert_eq!(tokens.peek("acme").await?.used(), 800);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    #[doc(alias("reservation", "budget", "hold"))]
    #[must_use]
    pub fn reserve_lease(self, lease: Duration) -> Self {
        self.with(|inner| {
            inner.reserve_lease = Some(lease);
            inner.facts.quotas = inner.facts.quotas.with_held(lease);
            inner.permits = Arc::default();
            if let Some(on_failure) = &inner.on_failure {
                inner.set_policy(on_failure.policy);
            }
        })
        .distinct()
    }

    pub(crate) fn warn_about_conflict(&self, key_type: Option<&'static str>) {
        let lease = self.0.lease.as_ref();
        let limiter = LimiterInUse {
            id: self.0.facts.id,
            is_unnamed: &*self.0.facts.name == DEFAULT_NAME,
            quotas: self.0.facts.quotas.clone(),
            key_type,
            lease: lease.map_or(Duration::ZERO, |lease| lease.duration),
            counted: self.lease_micros(&self.0.facts.quotas),
        };
        // Requests for units outlive the limiter.
        let owner: Owner = match lease {
            Some(lease) => Arc::downgrade(lease) as _,
            None => self.0.in_use.clone() as _,
        };
        warn_if_different(&self.0.facts.name, &limiter, owner);
    }

    #[inline]
    pub(super) fn observe_check(&self) {
        if !self.0.first_check.load(Ordering::Relaxed) {
            self.observe_first_check();
        }
    }

    #[cold]
    fn observe_first_check(&self) {
        if !self.0.first_check.swap(true, Ordering::Relaxed) {
            self.warn_about_conflict(None);
        }
    }

    /// Returns what this process holds to the store: the units of its [lease](Self::lease), and the
    /// [slots](crate::Quota::in_flight) of permits that were dropped. It waits until the store knows.
    ///
    /// Call it at the end of a graceful shutdown, after the last request and before the runtime ends. Without it, other
    /// processes may get the slots only when their [lease](crate::Quota::slot_lease) ends, 15 s by default, and the units after
    /// the window and the lease.
    ///
    /// - **Units**: those of this limiter. From then on, all of its clones ask the store for each check.
    /// - **Slots**: those of all limiters of the store in this process, so one call is enough. A server may drop the last
    ///   responses a moment after it has ended. So while permits are held, `release` waits for them, for at most the
    ///   [deadline](crate::RedisStore::deadline) of the store. Permits that are held longer stay valid.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, or does not answer within its deadline. The units then count for the window and the
    /// lease, and the slots for their lease.
    pub async fn release(&self) -> Result<(), Error> {
        let units = match &self.0.lease {
            Some(lease) => lease.release().await,
            None => Ok(()),
        };
        units.and(self.permits().table.release(&self.0.store).await)
    }

    /// The longest time for which processes may hold units of these quotas. 0 without a lease.
    #[inline]
    pub(super) fn lease_micros(&self, quotas: &Quotas) -> u64 {
        match &self.0.lease {
            None => 0,
            Some(lease) => quotas.lease_micros(lease.duration),
        }
    }

    /// Returns the quotas of this limiter.
    #[must_use]
    pub fn quotas(&self) -> &Quotas {
        &self.0.facts.quotas
    }

    /// `None` if the caller gets the error.
    pub(crate) fn policy(&self) -> Option<FailurePolicy> {
        self.0.on_failure.as_ref().map(|handler| handler.policy)
    }

    /// Without [`max_wait`](Self::max_wait), the requests of a layer do not wait.
    pub(crate) fn layer_max_wait(&self) -> Duration {
        self.0.max_wait.unwrap_or_default()
    }

    #[inline]
    pub(super) fn subject_for<'a>(&'a self, record: &'a Record, quotas: &'a Quotas) -> Subject<'a> {
        Subject {
            share: record.share,
            lease_micros: record.lease,
            ..Subject::new(&self.0.scope, &record.key, quotas)
        }
    }

    /// The subject of a request without a share.
    pub(super) fn subject<'a>(&'a self, quotas: &'a Quotas, key: &'a Key) -> Subject<'a> {
        Subject {
            lease_micros: self.lease_micros(quotas),
            ..Subject::new(&self.0.scope, key, quotas)
        }
    }
}

impl LimiterInner {
    /// Also creates the automatic blocks again, which record to the telemetry.
    fn set_tracked(&mut self, keys: Option<NonZeroUsize>) {
        let Self { facts, store, .. } = self;
        let telemetry = Telemetry::new(&facts.name, store.name(), keys, self.aliases.clone());
        self.telemetry = Arc::new(telemetry);
        if let Some(blocks) = &self.automatic_blocks {
            self.set_block_rule(blocks.counts.rule);
        }
    }

    fn set_block_rule(&mut self, rule: BlockRule) {
        let blocks = AutomaticBlocks::new(rule, &self.store, &self.scope, &self.telemetry);
        self.automatic_blocks = Some(blocks);
    }

    fn set_policy(&mut self, policy: FailurePolicy) {
        let handler = FailureHandler::new(policy, &self.facts.quotas);
        self.on_failure = Some(Arc::new(handler));
    }

    fn set_lease(&mut self, lease: Duration) {
        self.lease = (!lease.is_zero()).then(|| {
            let lease = Lease::new(lease, &self.store, &self.facts.name);
            Arc::new(lease)
        });
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        let quotas: Vec<_> = inner.facts.quotas.iter().map(Quota::to_string).collect();
        let lease = inner.lease.as_ref().map(|lease| lease.duration);
        let blocks = inner.automatic_blocks.as_ref();
        f.debug_struct("RateLimiter")
            .field("name", &inner.facts.name)
            .field("quotas", &quotas)
            .field("on_failure", &self.policy())
            .field("lease", &lease)
            .field("reserve_lease", &inner.reserve_lease)
            .field("block_after", &blocks.map(|blocks| blocks.counts.rule))
            .field(
                "waits_through_outages",
                &inner.waits_through_outages.is_some(),
            )
            .finish_non_exhaustive()
    }
}
