//! The limiter: a name, a store and quotas.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::failure_policy::{FailureHandler, FailurePolicy};
use crate::decision::{Decision, DecisionView, LimiterId};
use crate::error::Error;
use crate::key::Key;
use crate::quota::{Quota, Quotas};
use crate::store::{BlockList, ProtectedStore, Reset, Store, Subject};
use crate::telemetry::Telemetry;

/// Limits how often something is done, by key.
///
/// This is the core of the crate, without HTTP: for jobs, for the quota of an upstream API, for
/// anything that costs units. [`RateLimitLayer`](crate::RateLimitLayer) puts it in front of a service,
/// and [`RateLimitLayer::from`](crate::RateLimitLayer) lets a layer and a job share one limiter.
///
/// Cloning is cheap; clones are the same limiter.
///
/// # All or nothing
///
/// A check with a cost is admitted if every quota admits it, and then charged to all of them. Otherwise
/// it is charged to none. The store decides in one atomic step. A refused check costs nothing, writes
/// nothing and extends nothing.
///
/// # Examples
///
/// An upstream API that grants 9 500 units a day, where a search costs 100:
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
///     println!("again in {:?}", decision.retry_after());
/// }
/// # assert_eq!(decision.remaining(), 9_400);
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct RateLimiter {
    pub(super) store: ProtectedStore,
    pub(super) block_list: BlockList,
    pub(super) quotas: Quotas,
    pub(super) name: Arc<str>,
    /// The name in its stored form.
    pub(super) scope: Key,
    /// Without a handler, the caller gets the error.
    pub(super) on_failure: Option<Arc<FailureHandler>>,
    pub(super) telemetry: Arc<Telemetry>,
}

/// The longest wait before a refused check is repeated: other callers may refund units, and a failed
/// store may have recovered.
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// The name of a limiter by default.
const DEFAULT_NAME: &str = "default";

impl RateLimiter {
    /// Creates a limiter with the name `default`.
    ///
    /// `quotas` is one [`Quota`] or a list of them. An empty list admits everything.
    pub fn new(store: impl Store, quotas: impl Into<Quotas>) -> Self {
        let name: Arc<str> = DEFAULT_NAME.into();
        Self {
            block_list: store.block_list(),
            store: ProtectedStore::new(store),
            quotas: quotas.into(),
            telemetry: Arc::new(Telemetry::new(&name, None)),
            name,
            scope: Key::from(DEFAULT_NAME),
            on_failure: None,
        }
    }

