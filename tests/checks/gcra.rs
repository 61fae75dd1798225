//! Compares Gcra with a model that stores every unit in order: admissions, refunds and credits, also with
//! different limits for one key.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::store::TestClock;
use tollgate::{Algorithm, Decision, MemoryStore, Quota, RateLimiter};

use crate::support::block_on;
use crate::support::cases::cases;

const WINDOW: u64 = 1_000;

fn limiter(store: &MemoryStore, limit: u32, window: Duration) -> RateLimiter {
    let quota = Quota::new(limit, window).with_algorithm(Algorithm::Gcra);
    RateLimiter::new(store.clone(), quota)
}

/// The rest of one charge, in parts of a unit: as many as the window has microseconds.
#[derive(Clone, Copy, Debug)]
struct KeyStatus {
    charge: usize,
    parts: u64,
}

/// The oracle: what stood of each charge when the meter was charged last, the oldest first.
#[derive(Clone, Debug, Default)]
struct Meter {
    time: u64,
    standing: VecDeque<KeyStatus>,
    /// The limit of the last charge.
    rate: u32,
}

impl Meter {
    fn parts(&self) -> u64 {
        self.standing.iter().map(|standing| standing.parts).sum()
    }

    fn used(&self) -> u32 {
        u32::try_from(self.parts().div_ceil(WINDOW)).unwrap()
    }

    /// The meter at a time: it drains by the limit of the last charge, for every limit that looks at it.
    fn at(&self, now: u64) -> Self {
        let mut drained = (now - self.time) * u64::from(self.rate);
        let mut standing = self.standing.clone();
        while let Some(first) = standing.front_mut() {
            let of_first = first.parts.min(drained);
            first.parts -= of_first;
            drained -= of_first;
            if first.parts > 0 {
                break;
            }
            standing.pop_front();
        }
        Self {
            time: now,
            standing,
            rate: self.rate,
        }
    }

    fn admits(&self, limit: u32, cost: u32, now: u64) -> bool {
        self.at(now).used() + cost <= limit
    }

    fn charge(&mut self, limit: u32, charge: usize, cost: u32, now: u64) {
        *self = self.at(now);
        self.rate = limit;
        self.standing.push_back(KeyStatus {
            charge,
            parts: u64::from(cost) * WINDOW,
        });
    }

    /// Takes back units of one charge that have not drained, and of no other.
    fn refund(&mut self, charge: usize, units: u32, now: u64) {
        let of_charge = |standing: &&mut KeyStatus| standing.charge == charge;
        let mut now_standing = self.at(now).standing;
        let left = now_standing.iter_mut().find(of_charge);
        let left = left.map_or(0, |standing| standing.parts);
        let taken = left.min(u64::from(units) * WINDOW);
        if let Some(standing) = self.standing.iter_mut().find(of_charge) {
            standing.parts -= taken;
        }
        self.standing.retain(|standing| standing.parts > 0);
    }

