//! The log against a plain model of its rules: a list of times with their units, which is walked from end to end.

use proptest::prelude::*;

use super::super::algorithm_state::AlgorithmState;
use super::super::arithmetic::time_to_live_millis;
use super::super::quota_check::{Changes, Charge, QuotaCheck, QuotaOutcome};
use super::super::sorted_set_log::SortedSetLog;
use super::log::Log;
use crate::decision::{Receipt, Wait};

const START: u64 = 1_000_000_000;
const ALL: u64 = u32::MAX as u64;

/// A window and a limit.
type Quota = (u64, u32);

fn quota_check((window, limit): Quota, bucket: u64, cost: u32, now: u64) -> QuotaCheck<'static> {
    QuotaCheck {
        limit,
        window,
        bucket,
        cost,
        now,
        calendar: None,
        shares: &crate::quota::Shares::NONE,
        share: None,
    }
}

/// The rules of a log, in the words of the specification.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    bucket: u64,
    longest: u64,
    largest: u32,
    generation: u64,
    runs: Vec<(u64, u64)>,
    dies_at: u64,
}

fn sum(runs: &[(u64, u64)]) -> u64 {
    runs.iter().map(|(_, units)| units).sum()
}

impl Model {
    fn clock(&self, now: u64) -> u64 {
        match self.bucket {
            0 => now,
            length => (now / length + 1) * length - 1,
        }
    }

    fn reach(&self, window: u64) -> u64 {
        window.min(self.longest)
    }

    fn first(&self, window: u64, now: u64) -> usize {
        self.runs
            .iter()
            .take_while(|(time, _)| time + self.reach(window) <= now)
            .count()
    }

    fn used(&self, window: u64, now: u64) -> u64 {
        sum(&self.runs[self.first(window, now)..])
    }

    /// Returns the time until the unit of this number from 1 has left the window.
    fn leaves(&self, window: u64, now: u64, number: u64) -> u64 {
        let mut left = number;
        for (time, units) in &self.runs[self.first(window, now)..] {
            if *units >= left {
                return time + self.reach(window) - now;
            }
            left -= units;
        }
        panic!("no unit of number {number}");
    }

    fn open(&mut self, now: u64) {
        let clock = self.clock(now);
        let newest = self.runs.last().map_or(0, |run| run.0);
        if newest <= clock {
            return;
        }
        // The newest bucket began that much before the time of its run.
        let bucket = self.bucket.max(1) - 1;
        self.runs
            .retain(|(time, _)| time + self.longest > newest - bucket);
        let mut moved = 0;
        self.runs.retain(|(time, units)| {
            moved += if *time >= clock { *units } else { 0 };
            *time < clock
        });
        self.runs.push((clock, moved));
        self.generation = if self.bucket > 0 { now } else { 0 };
        self.dies_at = now / 1_000 + time_to_live_millis(self.longest);
    }

    fn fits(&self, list: &[Quota], cost: u32, now: u64) -> bool {
        list.iter()
            .all(|(window, limit)| self.used(*window, now) + u64::from(cost) <= u64::from(*limit))
    }

    /// Charges units, also beyond the limits: as many as fit into 2^32 with those that count.
    fn charge(&mut self, list: &[Quota], units: u32, now: u64) {
        let (window, limit) = *list.iter().max().unwrap();
        let clock = self.clock(now);
        let end = self.first(window, now);
        let used = sum(&self.runs[end..]);
        let units = u64::from(units).min(ALL - used);
        if units == 0 {
            return;
        }
        let limit = u64::from(limit).max(used + units).try_into().unwrap();
        let is_wider = window > self.longest || window == self.longest && limit > self.largest;
        if is_wider {
            self.longest = window;
            self.largest = limit;
        }
        let mut kept = end;
        if self.longest > window {
            let begin = self.first(self.longest, now);
            kept = (begin..=end)
                .rev()
                .find(|from| sum(&self.runs[*from..end]) >= self.largest.into())
                .unwrap_or(begin);
        }
        while sum(&self.runs[kept..]) + units > ALL {
            kept += 1;
        }
        let renews = self.dies_at / 1_000 * 1_000_000 < clock + self.longest;
        let overflows = sum(&self.runs) + units > ALL;
        if self.runs.is_empty() && self.bucket > 0 {
            self.generation = now;
        }
        if 2 * kept >= self.runs.len() || is_wider || renews || overflows {
            self.runs.drain(..kept);
        }
        match self.runs.last_mut() {
            Some((time, own)) if *time == clock => *own += units,
            _ => self.runs.push((clock, units)),
        }
        if renews {
            self.dies_at = now / 1_000 + time_to_live_millis(self.longest);
        }
    }