    /// Names the limiter. Any text is a name.
    ///
    /// The name is part of the stored key: limiters of one name, store and key share their counts, and
    /// those of different names do not.
    #[must_use]
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self.scope = Key::from(&*self.name);
        self.telemetry = Arc::new(Telemetry::new(&self.name, self.telemetry.keeps_busiest()));
        if let Some(on_failure) = self.on_failure.take() {
            self = self.on_failure(on_failure.policy);
        }
        self
    }

    /// Tracks this many of the keys that are refused most, for
    /// [`Admin::busiest_refused`](crate::Admin::busiest_refused). The default is none.
    ///
    /// With 100 you find any key that makes up a hundredth of all refusals. Each takes about 150 bytes. A
    /// refusal takes a lock and on average a few steps, however many keys are refused; one refusal may
    /// look at all places twice.
    #[must_use]
    pub fn track_refused(mut self, keys: NonZeroUsize) -> Self {
        self.telemetry = Arc::new(Telemetry::new(&self.name, Some(keys)));
        self
    }

    /// Sets what this handle answers while the store fails. The default is the error.
    ///
    /// Other clones keep their policy, and all of them still count together.
    #[must_use]
    pub fn on_failure(mut self, policy: FailurePolicy) -> Self {
        self.on_failure = Some(Arc::new(FailureHandler::new(policy, &self.quotas)));
        self
    }

    /// Charges one unit to `key`, if every quota has room for it.
    ///
    /// # Errors
    ///
    /// As [`check_n`](Self::check_n).
    pub fn check(&self, key: impl Into<Key>) -> impl Future<Output = Result<Decision, Error>> {
        self.check_n(key, 1)
    }

    /// Charges `cost` units to `key`, if every quota has room for all of them.
    ///
    /// A cost of 0 charges nothing. If the future is dropped while a remote store is being asked, the
    /// units may have been charged: they return when their window has passed.
    ///
    /// # Errors
    ///
    /// The store is not asked, and the error is
    ///
    /// - [`CostExceedsLimit`](crate::ErrorKind::CostExceedsLimit) if the cost is above a limit, so that
    ///   waiting would never help;
    /// - [`CostTooLarge`](crate::ErrorKind::CostTooLarge) above 100 000 units at once in a log.
    ///
    /// Otherwise it is the error of the store, unless [`on_failure`](Self::on_failure) set another policy.
    pub async fn check_n(&self, key: impl Into<Key>, cost: u32) -> Result<Decision, Error> {
        let started = self.start_check_within_limits(key, cost);
        let checked = self.complete(started).await;
        self.telemetry.checked(&checked);
        checked
    }

    /// Returns what `key` has used and left, and when it resets, without charging it.
    ///
    /// It is a check of cost 0, so [`is_allowed`](crate::DecisionView::is_allowed) says little, and
    /// [`remaining`](crate::DecisionView::remaining) says what would be admitted now.
    /// [`Admin::peek`](crate::Admin::peek) also says whether the key is blocked.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn peek(&self, key: impl Into<Key>) -> Result<Decision, Error> {
        self.check_despite_block(&self.quotas, key, 0).await
    }

    /// Charges `cost` units to `key` as soon as there is room, and waits for it.
    ///
    /// For jobs that would rather be late than fail. The wait lasts as long as
    /// [`retry_after`](crate::DecisionView::retry_after), and longer if another caller was faster. The
    /// check is repeated at least once a second, since units may be refunded.
    ///
    /// A wait that would end later than `max_wait` after the call does not start: the refusal is
    /// returned at once, with the wait that it would have taken.
    ///
    /// # Errors
    ///
    /// As [`check_n`](Self::check_n).
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(MemoryStore::new(), Quota::new(1, Duration::from_millis(20)));
    /// let max_wait = Duration::from_secs(5);
    /// for _ in 0..3 {
    ///     assert!(limiter.until_ready("ada", 1, max_wait).await?.is_allowed());
    /// }
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn until_ready(
        &self,
        key: impl Into<Key>,
        cost: u32,
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        let key = key.into();
        let started_at = Instant::now();
        loop {
            let started = self.start_check_within_limits(&key, cost);
            let checked = self.complete(started).await;
            let time_left = max_wait.saturating_sub(started_at.elapsed());
            let decision = checked.as_ref().ok();
            match decision.and_then(|decision| backoff_after(decision, time_left)) {
                Some(backoff) => sleep(backoff).await,
                None => {
                    self.telemetry.checked(&checked);
                    return checked;
                }
            }
        }
    }

    /// Forgets what is charged to `key` under this limiter's quotas.
    ///
    /// # Errors
    ///
    /// When the store fails, or cannot reset a key.
    pub async fn reset(&self, key: impl Into<Key>) -> Result<(), Error> {
        self.reset_with(&self.quotas, &key.into()).await
    }

    /// Forgets what is charged to a key under these quotas.
    pub(super) async fn reset_with(&self, quotas: &Quotas, key: &Key) -> Result<(), Error> {
        if quotas.is_empty() {
            return Ok(());
        }
        let subject = self.subject(quotas, key);
        self.store.reset(Reset { subject }).await
    }

    /// Returns the quotas of this limiter.
    #[must_use]
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    pub(crate) fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    pub(crate) fn label(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn has_policy(&self) -> bool {
        self.on_failure.is_some()
    }

    /// Returns these quotas as a list: a clone of the limiter's own if they are the same.
    pub(super) fn intern_quotas(&self, quotas: &[Quota]) -> Quotas {
        if self.quotas.equals(quotas) {
            self.quotas.clone()
        } else {
            quotas.iter().cloned().collect()
        }
    }

    #[inline(always)]
    pub(super) fn id(&self) -> LimiterId {
        LimiterId {
            name: self.scope.fingerprint(),
            store: self.store.id(),
        }
    }

    pub(super) fn subject<'a>(&'a self, quotas: &'a Quotas, key: &'a Key) -> Subject<'a> {
        Subject {
            limiter: &self.scope,
            key,
            quotas,
        }
    }
}

/// Returns how long to wait before a check is repeated. `None` if it was admitted, or if the wait would
/// not help within `time_left`.
pub(crate) fn backoff_after(decision: &DecisionView, time_left: Duration) -> Option<Duration> {
    let retry_after = decision.retry_after()?;
    (retry_after <= time_left).then_some(retry_after.min(MAX_BACKOFF))
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            store: _,
            block_list: _,
            quotas,
            name,
            scope: _,
            on_failure,
            telemetry: _,
        } = self;
        let quotas: Vec<_> = quotas.iter().map(Quota::to_string).collect();
        let policy = on_failure.as_ref().map(|handler| handler.policy);
        f.debug_struct("RateLimiter")
            .field("name", name)
            .field("quotas", &quotas)
            .field("on_failure", &policy)
            .finish_non_exhaustive()
    }
}
