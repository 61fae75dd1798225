//! The memory store and Redis make the same decisions for the same sequence, and their waits are exact to the
//! microsecond.

use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::time::Duration;

use proptest::prelude::*;
use tokio::runtime::Runtime;
use tollgate::{Algorithm, Decision, ErrorKind, Quota, Source};

use crate::support::algorithms::quota_by;
use crate::support::both::{Both, Outcome, outcome};
use crate::support::cases::some_or_all;
use crate::support::redis_server::{RedisServer, run};
use crate::support::test_time::TestTime;
use crate::support::{holds_for_any, runtime};

const SECOND: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_millis(100);

/// One step of a sequence.
#[derive(Clone, Debug)]
enum Step {
    Check {
        plan: usize,
        key: usize,
        cost: u32,
    },
    /// What was checked last, once more: whatever happened in between, a refusal that is remembered
    /// is one that the store would repeat.
    Again,
    /// Checks. If refused with a wait, checks again after half of it, a microsecond before its end, and at
    /// its end.
    CheckAndWait {
        plan: usize,
        key: usize,
        cost: u32,
    },
    Peek {
        plan: usize,
        key: usize,
    },
    Reset {
        plan: usize,
        key: usize,
    },
    Advance(Duration),
    /// Charges units without a check, also beyond the limits.
    Charge {
        plan: usize,
        key: usize,
        units: u32,
    },
    /// Gives back units of a decision made before.
    Refund {
        decision: usize,
        units: u32,
    },
    /// Credits units of any charge.
    Credit {
        plan: usize,
        key: usize,
        units: u32,
    },
    SetBack(Duration),
    ForgetScripts,
}

/// What a limiter may change to while it runs: all share a name, so that a changed limit goes on
/// with the same counts.
fn plans(algorithm: Algorithm) -> Vec<Vec<Quota>> {
    let per = |limit, window| quota_by(algorithm, limit, window);
    let log = |limit, window| Quota::new(limit, window);
    vec![
        vec![per(5, WINDOW)],
        vec![per(9, WINDOW)],
        vec![per(2, WINDOW)],
        vec![per(0, WINDOW)],
        vec![per(12, SECOND), per(4, WINDOW)],
        vec![per(7, WINDOW), per(3, WINDOW / 10), per(6, WINDOW)],
        vec![],
        vec![log(4, WINDOW), per(11, SECOND)],
        vec![
            per(3, WINDOW),
            log(30, 9 * WINDOW),
            Quota::new(8, SECOND).with_algorithm(Algorithm::Gcra),
        ],
        vec![
            per(4, WINDOW).soft(),
            per(9, WINDOW),
            per(3, WINDOW).soft(),
            log(20, SECOND).soft(),
        ],
        vec![per(6, WINDOW / 10).soft(), per(0, WINDOW).soft()],
    ]
}

/// Windows of calendars, of which the longest is a month. The zones of one unit share counts, and the dates of two of
/// them differ by two for an hour a day. The clock stands in the afternoon of a Sunday in June.
fn calendar_plans() -> Vec<Vec<Quota>> {
    let per = |text: &str| text.parse::<Quota>().expect("a quota");
    vec![
        vec![per("5/day@Europe/Berlin")],
        vec![per("9/day@America/New_York")],
        vec![per("2/day@Pacific/Kiritimati")],
        vec![per("0/month@UTC")],
        vec![per("12/week:7@UTC"), per("4/day@Europe/Berlin")],
        vec![
            per("7/day@Europe/Berlin"),
            per("3/day@Asia/Kolkata"),
            per("6/day@Europe/Berlin"),
        ],
        vec![per("40/month:17@Europe/Berlin")],
        vec![Quota::new(4, WINDOW), per("11/day@UTC")],
        vec![
            per("3/day@Pacific/Pago_Pago"),
            Quota::new(30, 9 * WINDOW),
            Quota::new(8, SECOND).with_algorithm(Algorithm::Gcra),
        ],
        vec![
            per("9/day@Europe/Berlin"),
            per("5/day@Europe/Berlin").soft(),
            per("4/day@UTC").soft(),
        ],
        vec![per("6/week@UTC").soft()],
    ]
}

const PLANS: usize = 11;

const KEYS: [&str; 3] = ["ada", "bob {}\n", ""];

fn step(long: impl Strategy<Value = Duration> + Clone + 'static) -> impl Strategy<Value = Step> {
    let plan = 0..PLANS;
    let key = 0..KEYS.len();
    let duration = prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::from_micros(1)),
        Just(WINDOW / 10),
        Just(WINDOW - Duration::from_micros(1)),
        Just(WINDOW),
        Just(2 * WINDOW),
        long,
        (0..200_000_u64).prop_map(Duration::from_micros),
        (0..5_000_u64).prop_map(Duration::from_millis),
    ];
    prop_oneof![
        8 => (plan.clone(), key.clone(), 0..14_u32)
            .prop_map(|(plan, key, cost)| Step::Check { plan, key, cost }),
        8 => Just(Step::Again),
        4 => (plan.clone(), key.clone(), 1..6_u32)
            .prop_map(|(plan, key, cost)| Step::CheckAndWait { plan, key, cost }),
        1 => (plan.clone(), key.clone()).prop_map(|(plan, key)| Step::Peek { plan, key }),
        1 => (plan.clone(), key.clone()).prop_map(|(plan, key)| Step::Reset { plan, key }),
        8 => duration.clone().prop_map(Step::Advance),
        3 => (0..1_000_usize, 0..8_u32)
            .prop_map(|(decision, units)| Step::Refund { decision, units }),
        2 => (plan.clone(), key.clone(), charged_units())
            .prop_map(|(plan, key, units)| Step::Charge { plan, key, units }),
        4 => (plan, key, prop_oneof![4 => 0..6_u32, 1 => Just(100_000)])
            .prop_map(|(plan, key, units)| Step::Credit { plan, key, units }),
        1 => duration.prop_map(Step::SetBack),
        1 => Just(Step::ForgetScripts),
    ]
}

