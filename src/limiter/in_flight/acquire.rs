//! Checks that take slots in flight: at once, or in the order of arrival.

use std::future::Future;
use std::time::Duration;

use super::limiter_permits::LimiterPermits;
use super::permit::{Acquired, Permit};
use super::table::PermitTable;
use crate::error::{Error, ErrorKind};
use crate::key::IntoKey;
use crate::limiter::checked::{DecidedCheck, record};
use crate::limiter::decision::DecisionView;
use crate::limiter::level_check::{LevelCheck, levels};
use crate::limiter::limiter::RateLimiter;
use crate::limiter::line::WhyTooLate;
use crate::limiter::pending_check::PendingCheck;
use crate::telemetry::PermitMeter;

/// The default of [`RateLimiter::max_wait`].
const DEFAULT_MAX_WAIT: Duration = Duration::from_secs(60);

impl RateLimiter {
    pub(in crate::limiter) fn suggested_slot_wait(&self) -> Duration {
        let limiter = self.0.scope.fingerprint();
        let micros = self
            .permits()
            .table
            .with(|state, _| state.suggested_wait(limiter));
        Duration::from_micros(micros)
    }

    pub(in crate::limiter) fn permits(&self) -> &LimiterPermits {
        self.0.permits.get_or_init(|| LimiterPermits {
            table: PermitTable::of(&self.0.store),
            meter: PermitMeter::new(&self.0.facts.name, self.0.reserve_lease.is_some()),
        })
    }

    /// Sets how long [`acquire`](Self::acquire) waits for a permit. The default is 60 seconds. After that, it returns an error
    /// of kind [`MaxWait`](ErrorKind::MaxWait). A check that is under way then has the deadline of the store, so the call may
    /// take that much longer.
    ///
    /// In a layer made [from](crate::RateLimitLayer) this limiter, requests wait for the same time unless
    /// [`wait_up_to`](crate::RateLimitLayer::wait_up_to) says otherwise. Without a call of this method, they do not wait.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.with(|inner| inner.max_wait = Some(max_wait))
    }

    /// Sets how many calls may wait for one key in this process. By default, any number may.
    ///
    /// A further call does not wait: it is refused, or fails if it wants a permit. With 0, no call waits. If the store refuses
    /// an earlier call while the queue is full, that call has the place of the last one, which is refused. A call for several
    /// keys that waits for one of them may come to wait for another one whose queue is full: it ends no other wait, and its own
    /// goes on.
    ///
    /// Calls that wait for slots ([`acquire`](Self::acquire)) and calls that wait for units
    /// ([`until_ready`](Self::until_ready)) stand in one line. Each [share](crate::Quota::shares) has a line of its own. In a
    /// layer made [from](crate::RateLimitLayer) this limiter, the same number of requests may wait.
    #[must_use]
    pub fn queue(self, calls: usize) -> Self {
        self.with(|inner| inner.line = Some(calls))
    }

    /// Waits for a permit: one slot of each quota [in flight](crate::Quota::in_flight), and a unit of each rate.
    ///
    /// Calls of one process that wait for a key get its slots in the order of their arrival, for any number of slots, as with tokio's
    /// `Semaphore`: no later call gets slots of a key while an earlier one lacks it. A call that was told to ask asks, though its
    /// task runs later, also while the store fails. A call that lacks another key, that waits for a rate, or that backs off after
    /// an error, lets later ones have its slots, as [`until_ready`](Self::until_ready) describes. So does one whose task is not
    /// polled for a second. Calls that were asked in one round trip may change places. If there are slots for both, a
    /// [`try_acquire`](Self::try_acquire) may be answered one round trip before a call that was told to ask. If another process
    /// takes the other slot in that time, the call goes on waiting.
    ///
    /// There is no order between processes, or between [shares](crate::Quota::shares): each asks about every 25 ms, for at most
    /// 4 000 keys a second, and at once when one of its own permits is dropped. For more slots or another cost, see
    /// [`acquire_all`](Self::acquire_all).
    ///
    /// While an upstream [pauses the key](Self::observe), or while the key is blocked, it waits until that ends, and then
    /// asks for a slot, also in the order of arrival. While it waits, it holds nothing: no slots of another key, and no units
    /// of a [lease](Self::lease).
    ///
    /// An error is returned at once, unless [`wait_through_outages`](Self::wait_through_outages) is set.
    ///
    /// Waiting needs a tokio runtime with timers. Without one, the call may wait for longer than `max_wait`.
    ///
    /// Dropping the future gives up its place in the line. A permit that was granted meanwhile is given back; a unit
    /// of a rate that it was charged is not.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`ErrorKind::MaxWait`] if no permit was free within [`max_wait`](Self::max_wait), and the
    /// errors of [`check`](Self::check).
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let exports = RateLimiter::new(MemoryStore::new(), Quota::in_flight(2)).name("exports");
    /// let permit = exports.acquire("ada").await?;
    /// assert_eq!(permit.decision().remaining(), 1);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn acquire(&self, key: impl IntoKey) -> Result<Permit, Error> {
        Self::acquire_all([self.level(key)]).await
    }

    /// Takes a permit if one is free now, as [`acquire`](Self::acquire) does, but does not wait. It gets no slot that others wait
    /// for in this process.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`check`](Self::check).
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use tollgate::{Acquired, MemoryStore, Quota, RateLimiter};
    ///
    /// let exports = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1)).name("exports");
    /// let first = exports.try_acquire("ada").await?;
    /// assert!(matches!(exports.try_acquire("ada").await?, Acquired::Refused(_)));
    /// drop(first);
    /// assert!(matches!(exports.try_acquire("ada").await?, Acquired::Permit(_)));
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn try_acquire(&self, key: impl IntoKey) -> Result<Acquired, Error> {
        Self::try_acquire_all([self.level(key)]).await
    }

    /// Waits for one permit of several levels. It holds the slots of all of them, or none, as with
    /// [`check_all`](Self::check_all).
    ///
    /// The longest [`max_wait`](Self::max_wait) and the smallest [`queue`](Self::queue) of the limiters are the bounds.
    /// [`LevelCheck::slots`] takes more than one slot.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`acquire`](Self::acquire) and [`check_all`](Self::check_all).
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let store = MemoryStore::new();
    /// let user = RateLimiter::new(store.clone(), Quota::in_flight(2)).name("user");
    /// let tenant = RateLimiter::new(store, Quota::in_flight(10)).name("tenant");
    ///
    /// // One slot of the user, and three of the tenant.
    /// let permit = RateLimiter::acquire_all([user.level("ada"), tenant.level("acme").slots(3)]).await?;
    /// # drop(permit);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn acquire_all<'a>(
        checks: impl IntoIterator<Item = LevelCheck<'a>>,
    ) -> impl Future<Output = Result<Permit, Error>> + Send {
        let check = PendingCheck::within_limits(levels(checks));
        async move {
            let max_wait = check
                .levels
                .iter()
                .map(|level| level.limiter().0.max_wait.unwrap_or(DEFAULT_MAX_WAIT))
                .max()
                .unwrap_or_default();
            let decided = check.decide_in_turn(max_wait, true).await?;
            let why = decided.end_of_wait;
            match acquired(decided) {
                Acquired::Permit(permit) => Ok(permit),
                Acquired::Refused(decision) => Err(not_acquired(decision.view(), why, max_wait)),
            }
        }
    }

    /// Takes one permit of several levels if it is free now, as [`acquire_all`](Self::acquire_all) does, but does not wait.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`check_all`](Self::check_all).
    pub fn try_acquire_all<'a>(
        checks: impl IntoIterator<Item = LevelCheck<'a>>,
    ) -> impl Future<Output = Result<Acquired, Error>> + Send {
        let check = PendingCheck::within_limits(levels(checks));
        async move {
            let checked = check.attempt_in_turn(&mut None, true).await;
            record(&checked);
            match checked {
                Ok(decided) => Ok(acquired(decided)),
                Err(failed) => Err(failed.error),
            }
        }
    }
}

