//! Usage beyond a limit, against a plain model of each algorithm: what counts, what is refused, and for how long.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::store::TestClock;
use tollgate::{Algorithm, Decision, MemoryStore, Quota, RateLimiter};

use crate::support::algorithms::algorithms;
use crate::support::{block_on, holds_for_any};

const WINDOW: u64 = 100_000;
const MAX: u64 = u32::MAX as u64;

/// The most windows within which a level of Gcra drains.
const MAX_DRAIN: u64 = 1_000;

fn micros(time: u64) -> Duration {
    Duration::from_micros(time)
}

/// The charges of one quota, in the words of the guide.
#[derive(Clone, Debug)]
struct Count {
    algorithm: Algorithm,
    limit: u64,
    window: u64,
    is_soft: bool,
    /// Of a log and of buckets: the times of the units.
    runs: Vec<(u64, u64)>,
    /// Of windows: the number of the last one, and the units of the one before and of that one.
    windows: (u64, u64, u64),
    /// Of Gcra: the level in parts of a unit, of which a unit has as many as the window has microseconds; its time; its rate.
    level: (u128, u64, u64),
}

impl Count {
    fn new(quota: &Quota) -> Self {
        Self {
            algorithm: quota.algorithm(),
            limit: quota.limit().into(),
            window: u64::try_from(quota.window().as_micros()).unwrap(),
            is_soft: quota.is_soft(),
            runs: Vec::new(),
            windows: (0, 0, 0),
            level: (0, 0, 0),
        }
    }

    fn bucket(&self) -> u64 {
        match self.algorithm {
            Algorithm::SlidingBuckets(buckets) => self.window.div_ceil(buckets.into()),
            _ => 1,
        }
    }

    /// Returns the last moment of the bucket that is now.
    fn charge_time(&self, now: u64) -> u64 {
        now - now % self.bucket() + self.bucket() - 1
    }

    fn windows_at(&self, now: u64) -> (u64, u64, u64) {
        let (index, _, current) = self.windows;
        let now = now / self.window;
        match now.checked_sub(index) {
            None | Some(0) => self.windows,
            Some(1) => (now, current, 0),
            Some(_) => (now, 0, 0),
        }
    }

    fn level_at(&self, now: u64) -> u128 {
        let (level, time, rate) = self.level;
        level.saturating_sub(u128::from(now - time) * u128::from(rate.max(1)))
    }

    fn used(&self, now: u64) -> u64 {
        match self.algorithm {
            Algorithm::FixedWindow => self.windows_at(now).2,
            Algorithm::SlidingCounter => {
                let (_, previous, current) = self.windows_at(now);
                let overlap = u128::from(self.window - now % self.window);
                let part = (u128::from(previous) * overlap).div_ceil(self.window.into());
                current + u64::try_from(part).unwrap()
            }
            Algorithm::Gcra => {
                u64::try_from(self.level_at(now).div_ceil(self.window.into())).unwrap()
            }
            _ => {
                let counting = self.runs.iter().filter(|run| run.0 + self.window > now);
                counting.map(|run| run.1).sum()
            }
        }
    }

    /// Moves what is later than now to now.
    fn open(&mut self, now: u64) {
        let (index, previous, current) = self.windows;
        let window = now / self.window;
        match self.algorithm {
            Algorithm::FixedWindow => self.windows.0 = index.min(window + 1),
            Algorithm::SlidingCounter if index > window => {
                self.windows = (window, 0, (previous + current).min(MAX));
            }
            _ => {}
        }
        self.level.1 = self.level.1.min(now);
        let (clock, newest) = (
            self.charge_time(now),
            self.runs.last().map_or(0, |run| run.0),
        );
        if newest > clock {
            self.runs.retain(|run| run.0 + self.window > newest);
            for run in &mut self.runs {
                run.0 = run.0.min(clock);
            }
        }
    }

    fn charge(&mut self, units: u64, now: u64) {
        let (clock, used) = (self.charge_time(now), self.used(now));
        match self.algorithm {
            Algorithm::FixedWindow | Algorithm::SlidingCounter => {
                let (index, previous, current) = self.windows_at(now);
                self.windows = (index, previous, (current + units).min(MAX));
            }
            Algorithm::Gcra => {
                let (level, window) = (self.level_at(now), u128::from(self.window));
                let rate = if level == 0 { 0 } else { self.level.2 };
                let rate = match used + units > self.limit {
                    true => rate.max(self.limit),
                    false => self.limit,
                };
                let most = u128::from((MAX_DRAIN * rate.max(1)).min(MAX)) - level / window;
                self.level = (level + most.min(units.into()) * window, now, rate);
            }
            Algorithm::SortedSetLog => self.runs.push((clock, units.min(self.limit))),
            _ => self.runs.push((clock, units.min(MAX - used))),
        }
    }

