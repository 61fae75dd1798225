//! The counters of one key. A check charges all of its quotas or none.

use smallvec::SmallVec;

use crate::algorithm::{Charge, QuotaCheck, State, Verdict, time_to_live_millis};
use crate::decision::{Answer, QuotaAnswer, Wait};
use crate::quota::{Algorithm, Quota, Quotas};
use crate::store::requests::{Check, Credit, Refund};

/// The counters of one key, one for each algorithm and window.
#[derive(Debug, Default)]
pub(super) struct Counters {
    list: SmallVec<[Counter; 1]>,
}

#[derive(Debug)]
struct Counter {
    algorithm: Algorithm,
    window: u64,
    state: State,
    /// The end of the time to live, in milliseconds of the store's clock. A key in Redis has the same
    /// TTL.
    dies_at: u64,
    /// The used part of the limit, in 1/1024: the largest over the quotas of the last check that had a
    /// cost.
    used_part: u16,
}

/// The used part of its limit up to which a key may be dropped, in 1/1024.
pub(super) const DROPPABLE_PART: u16 = 512;

impl Counters {
    /// Evaluates every quota, and charges all if all admit.
    #[inline]
    pub(super) fn check(&mut self, check: Check<'_>, now: u64, answer: &mut Answer) {
        let quotas = check.quotas();
        if let Some(quota) = quotas.single() {
            self.check_one(quota, check.cost(), now, answer);
        } else {
            self.check_all(quotas, check.cost(), now, answer);
        }
    }

    /// Checks one quota, which most limiters have: its counter is looked up once and advanced once.
    #[inline(always)]
    fn check_one(&mut self, quota: &Quota, cost: u32, now: u64, answer: &mut Answer) {
        let check = QuotaCheck::new(quota, cost, now);
        let algorithm = quota.counted_by();
        if let Some(counter) = self.find(algorithm, check.window) {
            counter.check(check, answer);
            return;
        }
        let mut counter = Counter::new(algorithm, check.window);
        if counter.check(check, answer) && cost > 0 {
            self.list.push(counter);
        }
    }

    #[inline(never)]
    fn check_all(&mut self, quotas: &Quotas, cost: u32, now: u64, answer: &mut Answer) {
        let verdicts: SmallVec<[Verdict; 2]> = quotas
            .iter()
            .map(|quota| self.evaluate(QuotaCheck::new(quota, cost, now), quota.counted_by()))
            .collect();
        let admitted = verdicts.iter().all(|verdict| verdict.wait == Wait::Zero);
        if admitted && cost > 0 {
            for quota in quotas.strictest() {
                self.charge(QuotaCheck::new(quota, cost, now), quota.counted_by());
            }
            for quota in quotas.iter() {
                let peek = QuotaCheck::new(quota, 0, now);
                answer.push(self.evaluate(peek, quota.counted_by()).into());
            }
        } else {
            for verdict in verdicts {
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

    fn charge(&mut self, check: QuotaCheck, algorithm: Algorithm) {
        if self.find(algorithm, check.window).is_none() {
            self.list.push(Counter::new(algorithm, check.window));
        }
        if let Some(counter) = self.find(algorithm, check.window) {
            counter.charge(check);
        }
    }

    fn update_used_parts(&mut self, quotas: &Quotas, answers: &[QuotaAnswer]) {
        for quota in quotas.strictest() {
            if let Some(counter) = self.find(quota.counted_by(), quota.window_micros()) {
                counter.used_part = 0;
            }
        }
        for (quota, answer) in quotas.iter().zip(answers) {
            if let Some(counter) = self.find(quota.counted_by(), quota.window_micros()) {
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

    /// Takes units back from each counter that was charged.
    pub(super) fn refund(&mut self, refund: Refund<'_>, now: u64) {
        for (quota, answer) in refund.charged() {
            let check = QuotaCheck::new(quota, 0, now);
            let charge = Charge {
                time: refund.answer().time(),
                receipt: answer.receipt(),
                cost: refund.cost,
                is_open: refund.held > 0,
            };
            if let Some(counter) = self.find(quota.counted_by(), check.window) {
                counter.refund(check, charge, refund.units());
            }
        }
    }

    /// Takes units away from each counter once.
    pub(super) fn credit(&mut self, credit: Credit<'_>, now: u64) {
        for quota in credit.quotas().strictest() {
            let check = QuotaCheck::new(quota, 0, now);
            if let Some(counter) = self.find(quota.counted_by(), check.window) {
                counter.credit(check, credit.units());
            }
        }
    }

    /// Drops the counters of these quotas.
    pub(super) fn reset(&mut self, quotas: &Quotas) {
        for quota in quotas.strictest() {
            let (algorithm, window) = (quota.counted_by(), quota.window_micros());
            self.list
                .retain(|counter| !counter.is_of(algorithm, window));
        }
    }

    /// Drops the counters whose time to live is over.
    pub(super) fn remove_dead(&mut self, now: u64) {
        self.list.retain(|counter| !counter.is_dead(now));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns whether all units have returned.
    pub(super) fn is_idle(&self, now: u64) -> bool {
        self.list.iter().all(|counter| counter.is_idle(now))
    }

    /// Returns the largest used part of any limit, in 1/1024; 0 once all units have returned. That is
    /// the cost of dropping the key now.
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
    fn check(&mut self, check: QuotaCheck, answer: &mut Answer) -> bool {
        self.clear_if_dead(check.now);
        let summary = self.state.check(check, answer);
        if summary.renewed {
            self.renew(check.now);
        }
        if check.cost > 0 {
            self.used_part = parts_of_1024(summary.used, check.limit);
        }
        summary.admitted
    }

    fn evaluate(&mut self, check: QuotaCheck) -> Verdict {
        self.clear_if_dead(check.now);
        let verdict = self.state.evaluate(check);
        if verdict.renewed {
            self.renew(check.now);
        }
        verdict
    }

    fn charge(&mut self, check: QuotaCheck) {
        if self.state.charge(check) {
            self.renew(check.now);
        }
    }

    fn refund(&mut self, check: QuotaCheck, charge: Charge, units: u32) {
        self.clear_if_dead(check.now);
        if self.state.refund(check, charge, units) {
            self.renew(check.now);
        }
    }

    fn credit(&mut self, check: QuotaCheck, units: u32) {
        self.clear_if_dead(check.now);
        if self.state.credit(check, units) {
            self.renew(check.now);
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
        })
    }

    fn renew(&mut self, now: u64) {
        self.dies_at = now / 1_000 + time_to_live_millis(self.window);
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
    fn a_count_is_small() {
        let size = size_of::<Counters>();
        assert!(size <= 80, "{size} bytes");
    }
}