    /// Removes units of the oldest charges, of any holder; all units if no more count.
    fn credit(&mut self, units: u32, now: u64) {
        if units >= self.at(now).used() {
            self.standing.clear();
        }
        let mut left = u64::from(units) * WINDOW;
        for standing in &mut self.standing {
            let of_this = standing.parts.min(left);
            standing.parts -= of_this;
            left -= of_this;
        }
        self.standing.retain(|standing| standing.parts > 0);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Check { limit: u32, cost: u32 },
    Refund { charge: usize, units: u32 },
    Credit { limit: u32, units: u32 },
    Wait(u64),
}

fn step(limits: &'static [u32], most_cost: u32) -> impl Strategy<Value = Step> {
    let limit = || prop::sample::select(limits);
    prop_oneof![
        6 => (limit(), 1..=most_cost).prop_map(|(limit, cost)| Step::Check { limit, cost }),
        4 => (0..100_usize, 1..=most_cost).prop_map(|(charge, units)| Step::Refund { charge, units }),
        1 => (limit(), 0..2 * most_cost).prop_map(|(limit, units)| Step::Credit { limit, units }),
        3 => prop_oneof![Just(1), 1..WINDOW / 5, 1..2 * WINDOW].prop_map(Step::Wait),
    ]
}

/// Takes the steps in both, and compares what both say after each.
async fn agrees_with_the_meter(limits: &[u32], steps: Vec<Step>) -> Result<(), TestCaseError> {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let of_limit = |limit| limiter(&store, limit, Duration::from_micros(WINDOW));
    let mut meter = Meter {
        time: clock.now_micros(),
        ..Meter::default()
    };
    let mut charges: Vec<(u32, Decision)> = Vec::new();
    for step in steps {
        let now = clock.now_micros();
        match step {
            Step::Check { limit, cost } => {
                let Ok(decision) = of_limit(limit).check_n("ada", cost).await else {
                    continue;
                };
                let admits = meter.admits(limit, cost, now);
                prop_assert_eq!(decision.is_allowed(), admits);
                if admits {
                    meter.charge(limit, charges.len(), cost, now);
                    charges.push((limit, decision));
                }
            }
            Step::Refund { charge, units } => {
                let charge = charge % charges.len().max(1);
                if let Some((_, decision)) = charges.get_mut(charge) {
                    let units = units.min(decision.held());
                    decision.refund(units).await.unwrap();
                    meter.refund(charge, units, now);
                }
            }
            Step::Credit { limit, units } => {
                of_limit(limit).admin().credit("ada", units).await.unwrap();
                meter.credit(units, now);
            }
            Step::Wait(micros) => clock.advance(Duration::from_micros(micros)),
        }
        if meter.standing.is_empty() {
            // The next charge begins another meter, and as on a server it comes later.
            clock.advance(Duration::from_micros(1));
        }
        for limit in limits {
            let looked = of_limit(*limit).peek("ada").await.unwrap();
            let expected = meter.at(clock.now_micros()).used();
            prop_assert_eq!(looked.used(), expected, "as {} sees it", limit);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn a_limit_admits_and_gets_back_what_the_meter_of_all_units_says(
        steps in prop::collection::vec(step(&[20], 8), 1..80),
    ) {
        block_on(agrees_with_the_meter(&[20], steps))?;
    }

    #[test]
    fn limits_that_differ_admit_and_get_back_what_the_meter_of_all_units_says(
        steps in prop::collection::vec(step(&[3, 10, 40], 12), 1..80),
    ) {
        block_on(agrees_with_the_meter(&[3, 10, 40], steps))?;
    }

    /// An adversary that takes all there is, by whichever limit it likes, and waits as long as it likes.
    #[test]
    fn a_span_holds_less_than_twice_the_largest_limit_that_asked_in_it(
        moves in prop::collection::vec(
            (prop::sample::select(&[1_u32, 2, 5, 8][..]), 1..9_u32, prop_oneof![
                Just(0), Just(1), Just(WINDOW / 8), Just(WINDOW / 2), Just(WINDOW - 1), 0..WINDOW,
            ], prop::option::weighted(0.3, (0..60_usize, 1..9_u32))),
            1..60,
        ),
    ) {
        block_on(async {
            let clock = TestClock::new();
            let store = MemoryStore::with_clock(clock.clone());
            let mut admitted: Vec<(u64, u32, Decision)> = Vec::new();
            for (limit, most, wait, refund) in moves {
                clock.advance(Duration::from_micros(wait));
                let limiter = limiter(&store, limit, Duration::from_micros(WINDOW));
                let units = limiter.peek("ada").await.unwrap().remaining().min(most);
                let decision = limiter.check_n("ada", units).await.unwrap();
                admitted.push((clock.now_micros(), limit, decision));
                // Units that are given back do not count as admitted, whether they had drained or not.
                if let Some((index, units)) = refund {
                    let index = index % admitted.len();
                    let (_, _, decision) = &mut admitted[index];
                    decision.refund(units).await.unwrap();
                }
            }
            for (start, ..) in &admitted {
                let inside = admitted.iter().filter(|(at, ..)| (*start..start + WINDOW).contains(at));
                let largest = inside.clone().map(|(_, limit, _)| *limit).max().unwrap();
                let units: u32 = inside.map(|(.., decision)| decision.held()).sum();
                prop_assert!(units < 2 * largest, "{units} by a limit of {largest}");
            }
            Ok(())
        })?;
    }

    #[test]
    fn nobody_waits_longer_than_a_window_under_a_lowered_limit(
        charged in 1..=1_000_u32,
        limit in 1..=1_000_u32,
        part in 0.0..1.0_f64,
        wait in 0..WINDOW,
    ) {
        block_on(async {
            let clock = TestClock::new();
            let store = MemoryStore::with_clock(clock.clone());
            let of_limit = |limit| limiter(&store, limit, Duration::from_micros(WINDOW));
            let _ = of_limit(1_000).check_n("ada", charged).await.unwrap();
            clock.advance(Duration::from_micros(wait));
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::float_arithmetic,
                reason = "a part of it"
            )]
            let cost = ((f64::from(limit) * part) as u32).max(1);
            let refused = of_limit(limit).check_n("ada", cost).await.unwrap();
            if let Some(wait) = refused.retry_after() {
                prop_assert!(wait <= Duration::from_micros(WINDOW));
                clock.advance(wait - Duration::from_micros(1));
                prop_assert!(!of_limit(limit).check_n("ada", cost).await.unwrap().is_allowed());
                clock.advance(Duration::from_micros(1));
                prop_assert!(of_limit(limit).check_n("ada", cost).await.unwrap().is_allowed());
            }
            Ok(())
        })?;
    }
}

/// As while a deployment lowers a limit, or where the plan differs by request.
#[tokio::test]
async fn limits_of_100_and_10_on_one_key_admit_below_200_in_any_second() {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let [high, low] = [100, 10].map(|limit| limiter(&store, limit, Duration::from_secs(1)));
    let mut admitted = Vec::new();
    for millis in 0..3_000_u64 {
        for limiter in [&low, &high] {
            // The high limit asks from time to time, so that the low one has its turn.
            let asks = if std::ptr::eq(limiter, &low) { 1 } else { 100 };
            for _ in 0..if millis % 150 == 0 || asks == 1 {
                asks
            } else {
                0
            } {
                if limiter.check("ada").await.unwrap().is_allowed() {
                    admitted.push(millis);
                }
            }
        }
        clock.advance(Duration::from_millis(1));
    }
    let within = |start: &u64| {
        let inside = admitted
            .iter()
            .filter(|at| (*start..start + 1_000).contains(at));
        inside.count()
    };
    let most = admitted.iter().map(within).max().unwrap();
    assert!((150..200).contains(&most), "{most}");
}

#[tokio::test]
async fn a_unit_given_under_a_limit_of_10_leaves_899_of_900() {
    let store = MemoryStore::with_clock(TestClock::new());
    let hour = Duration::from_secs(3_600);
    let [plan, small] = [1_000, 10].map(|limit| limiter(&store, limit, hour));
    assert!(plan.check_n("tenant", 900).await.unwrap().is_allowed());
    small.admin().credit("tenant", 1).await.unwrap();
    assert_eq!(plan.peek("tenant").await.unwrap().used(), 899);
}

#[tokio::test]
async fn what_a_later_charge_gave_back_does_not_keep_an_earlier_one_from_it() {
    let hour = Duration::from_secs(3_600);
    for parts in [&[5][..], &[2, 3]] {
        let limiter = limiter(&MemoryStore::with_clock(TestClock::new()), 10, hour);
        let mut one = limiter.check_n("ada", 5).await.unwrap();
        let mut other = limiter.check_n("ada", 5).await.unwrap();
        let (last, first) = parts.split_last().unwrap();
        for units in first {
            one.refund(*units).await.unwrap();
        }
        other.refund(5).await.unwrap();
        one.refund(*last).await.unwrap();
        assert_eq!(limiter.peek("ada").await.unwrap().used(), 0);
    }
}

/// Requests that reserve much and settle for less, a hundred of them open, in random order.
#[tokio::test]
async fn many_open_reservations_settle_to_what_they_used() {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let limiter = limiter(&store, 100_000, Duration::from_secs(3_600));
    let mut open = Vec::new();
    for _ in 0..100 {
        open.push(limiter.check_n("ada", 1_000).await.unwrap());
    }
    for index in 0..100 {
        let decision = open.swap_remove(index * 7_919 % open.len());
        decision.settle(300).await.unwrap();
    }
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 30_000);
}

/// Operators and refunds may empty a meter and begin another one within one microsecond.
#[tokio::test]
async fn a_charge_of_a_meter_that_was_emptied_gets_nothing_back_from_the_next_one() {
    let limiter = limiter(
        &MemoryStore::with_clock(TestClock::new()),
        10,
        Duration::from_secs(1),
    );
    let mut earlier = limiter.check_n("ada", 5).await.unwrap();
    limiter.admin().credit("ada", 5).await.unwrap();
    let _ = limiter.check_n("ada", 2).await.unwrap();
    earlier.refund(5).await.unwrap();
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 2);
}