    fn credit(&mut self, units: u64, now: u64) {
        let (used, window) = (self.used(now), self.window);
        if units == 0 || used == 0 {
            return;
        }
        if units >= used {
            (self.runs, self.windows, self.level) = (Vec::new(), (0, 0, 0), (0, now, 0));
            return;
        }
        match self.algorithm {
            Algorithm::FixedWindow => self.windows.2 -= units,
            Algorithm::SlidingCounter => {
                let stored = self.windows;
                let (index, previous, current) = self.windows_at(now);
                self.windows = (index, previous, current.saturating_sub(units));
                // Then as few as needed of the window before.
                let (mut least, mut most) = (0, previous);
                while units > current && least < most {
                    let middle = least + (most - least).div_ceil(2);
                    self.windows.1 = middle;
                    match self.used(now) > used - units {
                        true => most = middle - 1,
                        false => least = middle,
                    }
                    self.windows.1 = least;
                }
                // Only a charge begins a window: after a step back of the clock, the window before counts again.
                if stored.0 < index {
                    self.windows = (stored.0, stored.1, self.windows.1);
                }
            }
            Algorithm::Gcra => self.level.0 -= u128::from(units) * u128::from(window),
            _ => {
                let mut left = units;
                while let Some(newest) = self.runs.last_mut().filter(|_| left > 0) {
                    let taken = left.min(newest.1);
                    newest.1 -= taken;
                    left -= taken;
                    self.runs.retain(|run| run.1 > 0);
                }
            }
        }
    }

    /// Returns the shortest time after which a cost fits, found by trying. A cost of 0 always does.
    fn wait(&self, cost: u64, now: u64) -> Option<u64> {
        let fits = |wait: u64| cost == 0 || self.used(now + wait) + cost <= self.limit;
        let (mut from, mut to) = (0, 2 * MAX_DRAIN * self.window);
        if fits(0) {
            return None;
        }
        while from + 1 < to {
            let middle = u64::midpoint(from, to);
            match fits(middle) {
                true => to = middle,
                false => from = middle,
            }
        }
        Some(to)
    }
}

#[derive(Clone, Debug)]
enum Act {
    /// Checks both keys, and waits if they are refused.
    Check(u32),
    /// Charges one of the keys without a check.
    Charge(usize, u32),
    /// Reports more than was reserved by the last check.
    Settle(u32),
    Credit(usize, u32),
    Advance(u64),
    SetBack(u64),
}

fn acts(algorithm: Algorithm) -> impl Strategy<Value = Vec<Act>> {
    let units = prop_oneof![
        6 => 0..30_u32,
        3 => 0..900_u32,
        1 => prop::sample::select(&[200_000, 1 << 31, u32::MAX][..]),
    ];
    // After a credit, the newest unit of a log is not the last that was charged. A bucket that was left may count again.
    let is_log = !matches!(
        algorithm,
        Algorithm::FixedWindow | Algorithm::SlidingCounter | Algorithm::Gcra
    );
    let is_buckets = matches!(algorithm, Algorithm::SlidingBuckets(_));
    let act = prop_oneof![
        8 => (0..6_u32).prop_map(Act::Check),
        2 => (0..2_usize, units.clone()).prop_map(|(key, units)| Act::Charge(key, units)),
        2 => units.clone().prop_map(Act::Settle),
        1 => (0..2_usize, units).prop_map(|(key, units)| Act::Credit(key, units)),
        6 => prop_oneof![Just(1), 0..WINDOW, 0..9 * WINDOW, Just(WINDOW)].prop_map(Act::Advance),
        1 => (1..WINDOW / 2).prop_map(Act::SetBack),
    ];
    let acts = prop::collection::vec(act, 1..60);
    (acts, any::<bool>()).prop_map(move |(mut acts, credits)| {
        acts.retain(|act| match act {
            Act::Credit(..) => credits || !is_log,
            Act::SetBack(_) => !is_log || !credits && !is_buckets,
            _ => true,
        });
        acts
    })
}

struct Tried {
    clock: TestClock,
    limiters: [RateLimiter; 2],
    counts: [Vec<Count>; 2],
    last: Option<Decision>,
    /// How often a check was refused for longer than two windows.
    long_waits: u32,
}

impl Tried {
    fn new(algorithm: Algorithm) -> Self {
        let clock = TestClock::new();
        let store = MemoryStore::with_clock(clock.clone());
        let quota = |limit, window| Quota::new(limit, micros(window)).with_algorithm(algorithm);
        let user = [quota(7, WINDOW), quota(4, 2 * WINDOW).soft()];
        let tenant = [quota(9, 3 * WINDOW)];
        Self {
            clock,
            limiters: [
                RateLimiter::new(store.clone(), user.clone()).name("user"),
                RateLimiter::new(store, tenant.clone()).name("tenant"),
            ],
            counts: [
                user.iter().map(Count::new).collect(),
                tenant.iter().map(Count::new).collect(),
            ],
            last: None,
            long_waits: 0,
        }
    }