/// Units that are charged without a check: about a limit, many limits, and up to all that a count holds.
fn charged_units() -> impl Strategy<Value = u32> {
    prop_oneof![
        6 => 0..20_u32,
        3 => 0..2_000_u32,
        1 => prop::sample::select(&[100_001, 1 << 31, u32::MAX][..]),
    ]
}

/// Whether a stricter quota reads the same meter.
fn is_laxer_of_meter(quota: &Quota, quotas: &[Quota]) -> bool {
    let shares = |other: &&Quota| {
        other.window() == quota.window()
            && other.algorithm() == Algorithm::Gcra
            && !(other.is_soft() || quota.is_soft())
            && quota.algorithm() == Algorithm::Gcra
    };
    quotas
        .iter()
        .filter(shares)
        .any(|other| other.limit() < quota.limit())
}

fn has_total(plans: &[Vec<Quota>]) -> bool {
    let mut quotas = plans.iter().flatten();
    quotas.any(|quota| quota.algorithm() == Algorithm::Total)
}

struct Pair {
    plans: Vec<Vec<Quota>>,
    /// The limiters of each plan, and those whose Redis is always asked. To make them takes longer than a check.
    limiters: Vec<[OnceCell<Both>; 2]>,
    time: TestTime,
    /// What was admitted by both stores.
    admitted: Vec<[Decision; 2]>,
    /// The plan, key and cost that were checked last.
    last: (usize, &'static str, u32),
    /// How often Redis was not asked.
    denied_locally: usize,
    /// Whether the clock of the stores was set back.
    is_set_back: bool,
    /// The longest time that the level of a meter took to drain.
    longest_drain: Duration,
    runtime: Runtime,
}

impl Pair {
    fn new(server: &RedisServer, plans: Vec<Vec<Quota>>) -> Self {
        Self {
            limiters: plans.iter().map(|_| Default::default()).collect(),
            plans,
            time: TestTime::new(server),
            admitted: Vec::new(),
            last: (0, KEYS[0], 1),
            denied_locally: 0,
            is_set_back: false,
            longest_drain: Duration::ZERO,
            runtime: runtime(),
        }
    }

    /// The limiters of a plan in both stores.
    fn limiters(&self, plan: usize) -> Both {
        let [limiters, _] = &self.limiters[plan];
        let made = limiters.get_or_init(|| {
            let quotas = &self.plans[plan][..];
            if has_total(&self.plans) {
                // A refusal that is remembered outlives a total that is forgotten.
                Both::uncached(&self.time, quotas)
            } else {
                Both::new(&self.time, quotas)
            }
        });
        made.clone()
    }

    /// The same, but Redis is always asked.
    fn uncached(&self, plan: usize) -> &Both {
        let [_, uncached] = &self.limiters[plan];
        uncached.get_or_init(|| Both::uncached(&self.time, &self.plans[plan][..]))
    }

    fn has_calendar(&self, plan: usize) -> bool {
        let mut quotas = self.plans[plan].iter();
        quotas.any(|quota| quota.to_string().contains('@'))
    }

    /// Decides a cost for `ada` by limiters of any quotas.
    fn decide(&self, limiters: &Both, cost: u32) -> Outcome {
        self.runtime.block_on(limiters.decide("ada", cost))
    }

    /// What both stores say, after seeing that it is the same.
    fn check(&mut self, plan: usize, key: &str, cost: u32) -> Result<Outcome, ErrorKind> {
        let [in_memory, in_redis] = self.runtime.block_on(self.limiters(plan).check(key, cost));
        let said = outcome(&in_memory);
        let context = format!("cost {cost} of plan {plan} on {key:?}");
        match &in_redis {
            // The units used are those at the refusal in Redis.
            Ok(decision) if decision.source() == Source::RefusalCache => {
                self.denied_locally += 1;
                let in_memory = in_memory.as_ref().expect("an answer");
                assert!(!in_memory.is_allowed(), "{context}");
                let [told, left] = [decision, in_memory].map(|decision| decision.retry_after());
                // See `a_window_that_is_ahead_ends_earlier_once_a_zone_in_the_west_has_asked`.
                let is_shorter = self.is_set_back && self.has_calendar(plan) && told > left;
                assert!(told == left || is_shorter, "{context}: {told:?}, {left:?}");
                // Redis would have said so, too; and the memory has trimmed what has expired, which a
                // clock that is set back would show.
                let Both([_, asking]) = self.uncached(plan);
                let asked = self.runtime.block_on(asking.check_n(key, cost));
                assert_eq!(said, outcome(&asked), "{context}, asked");
            }
            _ => assert_eq!(said, outcome(&in_redis), "{context}"),
        }
        if let (Ok(in_memory), Ok(in_redis)) = (in_memory, in_redis)
            && in_memory.held() > 0
        {
            self.admitted.push([in_memory, in_redis]);
        }
        said
    }

