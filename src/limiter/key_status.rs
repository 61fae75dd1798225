//! The status of a key, for operators, and of all keys of a request, for the customer who sent it.

use std::future::Future;
use std::time::Duration;

use super::asked_level::AskedLevel;
use super::decision::DecisionView;
use super::level_check::{LevelCheck, levels};
use super::limiter::RateLimiter;
use crate::decision::Holding;
use crate::error::Error;
use crate::store::join_all;

impl RateLimiter {
    /// Returns the units that the keys of several levels have used and left. Charges nothing, and takes no slots.
    ///
    /// Use it to show customers their own limits: with the feature `serde`, the [status](KeyStatus) serializes to what they may
    /// see. A request through a layer cannot do this, because it takes a slot even at a cost of 0.
    ///
    /// The levels are those of the request: [`level`](Self::level), with the quotas of a plan and the share, but the cost does not
    /// matter. All are read at the same time, on Redis mostly in one round trip. Each is read on its own, so that a level
    /// without units left does not keep the others from being read.
    ///
    /// The view [is allowed](crate::DecisionView::is_allowed) if each level would admit one more unit. A block does not change
    /// it: `blocked_for` is the longest block of these keys that this process knows of.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, unless the [policy](Self::on_failure) of each limiter decides.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let store = MemoryStore::new();
    /// let user = RateLimiter::new(store.clone(), Quota::per_minute(60)).name("user");
    /// let tenant = RateLimiter::new(store, [Quota::per_day(10_000), Quota::in_flight(4)]).name("tenant");
    /// user.check_n("ada", 3).await?;
    ///
    /// let status = RateLimiter::peek_all([user.level("ada"), tenant.level("acme")]).await?;
    /// let left = status.view.quotas().map(|quota| quota.remaining());
    /// assert!(left.eq([57, 10_000, 4]));
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn peek_all<'a>(
        checks: impl IntoIterator<Item = LevelCheck<'a>>,
    ) -> impl Future<Output = Result<KeyStatus, Error>> + Send {
        let peeks: Vec<_> = levels(checks)
            .into_iter()
            .map(|level| Box::pin(peek(level)))
            .collect();
        async move {
            let mut views = Vec::new();
            let mut blocked_for = None;
            for peeked in join_all(peeks).await {
                let (view, blocked) = peeked?;
                views.push(view);
                blocked_for = blocked_for.max(blocked);
            }
            Ok(KeyStatus {
                view: DecisionView::joined(views),
                blocked_for,
                block_reason: None,
                holders: Vec::new(),
                own_holder: None,
            })
        }
    }
}

/// The second value is how long the key of the level is blocked.
async fn peek(mut level: AskedLevel) -> Result<(DecisionView, Option<Duration>), Error> {
    level.record_mut().cost = 0;
    let blocked = level.limiter().blocked_for(level.subject());
    let decision = level.look().await?;
    Ok((decision.into_view(), blocked.map(|(left, _)| left)))
}

/// The reason why a key is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockReason {
    /// An operator has [blocked](crate::Admin::block) the key.
    Operator,
    /// The key was [refused too often](crate::BlockRule).
    Refusals {
        /// The number of automatic blocks of the key that are not forgotten, with this one.
        blocks: u32,
    },
    /// An upstream said [when to send again](RateLimiter::observe).
    Paused,
    /// An upstream said that the allowance of the key [is used up](RateLimiter::max_exhausted_pause).
    Exhausted,
}

/// The status of a key: the units used and left, whether it is blocked, and who holds its slots.
///
/// [`Admin::status`](crate::Admin::status) returns it for operators, and [`RateLimiter::peek_all`] for customers, with all levels
/// of a request.
///
/// # What customers see
///
/// With the feature `serde`, a status serializes to the quotas and the time until the keys are unblocked. The holders, the
/// reason of a block and the keys are left out, and so are [hidden](crate::LevelCheck::hidden) levels, levels that nothing
/// counted, and [soft](crate::Quota::soft) quotas. Times are in seconds. Slots have neither a `window` nor a `reset_after`.
///
/// ```
/// # #[cfg(feature = "serde")]
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use serde_json::json;
/// use tollgate::{Key, MemoryStore, Quota, RateLimiter};
///
/// let store = MemoryStore::new();
/// let tokens = RateLimiter::new(store.clone(), [Quota::per_day(50_000), Quota::in_flight(4)]).name("tokens");
/// let service = RateLimiter::new(store, Quota::per_second(20_000)).name("service");
///
/// let levels = [tokens.level("acme"), service.level(Key::global()).hidden()];
/// let status = RateLimiter::peek_all(levels).await?;
/// assert_eq!(serde_json::to_value(&status).unwrap(), json!({
///     "quotas": [
///         {"limiter": "tokens", "name": null, "limit": 50_000, "window": "day", "used": 0, "remaining": 50_000,
///          "reset_after": 0.0},
///         {"limiter": "tokens", "name": null, "limit": 4, "window": null, "used": 0, "remaining": 4, "reset_after": null},
///     ],
///     "blocked_for": null,
/// }));
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeyStatus {
    /// The units used and left, and whether one more would be admitted. A block does not change it. If its
    /// [source](DecisionView::source) is [`Source::Fallback`](crate::Source::Fallback), the store failed, and the numbers
    /// come from this process.
    pub view: DecisionView,
    /// The time until the key is unblocked, or no longer paused. `None` if it is neither.
    pub blocked_for: Option<Duration>,
    /// The reason why the key is blocked: the one that ends later. `None` if it is not blocked, and from
    /// [`peek_all`](RateLimiter::peek_all).
    pub block_reason: Option<BlockReason>,
    /// The processes that hold slots of quotas [in flight](crate::Quota::in_flight), the most slots first. `held` is the
    /// number of slots of all shares, and `lease` is what is left of the lease: if the process is killed, the slots return
    /// after that. Empty for a store that does not [list](crate::Store::holders) them, and from
    /// [`peek_all`](RateLimiter::peek_all).
    pub holders: Vec<Holding>,
    /// The `holder` that is this process. `None` without quotas in flight, and from [`peek_all`](RateLimiter::peek_all).
    pub own_holder: Option<[u8; 16]>,
}