    /// Checks both keys, and compares all numbers. Returns the wait of a refused cost.
    fn check(&mut self, cost: u32) -> Option<u64> {
        let [user, tenant] = &self.limiters;
        let levels = [
            user.level("ada").cost(cost),
            tenant.level("acme").cost(cost),
        ];
        let decision = block_on(RateLimiter::check_all(levels)).unwrap();
        let (now, cost) = (self.clock.now_micros(), u64::from(cost));
        let mut counts: Vec<_> = self.counts.iter_mut().flatten().collect();
        counts.iter_mut().for_each(|count| count.open(now));
        let hard = counts.iter().filter(|count| !count.is_soft);
        let wait = hard.filter_map(|count| count.wait(cost, now)).max();
        assert_eq!(decision.is_allowed(), wait.is_none(), "{cost}: {counts:?}");
        for (count, quota) in counts.into_iter().zip(decision.quotas()) {
            let own = count.wait(cost, now);
            if wait.is_none() && own.is_none() && cost > 0 {
                count.charge(cost, now);
            }
            let used = count.used(now);
            assert_eq!(u64::from(quota.used()), used.min(MAX), "{cost}: {count:?}");
            let left = count.limit.saturating_sub(used);
            assert_eq!(u64::from(quota.remaining()), left, "{cost}: {count:?}");
            let told = own.filter(|_| !count.is_soft).map(micros);
            assert_eq!(quota.retry_after(), told, "{cost}: {count:?}");
        }
        self.last = Some(decision);
        wait
    }

    fn charge(&mut self, key: usize, units: u32) {
        let now = self.clock.now_micros();
        for count in &mut self.counts[key] {
            count.open(now);
            if units > 0 {
                count.charge(units.into(), now);
            }
        }
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Check(cost) => {
                if let Some(wait) = self.check(cost) {
                    // Two of the longest windows.
                    self.long_waits += u32::from(wait > 6 * WINDOW);
                    self.clock.advance(micros(wait - 1));
                    assert!(self.check(cost).is_some(), "admitted before {wait}");
                    self.clock.advance(micros(1));
                    assert!(self.check(cost).is_none(), "refused after {wait}");
                }
            }
            Act::Charge(key, units) => {
                let name = ["ada", "acme"][key];
                block_on(self.limiters[key].charge(name, units)).unwrap();
                self.charge(key, units);
            }
            Act::Settle(more) => {
                let Some(decision) = self.last.take() else {
                    return;
                };
                let is_charged = decision.is_allowed() && decision.cost() > 0;
                let used = decision.cost().saturating_add(more);
                let more = used - decision.cost();
                block_on(decision.settle(used)).unwrap();
                for key in 0..2 {
                    self.charge(key, if is_charged { more } else { 0 });
                }
            }
            Act::Credit(key, units) => {
                let (units, name) = (units.min(100_000), ["ada", "acme"][key]);
                block_on(self.limiters[key].admin().credit(name, units)).unwrap();
                let now = self.clock.now_micros();
                for count in &mut self.counts[key] {
                    count.open(now);
                    count.credit(units.into(), now);
                }
            }
            Act::Advance(step) => self.clock.advance(micros(step)),
            Act::SetBack(step) => self.clock.step_back(micros(step)),
        }
        let last = self.last.take();
        let _ = self.check(0);
        self.last = last;
    }
}

#[test]
fn usage_beyond_a_limit_counts_in_full_and_the_waits_are_exact() {
    for algorithm in algorithms(4) {
        let long_waits = std::cell::Cell::new(0);
        holds_for_any(200, &acts(algorithm), |acts| {
            let mut tried = Tried::new(algorithm);
            for act in &acts {
                tried.act(act);
            }
            long_waits.set(long_waits.get() + tried.long_waits);
            Ok(())
        });
        // Only Gcra lets nothing off.
        let is_meter = algorithm == Algorithm::Gcra;
        assert_eq!(long_waits.get() > 0, is_meter, "{algorithm:?}");
    }
}

#[test]
fn after_a_step_back_a_credit_has_begun_no_window() {
    let mut tried = Tried::new(Algorithm::SlidingCounter);
    let long = 2 * WINDOW;
    let into_window = tried.clock.now_micros() % long;
    for act in [
        Act::Advance(long - into_window),
        Act::Charge(0, 10),
        Act::Advance(long),
        Act::Charge(0, 20),
        Act::Advance(long),
        Act::Credit(0, 5),
        Act::SetBack(1),
    ] {
        tried.act(&act);
    }
    // A part of the ten units counts again.
    let user = block_on(tried.limiters[0].peek("ada")).unwrap();
    assert_eq!(user.quotas().last().map(|quota| quota.used()), Some(16));
}

