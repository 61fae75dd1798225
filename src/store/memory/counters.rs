//! The counts of one key, and a check over them: all or nothing.

use smallvec::SmallVec;

use super::{Answer, Check, Refund};
use crate::algorithm::{Asked, Charge, Question, State, time_to_live_millis};
use crate::decision::{QuotaAnswer, Source, Wait};
use crate::quota::{Algorithm, Quotas};

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
    part_used: u32,
    /// When the last charged unit is returned.
    idle_at: u64,
}

/// The part of its limit that a key may have used and still be dropped, in 1/1024.
pub(super) const DROPPABLE_PART: u32 = 512;

impl Counters {
    /// Asks every quota, and charges all if all admit.
    pub(super) fn check(&mut self, check: Check<'_>, now: u64) -> Answer {
        let cost = check.cost();
        let quotas = check.quotas();
        let asked: SmallVec<[Asked; 2]> = quotas
            .iter()
            .map(|quota| self.ask(Question::new(quota, cost, now), quota.counted_by()))
            .collect();
        let admitted = asked.iter().all(|asked| asked.wait == Wait::Zero);
        let charged = admitted && cost > 0;
        if charged {
            for quota in quotas.counters() {
                self.charge(Question::new(quota, cost, now), quota.counted_by());
            }
        }
        let answers: SmallVec<[QuotaAnswer; 2]> = if charged {
            let look = |quota| self.ask(Question::new(quota, 0, now), quota.counted_by());
            quotas.iter().map(look).map(QuotaAnswer::from).collect()
        } else {
            asked.into_iter().map(QuotaAnswer::from).collect()
        };
        if cost > 0 {
            self.note_parts_used(quotas, &answers);
        }
        Answer::at(now, Source::Memory, answers)
    }

    fn ask(&mut self, question: Question, algorithm: Algorithm) -> Asked {
        self.remove_dead_of(algorithm, question);
        let Some(counter) = self.find(algorithm, question.window) else {
            return State::empty(algorithm).ask(question);
        };
        let asked = counter.state.ask(question);
        if asked.renewed {
            counter.renew(question.now);
        }
        asked
    }

    fn charge(&mut self, question: Question, algorithm: Algorithm) {
        if self.find(algorithm, question.window).is_none() {
            self.list.push(Counter::new(algorithm, question.window));
        }
        if let Some(counter) = self.find(algorithm, question.window) {
            if counter.state.charge(question) {
                counter.renew(question.now);
            }
            counter.idle_at = question.now + counter.state.idle_after(question);
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

    /// Forgets a count that has died, as a key that has expired is not there any more.
    fn remove_dead_of(&mut self, algorithm: Algorithm, question: Question) {
        let Question { window, now, .. } = question;
        self.list
            .retain(|counter| !counter.counts(algorithm, window) || counter.dies_at > now / 1_000);
    }

    fn find(&mut self, algorithm: Algorithm, window: u64) -> Option<&mut Counter> {
        self.list
            .iter_mut()
            .find(|counter| counter.counts(algorithm, window))
    }

    /// Takes back units from each count to which they were charged.
    pub(super) fn refund(&mut self, refund: Refund<'_>, now: u64) {
        for (quota, answer) in refund.charged() {
            let question = Question::new(quota, 0, now);
            let charge = Charge {
                time: refund.answer().time(),
                receipt: answer.receipt(),
                used: answer.used(),
            };
            self.remove_dead_of(quota.counted_by(), question);
            if let Some(counter) = self.find(quota.counted_by(), question.window)
                && counter.state.refund(question, charge, refund.units())
            {
                counter.renew(now);
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
        self.list.retain(|counter| counter.dies_at > now / 1_000);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// How much is lost by dropping this key now: the largest part used of any limit, in 1/1024;
    /// nothing once all units are returned.
    pub(super) fn part_used(&self, now: u64) -> u32 {
        let live = self.list.iter().filter(|counter| counter.idle_at > now);
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
            idle_at: 0,
        }
    }

    fn counts(&self, algorithm: Algorithm, window: u64) -> bool {
        self.algorithm == algorithm && self.window == window
    }

    fn renew(&mut self, now: u64) {
        self.dies_at = now / 1_000 + time_to_live_millis(self.window);
    }
}

/// `used` of `limit`, in 1/1024, rounded up.
fn part(used: u32, limit: u32) -> u32 {
    let part = (u64::from(used) * 1_024).div_ceil(u64::from(limit.max(1)));
    u32::try_from(part).unwrap_or(u32::MAX)
}