    fn answer(&self, (window, limit): Quota, cost: u32, now: u64) -> (u64, Wait, u64) {
        let used = self.used(window, now);
        let limit = u64::from(limit);
        let cost = u64::from(cost);
        let wait = if cost.max(1) > limit {
            Wait::Never
        } else if cost == 0 || used + cost <= limit {
            Wait::Zero
        } else {
            Wait::Micros(self.leaves(window, now, used + cost - limit))
        };
        // Until fewer units are used than now, and fewer than the limit.
        let reset = match used.min(limit) {
            0 => 0,
            counted => self.leaves(window, now, used - counted + 1),
        };
        (used, wait, reset)
    }

    fn refund(&mut self, list: &[Quota], charge: Charge, units: u32, now: u64) {
        let window = list.iter().max().unwrap().0;
        let time = match self.bucket {
            0 => charge.time,
            _ if charge.receipt.generation != self.generation => return,
            _ => charge.receipt.position,
        };
        if time + self.reach(window) > now {
            for run in self.runs.iter_mut().filter(|run| run.0 == time) {
                run.1 = run.1.saturating_sub(units.into());
            }
            self.runs.retain(|run| run.1 > 0);
        }
    }

    fn credit(&mut self, list: &[Quota], units: u32, now: u64) {
        let window = list.iter().max().unwrap().0;
        let mut left = self.used(window, now).min(units.into());
        if left == 0 {
            return;
        }
        self.generation = if self.bucket > 0 { now } else { 0 };
        while left > 0 {
            let newest = self.runs.last_mut().unwrap();
            let taken = left.min(newest.1);
            newest.1 -= taken;
            left -= taken;
            self.runs.retain(|run| run.1 > 0);
        }
        if self.used(self.longest, now) == 0 {
            self.runs.clear();
        }
    }

    /// Forgets a log without runs, and one that has died.
    fn settle(&mut self, now: u64) {
        if self.runs.is_empty() || self.dies_at <= now / 1_000 {
            let bucket = self.bucket;
            *self = Self {
                bucket,
                ..Self::default()
            };
        }
    }
}

/// A log with the end of its time to live, as the counters of a key keep it.
struct StoredLog {
    log: Log,
    bucket: u64,
    dies_at: u64,
}

impl StoredLog {
    fn note(&mut self, changes: Changes, now: u64) {
        if changes.any(Changes::RENEWED) {
            self.dies_at = now / 1_000 + time_to_live_millis(self.log.longest_window().unwrap());
        }
        if changes.any(Changes::EMPTIED) {
            self.log = Log::default();
            self.dies_at = 0;
        }
    }

    fn evaluate(&mut self, list: &[Quota], cost: u32, now: u64) -> Vec<QuotaOutcome> {
        let outcomes: Vec<_> = list
            .iter()
            .map(|quota| quota_check(*quota, self.bucket, cost, now))
            .map(|check| self.log.evaluate(&check))
            .collect();
        for outcome in &outcomes {
            self.note(outcome.changes, now);
        }
        outcomes
    }

    fn check(&mut self, list: &[Quota], cost: u32, now: u64) -> Vec<QuotaOutcome> {
        if let [quota] = list {
            let check = quota_check(*quota, self.bucket, cost, now);
            let rewound = self.log.rewind(&check);
            self.note(rewound, now);
            let expires = self.dies_at / 1_000 * 1_000_000;
            let outcome = self.log.check(&check, expires);
            self.note(outcome.changes, now);
            return vec![outcome];
        }
        let outcomes = self.evaluate(list, cost, now);
        if cost == 0 || !outcomes.iter().all(|outcome| outcome.wait == Wait::Zero) {
            return outcomes;
        }
        self.charge(list, cost, now);
        self.evaluate(list, 0, now)
    }

