//! The counts of one limiter and key, for all of its quotas.

use smallvec::SmallVec;

use crate::algorithm::{Changes, Charge, QuotaCheck, State, Verdict, time_to_live_millis};
use crate::decision::{Answer, QuotaAnswer, Source, Wait};
use crate::quota::{Algorithm, Quota, Quotas, longest_window};
use crate::store::requests::{Check, Credit, Refund, Reset};

/// The counts of one limiter and key, with the rules of every [`Algorithm`]. For stores outside this crate.
///
/// A [`Store`](crate::Store) keeps one value for each limiter and key, for example as a row of a database. To
/// decide a check, it reads the value, calls [`check`](Self::check), and writes the value back in the same
/// transaction. The decisions are the same as those of [`MemoryStore`](crate::MemoryStore) and
/// [`RedisStore`](crate::RedisStore), to the microsecond. With the feature `serde`, the value can be serialized
/// in any format.
///
/// # Time
///
/// `now` is the time of the store's clock, in microseconds. Read the clock inside the lock or the transaction:
/// an earlier reading looks like a clock that stepped back. Units that were charged later than `now` count as
/// charged now. So if the clock steps back, no units are freed, and none counts for longer than one window. For
/// quotas of calendar windows, count the time from 1970, in UTC.
///
/// # Examples
///
/// A store in the memory of the process, under one lock. The example `own_store` in the repository keeps its
/// counts in SQLite.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::Mutex;
/// use std::time::{SystemTime, UNIX_EPOCH};
/// use tollgate::store::{Check, Counters, Refund, Source, Store, StoreFuture, StoreId};
///
/// struct Own {
///     id: StoreId,
///     keys: Mutex<HashMap<(String, String), Counters>>,
/// }
///
/// fn now() -> u64 {
///     let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
///     u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
/// }
///
/// impl Store for Own {
///     fn id(&self) -> StoreId {
///         self.id
///     }
///
///     fn check(&self, check: Check<'_>) -> StoreFuture {
///         let mut keys = self.keys.lock().unwrap();
///         let name = (check.limiter().as_str().to_owned(), check.key().as_str().to_owned());
///         let counters = keys.entry(name).or_default();
///         StoreFuture::ready(Ok(counters.check(check, Source::Other, now())))
///     }
///
///     fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
///         let mut keys = self.keys.lock().unwrap();
///         let name = (refund.limiter().as_str().to_owned(), refund.key().as_str().to_owned());
///         if let Some(counters) = keys.get_mut(&name) {
///             counters.refund(refund, now());
///         }
///         StoreFuture::ready(Ok(()))
///     }
/// }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let own = Own { id: StoreId::unique(), keys: Mutex::default() };
/// # let limiter = tollgate::RateLimiter::new(own, tollgate::Quota::per_day(2));
/// # let mut decision = limiter.check_n("ada", 2).await.unwrap();
/// # assert!(!limiter.check("ada").await.unwrap().is_allowed());
/// # limiter.refund(&mut decision, 1).await.unwrap();
/// # assert!(limiter.check("ada").await.unwrap().is_allowed());
/// # });
/// ```
// It has one counter for each algorithm and window.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct Counters {
    list: SmallVec<[Counter; 1]>,
}

#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
struct Counter {
    algorithm: Algorithm,
    window: u64,
    state: State,
    /// The end of the time to live, in milliseconds of the store's clock. Counters that share a key in Redis have
    /// the same end.
    dies_at: u64,
    /// The used part of the limit, in 1/1024, as of the last check with a cost. If several quotas share the
    /// counter, it is the largest part.
    used_part: u16,
}

/// A key that has used at most this part of its limits may be dropped, in 1/1024.
pub(super) const DROPPABLE_PART: u16 = 512;

/// A check that asks for more than its cost gets at most this part of what is left, so that the other processes
/// get units, too.
const MAX_EXTRA_PART: u32 = 8;

impl Counters {
    /// Creates empty counters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decides a check, and charges it to all of its quotas if all of them admit it.
    ///
    /// `source` is the [`Source`] of the answer: [`Source::Other`] for a store outside this crate.
    ///
    /// A check that is refused, or that costs 0, changes no count. So it is not necessary to write the
    /// counters back, except that units in the future are moved to now.
    pub fn check(&mut self, check: Check<'_>, source: Source, now: u64) -> Answer {
        let mut answer = Answer::default();
        answer.clear(now, source);
        self.check_in_place(check, now, &mut answer);
        answer
    }