/// A count at its end, in both stores, which say the same.
#[cfg(feature = "redis")]
#[test]
fn two_to_the_32_units_are_reached_and_passed() {
    use crate::support::both::Both;
    use crate::support::redis_server::RedisServer;
    use crate::support::test_time::TestTime;

    let server = RedisServer::start();
    let second = Duration::from_secs(1);
    for algorithm in algorithms(4) {
        for limit in [5, u32::MAX] {
            // Each unit of a sorted set is a member.
            if algorithm == Algorithm::SortedSetLog && limit > 5 {
                continue;
            }
            let mut time = TestTime::new(&server);
            let share = tollgate::Share::of("a").reserve(1);
            let quota = Quota::new(limit, second).with_algorithm(algorithm);
            let has_shares = matches!(
                algorithm,
                Algorithm::SlidingLog | Algorithm::SlidingBuckets(_)
            );
            let mut lists = vec![
                vec![quota.clone()],
                vec![quota.clone(), quota.clone().soft()],
            ];
            if has_shares {
                lists.push(vec![quota.shares([share])]);
            }
            for (number, quotas) in lists.into_iter().enumerate() {
                let key = format!("{number}");
                let both = Both::uncached(&time, quotas);
                let (mut most, mut used) = (0, 0);
                for units in [1 << 31, (1 << 31) - 2, 1, 0, 1, 1, u32::MAX, 7] {
                    block_on(both.charge(&key, units));
                    time.advance(Duration::from_micros(1));
                    used = block_on(both.decide(&key, 0)).used();
                    most = used.max(most);
                    let refused = block_on(both.decide(&key, 1));
                    assert_eq!(refused.allowed, used < limit, "{used} of {limit}");
                }
                let expected = match algorithm {
                    // At most as many members as the limit at once.
                    Algorithm::SortedSetLog => 4 * 5 + 3,
                    // At most as much as drains within 1 000 windows.
                    Algorithm::Gcra if limit == 5 => 5_000,
                    _ => u32::MAX,
                };
                // A level drains meanwhile, and a part of a unit counts as one.
                let counted = match algorithm {
                    Algorithm::Gcra => expected - limit / 100_000..=expected.saturating_add(1),
                    _ => expected..=expected,
                };
                assert!(
                    counted.contains(&most) && counted.contains(&used),
                    "{algorithm:?}: {most}, {used}"
                );
                // In the end, all units have returned.
                for _ in 0..4 {
                    time.advance(second / 2);
                    let _ = block_on(both.decide(&key, 1));
                }
            }
        }
    }
}

/// The parts of such a level are more than 2^53: no loop may decide it.
#[cfg(feature = "redis")]
#[test]
fn a_level_far_above_the_limit_drains_alike_in_both_stores() {
    use crate::support::both::Both;
    use crate::support::redis_server::RedisServer;
    use crate::support::test_time::TestTime;

    let server = RedisServer::start();
    let mut time = TestTime::new(&server);
    let quota = Quota::new(8_999_999, Duration::from_secs(1_000));
    let both = Both::uncached(&time, quota.with_algorithm(Algorithm::Gcra));
    for (number, units) in [3_999_999_999, 3_141_592_653, 1_234_567_891]
        .into_iter()
        .enumerate()
    {
        let key = format!("{number}");
        assert!(block_on(both.decide(&key, 1)).allowed);
        time.advance(Duration::from_micros(7));
        block_on(both.charge(&key, units));
        for cost in [1, 7, 4_567_891] {
            time.advance(Duration::from_micros(1_234_567));
            let wait = block_on(both.decide(&key, cost)).wait().unwrap();
            time.advance(wait - Duration::from_micros(1));
            assert!(!block_on(both.decide(&key, cost)).allowed);
            time.advance(Duration::from_micros(1));
            assert!(block_on(both.decide(&key, cost)).allowed);
            block_on(both.credit(&key, 1_001));
            block_on(both.charge(&key, units));
        }
    }
}

#[test]
fn in_a_full_store_a_count_of_strangers_is_charged_up_to_its_room() {
    let limiter = RateLimiter::new(MemoryStore::with_max_keys(1), Quota::per_hour(10));
    // More than half of the limit, so that it keeps its place.
    let _ = block_on(limiter.check_n("ada", 6)).unwrap();
    block_on(limiter.charge("ada", 100)).unwrap();
    block_on(limiter.charge("bob", 100)).unwrap();
    let used = |key| block_on(limiter.peek(key)).unwrap().used();
    assert_eq!((used("ada"), used("bob")), (106, 10));
}