    fn charge(&mut self, list: &[Quota], units: u32, now: u64) {
        let check = quota_check(*list.iter().max().unwrap(), self.bucket, units, now);
        let expires = self.dies_at / 1_000 * 1_000_000;
        let changes = self.log.charge(&check, expires);
        self.note(changes, now);
    }

    fn model(&self) -> Model {
        if self.log.is_empty() {
            return Model {
                bucket: self.bucket,
                ..Model::default()
            };
        }
        let (longest, largest, generation, runs) = self.log.parts();
        Model {
            bucket: self.bucket,
            longest,
            largest,
            generation,
            runs,
            dies_at: self.dies_at,
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    SetBack(u64),
    Check {
        list: usize,
        cost: u32,
    },
    /// Charges units without a check.
    Charge {
        list: usize,
        units: u32,
    },
    Refund {
        charge: usize,
        units: u32,
    },
    Credit {
        list: usize,
        units: u32,
    },
}

/// Units of a check: few, or so many that a few checks are more than 2^32.
fn units() -> impl Strategy<Value = u32> {
    prop_oneof![
        8 => 0..5_u32,
        1 => 5..40_u32,
        2 => prop::sample::select(&[1 << 30, 1 << 31, u32::MAX - 3, u32::MAX][..]),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..4_usize, units()).prop_map(|(list, cost)| Step::Check { list, cost }),
        2 => (0..4_usize, units()).prop_map(|(list, units)| Step::Charge { list, units }),
        4 => prop_oneof![Just(1), 0..60_u64, 0..400_u64, 0..3_000_u64].prop_map(Step::Advance),
        1 => prop_oneof![1..60_u64, 1..3_000_u64].prop_map(Step::SetBack),
        2 => (0..100_usize, units()).prop_map(|(charge, units)| Step::Refund { charge, units }),
        1 => (0..4_usize, units()).prop_map(|(list, units)| Step::Credit { list, units }),
    ]
}

fn list() -> impl Strategy<Value = Vec<Quota>> {
    let window = prop::sample::select(&[100_u64, 101, 250, 1_000][..]);
    let limit = prop_oneof![
        6 => 0..12_u32,
        2 => 12..100_u32,
        3 => prop::sample::select(&[1 << 31, u32::MAX - 1, u32::MAX][..]),
    ];
    prop::collection::vec((window, limit), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn the_log_answers_and_keeps_what_the_model_does(
        lists in prop::collection::vec(list(), 4),
        bucket in prop::sample::select(&[0_u64, 0, 1, 25, 100][..]),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut kept = StoredLog { log: Log::default(), bucket, dies_at: 0 };
        let mut model = Model { bucket, ..Model::default() };
        let mut charges: Vec<(usize, Charge)> = Vec::new();
        let mut now = START;
        for step in steps {
            if kept.dies_at <= now / 1_000 {
                kept.log = Log::default();
                kept.dies_at = 0;
            }
            model.settle(now);
            match step {
                Step::Advance(micros) => now += micros,
                Step::SetBack(micros) => now -= micros,
                Step::Check { list, cost } => {
                    let quotas = &lists[list];
                    model.open(now);
                    let is_charged = cost > 0 && model.fits(quotas, cost, now);
                    if is_charged {
                        model.charge(quotas, cost, now);
                    }
                    let asked = if is_charged { 0 } else { cost };
                    let outcomes = kept.check(quotas, cost, now);
                    for (quota, outcome) in quotas.iter().zip(&outcomes) {
                        let answer = (u64::from(outcome.used), outcome.wait, outcome.reset);
                        prop_assert_eq!(answer, model.answer(*quota, asked, now));
                    }
                    if is_charged {
                        let receipt = outcomes[0].receipt;
                        let expected = match bucket {
                            0 => Receipt::default(),
                            _ => Receipt::new(model.generation, model.clock(now)),
                        };
                        prop_assert_eq!(receipt, expected);
                        charges.push((list, Charge { time: now, receipt, cost, is_open: false }));
                    }
                }
                Step::Charge { list, units } => {
                    let quotas = &lists[list];
                    model.open(now);
                    model.charge(quotas, units, now);
                    kept.evaluate(quotas, 0, now);
                    kept.charge(quotas, units, now);
                    for (quota, outcome) in quotas.iter().zip(kept.evaluate(quotas, 0, now)) {
                        let answer = (u64::from(outcome.used), outcome.wait, outcome.reset);
                        prop_assert_eq!(answer, model.answer(*quota, 0, now));
                    }
                }
                Step::Refund { charge, units } => {
                    let count = charges.len().max(1);
                    if let Some((list, charge)) = charges.get(charge % count) {
                        let quotas = &lists[*list];
                        let units = units.min(charge.cost);
                        model.open(now);
                        model.refund(quotas, *charge, units, now);
                        let check = quota_check(*quotas.iter().max().unwrap(), bucket, 0, now);
                        let changes = kept.log.refund(&check, *charge, units);
                        kept.note(changes, now);
                    }
                }
                Step::Credit { list, units } => {
                    let quotas = &lists[list];
                    model.open(now);
                    model.credit(quotas, units, now);
                    let check = quota_check(*quotas.iter().max().unwrap(), bucket, 0, now);
                    let changes = kept.log.credit(&check, units);
                    kept.note(changes, now);
                }
            }
            if model.runs.is_empty() {
                model.settle(now);
            }
            prop_assert_eq!(kept.model(), model.clone());
        }
    }
}

/// A list of the times of all units that were ever charged, with their units.
#[derive(Default)]
struct History(Vec<(u64, u64)>);

impl History {
    fn used(&self, window: u64, now: u64) -> u64 {
        self.0
            .iter()
            .filter(|(time, _)| time + window > now)
            .map(|(_, units)| units)
            .sum()
    }

    fn fits(&self, list: &[Quota], cost: u32, now: u64) -> bool {
        list.iter()
            .all(|(window, limit)| self.used(*window, now) + u64::from(cost) <= u64::from(*limit))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1_000, ..ProptestConfig::default() })]

