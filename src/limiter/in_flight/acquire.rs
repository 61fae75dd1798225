//! Checks that take slots in flight: at once, or in the order of arrival.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::message::late;
use super::permit::{Acquired, Permit, Ticket};
use super::sending::{LevelSlots, SlotRequest};
use super::table::PermitTable;
use crate::decision::{Answers, DecisionView};
use crate::error::{Error, ErrorKind};
use crate::key::IntoKey;
use crate::limiter::check::{AskedLevels, decide_within_limits, give_back, record, wants};
use crate::limiter::level_check::LevelCheck;
use crate::limiter::limiter::RateLimiter;
use crate::limiter::line::Place;
use crate::limiter::pending_check::{Checked, PendingCheck};
use crate::quota::Quotas;
use crate::store::{Check, PendingAnswers};
use crate::telemetry::PermitMeter;

/// The default of [`RateLimiter::max_wait`].
const DEFAULT_MAX_WAIT: Duration = Duration::from_secs(60);

/// The slots that a check takes, and how long it waits for them.
#[derive(Default)]
pub(crate) struct SlotsOfCheck {
    /// From when on the check waits in line, and for how long: in all lines together.
    wait: Option<(Instant, Duration)>,
    line: Option<usize>,
    /// Whether the store was last asked for slots. A group of levels without quotas in flight has no line.
    is_in_line: bool,
    /// One for each time that the store was asked.
    tickets: Vec<Ticket>,
}

impl SlotsOfCheck {
    /// The check is refused at once, or else repeated in turn for this time, if at most so many wait for a key.
    pub(crate) fn new(max_wait: Option<Duration>, line: Option<usize>) -> Self {
        Self {
            wait: max_wait.map(|max_wait| (Instant::now(), max_wait)),
            line,
            ..Self::default()
        }
    }

    pub(in crate::limiter) fn set_in_line(&mut self, is_in_line: bool) {
        self.is_in_line = is_in_line;
    }

    /// Returns whether the check may wait for slots.
    pub(in crate::limiter) fn waits(&self) -> bool {
        self.wait.is_some()
    }

    /// Fails if slots are lost that were granted before others.
    pub(in crate::limiter) fn verify_held(&self) -> Result<(), Error> {
        let is_lost = |ticket: &Ticket| ticket.lost_in() == Some(0);
        match self.tickets.iter().any(is_lost) {
            true => Err(late()),
            false => Ok(()),
        }
    }

    /// Returns whether the check waits in line, or has waited there for what it asked last.
    pub(crate) fn waits_in_line(&self) -> bool {
        self.is_in_line && self.waits()
    }

    pub(crate) fn into_tickets(self) -> Vec<Ticket> {
        self.tickets
    }