    /// Decides a check as [`check`](Self::check) does, but charges nothing.
    ///
    /// To decide several checks together, call `judge` for each. If all of them are
    /// [admitted](Answer::is_admitted), call `check` for each.
    pub fn judge(&mut self, check: Check<'_>, source: Source, now: u64) -> Answer {
        let mut expiry = self.expiry(now);
        let verdicts = check.quotas().iter().map(|quota| {
            let check = QuotaCheck::new(quota, check.cost(), now);
            let verdict = self.evaluate(check, quota.counted_by());
            self.note(quota.counted_by(), &check, verdict.changes, &mut expiry);
            verdict
        });
        let answer = Answer::at(now, source, verdicts.map(QuotaAnswer::from));
        self.share(expiry, now);
        answer
    }

    /// Evaluates every quota, and charges all if all admit.
    #[inline]
    pub(super) fn check_in_place(&mut self, check: Check<'_>, now: u64, answer: &mut Answer) {
        if check.more() > 0 {
            return self.check_for_more(check, now, answer);
        }
        let quotas = check.quotas();
        if let Some(quota) = quotas.single() {
            self.check_one(quota, check.cost(), now, answer);
        } else {
            self.check_all(quotas, check.cost(), now, answer);
        }
    }

    /// Charges the cost and at most an eighth of what is left after it.
    #[inline(never)]
    fn check_for_more(&mut self, check: Check<'_>, now: u64, answer: &mut Answer) {
        let cost = check.cost();
        let judged = self.judge(check, answer.source(), now);
        let left = check.quotas().iter().zip(judged.quotas());
        let left = left.map(|(quota, answer)| quota.limit().saturating_sub(answer.used()));
        let left = left.min().unwrap_or(0).saturating_sub(cost);
        let most = check.quotas().max_cost().saturating_sub(cost);
        let extra = check.more().min(left / MAX_EXTRA_PART).min(most);
        let (cost, extra) = match judged.is_admitted() {
            true => (cost + extra, extra),
            false => (cost, 0),
        };
        self.check_in_place(check.subject.check(cost), now, answer);
        answer.set_extra(extra);
    }

    /// Checks a single quota, which is the usual case, with one lookup of its counter.
    #[inline(always)]
    fn check_one(&mut self, quota: &Quota, cost: u32, now: u64, answer: &mut Answer) {
        let check = QuotaCheck::new(quota, cost, now);
        let algorithm = quota.counted_by();
        let mut expiry = self.expiry(now);
        if let Some(counter) = self.find(algorithm, check.window) {
            counter.check(check, answer, &mut expiry);
        } else {
            let mut counter = Counter::new(algorithm, check.window);
            if counter.check(check, answer, &mut expiry) && cost > 0 {
                self.list.push(counter);
            }
        }
        self.share(expiry, now);
    }

    #[inline(never)]
    fn check_all(&mut self, quotas: &Quotas, cost: u32, now: u64, answer: &mut Answer) {
        let mut expiry = self.expiry(now);
        let verdicts: SmallVec<[(QuotaCheck, Verdict); 2]> = quotas
            .iter()
            .map(|quota| {
                let check = QuotaCheck::new(quota, cost, now);
                (check, self.evaluate(check, quota.counted_by()))
            })
            .collect();
        let mut waits = verdicts.iter().map(|(_, verdict)| verdict.wait);
        let admitted = waits.all(|wait| wait == Wait::Zero);
        let is_charged = Changes::CHARGED.only_if(admitted && cost > 0);
        for (quota, (check, verdict)) in quotas.iter().zip(&verdicts) {
            let changes = verdict.changes | is_charged;
            self.note(quota.counted_by(), check, changes, &mut expiry);
        }
        if admitted && cost > 0 {
            for quota in quotas.strictest() {
                let check = QuotaCheck::new(quota, cost, now);
                let changes = self.charge(check, quota.counted_by());
                self.note(quota.counted_by(), &check, changes, &mut expiry);
            }
            self.share(expiry, now);
            for quota in quotas.iter() {
                let peek = QuotaCheck::new(quota, 0, now);
                answer.push(self.evaluate(peek, quota.counted_by()).into());
            }
        } else {
            self.share(expiry, now);
            for (_, verdict) in verdicts {
                answer.push(verdict.into());
            }
        }
        if cost > 0 {
            self.update_used_parts(quotas, answer.quotas());
        }
    }

    fn evaluate(&mut self, check: QuotaCheck, algorithm: Algorithm) -> Verdict {
        match self.find(algorithm, check.window) {
            Some(counter) => counter.evaluate(check),
            None => State::empty(algorithm).evaluate(check),
        }
    }

    fn charge(&mut self, check: QuotaCheck, algorithm: Algorithm) -> Changes {
        if self.find(algorithm, check.window).is_none() {
            self.list.push(Counter::new(algorithm, check.window));
        }
        let counter = self.find(algorithm, check.window);
        counter.map_or(Changes::NONE, |counter| counter.state.charge(check))
    }

