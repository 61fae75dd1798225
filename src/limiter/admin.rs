//! Operations on keys for operators, while the service runs.

use std::fmt;
use std::time::Duration;

use super::limiter::RateLimiter;
use crate::decision::{DecisionView, QuotaDecision, Source};
use crate::error::Error;
use crate::key::Key;
use crate::quota::Quotas;
use crate::store::{Block, Credit};
use crate::telemetry::RefusedKey;

/// Inspects, resets, credits and blocks keys of a limiter.
///
/// For support and for emergencies: find out why a client is refused, let it go on, or keep it out. Get
/// one from [`RateLimiter::admin`], or for a layer from
/// [`RateLimitLayer::limiter`](crate::RateLimitLayer::limiter).
///
/// On Redis, changes apply to all processes. A reset or a credit is seen at once in the process that made
/// it, and within a second by a process that has just refused the key. A block is seen within a second by
/// all processes that receive requests. An idle process learns of it with its first check. See the
/// [guide](crate::guide::operations) for more.
///
/// These methods can lift any limit: put them behind a login, as the example `admin` does.
///
/// # Which key
///
/// Pass the key as the limiter counts it. The extractors in [`key`](mod@crate::key) make it:
/// `key::peer_ip().of(address)` or `key::header("x-api-key").of("secret")`. A key from a log or a page
/// is stored text: pass it as [`Key::from_stored`].
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
/// assert_eq!(admin.peek("ada").await?.used(), 3);
///
/// admin.credit("ada", 2).await?;
/// assert_eq!(admin.peek("ada").await?.remaining(), 2);
///
/// admin.block("ada", Duration::from_secs(600)).await?;
/// assert!(!limiter.check("ada").await?.is_allowed());
/// assert!(admin.peek("ada").await?.blocked_for().is_some());
///
/// admin.unblock("ada").await?;
/// admin.reset("ada").await?;
/// assert_eq!(admin.peek("ada").await?.remaining(), 3);
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Admin {
    limiter: RateLimiter,
    quotas: Quotas,
}

impl RateLimiter {
    /// Returns the operations for operators: inspect a key, reset it, credit it, block it.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin {
            limiter: self.clone(),
            quotas: self.quotas.clone(),
        }
    }
}

impl Admin {
    /// Uses these quotas rather than the limiter's own: those of a
    /// [tenant's plan](crate::RateLimitLayer::quotas_for), which the limiter does not know.
    #[must_use]
    pub fn quotas(self, quotas: impl Into<Quotas>) -> Self {
        let quotas = quotas.into();
        Self { quotas, ..self }
    }

