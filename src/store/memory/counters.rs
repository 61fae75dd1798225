//! The counts of one key, and a check over them: all or nothing.

use smallvec::SmallVec;

use super::super::clock::Moment;
use super::{Answer, Check};
use crate::algorithm::{Asked, Question, State, time_to_live_millis};
use crate::decision::{Source, Wait};
use crate::quota::{Algorithm, Quota, Quotas};

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
    /// When the count has died, in milliseconds of the store's elapsed time, as a key in Redis dies
    /// of its TTL.
    dies_at: u64,
    /// How much of the limit was used when last asked, in 1/1024 of it.
    part_used: u32,
    /// When the last charged unit is returned.
    idle_at: u64,
}

/// The part of its limit that a key may have used and still be dropped, in 1/1024.
pub(super) const DROPPABLE_PART: u32 = 512;

impl Counters {
    /// Asks every quota, and charges all if all admit.
    pub(super) fn check(&mut self, check: Check<'_>, moment: Moment) -> Answer {
        self.list.retain(|counter| counter.dies_at > moment.elapsed);
        let cost = check.cost();
        let asked: SmallVec<[Asked; 2]> = check
            .quotas()
            .iter()
            .map(|quota| self.ask(quota, cost, moment))
            .collect();
        let admitted = asked.iter().all(|asked| asked.wait == Wait::Zero);
        let charged = admitted && cost > 0;
        if charged {
            for quota in check.quotas().counters() {
                self.charge(quota, cost, moment);
            }
        }
        let answers = asked.into_iter().map(|asked| {
            if charged {
                asked.charged(cost)
            } else {
                asked.uncharged()
            }
        });
        Answer::new(Source::Memory, answers)
    }

    fn ask(&mut self, quota: &Quota, cost: u32, moment: Moment) -> Asked {
        let question = Question::new(quota, cost, moment.now);
        let Some(counter) = self.find(quota) else {
            return State::empty(quota.counted_by()).ask(question);
        };
        let asked = counter.state.ask(question);
        counter.part_used = part(asked.used, quota.limit());
        if asked.renewed {
            counter.renew(moment);
        }
        asked
    }

    fn charge(&mut self, quota: &Quota, cost: u32, moment: Moment) {
        let question = Question::new(quota, cost, moment.now);
        if self.find(quota).is_none() {
            self.list.push(Counter::new(quota));
        }
        if let Some(counter) = self.find(quota) {
            if counter.state.charge(question) {
                counter.renew(moment);
            }
            counter.part_used = counter.part_used.saturating_add(part(cost, quota.limit()));
            counter.idle_at = moment.now + counter.window;
        }
    }

    fn find(&mut self, quota: &Quota) -> Option<&mut Counter> {
        self.list.iter_mut().find(|counter| counter.counts(quota))
    }

    /// Forgets the counts of these quotas.
    pub(super) fn reset(&mut self, quotas: &Quotas) {
        for quota in quotas.iter() {
            self.list.retain(|counter| !counter.counts(quota));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether nothing here will be asked for again.
    pub(super) fn is_dead(&self, moment: Moment) -> bool {
        self.list
            .iter()
            .all(|counter| counter.dies_at <= moment.elapsed)
    }

    /// How much is lost by dropping this key now: the largest part used of any limit, in 1/1024;
    /// nothing once all units are returned.
    pub(super) fn part_used(&self, moment: Moment) -> u32 {
        let live = self
            .list
            .iter()
            .filter(|counter| counter.idle_at > moment.now && counter.dies_at > moment.elapsed);
        live.map(|counter| counter.part_used).max().unwrap_or(0)
    }
}

impl Counter {
    fn new(quota: &Quota) -> Self {
        Self {
            algorithm: quota.counted_by(),
            window: quota.window_micros(),
            state: State::empty(quota.counted_by()),
            dies_at: 0,
            part_used: 0,
            idle_at: 0,
        }
    }

    fn counts(&self, quota: &Quota) -> bool {
        self.algorithm == quota.counted_by() && self.window == quota.window_micros()
    }

    fn renew(&mut self, moment: Moment) {
        self.dies_at = moment.elapsed + time_to_live_millis(self.window);
    }
}

/// `used` of `limit`, in 1/1024, rounded up.
fn part(used: u32, limit: u32) -> u32 {
    let part = (u64::from(used) * 1_024).div_ceil(u64::from(limit.max(1)));
    u32::try_from(part).unwrap_or(u32::MAX)
}
