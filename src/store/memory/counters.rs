//! The counts of one key, and a check over them: all or nothing.

use smallvec::SmallVec;

use crate::algorithm::{Charge, QuotaCheck, State, Verdict, time_to_live_millis};
use crate::decision::Answer;
use crate::decision::{QuotaAnswer, Wait};
use crate::quota::Quota;
use crate::quota::{Algorithm, Quotas};
use crate::store::requests::{Check, Credit, Refund};

/// What is stored for one key: a count for each algorithm and window.
#[derive(Debug, Default)]
pub(super) struct Counters {
    list: SmallVec<[Counter; 1]>,
}

#[derive(Debug)]
struct Counter {
    algorithm: Algorithm,
    window: u64,
    state: State,
    /// When the count dies, in milliseconds of the store's clock, as a key in Redis dies of its
    /// TTL.
    dies_at: u64,
    /// How much of a limit is used, in 1/1024: the most over the quotas of the last check that had a
    /// cost.
    part_used: u16,
}

/// The part of its limit that a key may have used and still be dropped, in 1/1024.
pub(super) const DROPPABLE_PART: u16 = 512;

impl Counters {
    /// Asks every quota, and charges all if all admit.
    #[inline]
    pub(super) fn check(&mut self, check: Check<'_>, now: u64, answer: &mut Answer) {
        let quotas = check.quotas();
        if let Some(quota) = quotas.only() {
            self.check_one(quota, check.cost(), now, answer);
        } else {
            self.check_all(quotas, check.cost(), now, answer);
        }
    }

    /// Most limiters have one quota: its count is found once, and brought up to now once.
    #[inline(always)]
    fn check_one(&mut self, quota: &Quota, cost: u32, now: u64, answer: &mut Answer) {
        let question = QuotaCheck::new(quota, cost, now);
        let algorithm = quota.counted_by();
        if let Some(counter) = self.find(algorithm, question.window) {
            counter.check(question, answer);
            return;
        }
        let mut counter = Counter::new(algorithm, question.window);
        if counter.check(question, answer) && cost > 0 {
            self.list.push(counter);
        }
    }

    #[inline(never)]
    fn check_all(&mut self, quotas: &Quotas, cost: u32, now: u64, answer: &mut Answer) {
        let asked: SmallVec<[Verdict; 2]> = quotas
            .iter()
            .map(|quota| self.ask(QuotaCheck::new(quota, cost, now), quota.counted_by()))
            .collect();
        let admitted = asked.iter().all(|asked| asked.wait == Wait::Zero);
        if admitted && cost > 0 {
            for quota in quotas.counters() {
                self.charge(QuotaCheck::new(quota, cost, now), quota.counted_by());
            }
            for quota in quotas.iter() {
                let look = QuotaCheck::new(quota, 0, now);
                answer.push(self.ask(look, quota.counted_by()).into());
            }
        } else {
            for asked in asked {
                answer.push(asked.into());
            }
        }
        if cost > 0 {
            self.note_parts_used(quotas, answer.quotas());
        }
    }

    fn ask(&mut self, question: QuotaCheck, algorithm: Algorithm) -> Verdict {
        match self.find(algorithm, question.window) {
            Some(counter) => counter.ask(question),
            None => State::empty(algorithm).ask(question),
        }
    }

    fn charge(&mut self, question: QuotaCheck, algorithm: Algorithm) {
        if self.find(algorithm, question.window).is_none() {
            self.list.push(Counter::new(algorithm, question.window));
        }
        if let Some(counter) = self.find(algorithm, question.window) {
            counter.charge(question);
        }
    }

    fn note_parts_used(&mut self, quotas: &Quotas, answers: &[QuotaAnswer]) {
        for quota in quotas.counters() {
            if let Some(counter) = self.find(quota.counted_by(), quota.window_micros()) {
                counter.part_used = 0;
            }
        }
        for (quota, answer) in quotas.iter().zip(answers) {
            if let Some(counter) = self.find(quota.counted_by(), quota.window_micros()) {
                let part = part(answer.used(), quota.limit());
                counter.part_used = counter.part_used.max(part);
            }
        }
    }