    /// Returns the limiter of the keys.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// Returns the status of a key without charging it: what each quota has used and left, when units
    /// return, and whether the key is blocked.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn peek(&self, key: impl Into<Key>) -> Result<KeyStatus, Error> {
        let Self { limiter, quotas } = self;
        let key = key.into();
        limiter.block_list.refresh().await?;
        let decision = limiter.check_despite_block(quotas, &key, 0).await?;
        let blocked_for = limiter.block_list.remaining(limiter.subject(quotas, &key));
        Ok(KeyStatus {
            decision: decision.into_view(),
            blocked_for,
        })
    }

    /// Forgets what is charged to a key: it has its whole quotas again.
    ///
    /// # Errors
    ///
    /// When the store fails, or cannot reset a key.
    pub async fn reset(&self, key: impl Into<Key>) -> Result<(), Error> {
        self.limiter.reset_with(&self.quotas, &key.into()).await
    }

    /// Credits units to a key: that many fewer count, whichever check charged them. A key never has more
    /// than its limit left.
    ///
    /// Each stored count is credited once. The units left in it leave when they would have left anyway.
    /// The algorithm decides which units go:
    ///
    /// - In the logs and in [`SlidingBuckets`](crate::Algorithm::SlidingBuckets) the oldest go first,
    ///   which would have returned soonest. [`Gcra`](crate::Algorithm::Gcra) has one level, which falls.
    /// - In [`SlidingCounter`](crate::Algorithm::SlidingCounter) those of the current window go first,
    ///   then as few of the previous one as needed.
    /// - A decision from before the credit can still refund what it holds, as far as that is there. In
    ///   the logs and in `Gcra` that is what was not credited. The other algorithms do not tell units of
    ///   one window or bucket apart, so a refund may take back units charged after the credit: the used
    ///   units are those charged, less those refunded, less those credited.
    ///
    /// # Errors
    ///
    /// When the store fails, or cannot credit units. The units may have been credited if the reply was
    /// lost. [`CostTooLarge`](crate::ErrorKind::CostTooLarge) above 100 000 units at once in a log, which
    /// [`reset`](Self::reset) empties.
    pub async fn credit(&self, key: impl Into<Key>, units: u32) -> Result<(), Error> {
        let Self { limiter, quotas } = self;
        if quotas.is_empty() || units == 0 {
            return Ok(());
        }
        // Each unit in a sorted set takes Redis half a microsecond, during which it serves no other client.
        if units > quotas.max_cost() {
            return Err(Error::cost_too_large(units, quotas.max_cost()));
        }
        let key = key.into();
        if let Some(fallback) = limiter.store.fallback_if_used() {
            let shares = match &limiter.on_failure {
                Some(on_failure) => on_failure.shares_of(quotas, &limiter.quotas),
                None => quotas.clone(),
            };
            let subject = limiter.subject(&shares, &key);
            fallback.credit(Credit { subject, units });
        }
        let subject = limiter.subject(quotas, &key);
        limiter.store.credit(Credit { subject, units }).await
    }

    /// Blocks a key for a duration, regardless of what it has left: its checks are refused by
    /// [`Source::Block`] and charged nowhere, and `Retry-After` says how long the
    /// block lasts. A second block replaces the duration of the first.
    ///
    /// A block does not depend on the quotas, and holds while the store fails. It has no effect on
    /// requests that the limiter does not count: those that are [skipped](crate::RateLimitLayer::skip),
    /// of tenants that are [exempt](crate::Plan::Exempt), and of limiters without any quota. Nor has it
    /// any in a [dry run](crate::RateLimitLayer::dry_run).
    ///
    /// On Redis at most 10 000 keys are blocked at a time, of all limiters of one
    /// [prefix](crate::RedisStore::prefix) together: the list is for people, who block whole networks
    /// elsewhere.
    ///
    /// # Errors
    ///
    /// When the store fails, cannot block a key, or has no room. A store that did not answer in time may
    /// have blocked the key, which other processes then see within a second.
    pub async fn block(&self, key: impl Into<Key>, duration: Duration) -> Result<(), Error> {
        let key = key.into();
        let block = Block {
            limiter: &self.limiter.scope,
            key: &key,
            duration,
        };
        self.limiter.store.block(block).await
    }

    /// Unblocks a key.
    ///
    /// # Errors
    ///
    /// As [`block`](Self::block).
    pub async fn unblock(&self, key: impl Into<Key>) -> Result<(), Error> {
        self.block(key, Duration::ZERO).await
    }

    /// Returns the blocked keys, and for how long they stay blocked, longest first.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn blocked(&self) -> Result<Vec<(Key, Duration)>, Error> {
        let RateLimiter {
            block_list, scope, ..
        } = &self.limiter;
        block_list.refresh().await?;
        let mut blocked = block_list.of_limiter(scope);
        blocked.sort_by(|(key, left), (other_key, other_left)| {
            other_left.cmp(left).then_with(|| key.cmp(other_key))
        });
        Ok(blocked)
    }

    /// Returns at most `max` of the keys that this process has refused most often, the busiest first.
    ///
    /// The list is empty unless the limiter [tracks](RateLimiter::track_refused) them.
    #[must_use]
    pub fn busiest_refused(&self, max: usize) -> Vec<RefusedKey> {
        self.limiter.telemetry.most_refused(max)
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limiter, quotas } = self;
        f.debug_struct("Admin")
            .field("limiter", limiter)
            .field("quotas", quotas)
            .finish()
    }
}

/// The status of a key: what its quotas have used and left, and whether it is blocked.
///
/// The units are those of the quotas even if the key is blocked. With several quotas, the numbers are
/// those of the reported one, as in a [`DecisionView`].
#[derive(Debug)]
pub struct KeyStatus {
    decision: DecisionView,
    blocked_for: Option<Duration>,
}

impl KeyStatus {
    /// Returns how long the key stays blocked; `None` if it is not.
    #[must_use]
    pub fn blocked_for(&self) -> Option<Duration> {
        self.blocked_for
    }

    /// Returns the limit of the reported quota.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.decision.limit()
    }

    /// Returns the units that count against the reported quota now.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.decision.used()
    }

    /// Returns the units that would be admitted right now: the least over all quotas.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.decision.remaining()
    }

    /// Returns the time until the reported quota has more units left than now. Zero if nothing is
    /// charged to it, or if its limit is 0.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.decision.reset_after()
    }

    /// Returns the source of the numbers: [`Source::Fallback`] while the store fails, if the limiter
    /// falls back to memory.
    #[must_use]
    pub fn source(&self) -> Source {
        self.decision.source()
    }

    /// Returns the status of each quota, in the order in which the quotas were listed.
    #[must_use]
    pub fn quotas(&self) -> impl ExactSizeIterator<Item = QuotaDecision<'_>> {
        self.decision.quotas()
    }

    /// Returns the decision on a check of cost 0, from which the numbers are.
    #[must_use]
    pub fn view(&self) -> &DecisionView {
        &self.decision
    }
}
