//! The checks of a limiter without HTTP: at once, or with a wait for units.

use std::future::Future;
use std::ops::ControlFlow;
use std::time::Duration;

use super::asked_level::{AskedLevel, AskedLevels};
use super::checked::{Checked, DecidedCheck, FailedCheck, record};
use super::decision::Decision;
use super::in_flight::SlotsOfCheck;
use super::level_check::{LevelCheck, levels};
use super::limiter::RateLimiter;
use super::line::Place;
use super::pending_check::PendingCheck;
use super::wait::OutageWait;
use crate::error::Error;
use crate::key::IntoKey;

impl RateLimiter {
    /// Charges one unit to `key` if every quota has room for it.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`check_n`](Self::check_n).
    pub fn check(&self, key: impl IntoKey) -> impl Future<Output = Result<Decision, Error>> {
        self.check_n(key, 1)
    }

    /// Charges `cost` units to `key` if every quota has room for all of them.
    ///
    /// Otherwise nothing is charged, and the decision is a refusal: it is not an error.
    ///
    /// A cost of 0 charges nothing, and every quota admits it, even if more units are used than its limit. A limit of 0
    /// refuses it, and so does a [block](crate::Admin::block). To read a key, use [`peek`](Self::peek).
    ///
    /// If the future is dropped while it waits for Redis, the units may or may not have been charged. They
    /// are available again after their window.
    ///
    /// # Errors
    ///
    /// Returns an error
    ///
    /// - of kind [`CostExceedsLimit`](crate::ErrorKind::CostExceedsLimit) if the cost is above the limit of
    ///   a quota, so that no wait helps;
    /// - of kind [`CostTooLarge`](crate::ErrorKind::CostTooLarge) if the cost is above 100 000 and a quota
    ///   that is not [soft](crate::Quota::soft) counts with a log ([`SlidingLog`](crate::Algorithm::SlidingLog), the
    ///   default, or [`SortedSetLog`](crate::Algorithm::SortedSetLog));
    /// - if the store fails, unless [`on_failure`](Self::on_failure) set a policy that decides.
    pub async fn check_n(&self, key: impl IntoKey, cost: u32) -> Result<Decision, Error> {
        let level = AskedLevel::new(self, key, cost);
        let check = PendingCheck::within_limits(AskedLevels::from_buf([level]));
        record_and_decide(check.start().await)
    }