fn acquired(mut decided: DecidedCheck) -> Acquired {
    let slots = decided.take_slots();
    if decided.decision.is_allowed() {
        Acquired::Permit(Permit::new(decided.decision, slots))
    } else {
        Acquired::Refused(decided.decision)
    }
}

fn not_acquired(decision: &DecisionView, why: Option<WhyTooLate>, max_wait: Duration) -> Error {
    let reported = decision.reported_level();
    let limiter = reported.map_or("", |level| level.limiter());
    if decision.reported().is_some_and(|quota| quota.is_used_up()) {
        let text = format!(
            "limiter {limiter:?} grants no permit: its total is used up, and no unit returns with time: raise the limit"
        );
        return Error::new(ErrorKind::MaxWait, text);
    }
    if decision.retry_after().is_none() {
        let text = format!(
            "limiter {limiter:?} never grants this permit: its cost or its slots are above the limit"
        );
        return Error::new(ErrorKind::CostExceedsLimit, text);
    }
    let reason = match why {
        Some(WhyTooLate::QueueFull) => {
            "as many calls wait as its `queue` allows: raise `queue` or the limit".to_owned()
        }
        Some(WhyTooLate::TurnTooLate | WhyTooLate::WaitOver) | None => {
            format!("with a `max_wait` of {max_wait:?}: raise `max_wait` or the limit")
        }
    };
    let text = format!("limiter {limiter:?} granted no permit, {reason}");
    Error::new(ErrorKind::MaxWait, text)
}