    /// Lists with other longest windows trim the log, and none of them misses a unit that it needs.
    #[test]
    fn each_list_admits_as_if_nothing_was_ever_dropped(
        limits in (1..10_u32, 0..30_u32, 0..30_u32),
        bucket in prop::sample::select(&[0_u64, 25][..]),
        checks in prop::collection::vec((0..3_usize, 1..4_u32, 0..90_u64), 1..300),
    ) {
        let short = (100, limits.0);
        let middle = (300, limits.0 + limits.1);
        let long = (2_000, limits.0 + limits.1 + limits.2);
        let lists = [vec![short], vec![long], vec![middle, short, long]];
        let mut kept = StoredLog { log: Log::default(), bucket, dies_at: 0 };
        let mut history = History::default();
        let mut now = START;
        // Nothing is kept for a window that was not asked yet.
        for (list, cost, step) in [(1, 1, 0)].into_iter().chain(checks) {
            now += step;
            let quotas = &lists[list];
            let fits = history.fits(quotas, cost, now);
            let outcomes = kept.check(quotas, cost, now);
            let admitted = outcomes.iter().all(|outcome| outcome.wait == Wait::Zero);
            prop_assert_eq!(admitted, fits);
            if admitted {
                history.0.push((Model { bucket, ..Model::default() }.clock(now), cost.into()));
            }
            let longest = outcomes
                .iter()
                .filter_map(|outcome| match outcome.wait {
                    Wait::Micros(wait) => Some(wait),
                    Wait::Zero | Wait::Never => None,
                })
                .max();
            if let Some(wait) = longest && outcomes.iter().all(|outcome| outcome.wait != Wait::Never) {
                prop_assert!(history.fits(quotas, cost, now + wait));
                prop_assert!(!history.fits(quotas, cost, now + wait - 1));
            }
            // The short window and the middle one, what the longest one needs, and as many that wait to be dropped.
            let most = 2 * (limits.0 + limits.1 + long.1) as usize;
            prop_assert!(kept.log.parts().3.len() <= most);
        }
    }
}