    /// Returns the request of checks, which want these slots.
    fn request<'a>(
        &self,
        limiter: &'a RateLimiter,
        checks: &'a [Check<'a>],
        levels: Vec<LevelSlots>,
    ) -> SlotRequest<'a> {
        SlotRequest {
            store: &limiter.0.store,
            checks,
            levels,
            max_wait: self
                .wait
                .map(|(since, max_wait)| max_wait.saturating_sub(since.elapsed())),
            line: self.line,
            shares: None,
        }
    }

    /// Asks the store about checks, which want these slots. While it fails, this process decides them by `shares`.
    pub(in crate::limiter) fn ask(
        &mut self,
        limiter: &RateLimiter,
        checks: &[Check<'_>],
        levels: Vec<LevelSlots>,
        shares: Option<Vec<Quotas>>,
    ) -> PendingAnswers {
        let request = self.request(limiter, checks, levels);
        let (ticket, future) = limiter
            .permits()
            .table
            .check(SlotRequest { shares, ..request });
        self.tickets.extend(ticket);
        future.into()
    }

    /// Decides checks while the store fails: the rates by the fallback counts, the slots by those of this process.
    pub(in crate::limiter) fn fall_back(
        &mut self,
        limiter: &RateLimiter,
        checks: &[Check<'_>],
        levels: Vec<LevelSlots>,
    ) -> Option<Answers> {
        // The check may have waited in line for the decision.
        if let Some(decided) = self.tickets.last().and_then(Ticket::take_decision) {
            return Some(decided);
        }
        self.is_in_line = false;
        self.hold(limiter, checks, levels, |checks| {
            limiter.0.store.check_fallback(checks)
        })
    }

    /// Holds the slots of checks without the store, if `decide` admits them.
    pub(in crate::limiter) fn hold(
        &mut self,
        limiter: &RateLimiter,
        checks: &[Check<'_>],
        levels: Vec<LevelSlots>,
        decide: impl Fn(&[Check<'_>]) -> Option<Answers>,
    ) -> Option<Answers> {
        let request = self.request(limiter, checks, levels);
        let (ticket, answers) = limiter.permits().table.hold(&request, decide)?;
        self.tickets.extend(ticket);
        Some(answers)
    }
}

/// The permits of a limiter.
pub(in crate::limiter) struct LimiterPermits {
    /// Those of the store in this process. The limiter keeps them, so that they are one holder for its time.
    pub(in crate::limiter) table: Arc<PermitTable>,
    meter: PermitMeter,
}

impl RateLimiter {
    /// Returns the identity of this process among the holders of slots.
    pub(in crate::limiter) fn holder(&self) -> [u8; 16] {
        self.permits().table.holder
    }

    /// Returns the slots that a level of this limiter wants.
    pub(in crate::limiter) fn slots_of_level(&self, slots: u32) -> LevelSlots {
        let meter = self.permits().meter.clone();
        LevelSlots { slots, meter }
    }

    pub(in crate::limiter) fn permits(&self) -> &LimiterPermits {
        self.0.permits.get_or_init(|| LimiterPermits {
            table: PermitTable::of(&self.0.store),
            meter: PermitMeter::new(&self.0.name),
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
    /// A further call does not wait: it is refused, or fails if it wants a permit and none is free. Calls that wait for slots
    /// ([`acquire`](Self::acquire)) and calls that wait for units only ([`until_ready`](Self::until_ready)) have lines of
    /// their own, and so has each [share](crate::Quota::shares). Calls for slots that wait for a rate in another group of the
    /// store, such as a slot of a cluster, are not counted. In a layer made [from](crate::RateLimitLayer) this limiter, the
    /// same number of requests may wait.
    #[must_use]
    pub fn queue(self, calls: usize) -> Self {
        self.with(|inner| inner.line = Some(calls))
    }

    /// Waits for a permit: one slot of each quota [in flight](crate::Quota::in_flight), and a unit of each rate.
    ///
    /// Calls of one process get the slots of a key in the order of their arrival, as with tokio's `Semaphore`. There is no
    /// order between processes, or between [shares](crate::Quota::shares): each asks about every 25 ms, and at once when one of its own permits is dropped. For more
    /// slots or another cost, see [`acquire_all`](Self::acquire_all).
    ///
    /// While an upstream [holds the key back](Self::observe), it waits until that ends, and then asks for a slot. A call that may
    /// wait charges its units when it gets its slots, so it takes none of a [lease](Self::lease).
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
        Self::acquire_all([self.on(key)]).await
    }

    /// Takes a permit if one is free now, as [`acquire`](Self::acquire) does, but does not wait.
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
        Self::try_acquire_all([self.on(key)]).await
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
    /// let permit = RateLimiter::acquire_all([user.on("ada"), tenant.on("acme").slots(3)]).await?;
    /// # drop(permit);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn acquire_all<'a>(
        levels: impl IntoIterator<Item = LevelCheck<'a>>,
    ) -> impl Future<Output = Result<Permit, Error>> + Send {
        let levels: AskedLevels<'a> = levels.into_iter().collect();
        async move {
            let max_waits = levels.iter().map(|level| level.limiter.0.max_wait);
            let max_waits = max_waits.map(|max_wait| max_wait.unwrap_or(DEFAULT_MAX_WAIT));
            let max_wait = max_waits.max();
            let mut place = Place::new(max_wait.unwrap_or_default(), None);
            loop {
                let slots = slots_of_call(&levels, Some(place.time_left()));
                let (mut checked, check) = decide_within_limits(&levels, None, Some(slots)).await;
                let has_waited = check.waits_in_line();
                // A key that is held back has no line, and neither has a group of rates alone: it is waited for here.
                let checks_again = match &mut checked {
                    Ok(refused) if !refused.is_allowed() && !has_waited => {
                        let waits = place.refused(wants(&levels), refused.view());
                        let has_turn = waits && place.turn().await.is_ok();
                        // The slots have lines of their own.
                        place.leave();
                        has_turn
                    }
                    Ok(taken) if taken.is_allowed() && check.is_held_meanwhile(taken.view()) => {
                        give_back(&levels, taken).await;
                        true
                    }
                    _ => false,
                };
                if checks_again {
                    continue;
                }
                return match acquired(checked, check)? {
                    Acquired::Permit(permit) => Ok(permit),
                    Acquired::Refused(decision) => {
                        let reported = levels.get(decision.view().reported_index());
                        let limiter = reported.map_or("", |level| &level.limiter.0.name);
                        Err(not_acquired(limiter, decision.view(), max_wait))
                    }
                };
            }
        }
    }

    /// Takes one permit of several levels if it is free now, as [`acquire_all`](Self::acquire_all) does, but does not wait.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`check_all`](Self::check_all).
    pub fn try_acquire_all<'a>(
        levels: impl IntoIterator<Item = LevelCheck<'a>>,
    ) -> impl Future<Output = Result<Acquired, Error>> + Send {
        let levels: AskedLevels<'a> = levels.into_iter().collect();
        async move {
            let slots = slots_of_call(&levels, None);
            let (checked, check) = decide_within_limits(&levels, None, Some(slots)).await;
            acquired(checked, check)
        }
    }
}

/// Returns how a call takes slots: at once, or in turn for this time.
fn slots_of_call(levels: &AskedLevels<'_>, max_wait: Option<Duration>) -> SlotsOfCheck {
    let line = levels.iter().filter_map(|level| level.limiter.0.line).min();
    SlotsOfCheck::new(max_wait, line)
}

/// Returns the result of a check, with the slots that it has taken.
fn acquired(checked: Checked, mut check: PendingCheck) -> Result<Acquired, Error> {
    record(&check, &checked);
    let decision = checked.map_err(|failure| failure.error)?;
    Ok(match decision.is_allowed() {
        true => {
            let slots = check.take_permits();
            let tickets = slots.map_or_else(Vec::new, |slots| slots.into_tickets());
            Acquired::Permit(Permit::new(decision, tickets))
        }
        false => Acquired::Refused(decision),
    })
}

/// Returns the error of a refusal after the wait.
fn not_acquired(limiter: &str, decision: &DecisionView, max_wait: Option<Duration>) -> Error {
    let (kind, text) = match decision.retry_after() {
        None => (
            ErrorKind::CostExceedsLimit,
            format!(
                "limiter {limiter:?} never grants this permit: its cost or its slots are above the limit"
            ),
        ),
        Some(_) => {
            let max_wait = max_wait.unwrap_or_default();
            let text = format!(
                "limiter {limiter:?} granted no permit, with a `max_wait` of {max_wait:?}: raise `max_wait`, `queue` or the limit"
            );
            (ErrorKind::MaxWait, text)
        }
    };
    Error::new(kind, text)
}