    /// Returns a level for [`check_all`](Self::check_all): this limiter, a key, and a cost of 1.
    #[doc(alias("on"))]
    pub fn level(&self, key: impl IntoKey) -> LevelCheck<'_> {
        LevelCheck::new(AskedLevel::new(self, key, 1))
    }

    /// Checks several keys together: charges each level if all of them admit their cost, and else none.
    ///
    /// For example, the limits of a user, of the tenant and of the whole service. One level is the same as
    /// [`check_n`](Self::check_n), and no level admits.
    ///
    /// The decision has [a part for each level](crate::DecisionView::levels). The reported numbers belong to the
    /// refusing quota with the longest wait, over all levels. [`Decision::settle`] settles all levels,
    /// and [`Decision::settle_level`] that of one limiter.
    ///
    /// The store decides all levels in one atomic step. On Redis, that is one call. On a cluster, it is one call
    /// if the keys are in one slot. Else the slots are asked in turn. Each is charged, and refunded if a later
    /// one refuses, so that no count ever exceeds its limit. These calls go on if the future is dropped. Another
    /// check may be refused because of a charge that is refunded later, and that refusal may be remembered for
    /// up to 100 ms. If a reply is lost or the process ends, such a charge stays for its window.
    ///
    /// A level that was [not asked](crate::LevelDecision::is_asked), because another one refused, may need a
    /// longer wait than [`retry_after`](crate::DecisionView::retry_after).
    ///
    /// # When the store fails
    ///
    /// Each level follows the [policy](Self::on_failure) of its limiter. If one of them has no policy or is
    /// closed, the check returns the error. Levels that fall back are decided together by the counts of this
    /// process: all of them are charged, or none. Open levels admit.
    ///
    /// # Errors
    ///
    /// Returns an error
    ///
    /// - of kind [`Misconfigured`](crate::ErrorKind::Misconfigured) if limiters have different stores, or if two levels
    ///   have the same limiter and key. No failure policy applies. The [source](std::error::Error::source) is a
    ///   [`ConfigError`](crate::ConfigError);
    /// - for each level in the same cases as [`check_n`](Self::check_n).
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{Key, MemoryStore, Quota, RateLimiter};
    ///
    /// let store = MemoryStore::new();
    /// let user = RateLimiter::new(store.clone(), Quota::per_minute(60)).name("user");
    /// let tenant = RateLimiter::new(store.clone(), Quota::per_minute(1_000)).name("tenant");
    /// let service = RateLimiter::new(store, Quota::per_second(20_000)).name("service");
    ///
    /// let levels = [user.level("ada"), tenant.level("acme").cost(900), service.level(Key::global())];
    /// let decision = RateLimiter::check_all(levels).await?;
    /// assert!(decision.is_allowed());
    ///
    /// // The tenant has 100 units left, so the user is not charged either.
    /// let levels = [user.level("bob"), tenant.level("acme").cost(900), service.level(Key::global())];
    /// let decision = RateLimiter::check_all(levels).await?;
    /// assert!(!decision.is_allowed());
    /// assert_eq!(decision.limit(), 1_000);
    /// assert_eq!(user.peek("bob").await?.used(), 0);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn check_all<'a>(
        checks: impl IntoIterator<Item = LevelCheck<'a>>,
    ) -> impl Future<Output = Result<Decision, Error>> + Send {
        let check = PendingCheck::within_limits(levels(checks));
        async move { record_and_decide(check.start().await) }
    }

    /// Returns the units that `key` has used and left, without charging it.
    ///
    /// [`remaining`](crate::DecisionView::remaining) is the highest cost that would be admitted now.
    /// [`is_allowed`](crate::DecisionView::is_allowed) says whether one more unit would be admitted, and
    /// [`retry_after`](crate::DecisionView::retry_after) when. With a quota in flight, one more slot has to be free, too.
    ///
    /// A block changes none of this: [`Admin::status`](crate::Admin::status) also returns whether the key is blocked.
    /// [`peek_all`](Self::peek_all) reads all levels of a request.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, unless [`on_failure`](Self::on_failure) set a policy that
    /// decides.
    pub async fn peek(&self, key: impl IntoKey) -> Result<Decision, Error> {
        let level = AskedLevel::new(self, key, 0);
        level.look().await
    }

    /// Waits until every quota has room for `cost` units, then charges them to `key`.
    ///
    /// Use it for jobs that may be late but should not fail. After a refusal, it waits for
    /// [`retry_after`](crate::DecisionView::retry_after), but at most one second, and checks again: units may have been
    /// refunded meanwhile.
    ///
    /// While an upstream [pauses the key](Self::observe), it waits until that ends. Then the calls of a process that
    /// have waited are checked one after the other at the rate of the limit, or each second if the limit is slower.
    ///
    /// `max_wait` is counted from the call. If the next wait, or the turn of the call, would certainly come later, the refusal
    /// is returned at once; its `retry_after` is the wait that is still needed. Of many calls that come together, some may
    /// learn that a second or two later. Units that may be given back meanwhile do not count: whether they are is unknown.
    ///
    /// An error is returned at once, too, unless [`wait_through_outages`](Self::wait_through_outages) is set. A check that is
    /// under way when `max_wait` ends has the deadline of the store, so the call may take that much longer.
    ///
    /// # Order
    ///
    /// Calls of one process that wait for the units of a key are served in the order of their arrival, at any cost:
    /// no later call gets units while an earlier one waits for them. Requests of a layer that
    /// [waits](crate::RateLimitLayer::wait_up_to) stand in the same line. So 32 callers of a limit of 10 per second each wait
    /// for about 3 s.
    ///
    /// - [`check`](Self::check) does not wait, and takes units that others wait for.
    /// - A large cost at the front is waited for by all calls behind it, also while checks take every unit.
    /// - A call that lacks one of its keys holds up nobody at the others, so a tenant at its own limit stops no other one at a
    ///   level that they share. Only if each key had room for it, for a second or longer, but never all in one moment, it
    ///   holds them up: for as long as it has let others pass. Otherwise calls for each key alone could take it every time.
    /// - A call that does not move for a second although it could, because its thread is blocked, lets others pass. A call that
    ///   asks the store keeps its place for the deadline, too.
    /// - Calls that were checked in one round trip may change places if another process took units in that moment.
    /// - A call stands in line when its task takes the refusal in. One that was refused after it, and whose task ran first, may
    ///   be served before it.
    /// - After a [pause](Self::pause), calls have units in their order, and at the rate of the limit.
    /// - Between processes there is no order: a unit goes to the process that asks first.
    /// - Each [share](crate::Quota::shares) of a key has a line of its own.
    ///
    /// [`queue`](Self::queue) bounds how many calls wait for a key.
    ///
    /// If the future is dropped while it waits for time to pass, nothing is charged. While it waits for Redis,
    /// the same applies as for `check_n`.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`check_n`](Self::check_n).
    ///
    /// # Panics
    ///
    /// Panics if it has to wait outside of a tokio runtime, or in a runtime without timers.
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
        key: impl IntoKey,
        cost: u32,
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        Self::until_all_ready([self.level(key).cost(cost)], max_wait).await
    }

    /// Waits until every level admits its cost, then charges all of them.
    ///
    /// It waits as [`until_ready`](Self::until_ready) does, and checks as [`check_all`](Self::check_all) does.
    /// If the store fails, it keeps waiting if the limiter of each level that failed
    /// [waits through outages](Self::wait_through_outages).
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`check_all`](Self::check_all).
    ///
    /// # Panics
    ///
    /// Panics if it has to wait outside of a tokio runtime, or in a runtime without timers.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use tollgate::{Key, MemoryStore, Quota, RateLimiter};
    ///
    /// let store = MemoryStore::new();
    /// let short = Quota::new(1, Duration::from_millis(20));
    /// let user = RateLimiter::new(store.clone(), Quota::per_minute(60)).name("user");
    /// let service = RateLimiter::new(store, short).name("service");
    /// for name in ["ada", "bob"] {
    ///     let levels = [user.level(name), service.level(Key::global())];
    ///     let decision = RateLimiter::until_all_ready(levels, Duration::from_secs(5)).await?;
    ///     assert!(decision.is_allowed());
    /// }
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn until_all_ready<'a>(
        checks: impl IntoIterator<Item = LevelCheck<'a>>,
        max_wait: Duration,
    ) -> impl Future<Output = Result<Decision, Error>> + Send {
        let check = PendingCheck::within_limits(levels(checks));
        async move {
            let decided = check.decide_in_turn(max_wait, false).await?;
            Ok(decided.decision)
        }
    }
}