    /// Returns the end of the time to live that the counters share.
    #[inline(always)]
    fn expiry(&self, now: u64) -> Expiry {
        let stored = self.list.iter().filter(|counter| counter.is_stored(now));
        Expiry {
            known: stored.map(|counter| counter.dies_at).max().unwrap_or(0),
            longest: 0,
            is_touched: false,
        }
    }

    fn note(
        &mut self,
        algorithm: Algorithm,
        check: &QuotaCheck,
        changes: Changes,
        expiry: &mut Expiry,
    ) {
        if changes != Changes::NONE
            && let Some(counter) = self.find(algorithm, check.window)
        {
            counter.note(changes, check, expiry);
        }
    }

    /// Gives the counters that share a key in Redis the time to live that they need after a change.
    #[inline(always)]
    fn share(&mut self, expiry: Expiry, now: u64) {
        if expiry.is_touched {
            let dies_at = expiry.renewed(now);
            for counter in self.list.iter_mut().filter(|counter| counter.is_packed()) {
                counter.dies_at = dies_at;
            }
        }
    }

    fn update_used_parts(&mut self, quotas: &Quotas, answers: &[QuotaAnswer]) {
        for quota in quotas.strictest() {
            if let Some(counter) = self.find(quota.counted_by(), quota.counted_micros()) {
                counter.used_part = 0;
            }
        }
        for (quota, answer) in quotas.iter().zip(answers) {
            if let Some(counter) = self.find(quota.counted_by(), quota.counted_micros()) {
                let part = parts_of_1024(answer.used(), quota.limit());
                counter.used_part = counter.used_part.max(part);
            }
        }
    }

    fn find(&mut self, algorithm: Algorithm, window: u64) -> Option<&mut Counter> {
        self.list
            .iter_mut()
            .find(|counter| counter.is_of(algorithm, window))
    }

    /// Returns those units of an earlier charge that still count.
    pub fn refund(&mut self, refund: Refund<'_>, now: u64) {
        let mut expiry = self.expiry(now);
        for (quota, answer) in refund.charged() {
            let check = QuotaCheck::new(quota, 0, now);
            let charge = Charge {
                time: refund.answer().time(),
                receipt: answer.receipt(),
                cost: refund.cost,
                is_open: refund.held > 0,
            };
            if let Some(counter) = self.find(quota.counted_by(), check.window) {
                counter.refund(check, charge, refund.units(), &mut expiry);
            }
        }
        self.share(expiry, now);
    }

    /// Returns units in the counter of each quota, whichever checks charged them.
    pub fn credit(&mut self, credit: Credit<'_>, now: u64) {
        let mut expiry = self.expiry(now);
        for quota in credit.quotas().strictest() {
            let check = QuotaCheck::new(quota, 0, now);
            if let Some(counter) = self.find(quota.counted_by(), check.window) {
                counter.credit(check, credit.units(), &mut expiry);
            }
        }
        self.share(expiry, now);
    }

    /// Removes all units that count under the quotas of a reset.
    pub fn reset(&mut self, reset: Reset<'_>) {
        for quota in reset.quotas().strictest() {
            let (algorithm, window) = (quota.counted_by(), quota.counted_micros());
            self.list
                .retain(|counter| !counter.is_of(algorithm, window));
        }
    }

    /// Drops the counters that have expired.
    pub(super) fn remove_dead(&mut self, now: u64) {
        self.list.retain(|counter| !counter.is_dead(now));
    }

    /// Returns whether there are no counters, so that a store can drop the key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the time after which a store can drop the key, in microseconds of the store's clock.
    ///
    /// `None` if there are no counters. Otherwise, it is at most two windows and a second after the last
    /// change.
    #[must_use]
    pub fn expires_at(&self) -> Option<u64> {
        let last = self.list.iter().map(|counter| counter.dies_at).max()?;
        Some(last.saturating_mul(1_000))
    }

    /// Returns whether all units have returned.
    pub(super) fn is_idle(&self, now: u64) -> bool {
        self.list.iter().all(|counter| counter.is_idle(now))
    }

    /// Returns the largest used part of any limit, in 1/1024; 0 if all units have returned.
    pub(super) fn used_part(&self, now: u64) -> u16 {
        let active = self.list.iter().filter(|counter| !counter.is_idle(now));
        active.map(|counter| counter.used_part).max().unwrap_or(0)
    }
}

impl Counter {
    fn new(algorithm: Algorithm, window: u64) -> Self {
        Self {
            algorithm,
            window,
            state: State::empty(algorithm),
            dies_at: 0,
            used_part: 0,
        }
    }

    fn is_of(&self, algorithm: Algorithm, window: u64) -> bool {
        self.algorithm == algorithm && self.window == window
    }

    #[inline(always)]
    fn check(&mut self, check: QuotaCheck, answer: &mut Answer, expiry: &mut Expiry) -> bool {
        self.clear_if_dead(check.now);
        let summary = self.state.check(check, answer);
        self.note(summary.changes, &check, expiry);
        if check.cost > 0 {
            self.used_part = parts_of_1024(summary.used, check.limit);
        }
        summary.admitted
    }

