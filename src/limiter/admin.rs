//! Operations for operators on the keys of a limiter.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use super::asked_level::AskedLevel;
use super::automatic_blocks::BlockCounts;
use super::key_status::{BlockReason, KeyStatus};
use super::limiter::{LimiterInner, RateLimiter};
use super::pauses::PauseReason;
use crate::decision::{Holding, holder_for};
use crate::error::{Error, ErrorKind};
use crate::key::{IntoKey, Key};
use crate::quota::{BlockRule, IntoQuotas, Quotas};
use crate::store::{Block, Change};
use crate::telemetry::RejectedKey;

/// Operations for operators, while the service runs: inspect, reset, credit or block a key of a limiter.
///
/// Use them for support and in emergencies: to find out why a client is refused, to let it continue, or to
/// keep it out. Get an `Admin` from [`RateLimiter::admin`]. For a layer, call
/// `layer.limiter().admin()`.
///
/// These methods can lift any limit, so make them available only to authorized operators. The example
/// `admin` is an admin page with a login. The [cookbook](crate::guide::cookbook#a-refused-customer) has the
/// steps of a support case.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use tollgate::{MemoryStore, Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(3)).name("reports");
/// for _ in 0..4 {
///     let _ = limiter.check("ada").await?;
/// }
///
/// let admin = limiter.admin();
/// assert_eq!(admin.status("ada").await?.view.used(), 3);
///
/// admin.credit("ada", 2).await?;
/// assert_eq!(admin.status("ada").await?.view.remaining(), 2);
///
/// admin.block("ada", Duration::from_secs(600)).await?;
/// assert!(!limiter.check("ada").await?.is_allowed());
/// assert!(admin.status("ada").await?.blocked_for.is_some());
///
/// admin.unblock("ada").await?;
/// admin.reset("ada").await?;
/// assert_eq!(admin.status("ada").await?.view.remaining(), 3);
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
///
/// # Which key
///
/// Pass the key as the limiter counts it. Create it with the [extractor](mod@crate::key) of the layer:
/// `key::peer_ip().of(address)` or `key::header("x-api-key").of("1f0c")`. To parse the stored text of a
/// key, for example from an admin page, use [`Key::from_stored`].
///
/// # When other processes see a change
///
/// With [`RedisStore`](crate::RedisStore), changes apply to all processes:
///
/// - A **reset** or a **credit** applies at once. A process that has refused the key before may refuse it
///   for up to one second more, because it [caches refusals](crate::RedisStore::refusal_cache). The process
///   that made the change does not.
/// - A **block** applies at once in the process that made it. The others fetch the list of blocked keys
///   once per second, while they receive requests. A process without requests fetches it with its next check. That check
///   waits for it only if the limiter observes an upstream: see [`RateLimiter::pause`].
#[derive(Clone, Debug)]
pub struct Admin {
    limiter: RateLimiter,
    quotas: Quotas,
}

impl RateLimiter {
    /// Returns the operations for operators: inspect, reset, credit or block a key.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin {
            limiter: self.clone(),
            quotas: self.0.facts.quotas.clone(),
        }
    }
}