    fn find(&mut self, algorithm: Algorithm, window: u64) -> Option<&mut Counter> {
        self.list
            .iter_mut()
            .find(|counter| counter.counts(algorithm, window))
    }

    /// Takes back units from each count to which they were charged.
    pub(super) fn refund(&mut self, refund: Refund<'_>, now: u64) {
        for (quota, answer) in refund.charged() {
            let question = QuotaCheck::new(quota, 0, now);
            let charge = Charge {
                time: refund.answer().time(),
                receipt: answer.receipt(),
                cost: refund.cost,
                is_open: refund.held > 0,
            };
            if let Some(counter) = self.find(quota.counted_by(), question.window) {
                counter.refund(question, charge, refund.units());
            }
        }
    }

    /// Has fewer units count, once in each count.
    pub(super) fn credit(&mut self, give: Credit<'_>, now: u64) {
        for quota in give.quotas().counters() {
            let question = QuotaCheck::new(quota, 0, now);
            if let Some(counter) = self.find(quota.counted_by(), question.window) {
                counter.credit(question, give.units());
            }
        }
    }

    /// Forgets the counts of these quotas.
    pub(super) fn reset(&mut self, quotas: &Quotas) {
        for quota in quotas.counters() {
            let (algorithm, window) = (quota.counted_by(), quota.window_micros());
            self.list
                .retain(|counter| !counter.counts(algorithm, window));
        }
    }

    /// Forgets the counts that have died.
    pub(super) fn remove_dead(&mut self, now: u64) {
        self.list.retain(|counter| !counter.is_dead(now));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether no unit counts any more.
    pub(super) fn is_idle(&self, now: u64) -> bool {
        self.list.iter().all(|counter| counter.is_idle(now))
    }

    /// How much is lost by dropping this key now: the largest part used of any limit, in 1/1024;
    /// nothing once all units are returned.
    pub(super) fn part_used(&self, now: u64) -> u16 {
        let live = self.list.iter().filter(|counter| !counter.is_idle(now));
        live.map(|counter| counter.part_used).max().unwrap_or(0)
    }
}

impl Counter {
    fn new(algorithm: Algorithm, window: u64) -> Self {
        Self {
            algorithm,
            window,
            state: State::empty(algorithm),
            dies_at: 0,
            part_used: 0,
        }
    }

    fn counts(&self, algorithm: Algorithm, window: u64) -> bool {
        self.algorithm == algorithm && self.window == window
    }

    #[inline(always)]
    fn check(&mut self, question: QuotaCheck, answer: &mut Answer) -> bool {
        self.forget_if_dead(question.now);
        let checked = self.state.check(question, answer);
        if checked.renewed {
            self.renew(question.now);
        }
        if question.cost > 0 {
            self.part_used = part(checked.used, question.limit);
        }
        checked.admitted
    }

    fn ask(&mut self, question: QuotaCheck) -> Verdict {
        self.forget_if_dead(question.now);
        let asked = self.state.ask(question);
        if asked.renewed {
            self.renew(question.now);
        }
        asked
    }

    fn charge(&mut self, question: QuotaCheck) {
        if self.state.charge(question) {
            self.renew(question.now);
        }
    }

    fn refund(&mut self, question: QuotaCheck, charge: Charge, units: u32) {
        self.forget_if_dead(question.now);
        if self.state.refund(question, charge, units) {
            self.renew(question.now);
        }
    }

    fn credit(&mut self, question: QuotaCheck, units: u32) {
        self.forget_if_dead(question.now);
        if self.state.credit(question, units) {
            self.renew(question.now);
        }
    }

    /// A count that has died begins anew, as a key that has expired is not there any more.
    #[inline]
    fn forget_if_dead(&mut self, now: u64) {
        if self.is_dead(now) {
            self.state = State::empty(self.algorithm);
        }
    }

    fn is_dead(&self, now: u64) -> bool {
        self.dies_at <= now / 1_000
    }

    /// Whether all its units have returned.
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

/// `used` of `limit`, in 1/1024, rounded up.
fn part(used: u32, limit: u32) -> u16 {
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