    fn evaluate(&mut self, check: QuotaCheck) -> Verdict {
        self.clear_if_dead(check.now);
        self.state.evaluate(check)
    }

    fn refund(&mut self, check: QuotaCheck, charge: Charge, units: u32, expiry: &mut Expiry) {
        self.clear_if_dead(check.now);
        let renews = self.state.refund(check, charge, units);
        self.note(Changes::REWOUND.only_if(renews), &check, expiry);
    }

    fn credit(&mut self, check: QuotaCheck, units: u32, expiry: &mut Expiry) {
        self.clear_if_dead(check.now);
        let renews = self.state.credit(check, units);
        self.note(Changes::REWOUND.only_if(renews), &check, expiry);
    }

    /// Returns whether the counter shares a key in Redis with others.
    fn is_packed(&self) -> bool {
        self.algorithm != Algorithm::SortedSetLog
    }

    /// Returns whether the shared key in Redis holds the counter.
    #[inline(always)]
    fn is_stored(&self, now: u64) -> bool {
        self.is_packed() && !self.is_dead(now) && !self.state.is_blank()
    }

    /// Notes what a change does to the time to live. A charge renews that of a shared key only if it is too
    /// short; units that were moved or given back always do.
    #[inline(always)]
    fn note(&mut self, changes: Changes, check: &QuotaCheck, expiry: &mut Expiry) {
        let now = check.now;
        let time_to_live = || time_to_live_millis(longest_window(self.window));
        if !self.is_packed() {
            if changes.any(Changes::TRIMMED | Changes::REWOUND | Changes::BEGUN) {
                self.dies_at = now / 1_000 + time_to_live();
            }
            return;
        }
        let is_charged = changes.any(Changes::CHARGED);
        let is_tidied = changes.any(Changes::REWOUND);
        if is_tidied || is_charged && expiry.micros() < now + self.needs(check) {
            expiry.longest = expiry.longest.max(time_to_live());
        }
        expiry.is_touched |= is_tidied || is_charged;
    }

    /// Returns how long a unit that is charged now may count.
    #[inline(always)]
    fn needs(&self, check: &QuotaCheck) -> u64 {
        let window = self.window;
        match self.algorithm {
            // Until the end of the next aligned window.
            Algorithm::SlidingCounter => 2 * window - check.now % window,
            Algorithm::FixedWindow => check.fixed_window_needs(),
            Algorithm::SlidingBuckets(_) => window + window.div_ceil(self.algorithm.parts()),
            // A level drains in whole ticks, each below a hundred-thousandth of the window.
            Algorithm::Gcra => window + window / 100_000,
            _ => window,
        }
    }

    /// Clears the counter if its time to live is over, as Redis drops an expired key.
    #[inline]
    fn clear_if_dead(&mut self, now: u64) {
        if self.is_dead(now) {
            self.state = State::empty(self.algorithm);
        }
    }

    fn is_dead(&self, now: u64) -> bool {
        self.dies_at <= now / 1_000
    }

    /// Returns whether all units have returned.
    fn is_idle(&self, now: u64) -> bool {
        self.state.is_idle(QuotaCheck {
            limit: 0,
            window: self.window,
            parts: self.algorithm.parts(),
            cost: 0,
            now,
            // Not known here. Then the count is used, until its time to live is over.
            calendar: None,
        })
    }
}

/// The end of the time to live of the counters that share a key in Redis, which keeps it in whole seconds.
#[derive(Clone, Copy, Debug)]
struct Expiry {
    /// The end before a change, in milliseconds; 0 if nothing is stored.
    known: u64,
    /// The longest time to live that a changed counter is given, in milliseconds; 0 if none is.
    longest: u64,
    is_touched: bool,
}

impl Expiry {
    /// Returns the end before a change as Redis knows it, in microseconds.
    #[inline(always)]
    fn micros(self) -> u64 {
        self.known / 1_000 * 1_000_000
    }

    /// Returns the end after the change.
    #[inline(always)]
    fn renewed(self, now: u64) -> u64 {
        let dies_at = now / 1_000 + self.longest;
        if self.longest == 0 {
            self.known
        } else if dies_at / 1_000 < self.known / 1_000 {
            self.known / 1_000 * 1_000
        } else {
            dies_at
        }
    }
}

/// Returns `used` of `limit` in 1/1024, rounded up.
fn parts_of_1024(used: u32, limit: u32) -> u16 {
    let part = (u64::from(used) * 1_024).div_ceil(u64::from(limit.max(1)));
    u16::try_from(part).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_take_at_most_80_bytes() {
        let size = size_of::<Counters>();
        assert!(size <= 80, "{size} bytes");
    }
}