#[test]
fn a_long_window_that_was_asked_once_keeps_no_more_runs_than_its_limit() {
    const DAY: u64 = 86_400_000_000;
    let mut kept = StoredLog {
        log: Log::default(),
        bucket: 0,
        dies_at: 0,
    };
    let mut now = START;
    kept.check(&[(DAY, 10)], 1, now);
    let mut admitted = 0;
    let mut most = 0;
    for _ in 0..100_000 {
        now += 5_000;
        let outcomes = kept.check(&[(1_000_000, 100)], 1, now);
        admitted += u32::from(outcomes[0].changes.any(Changes::CHARGED));
        most = most.max(kept.log.parts().3.len());
    }
    assert_eq!(admitted, 500 * 100);
    assert!(most <= 220, "{most}");
    let refused = kept.check(&[(DAY, 10)], 1, now).remove(0);
    assert!(refused.used >= 10);
    // The oldest of the newest ten units has to return.
    let newest = kept.log.parts().3.into_iter().rev().nth(9).unwrap().0;
    assert_eq!(refused.wait, Wait::Micros(newest + DAY - now));
}

#[test]
fn positions_that_begin_again_admit_nothing() {
    for bucket in [0, 100] {
        let mut kept = StoredLog {
            log: Log::default(),
            bucket,
            dies_at: 0,
        };
        let short = (1_000, u32::MAX);
        let long = (10_000, u32::MAX);
        let mut now = START;
        assert!(is_admitted(&kept.check(&[long], u32::MAX, now)));
        for _ in 0..5 {
            for (list, cost) in [([short], 1), ([short], u32::MAX), ([long], 1)] {
                assert!(!is_admitted(&kept.check(&list, cost, now)));
            }
            now += 1_100;
            // With these, the units that the short window left behind would be 2^32, so they go.
            assert!(is_admitted(&kept.check(&[short], 7, now)));
            assert!(is_admitted(&kept.check(&[short], u32::MAX - 7, now)));
            assert_eq!(kept.evaluate(&[short], 0, now)[0].used, u32::MAX);
            assert_eq!(kept.evaluate(&[long], 0, now)[0].used, u32::MAX);
        }
    }
}

fn is_admitted(outcomes: &[QuotaOutcome]) -> bool {
    outcomes[0].wait == Wait::Zero
}

#[test]
fn units_of_one_time_are_one_run_of_twelve_bytes() {
    let mut log = Log::default();
    for _ in 0..1_000 {
        let check = quota_check((1_000, 100_000), 0, 100, START);
        assert_eq!(log.check(&check, 0).wait, Wait::Zero);
    }
    assert_eq!(log.parts().3, [(START, 100_000)]);
    assert!(log.bytes() <= 4 * 12, "{}", log.bytes());
}

#[test]
fn a_full_log_has_room_for_twice_its_limit_and_a_quiet_one_frees_it() {
    let mut log = Log::default();
    let quota = (1_000, 1_000);
    for now in START..START + 20_000 {
        log.check(&quota_check(quota, 0, 1, now), u64::MAX);
        assert!(log.bytes() <= 2 * 1_000 * 12 + 12, "{}", log.bytes());
    }
    let later = START + 60_000;
    log.check(&quota_check(quota, 0, 1, later), u64::MAX);
    assert!(log.bytes() <= 16 * 12, "{}", log.bytes());
}

/// The model of a sorted set: a list of units, of which a credit takes the newest.
#[test]
fn a_sorted_set_keeps_its_rules() {
    let quota = (1_000, 5);
    let mut log = SortedSetLog::default();
    for (cost, now, renews) in [
        (2, START, true),
        (1, START + 600, false),
        // Two units have expired since the newest charge.
        (1, START + 1_100, true),
    ] {
        let changes = log.check(&quota_check(quota, 0, cost, now), 0).changes;
        assert_eq!(changes.any(Changes::RENEWED), renews, "{now}");
    }
    let look = quota_check(quota, 0, 0, START + 1_200);
    let looked = log.check(&look, 0);
    assert_eq!((looked.used, looked.reset), (2, 400));
    let changes = log.credit(&look, 1);
    assert!(changes.any(Changes::RENEWED));
    let looked = log.check(&look, 0);
    assert_eq!((looked.used, looked.reset), (1, 400));
    let charge = Charge {
        time: START + 600,
        receipt: Receipt::default(),
        cost: 1,
        is_open: false,
    };
    let changes = log.refund(&look, charge, 1);
    assert!(changes.any(Changes::EMPTIED));
}