    /// Refunds units in both stores, and verifies that the decisions hold fewer units.
    fn refund(&mut self, decision: usize, units: u32) {
        // The clock of the server jumps here. A refund that is sent with windows of another time fails, a check is sent
        // again.
        for plan in 0..PLANS {
            let _ = self.check(plan, KEYS[0], 0);
        }
        let limiters = self.limiters(0);
        let count = self.admitted.len().max(1);
        if let Some(decisions) = self.admitted.get_mut(decision % count) {
            let left = decisions[0].held().saturating_sub(units);
            self.runtime.block_on(limiters.refund(decisions, units));
            assert_eq!(decisions.each_ref().map(Decision::held), [left; 2]);
        }
        for key in KEYS {
            let _ = self.check(decision % PLANS, key, 0);
        }
    }

    /// Charges units in both stores, and verifies that they count, or as many as a count can have.
    fn charge(&mut self, plan: usize, key: &str, units: u32) {
        let before = self.check(plan, key, 0).expect("a look");
        self.runtime
            .block_on(self.limiters(plan).charge(key, units));
        let after = self.check(plan, key, 0).expect("a look");
        let quotas = &self.plans[plan];
        let after_is_full = after.quotas.iter().any(|quota| quota.used == u32::MAX);
        let numbers = before.quotas.iter().zip(&after.quotas);
        for (quota, (before, after)) in quotas.iter().zip(numbers) {
            // The largest limit of a sorted set, which may have several. That of a soft quota has one.
            let of_set = quotas.iter().filter(|other| {
                other.window() == quota.window() && !other.is_soft() && !quota.is_soft()
            });
            let of_set = of_set.map(Quota::limit).max();
            let most = match quota.algorithm() {
                Algorithm::SortedSetLog => units.min(of_set.unwrap_or_else(|| quota.limit())),
                _ => units,
            };
            // A laxer quota of the same meter sees it drain by its own limit, and at most what drains in 1 000 windows.
            let is_meter = quota.algorithm() == Algorithm::Gcra;
            if is_meter {
                let windows = after.used.div_ceil(quota.limit().max(1));
                self.longest_drain = self.longest_drain.max(quota.window() * windows);
            }
            let expected = before.used.saturating_add(most);
            let is_full = if is_meter {
                u64::from(after.used) >= 1_000 * u64::from(quota.limit())
            } else {
                // A longer window of the log.
                after.used < expected && after_is_full
            };
            assert!(
                after.used == expected || is_full || is_laxer_of_meter(quota, quotas),
                "{units} charged to {before:?} make {after:?} of {quota}"
            );
        }
    }

    /// Credits units in both stores, and verifies the units that still count.
    fn credit(&mut self, plan: usize, key: &str, units: u32) {
        let before = self.check(plan, key, 0).expect("a look");
        self.runtime
            .block_on(self.limiters(plan).credit(key, units));
        let after = self.check(plan, key, 0).expect("a look");
        let quotas = &self.plans[plan];
        let numbers = before.quotas.iter().zip(&after.quotas);
        for (quota, (before, after)) in quotas.iter().zip(numbers) {
            let expected = before.used.saturating_sub(units);
            // A laxer quota of the same meter sees it drain by its own limit.
            let is_laxer = is_laxer_of_meter(quota, quotas);
            // Two windows of a sliding counter may have more than is told.
            let is_cut = before.used == u32::MAX;
            assert!(
                after.used == expected || is_laxer && after.used <= expected || is_cut,
                "{units} given of {before:?} leave {after:?} of {quota}"
            );
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Check { plan, key, cost } => {
                self.last = (plan, KEYS[key], cost);
                let _ = self.check(plan, KEYS[key], cost);
            }
            Step::Again => {
                let (plan, key, cost) = self.last;
                let _ = self.check(plan, key, cost);
            }
            Step::CheckAndWait { plan, key, cost } => {
                self.last = (plan, KEYS[key], cost);
                self.check_and_wait(plan, KEYS[key], cost);
            }
            Step::Peek { plan, key } => {
                let looked = self.check(plan, KEYS[key], 0);
                assert_eq!(
                    looked,
                    self.check(plan, KEYS[key], 0),
                    "a look changed something"
                );
            }
            Step::Reset { plan, key } => {
                self.runtime.block_on(self.limiters(plan).reset(KEYS[key]));
                self.time.advance(Duration::ZERO);
                let looked = self.check(plan, KEYS[key], 0).expect("a look");
                assert!(looked.quotas.iter().all(|quota| quota.used == 0));
            }
            Step::Charge { plan, key, units } => self.charge(plan, KEYS[key], units),
            Step::Refund { decision, units } => self.refund(decision, units),
            Step::Credit { plan, key, units } => self.credit(plan, KEYS[key], units),
            Step::Advance(duration) => self.time.advance(duration),
            Step::SetBack(duration) => {
                self.is_set_back = true;
                self.time.step_back(duration);
            }
            Step::ForgetScripts => run(self.time.connection(), &["SCRIPT", "FLUSH"]),
        }
    }