impl Admin {
    /// Sets the quotas of the keys. The default is the limiter's quotas.
    ///
    /// Set them for keys with a plan of [`quotas_for`](crate::RateLimitLayer::quotas_for), which the limiter
    /// does not know.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(60));
    /// let gold = Quota::per_minute(600);
    /// assert_eq!(limiter.admin().quotas(gold).status("acme").await?.view.remaining(), 600);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn quotas(self, quotas: impl IntoQuotas) -> Self {
        let quotas = quotas.into_quotas();
        Self { quotas, ..self }
    }

    /// Returns the limiter that the keys belong to.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// Returns the units that a key has used and left, whether it is blocked, and who holds its slots. Charges nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the list of blocked keys cannot be fetched. Also returns the error of the check if
    /// the store fails, unless the [policy](RateLimiter::on_failure) of the limiter decides.
    #[doc(alias("peek"))]
    pub async fn status(&self, key: impl IntoKey) -> Result<KeyStatus, Error> {
        let Self { limiter, quotas } = self;
        let key = key.into_key();
        limiter.0.store.refresh_blocks().await?;
        let mut level = AskedLevel::new(limiter, &key, 0);
        level.set_plan(quotas.clone());
        let decision = level.look().await?;
        let list = limiter.0.store.block_list();
        let block = list.blocked_for(&limiter.0.scope, &key);
        let pause = limiter.paused_for(&key);
        let paused_for = pause.map(|(_, left)| left);
        let blocked_for = block.max(paused_for);
        let block_reason = match (blocked_for, pause) {
            (None, _) => None,
            (_, Some((reason, _))) if paused_for > block => Some(pause_reason(reason)),
            _ => Some(match self.block_counts().blocks(&key).await? {
                0 => BlockReason::Operator,
                blocks => BlockReason::Refusals { blocks },
            }),
        };
        let (holders, own_holder) = self.holders(&key).await?;
        Ok(KeyStatus {
            view: decision.into_view(),
            blocked_for,
            block_reason,
            holders,
            own_holder,
        })
    }

    /// The holders with the most slots come first. The second value is this process, if the key has slots.
    async fn holders(&self, key: &Key) -> Result<(Vec<Holding>, Option<[u8; 16]>), Error> {
        let Self { limiter, quotas } = self;
        if !quotas.has_slots() {
            return Ok((Vec::new(), None));
        }
        let holdings = match limiter.0.store.holders(limiter.subject(quotas, key)).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => Vec::new(),
            holders => holders?,
        };
        // A process has one holding for each share.
        let mut holders: Vec<Holding> = Vec::with_capacity(holdings.len());
        for holding in holdings {
            let holder = holder_for(holding.holder, None);
            match holders.iter_mut().find(|known| known.holder == holder) {
                Some(known) => {
                    known.held = known.held.saturating_add(holding.held);
                    known.lease = known.lease.max(holding.lease);
                }
                None => holders.push(Holding { holder, ..holding }),
            }
        }
        holders.sort_by_key(|holding| (Reverse(holding.held), holding.holder));
        Ok((holders, Some(limiter.permits().table.holder)))
    }

    /// Deletes the counts of a key, so that it has its whole quotas again. A block stays.
    ///
    /// A [log](crate::Algorithm::SlidingLog) is deleted with the history of all its windows, also windows of other
    /// quotas of the key. So are buckets of one length.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, or does not support resets.
    pub async fn reset(&self, key: impl IntoKey) -> Result<(), Error> {
        if self.quotas.is_empty() {
            return Ok(());
        }
        let key = key.into_key();
        if let Some(lease) = &self.limiter.0.lease {
            lease.void(&key).await?;
        }
        self.adjust(&key, Change::Reset).await
    }

    /// Changes the counts of a key, so that the store may admit it earlier.
    async fn adjust(&self, key: &Key, change: Change<'_>) -> Result<(), Error> {
        let Self { limiter, quotas } = self;
        let change = limiter.subject(quotas, key).adjust(change);
        let outcome = limiter.0.store.adjust(change).await;
        limiter.may_admit_earlier(key, quotas);
        outcome
    }

    /// Gives units back to a key: that many used units no longer count, regardless of the checks that
    /// charged them.
    ///
    /// A key never has more units left than its limit: a credit above the used units leaves the whole limit.
    ///
    /// The algorithm determines the units that no longer count. The other units return at the same time as
    /// without the credit, except with `Gcra`, whose lower level drains sooner.
    ///
    /// - [`SlidingLog`](crate::Algorithm::SlidingLog) and [`SlidingBuckets`](crate::Algorithm::SlidingBuckets): the
    ///   newest of those in the longest window. So every window has that much more room.
    /// - [`SortedSetLog`](crate::Algorithm::SortedSetLog): the newest.
    /// - [`SlidingCounter`](crate::Algorithm::SlidingCounter): units of the current window, then as few as
    ///   needed of the previous window.
    /// - [`FixedWindow`](crate::Algorithm::FixedWindow) and [`Gcra`](crate::Algorithm::Gcra): these have a
    ///   single count or level, which is lowered.
    ///
    /// A decision from before the credit can still be refunded, except with `SlidingBuckets`. With the logs and `Gcra`,
    /// units that were credited are not refunded again. `SlidingCounter` and `FixedWindow` do not distinguish the units
    /// of one window. There, such a refund may give back units that were charged after the credit.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, or does not support credits. If the reply of Redis was lost, the
    /// units may have been credited.
    ///
    /// The error is of kind [`CostTooLarge`](crate::ErrorKind::CostTooLarge) if `units` is above 100 000 and
    /// a quota counts with a log. Use [`reset`](Self::reset) instead.
    pub async fn credit(&self, key: impl IntoKey, units: u32) -> Result<(), Error> {
        let Self { limiter, quotas } = self;
        if quotas.is_empty() || units == 0 {
            return Ok(());
        }
        // Each unit in a sorted set takes Redis half a microsecond, during which it serves no other client.
        if units > quotas.max_cost() {
            return Err(Error::cost_too_large(units, quotas.max_cost()));
        }
        let key = key.into_key();
        let credit = Change::Credit { units };
        if let Some(lease) = &limiter.0.lease {
            lease.void(&key).await?;
        }
        if let Some(fallback) = limiter.0.store.fallback_if_used() {
            let shares = match &limiter.0.on_failure {
                Some(on_failure) => on_failure.divide(quotas, &limiter.0.facts.quotas),
                None => quotas.clone(),
            };
            fallback.adjust(limiter.subject(&shares, &key).adjust(credit));
        }
        self.adjust(&key, credit).await
    }

    /// Blocks a key for a duration: all its checks are refused, even if units are left. A duration of zero
    /// [unblocks](Self::unblock) it.
    ///
    /// A refused check has [`Source::Block`](crate::Source::Block) and charges nothing. Its `retry_after` is the rest of the block.
    /// Another block of the same key replaces the duration. A block continues while the store fails. It replaces an
    /// [automatic](crate::BlockRule) block, whose growth is forgotten.
    ///
    /// A block has no effect on requests that the limiter does not count: requests that are
    /// [skipped](crate::RateLimitLayer::skip), of [exempt](crate::Plan::Exempt) tenants, or of a limiter without
    /// quotas. It has no effect in a [dry run](crate::RateLimitLayer::dry_run) either.
    ///
    /// At most 10 000 keys can be blocked at a time, because each process fetches the whole list. On Redis,
    /// this is the number for all limiters with the same [prefix](crate::RedisStore::prefix) together. To
    /// block whole networks, use a firewall.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, does not support blocks, or has no room for another one. If the
    /// store did not reply in time, the key may be blocked; other processes then see the block within a
    /// second. If the growth of automatic blocks cannot be forgotten, the key is blocked all the same, and
    /// [`status`](Self::status) may show an automatic block.
    pub async fn block(&self, key: impl IntoKey, duration: Duration) -> Result<(), Error> {
        let key = key.into_key();
        if duration.is_zero() {
            return self.unblock(key).await;
        }
        let LimiterInner { store, scope, .. } = &*self.limiter.0;
        store.block(Block::new(scope, &key, duration)).await?;
        self.limiter.may_admit_earlier(&key, &self.quotas);
        // A key can be blocked even if its counts are on another server, which is down.
        let _ = self.block_counts().forget(&key).await;
        Ok(())
    }

    /// Unblocks a key, also if an [upstream](RateLimiter::observe) has paused it. Does nothing if the key is neither blocked
    /// nor refused.
    ///
    /// It also forgets the [automatic](crate::BlockRule) blocks of the key, and its refusals. Processes send refusals once a
    /// second: those of checks that began before the unblock do not block the key again, in any process. Those of
    /// another process, and all of them if this limiter does not have the [rule](RateLimiter::block_after), may count
    /// towards a later block.
    ///
    /// The quotas of the key stay used up. [Reset](Self::reset) it as well to admit it at once.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, or does not support blocks. The key may be unblocked then, but its automatic
    /// blocks are not forgotten. You can repeat the call.
    pub async fn unblock(&self, key: impl IntoKey) -> Result<(), Error> {
        let key = key.into_key();
        let limiter = &*self.limiter.0;
        let store = &limiter.store;
        let counts = self.block_counts();
        // From here on, refusals from before the unblock block the key in no process.
        let noted = counts.note_unblock(&key).await;
        if let Some(blocks) = &limiter.automatic_blocks {
            blocks.forget_unsent(&key);
        }
        if let Some(end) = store.block_list().automatic_under_way() {
            // Not for longer than the deadline: their runtime may stand still.
            let _ = store.within_deadline(end).await;
        }
        let [throttled, exhausted] = limiter.pauses.names();
        for name in [&limiter.scope, throttled, exhausted] {
            let unblock = Block::new(name, &key, Duration::ZERO);
            store.block(unblock).await?;
        }
        self.limiter.may_admit_earlier(&key, &self.quotas);
        noted.and(counts.forget(&key).await)
    }

    /// Returns the blocked keys of this limiter, and those that an upstream has paused, with the time until each is
    /// unblocked, the longest first.
    ///
    /// [`status`](Self::status) returns the reason of a block.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails.
    pub async fn blocked(&self) -> Result<Vec<(Key, Duration)>, Error> {
        let LimiterInner { store, pauses, .. } = &*self.limiter.0;
        store.refresh_blocks().await?;
        let list = store.block_list();
        let mut ends = list.blocked_keys(&self.limiter.0.scope);
        for name in pauses.names() {
            ends.extend(list.blocked_keys(name));
        }
        // A key that is both has the longer time.
        ends.sort_by_key(|(_, left)| *left);
        let longest: HashMap<Key, Duration> = ends.into_iter().collect();
        let mut blocked: Vec<_> = longest.into_iter().collect();
        blocked.sort_by(|(key, left), (other_key, other_left)| {
            other_left.cmp(left).then_with(|| key.cmp(other_key))
        });
        Ok(blocked)
    }

    /// Finds the key that has an [alias](RateLimiter::key_alias) in log events, among the [blocked](Self::blocked) and the
    /// [top rejected](Self::top_rejected_keys) keys. `None` if none of them has it.
    ///
    /// An event of another process is found if both have the [secret](RateLimiter::key_alias_secret). The top rejected keys are
    /// those of this process.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use std::num::NonZeroUsize;
    /// use tollgate::{Key, MemoryStore, Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(1))
    ///     .key_alias_secret("9f8b…")
    ///     .track_rejected_keys(NonZeroUsize::new(100).unwrap());
    /// for _ in 0..2 {
    ///     let _ = limiter.check("ada").await?;
    /// }
    /// let alias = limiter.key_alias("ada"); // the field `key_alias` of the event
    /// assert_eq!(limiter.admin().find_alias(&alias).await?, Some(Key::from("ada")));
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn find_alias(&self, alias: &str) -> Result<Option<Key>, Error> {
        let blocked = self.blocked().await?;
        let rejected = self.top_rejected_keys(usize::MAX);
        let keys = blocked
            .into_iter()
            .map(|(key, _)| key)
            .chain(rejected.into_iter().map(|rejected| rejected.key));
        Ok(keys
            .into_iter()
            .find(|key| self.limiter.key_alias(key) == alias))
    }

    fn block_counts(&self) -> BlockCounts {
        let limiter = &*self.limiter.0;
        let blocks = limiter.automatic_blocks.as_ref();
        // The blocks of a key are found with any rule.
        let rule = blocks.map_or(BlockRule::refusals(1), |blocks| blocks.counts.rule);
        BlockCounts::new(&limiter.store, &limiter.scope, rule)
    }

    /// Returns the keys that this process has refused most often recently, the most refused first, and at most `max`
    /// of them. A refusal [counts half](RejectedKey) after 10 minutes.
    ///
    /// The list is empty unless the limiter [tracks](RateLimiter::track_rejected_keys) them.
    #[doc(alias("busiest_refused"))]
    #[must_use]
    pub fn top_rejected_keys(&self, max: usize) -> Vec<RejectedKey> {
        self.limiter.0.telemetry.top_rejected_keys(max)
    }
}

fn pause_reason(reason: PauseReason) -> BlockReason {
    match reason {
        PauseReason::Throttled => BlockReason::Paused,
        PauseReason::Exhausted => BlockReason::Exhausted,
    }
}