impl AskedLevel {
    pub(super) async fn look(self) -> Result<Decision, Error> {
        match PendingCheck::look(self).start().await {
            Ok(decided) => Ok(decided.decision),
            Err(failed) => Err(failed.error),
        }
    }
}

#[inline]
pub(super) fn record_and_decide(checked: Checked) -> Result<Decision, Error> {
    record(&checked);
    match checked {
        Ok(decided) => Ok(decided.decision),
        Err(failed) => Err(failed.error),
    }
}

impl PendingCheck {
    /// Waits for the turn of a call that has a place in line. A call whose turn would come too late loses its place.
    pub(crate) async fn attempt_in_turn(
        mut self,
        waiting: &mut Option<Place>,
        takes_slots: bool,
    ) -> Checked {
        if takes_slots {
            self.levels.iter_mut().for_each(AskedLevel::hold_units);
        }
        let turn = match waiting {
            Some(place) => place.turn(self.wants()).await,
            None => Ok(()),
        };
        if turn.is_err() {
            *waiting = None;
        }
        self.slots = takes_slots.then(|| Box::new(SlotsOfCheck::new(waiting.as_ref())));
        match turn {
            Ok(()) => self.start().await,
            Err(too_late) => self.refuse(too_late),
        }
    }

    pub(super) async fn decide_in_turn(
        self,
        max_wait: Duration,
        takes_slots: bool,
    ) -> Result<DecidedCheck, Error> {
        let mut wait = OutageWait::new(max_wait);
        let mut place = self.place(max_wait);
        if takes_slots {
            place.waits_for_slots(self.permit_meters());
        }
        let mut waiting = Some(place);
        let mut check = self;
        loop {
            let checked = check.attempt_in_turn(&mut waiting, takes_slots).await;
            match wait.after_attempt(checked, &mut waiting).await {
                ControlFlow::Continue(again) => check = again,
                ControlFlow::Break(checked) => {
                    record(&checked);
                    return checked.map_err(|failed| wait.explain(failed.error));
                }
            }
        }
    }
}

impl OutageWait {
    /// Breaks with the result of the attempt, unless another attempt follows.
    async fn after_attempt(
        &mut self,
        checked: Checked,
        waiting: &mut Option<Place>,
    ) -> ControlFlow<Checked, PendingCheck> {
        let Some(place) = waiting else {
            return ControlFlow::Break(checked);
        };
        match checked {
            Ok(decided) => self.after_decision(decided, place).await,
            Err(failed) => self.wait_for_store(failed, place).await.map_break(Err),
        }
    }

    /// Breaks with the failure, unless its limiters wait until the store works again.
    pub(crate) async fn wait_for_store(
        &mut self,
        failed: Box<FailedCheck>,
        place: &mut Place,
    ) -> ControlFlow<Box<FailedCheck>, PendingCheck> {
        if failed.waits_for_store() {
            place.leave();
            if self.after_failure(&failed.error).await {
                return ControlFlow::Continue(failed.ask_again());
            }
        }
        ControlFlow::Break(failed)
    }

    async fn after_decision(
        &mut self,
        mut decided: DecidedCheck,
        place: &mut Place,
    ) -> ControlFlow<Checked, PendingCheck> {
        let decision = &mut decided.decision;
        if !decision.is_allowed() {
            self.answered();
            let Err(why) = place.refused(decision.view()) else {
                return ControlFlow::Continue(decided.ask_again());
            };
            decided.end_of_wait = Some(why);
        } else if decision.is_paused_meanwhile() {
            // If the store fails, the units stay charged.
            let _ = decision.settle_all(0).await;
            return ControlFlow::Continue(decided.ask_again());
        } else {
            place.admitted(decision.view());
        }
        ControlFlow::Break(Ok(decided))
    }
}

impl FailedCheck {
    fn waits_for_store(&self) -> bool {
        self.failed_limiters()
            .all(|limiter| limiter.waits_through(&self.error))
    }
}