    fn check_and_wait(&mut self, plan: usize, key: &str, cost: u32) {
        let Ok(first) = self.check(plan, key, cost) else {
            return;
        };
        let Some(wait) = first.wait() else {
            return;
        };
        let early = wait - Duration::from_micros(1);
        let half = Duration::from_micros(u64::try_from(early.as_micros() / 2).unwrap());
        for part in [half, early - half] {
            self.time.advance(part);
            let early = self.check(plan, key, cost).expect("a decision");
            assert!(!early.allowed, "admitted before {wait:?} had passed");
        }
        self.time.advance(Duration::from_micros(1));
        let due = self.check(plan, key, cost).expect("a decision");
        assert!(due.allowed, "refused after {wait:?}");
    }
}

/// A wait may not depend on units that shorter windows have left behind: these may go at any time.
#[test]
fn a_window_that_is_longer_than_any_that_charged_tells_a_true_wait() {
    let server = RedisServer::start();
    let (short, long) = (0, 1);
    for age in [300, 1_050, 1_099, 1_101].map(Duration::from_millis) {
        let plans = vec![
            vec![Quota::new(9, WINDOW)],
            vec![Quota::new(4, WINDOW), Quota::new(11, SECOND)],
        ];
        let mut pair = Pair::new(&server, plans);
        for step in [
            // Until a time to live of 1.2 seconds ends with a whole second, to which the value rounds it down.
            Step::Advance(Duration::from_millis(800)),
            Step::Check {
                plan: short,
                key: 0,
                cost: 1,
            },
            // Towards the end of the life of the value, which this charge does not extend.
            Step::Advance(age),
            Step::Check {
                plan: short,
                key: 0,
                cost: 9,
            },
            Step::CheckAndWait {
                plan: long,
                key: 0,
                cost: 3,
            },
            Step::CheckAndWait {
                plan: long,
                key: 0,
                cost: 3,
            },
        ] {
            pair.take(&step);
        }
    }
}

/// No key lives much longer than its units can matter; that each has a time to live is looked at
/// whenever the time moves.
///
/// A row may have a level that takes longer to drain than any window.
fn assert_times_to_live(
    time: &mut TestTime,
    (longest, longest_drain): (Duration, Duration),
    stepped_back: i128,
) {
    time.advance(Duration::ZERO);
    for (key, millis) in time.times_to_live() {
        let is_row = key.ends_with('}') || key.contains("}:soft:");
        let longest = if is_row {
            longest.max(longest_drain)
        } else {
            longest
        };
        // Only the name of a sorted set tells a window.
        let window = key
            .rsplit_once(":set:")
            .and_then(|(_, end)| end.parse().ok());
        let longest = i128::try_from(longest.as_micros()).expect("a number");
        let window: i128 = window.unwrap_or(longest);
        let most = 2 * window / 1_000 + 1_000;
        // A step back has it live for that much longer.
        assert!(
            (1..=most + stepped_back).contains(&millis),
            "{key} lives for {millis} ms"
        );
    }
}

/// The law, for one algorithm beside others.
fn same_decisions(algorithm: Algorithm) {
    let hour = Just(Duration::from_secs(3_600));
    same_decisions_of_plans(&format!("{algorithm:?}"), &plans(algorithm), SECOND, hour);
}

/// The law, for these plans. The longest of their windows tells how long a key may live. Steps of the clock are up to a
/// `long` one.
fn same_decisions_of_plans(
    name: &str,
    plans: &[Vec<Quota>],
    longest: Duration,
    long: impl Strategy<Value = Duration> + Clone + 'static,
) {
    let server = RedisServer::start();
    let (taken, denied_locally) = (Cell::new(0), Cell::new(0));
    let steps = prop::collection::vec(step(long), 1..160);
    holds_for_any(290, &steps, |steps| {
        let mut pair = Pair::new(&server, plans.to_vec());
        for step in &steps {
            pair.take(step);
        }
        let stepped_back = steps.iter().map(|step| match step {
            Step::SetBack(duration) => i128::try_from(duration.as_millis()).unwrap() + 1,
            _ => 0,
        });
        let longest = (longest, pair.longest_drain);
        assert_times_to_live(&mut pair.time, longest, stepped_back.sum());
        taken.set(taken.get() + steps.len());
        denied_locally.set(denied_locally.get() + pair.denied_locally);
        Ok(())
    });
    println!(
        "{name}: {} steps, {} checks denied locally",
        taken.get(),
        denied_locally.get()
    );
    assert!(taken.get() >= 1_500);
    assert!(denied_locally.get() >= 8 || has_total(plans));
}

/// Memory and Redis give the same decisions, and waiting is exact.
mod same_decisions_and_exact_waits {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::{Algorithm, calendar_plans, same_decisions, same_decisions_of_plans};

    #[test]
    fn windows_of_calendars() {
        let hours = |hours: u64| Duration::from_secs(hours * 3_600);
        let long = prop_oneof![
            (0..40_000_u64).prop_map(Duration::from_secs),
            Just(hours(24)),
            Just(hours(24) - Duration::from_micros(1)),
            (0..40 * 24_u64).prop_map(hours),
        ];
        let longest = hours(31 * 24 + 2);
        same_decisions_of_plans("calendars", &calendar_plans(), longest, long);
    }

    test_each_algorithm!(same_decisions, buckets: 7);

