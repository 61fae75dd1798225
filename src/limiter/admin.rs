//! What operators do with keys, while the service runs.

use std::fmt;
use std::time::Duration;

use super::limiter::RateLimiter;
use crate::decision::{Decision, DecisionView};
use crate::error::Error;
use crate::key::Key;
use crate::quota::Quotas;
use crate::telemetry::RefusedKey;

/// Looks at keys of a limiter, resets them, gives them units, blocks them.
///
/// For support and for emergencies: why is this client refused, let it go on, keep that one out. It is
/// made of a limiter by [`RateLimiter::admin`]; of a layer's by
/// [`RateLimitLayer::limiter`](crate::RateLimitLayer::limiter). On Redis all of it holds for all processes:
/// what is reset or given is seen at once where it is done, and within a second by a process that has just
/// refused the key; what is blocked, within a second by all that are asked for something. One that was idle
/// learns of it by its first check. More is in the [guide](crate::guide::operating).
///
/// Whoever may call these methods may lift any limit: put them behind a login of your own, as the example
/// `admin` does.
///
/// # Which key
///
/// The key as the limiter counts it: [`key`](mod@crate::key)'s extractors make it, `key::peer_ip().of(address)`
/// or `key::header("x-api-key").of("secret")` say. A key that was read from a log or a page is stored text,
/// and is given as [`Key::from_stored`].
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

impl Admin {
    pub(crate) fn new(limiter: RateLimiter) -> Self {
        let quotas = limiter.quotas().clone();
        Self { limiter, quotas }
    }

    /// By these quotas rather than the limiter's own: those of a
    /// [tenant's plan](crate::RateLimitLayer::quotas_for), which the limiter does not know.
    #[must_use]
    pub fn quotas(self, quotas: impl Into<Quotas>) -> Self {
        let quotas = quotas.into();
        Self { quotas, ..self }
    }

    /// The limiter whose keys these are.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// Tells where a key stands, without charging it: of each quota what is used, what remains and when
    /// units return, and whether the key is blocked.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn peek(&self, key: impl Into<Key>) -> Result<KeyStatus, Error> {
        let key = key.into();
        self.limiter.look_for_blocks().await?;
        let decision = self.limiter.look_by(&self.quotas, &key).await?;
        let blocked_for = self.limiter.blocked_for(&key);
        Ok(KeyStatus {
            decision,
            blocked_for,
        })
    }

    /// Forgets what is charged to a key: it has its whole quotas again.
    ///
    /// # Errors
    ///
    /// When the store fails, or cannot reset a key.
    pub async fn reset(&self, key: impl Into<Key>) -> Result<(), Error> {
        self.limiter.reset_by(&self.quotas, &key.into()).await
    }

    /// Gives a key units: so many fewer count, as if they had never been charged, whoever charged them.
    /// Nobody has more left than the limit.
    ///
    /// It is given by each stored count once. What is left leaves when it would have.
    /// Which units go is told by what goes on:
    ///
    /// - of the logs and of [`SlidingBuckets`](crate::Algorithm::SlidingBuckets) the oldest, which would
    ///   be back soonest. [`Gcra`](crate::Algorithm::Gcra) has one level, which falls;
    /// - of [`SlidingCounter`](crate::Algorithm::SlidingCounter) those of this window, then as few of
    ///   the one before as it takes;
    /// - a decision from before still gives back what it holds, as far as that is there. Of the logs and
    ///   of `Gcra` that is what was not given; the other algorithms do not tell units of one window or
    ///   bucket apart, so that it may be what was charged after the gift: what is used is what was
    ///   charged, less what was taken back, less what was given.
    ///
    /// # Errors
    ///
    /// When the store fails, or cannot give; then it may have given, since its answer may be lost.
    /// [`CostTooLarge`](crate::ErrorKind::CostTooLarge) above 100 000 units at once in a log, which
    /// [`reset`](Self::reset) empties.
    pub async fn credit(&self, key: impl Into<Key>, units: u32) -> Result<(), Error> {
        self.limiter.credit(&self.quotas, &key.into(), units).await
    }

    /// BlockList a key for so long, whatever it has left: all that it asks for is refused, by
    /// [`Source::Block`](crate::Source::Block), and charged nowhere. `Retry-After` says how long it lasts.
    /// Blocked again, it lasts as long as said last.
    ///
    /// It does not depend on the quotas, and holds while the store fails. What a limiter does not count it
    /// does not block: requests that are [skipped](crate::RateLimitLayer::skip), tenants that are
    /// [exempt](crate::Plan::Exempt), and limiters without any quota; nor what it would not refuse, in a
    /// [dry run](crate::RateLimitLayer::dry_run). On Redis at most 10 000 keys are
    /// blocked at a time, of all limiters of one [prefix](crate::RedisStore::prefix) together: a list for
    /// people, who block a network elsewhere.
    ///
    /// # Errors
    ///
    /// When the store fails, cannot block a key, or has no room. One that has not answered in time may have
    /// done it, which others then know within a second.
    pub async fn block(&self, key: impl Into<Key>, duration: Duration) -> Result<(), Error> {
        self.limiter.block(&key.into(), duration).await
    }

    /// Ends what blocks a key.
    ///
    /// # Errors
    ///
    /// As [`block`](Self::block).
    pub async fn unblock(&self, key: impl Into<Key>) -> Result<(), Error> {
        self.limiter.block(&key.into(), Duration::ZERO).await
    }

    /// Which keys are blocked, and for how long; those longest first.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn blocked(&self) -> Result<Vec<(Key, Duration)>, Error> {
        self.limiter.look_for_blocks().await?;
        Ok(self.limiter.blocked())
    }

    /// The keys that this process has refused most often, the busiest first, at most so many: nothing
    /// unless the limiter was told to [track](RateLimiter::track_refused) them.
    #[must_use]
    pub fn busiest_refused(&self, most: usize) -> Vec<RefusedKey> {
        self.limiter.telemetry().most_refused(most)
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

/// Where a key stands.
///
/// It shows what a [`DecisionView`] shows, by `Deref`; what is used and left is told of a blocked key too.
#[derive(Debug)]
pub struct KeyStatus {
    decision: Decision,
    blocked_for: Option<Duration>,
}

impl KeyStatus {
    /// How long the key stays blocked; `None` if it is not.
    #[must_use]
    pub fn blocked_for(&self) -> Option<Duration> {
        self.blocked_for
    }
}

impl std::ops::Deref for KeyStatus {
    type Target = DecisionView;

    fn deref(&self) -> &DecisionView {
        &self.decision
    }
}