    #[test]
    fn totals() {
        same_decisions(Algorithm::Total);
    }

    #[test]
    fn sliding_buckets_that_divide_the_window() {
        same_decisions(Algorithm::SlidingBuckets(50));
    }
}

#[test]
fn a_calendar_window_that_is_ahead_after_a_step_back_ends_when_the_stores_say() {
    let server = RedisServer::start();
    let day = 86_400 * SECOND;
    // Plans of zones east and west of each other.
    for (first, second) in [(0, 0), (0, 1), (1, 0), (2, 8), (8, 2)] {
        for (back, hours) in [(1, 0), (2, 7), (3, 13), (40, 19)] {
            let mut pair = Pair::new(&server, calendar_plans());
            let [cost, next_cost] = [first, second].map(|plan| pair.plans[plan][0].limit());
            for step in [
                Step::Advance(Duration::from_secs(hours * 3_600)),
                Step::Check {
                    plan: first,
                    key: 0,
                    cost,
                },
                Step::SetBack(back * day),
                Step::Check {
                    plan: first,
                    key: 0,
                    cost,
                },
                Step::CheckAndWait {
                    plan: second,
                    key: 0,
                    cost: next_cost,
                },
            ] {
                pair.take(&step);
            }
        }
    }
}

/// The refusal that this process remembers does not know of it until it is too old, in a second.
#[test]
fn a_window_that_is_ahead_ends_earlier_once_a_zone_in_the_west_has_asked() {
    let server = RedisServer::start();
    let hour = 3_600 * SECOND;
    let (berlin, pago_pago) = (4, 8);
    let mut differing = 0;
    // By the hour, the dates of both zones are the same or not.
    for hours in 0..24 {
        let mut pair = Pair::new(&server, calendar_plans());
        pair.time.advance(hour * (72 + hours));
        assert!(pair.check(berlin, KEYS[0], 2).unwrap().allowed);
        pair.take(&Step::SetBack(hour * 48));
        let told = pair.check(berlin, KEYS[0], 3).unwrap().wait();
        let _ = pair.check(pago_pago, KEYS[0], 0);

        let repeated = pair.check(berlin, KEYS[0], 3).unwrap().wait();
        assert_eq!(pair.denied_locally, 1);
        if repeated != told {
            differing += 1;
            assert_eq!(repeated, told.map(|told| told - hour * 24));
        }
        pair.time.advance(SECOND);
        let asked = pair.check(berlin, KEYS[0], 3).unwrap().wait();
        assert_eq!(asked, repeated.map(|left| left - SECOND));
        assert_eq!(pair.denied_locally, 1);
    }
    assert_eq!(differing, 13);
}

#[test]
fn bursts_on_both_sides_of_an_aligned_edge_share_one_limit() {
    let server = RedisServer::start();
    let mut pair = Pair::new(&server, plans(Algorithm::SlidingLog));
    let limiters = Both::new(&pair.time, Quota::new(50, 10 * SECOND));
    // The clock stands on a multiple of ten seconds.
    pair.time.advance(9 * SECOND);
    let mut admitted = [0, 0];
    for _ in 0..2 {
        pair.runtime.block_on(async {
            for _ in 0..50 {
                let decisions = limiters.check("ada", 1).await;
                for (decision, admitted) in decisions.into_iter().zip(&mut admitted) {
                    *admitted += u32::from(decision.expect("a decision").is_allowed());
                }
            }
        });
        pair.time.advance(2 * SECOND);
    }
    assert_eq!(admitted, [50, 50]);
}

#[test]
fn a_large_log_is_trimmed_searched_and_rewound_alike() {
    let server = RedisServer::start();
    let mut pair = Pair::new(&server, plans(Algorithm::SlidingLog));
    let limiters = Both::new(&pair.time, Quota::new(200_000, 10 * SECOND));
    for (cost, step) in [
        (100_000, SECOND),
        (7_999, SECOND),
        (8_000, SECOND),
        (8_001, 4 * SECOND),
        (100_000, Duration::ZERO),
        (0, 4 * SECOND),
        (50_000, SECOND),
        (90_000, SECOND),
        (100_000, Duration::ZERO),
    ] {
        let _ = pair.decide(&limiters, cost);
        pair.time.advance(step);
    }
    pair.time.step_back(5 * SECOND);
    let looked = pair.decide(&limiters, 0);
    let rewound = pair.decide(&limiters, 100_000);
    assert_eq!(looked.used(), rewound.used());
    pair.time.advance(rewound.wait().expect("a wait"));
    assert!(pair.decide(&limiters, 100_000).allowed);
}

#[test]
fn a_large_log_whose_units_leave_as_fast_as_they_come_is_decided_alike() {
    // Charges of one unit, and of two among them.
    let all = [(10, 40), (172_800, 0), (10, 0), (172_800, 40)];
    for (seconds, many_every) in all.into_iter().take(some_or_all(2, 4)) {
        let window = seconds * SECOND;
        let server = RedisServer::start();
        let mut pair = Pair::new(&server, plans(Algorithm::SlidingLog));
        let limiters = Both::new(&pair.time, Quota::new(310, window));
        for number in 1..=1_500 {
            let cost = 1 + u32::from(many_every > 0 && number % many_every == 0);
            let used = pair.decide(&limiters, cost).used();
            assert!(used <= 310 && (number < 320 || used >= 300), "{used}");
            pair.time.advance(window / 300);
        }
        // At most as many runs wait to be removed as count.
        let mut connection = server.connect();
        let value = redis::cmd("STRLEN")
            .arg("tollgate:v3:{default,ada}:log")
            .query::<usize>(&mut connection)
            .unwrap();
        let runs = (value - 29) / 12;
        assert!((290..=2 * 310).contains(&runs), "{runs}");
    }
}

/// A key that fills slowly, is silent, and fills again at once. Whatever a store keeps for it, and whenever each part of
/// that expires, nothing of the first fill counts after its window.
#[test]
fn a_large_log_that_is_silent_and_fills_again_is_decided_alike() {
    // More than a small log has: 128 runs, or 160 of one unit.
    const CHARGES: u32 = 165;
    // Times of runs have four bytes or six.
    for (window, units) in [(8 * SECOND, 3), (3_600 * SECOND, 1)] {
        let server = RedisServer::start();
        let mut pair = Pair::new(&server, plans(Algorithm::SlidingLog));
        let limiters = Both::uncached(&pair.time, Quota::new(1_000, window));
        // In percent of a window. The value dies two windows after the first charge, or after one that renewed it, and
        // the list two windows after the charge that began it: both live, only the list does, or none.
        for (fill, silence) in [
            (95, 60),
            (95, 105),
            (95, 140),
            (95, 190),
            (60, 170),
            (130, 130),
            (130, 180),
            (95, 320),
        ] {
            let context = format!("{fill} % of {window:?} to fill, {silence} % silent");
            let fills = [window * fill / 100, window / 100];
            for (fill, silence) in fills.into_iter().zip([silence, 0]) {
                for _ in 0..CHARGES {
                    let _ = pair.decide(&limiters, units);
                    pair.time.advance(fill / CHARGES);
                }
                pair.time.advance(window * silence / 100);
                let left = pair.decide(&limiters, 0).used();
                assert!(left == 0 || silence < 100, "{context}: {left} left");
            }
            // Units of the first fill have no part in these.
            for credit in [0, 100] {
                pair.runtime.block_on(limiters.credit("ada", credit));
                let used = pair.decide(&limiters, 0).used();
                for cost in [1_001 - used, 1_000 - used / 2, 1_000] {
                    let refused = pair.decide(&limiters, cost);
                    assert!(refused.wait().is_some(), "{context}: {refused:?}");
                }
            }
            pair.time.advance(window * 4);
        }
    }
}

/// A log that is never silent for a window keeps the time that its times count from: in six bytes, 2^48 microseconds are
/// 8.9 years.
#[test]
fn a_log_that_is_in_use_for_ten_years_is_decided_alike() {
    let year = 366 * 86_400 * SECOND;
    let other = Quota::new(3_000, 40 * 86_400 * SECOND);
    // A small log, a large one, and two that share a journal.
    for (quotas, checks_a_year, costs) in [
        (vec![Quota::new(5, year)], 7, [1, 1]),
        (vec![Quota::new(5, year)], 7, [1, 2]),
        (vec![Quota::new(180, year)], 190, [1, 1]),
        (vec![Quota::new(180, year)], 150, [1, 2]),
        (vec![Quota::new(5, year), other.clone()], 7, [1, 1]),
        (vec![Quota::new(30, year), other], 35, [1, 1]),
    ] {
        let server = RedisServer::start();
        let mut pair = Pair::new(&server, plans(Algorithm::SlidingLog));
        let limiters = Both::new(&pair.time, quotas.clone());
        for check in 0..checks_a_year * 10 {
            let cost = costs[(check % 2) as usize];
            let used = pair.decide(&limiters, cost).used();
            assert!(used <= quotas[0].limit(), "{used} after check {check}");
            pair.time.advance(year / checks_a_year);
        }
    }
}

#[test]
fn a_log_that_is_always_in_use_outlives_the_time_to_live_it_began_with() {
    let server = RedisServer::start();
    let mut pair = Pair::new(&server, plans(Algorithm::SlidingLog));
    let limiters = Both::new(&pair.time, Quota::new(1_000, 100 * SECOND));
    for check in 0..20 {
        // Of checks 60 seconds apart, two are in any 100 seconds.
        let expected = if check == 0 { 1 } else { 2 };
        assert_eq!(pair.decide(&limiters, 1).used(), expected);
        pair.time.advance(60 * SECOND);
    }
}

#[test]
fn a_log_that_was_rewound_lives_as_long_as_it_counts() {
    let server = RedisServer::start();
    let mut pair = Pair::new(&server, plans(Algorithm::SlidingLog));
    let limiters = Both::new(&pair.time, Quota::new(1_000, 100 * SECOND));
    // The log begins, and is trimmed by none of these.
    assert_eq!(pair.decide(&limiters, 1).used(), 1);
    pair.time.advance(99 * SECOND);
    assert_eq!(pair.decide(&limiters, 1).used(), 2);
    // Steps back and forth keep the first unit in the window, and the second is charged again.
    for used in 3..9 {
        pair.time.step_back(30 * SECOND);
        assert_eq!(pair.decide(&limiters, 1).used(), used);
        pair.time.advance(30 * SECOND);
    }
    let left = pair.time.times_to_live();
    assert!(
        left.iter().all(|(_, millis)| *millis >= 170_000),
        "{left:?}"
    );
}

#[test]
fn units_of_a_microsecond_that_the_clock_steps_back_to_are_taken_back_alike() {
    let server = RedisServer::start();
    for algorithm in [Algorithm::SlidingLog, Algorithm::SortedSetLog] {
        let mut pair = Pair::new(&server, plans(algorithm));
        for cost in [1, 2] {
            let _ = pair.check(1, "ada", cost);
            pair.time.advance(Duration::from_micros(5));
        }
        pair.time.step_back(Duration::from_micros(10));
        let _ = pair.check(1, "ada", 4);
        pair.refund(2, 4);
        assert_eq!(pair.check(1, "ada", 0).expect("a look").used(), 3);
    }
}

#[test]
fn after_a_step_back_all_that_is_stored_counts_by_its_own_time_alike() {
    let server = RedisServer::start();
    for algorithm in [Algorithm::SlidingLog, Algorithm::SortedSetLog] {
        let mut pair = Pair::new(&server, plans(algorithm));
        for cost in [3, 4] {
            let _ = pair.check(1, "ada", cost);
            pair.time.advance(WINDOW * 6 / 10);
        }
        pair.credit(1, "ada", 1);
        pair.time.step_back(WINDOW / 2);
        assert_eq!(pair.check(1, "ada", 0).expect("a look").used(), 6);
    }
}

/// A step of the history of one key.
#[derive(Clone, Copy, Debug)]
enum Act {
    Check(u32),
    Credit(u32),
    /// Refunds units of an earlier decision: the number counts back from the newest one.
    Refund(usize, u32),
    Advance(Duration),
    SetBack(Duration),
}

impl Pair {
    /// Acts for `ada` by limiters of any quotas. Returns what a check said.
    fn act(&mut self, act: Act, limiters: &Both) -> Option<Outcome> {
        let mut said = None;
        match act {
            Act::Check(cost) => {
                let decisions = self.runtime.block_on(limiters.check("ada", cost));
                let [in_memory, in_redis] = decisions.each_ref().map(outcome);
                let decisions = decisions.map(|decision| decision.expect("a decision"));
                if decisions[1].source() != Source::RefusalCache {
                    assert_eq!(in_memory, in_redis, "{act:?}");
                }
                if decisions[1].held() > 0 {
                    self.admitted.push(decisions);
                }
                said = in_memory.ok();
            }
            Act::Credit(units) => self.runtime.block_on(limiters.credit("ada", units)),
            Act::Refund(back, units) => {
                let count = self.admitted.len().max(1);
                if let Some(decisions) = self.admitted.iter_mut().nth_back(back % count) {
                    self.runtime.block_on(limiters.refund(decisions, units));
                }
            }
            Act::Advance(duration) => self.time.advance(duration),
            Act::SetBack(duration) => self.time.step_back(duration),
        }
        said
    }
}

#[test]
fn units_that_have_expired_count_no_more_wherever_the_clock_steps() {
    const CHARGE: Act = Act::Check(2);
    const REFUSE: Act = Act::Check(9_000);
    const REFUND: Act = Act::Refund(0, 2);
    const CREDIT: Act = Act::Credit(1);
    let advance = |seconds| Act::Advance(Duration::from_secs(seconds));
    let set_back = |seconds| Act::SetBack(Duration::from_secs(seconds));
    let server = RedisServer::start();
    for algorithm in [Algorithm::SlidingLog, Algorithm::SortedSetLog] {
        for acts in [
            &[CHARGE, set_back(3), CHARGE, advance(1), CHARGE][..],
            &[CHARGE, set_back(3), REFUSE, set_back(2), CHARGE],
            &[CHARGE, set_back(3), CHARGE, set_back(1), REFUSE],
            &[CHARGE, CHARGE, set_back(3), REFUND],
            &[CHARGE, REFUND, set_back(3), CHARGE, CHARGE],
            &[CHARGE, REFUND, set_back(3), REFUSE, set_back(1)],
            &[CHARGE, CHARGE, REFUND, set_back(3), CREDIT],
            &[CREDIT, set_back(3), CHARGE, advance(2)],
            &[CHARGE, CREDIT, set_back(3), CHARGE],
            &[CHARGE, advance(2), CREDIT, set_back(5), CHARGE],
            // The key expires in both stores at the same time.
            &[CHARGE, advance(1), CHARGE, advance(20), set_back(12)],
            &[CHARGE, advance(9), CHARGE, advance(20), set_back(12)],
        ] {
            let mut pair = Pair::new(&server, plans(algorithm));
            let quota = Quota::new(9_000, 10 * SECOND).with_algorithm(algorithm);
            let limiters = Both::uncached(&pair.time, quota);
            // Five times as many as a charge removes, at several times.
            for _ in 0..10 {
                let _ = pair.decide(&limiters, 500);
                pair.time.advance(SECOND / 10);
            }
            pair.time.advance(5 * SECOND);
            let _ = pair.decide(&limiters, 3);
            pair.time.advance(5 * SECOND);
            for act in acts {
                let said = pair.act(*act, &limiters);
                let is_refused = said.is_some_and(|said| !said.allowed);
                let refuses = matches!(act, Act::Check(9_000));
                assert!(is_refused || !refuses, "{act:?} of {algorithm:?}: {acts:?}");
                let _ = pair.decide(&limiters, 0);
            }
        }
    }
}

#[test]
fn what_was_given_of_a_meter_is_not_taken_back_as_well() {
    let server = RedisServer::start();
    let mut pair = Pair::new(&server, plans(Algorithm::Gcra));
    for cost in [3, 2] {
        let _ = pair.check(1, "ada", cost);
        pair.time.advance(Duration::from_micros(1));
    }
    pair.credit(1, "ada", 3);
    let _ = pair.check(1, "ada", 5);
    // What the first one has charged was the oldest.
    pair.refund(0, 3);
    assert_eq!(pair.check(1, "ada", 0).expect("a look").used(), 7);
}

/// An act of a long history by limits of which the first has this window. A check takes time.
fn long_act(costs: Range<u32>, window: Duration) -> impl Strategy<Value = (Act, Duration)> {
    let millis = Duration::from_millis;
    let act = prop_oneof![
        6 => (0..90_u32).prop_map(Act::Credit),
        18 => (0..100_000_usize, 1..3_u32).prop_map(|(back, units)| Act::Refund(back, units)),
        6 => (0..900_u64).prop_map(move |time| Act::Advance(millis(time))),
        6 => (0..3_000_u64).prop_map(move |time| Act::SetBack(millis(time))),
        1 => (50..310_u32).prop_map(move |percent| Act::Advance(window * percent / 100)),
    ];
    prop_oneof![
        240 => (costs, 1..30_u64).prop_map(move |(cost, time)| (Act::Check(cost), millis(time))),
        37 => act.prop_map(|act| (act, Duration::ZERO)),
    ]
}

#[test]
fn a_log_that_becomes_a_list_and_returns_is_decided_alike() {
    // Half of the checks are by a limit for which no list is declared.
    let plans = [100_000, 90].map(|limit| vec![Quota::new(limit, 10 * SECOND)]);
    // A list has more than 128 units.
    assert!(long_history_is_decided_alike(&plans, 1..3) > 200);
}

#[test]
fn a_log_of_single_units_is_decided_alike() {
    let plans = [125, 90].map(|limit| vec![Quota::new(limit, 2 * SECOND)]);
    assert!(long_history_is_decided_alike(&plans, 1..2) > 100);
    let day = 86_400 * SECOND;
    let plans = [1_000, 90].map(|limit| vec![Quota::new(limit, day)]);
    assert!(long_history_is_decided_alike(&plans, 1..2) > 140);
}

#[test]
fn costs_around_the_most_that_a_soft_log_charges_at_once_are_decided_alike() {
    let hard = Quota::new(20_000_000, 10 * SECOND).with_algorithm(Algorithm::SlidingBuckets(10));
    let soft = |limit| Quota::new(limit, 10 * SECOND).soft();
    let plans = [
        vec![hard.clone(), soft(500_000)],
        vec![hard, soft(u32::MAX), soft(300_000)],
    ];
    assert!(long_history_is_decided_alike(&plans, 99_998..100_003) > 1_000_000);
}

#[test]
fn several_logs_of_a_key_are_decided_alike() {
    let short = Quota::new(40, SECOND / 2);
    let long = Quota::new(128, 2 * SECOND);
    let day = Quota::new(100_000, 86_400 * SECOND);
    let of_all = vec![short.clone(), long.clone(), day];
    let both = vec![short.clone(), long.clone()];
    // Costs of one unit, or of one and two.
    let all = [
        (both.clone(), 3),
        (vec![long.clone()], 2),
        (vec![short.clone()], 3),
        (both, 2),
        (vec![long], 3),
        (vec![short], 2),
    ];
    for (others, cost) in all.into_iter().take(some_or_all(3, 6)) {
        let plans = [of_all.clone(), others];
        assert!(long_history_is_decided_alike(&plans, 1..cost) > 25);
    }
    // A value that only holds two logs.
    let two = [Quota::new(40, SECOND / 2), Quota::new(128, 2 * SECOND)];
    let plans = [two.to_vec(), two.to_vec()];
    assert!(long_history_is_decided_alike(&plans, 1..2) > 25);
}

/// Decides long histories of one key, most of them by the first plan. Returns the most units that counted.
fn long_history_is_decided_alike(plans: &[Vec<Quota>; 2], costs: Range<u32>) -> u32 {
    let server = RedisServer::start();
    let most = Cell::new(0);
    let acts = prop::collection::vec(long_act(costs, plans[0][0].window()), 500..900);
    holds_for_any(48, &acts, |acts| {
        let mut pair = Pair::new(&server, plans.to_vec());
        // A refusal that Redis does not see removes nothing there.
        let limits = plans
            .each_ref()
            .map(|quotas| Both::uncached(&pair.time, &quotas[..]));
        // The first history has more units than a list needs, whatever its acts are.
        let many = if most.get() == 0 { 260 } else { 0 };
        let first = (0..many).map(|_| (Act::Check(1), Duration::ZERO));
        for (number, (act, time)) in first.chain(acts).enumerate() {
            let limiters = &limits[usize::from(number % 7 == 0)];
            let said = pair.act(act, limiters);
            most.set(most.get().max(said.map_or(0, |said| said.used())));
            pair.time.advance(time);
            let _ = pair.decide(limiters, 0);
        }
        Ok(())
    });
    most.get()
}
