//! The promise of each algorithm for any span as long as the window. An adversary searches for traffic that
//! breaks it.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};
use tollgate::store::TestClock;
use tollgate::{Algorithm, MemoryStore, Quota, RateLimiter};

use crate::support::algorithms::{algorithms, promised};
use crate::support::block_on;
use crate::support::cases::cases;

const LIMIT: u32 = 8;
const WINDOW: Duration = Duration::from_millis(100);

/// A move of an adversary.
#[derive(Clone, Copy)]
struct Move {
    /// The clock steps back first, by so many microseconds.
    step_back: u64,
    /// Then some microseconds pass.
    wait: u64,
    /// Then up to this many of the units that are left are taken.
    units: u32,
}

type Traffic = Vec<Move>;

/// The clock of the server.
#[derive(Clone, Copy)]
enum Clock {
    Steady,
    StepsBack,
}

const MOVES: usize = 30;

/// The most units that this traffic is admitted in any span as long as the window.
async fn most_in_a_window(algorithm: Algorithm, traffic: &Traffic) -> u32 {
    let clock = TestClock::new();
    let quota = Quota::new(LIMIT, WINDOW).with_algorithm(algorithm);
    let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()), quota);
    let mut admitted: Vec<(u64, u32)> = Vec::new();
    let mut elapsed = 0;
    for a_move in traffic {
        clock.step_back(Duration::from_micros(a_move.step_back));
        clock.advance(Duration::from_micros(a_move.wait));
        elapsed += a_move.wait;
        let left = limiter.peek("ada").await.unwrap().remaining();
        let taken = left.min(a_move.units);
        if taken > 0 {
            // What remains is what is admitted: no more, and no less.
            assert!(limiter.check_n("ada", taken).await.unwrap().is_allowed());
            admitted.push((elapsed, taken));
        }
        if left < LIMIT {
            assert!(
                !limiter
                    .check_n("ada", left - taken + 1)
                    .await
                    .unwrap()
                    .is_allowed()
            );
        }
    }
    let window = u64::try_from(WINDOW.as_micros()).unwrap();
    let in_window = |end: u64| {
        let counted = admitted
            .iter()
            .filter(|(time, _)| *time <= end && end < time + window);
        counted.map(|(_, units)| units).sum()
    };
    admitted
        .iter()
        .map(|(time, _)| in_window(*time))
        .max()
        .unwrap_or(0)
}

/// The units in the worst window of the worst traffic that is found: by changing one move after
/// another, and keeping what is no better for the adversary never.
fn worst_found(algorithm: Algorithm, clock: Clock) -> u32 {
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let window = u64::try_from(WINDOW.as_micros()).unwrap();
    block_on(async {
        let mut worst = 0;
        for _ in 0..cases(12).cases {
            let mut a_move = || {
                let wait = match random.random_range(0..6) {
                    0 => 0,
                    1 => 1,
                    2 => window - 1,
                    3 => window / u64::from(LIMIT),
                    4 => random.random_range(0..window / 4),
                    _ => random.random_range(0..2 * window),
                };
                let units = if random.random_bool(0.5) {
                    LIMIT
                } else {
                    random.random_range(0..3)
                };
                let step_back = match clock {
                    Clock::Steady => 0,
                    Clock::StepsBack if random.random_bool(0.7) => 0,
                    Clock::StepsBack => match random.random_range(0..5) {
                        0 => 1,
                        1 => window,
                        2 => random.random_range(0..window / 4),
                        3 => random.random_range(0..3 * window),
                        _ => 36_000 * window,
                    },
                };
                Move {
                    step_back,
                    wait,
                    units,
                }
            };
            let mut traffic: Traffic = (0..MOVES).map(|_| a_move()).collect();
            let changes: Vec<_> = (0..250).map(|_| a_move()).collect();
            let mut found = most_in_a_window(algorithm, &traffic).await;
            for (change, new) in changes.into_iter().enumerate() {
                let at = (change * 7) % MOVES;
                let old = std::mem::replace(&mut traffic[at], new);
                let most = most_in_a_window(algorithm, &traffic).await;
                if most >= found {
                    found = most;
                } else {
                    traffic[at] = old;
                }
            }
            worst = worst.max(found);
        }
        worst
    })
}

#[test]
fn logs_never_admit_more_than_the_limit() {
    assert_eq!(worst_found(Algorithm::SlidingLog, Clock::Steady), LIMIT);
    assert_eq!(worst_found(Algorithm::SortedSetLog, Clock::Steady), LIMIT);
}

#[test]
fn buckets_never_admit_more_than_the_limit() {
    for buckets in [1, 7, 10, 1_000] {
        assert_eq!(
            worst_found(Algorithm::SlidingBuckets(buckets), Clock::Steady),
            LIMIT,
            "{buckets}"
        );
    }
}

#[test]
fn a_fixed_window_admits_up_to_twice_the_limit_across_an_edge_and_no_more() {
    assert_eq!(
        worst_found(Algorithm::FixedWindow, Clock::Steady),
        2 * LIMIT
    );
}

#[test]
fn a_sliding_counter_admits_nearly_twice_the_limit_at_worst_and_no_more() {
    let worst = worst_found(Algorithm::SlidingCounter, Clock::Steady);
    assert!((2 * LIMIT - 2..2 * LIMIT).contains(&worst), "{worst}");
}

#[test]
fn gcra_admits_nearly_twice_the_limit_after_a_burst_and_no_more() {
    let worst = worst_found(Algorithm::Gcra, Clock::Steady);
    assert!((2 * LIMIT - 2..2 * LIMIT).contains(&worst), "{worst}");
}

#[test]
fn no_algorithm_admits_more_than_it_promises_while_the_clock_steps_back() {
    for algorithm in algorithms(7) {
        let worst = u64::from(worst_found(algorithm, Clock::StepsBack));
        let most = promised(algorithm, LIMIT);
        assert!(worst <= most, "{algorithm:?}: {worst}");
        // The adversary is good enough to reach what each algorithm admits while the clock is steady.
        assert!(worst + 2 >= most, "{algorithm:?}: {worst}");
    }
}

#[tokio::test]
async fn a_unit_of_buckets_returns_at_most_a_bucket_late() {
    for (buckets, offset) in [(1, 0), (7, 0), (7, 13), (10, 99_999), (60, 5), (1_000, 50)] {
        let clock = TestClock::new();
        let quota = Quota::new(LIMIT, WINDOW).with_algorithm(Algorithm::SlidingBuckets(buckets));
        let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()), quota);
        clock.advance(Duration::from_micros(offset));
        let full = limiter.check_n("ada", LIMIT).await.unwrap();
        let late = full.reset_after() - WINDOW;
        assert!(late < WINDOW / u32::from(buckets), "{buckets}: {late:?}");
        clock.advance(full.reset_after());
        assert_eq!(limiter.peek("ada").await.unwrap().remaining(), LIMIT);
    }
}

#[tokio::test]
async fn gcra_does_not_drift_where_the_limit_does_not_divide_the_window() {
    let clock = TestClock::new();
    let quota = Quota::new(7, WINDOW).with_algorithm(Algorithm::Gcra);
    let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()), quota);
    let begin = clock.now_micros();
    let mut admitted = 0;
    // Always as soon as one unit is admitted, for a thousand windows.
    while clock.now_micros() - begin < 1_000 * 100_000 {
        let decision = limiter.check("ada").await.unwrap();
        admitted += u32::from(decision.is_allowed());
        clock.advance(decision.retry_after().unwrap_or_default());
    }
    // The burst, and seven in each window: of the last, the seventh is due when the span has ended.
    assert_eq!(admitted, 7 + 7 * 1_000 - 1);
}

proptest! {
    #![proptest_config(cases(256))]

    /// Also where time is counted in ticks of more than a microsecond, into which the window does not
    /// go: what is rounded is rounded against admission.
    #[test]
    fn gcra_admits_a_burst_and_then_the_limit_per_window_and_no_more(
        limit in 1..=u32::MAX,
        window in 1_000..31_622_400_000_000_u64,
        steps in prop::collection::vec(0..1_000_u64, 1..60),
    ) {
        let clock = TestClock::new();
        let quota = Quota::new(limit, Duration::from_micros(window)).with_algorithm(Algorithm::Gcra);
        let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()), quota);
        block_on(async {
            let (mut admitted, mut elapsed) = (0_u128, 0_u64);
            for step in steps {
                // Much less than a window, and sometimes no more than some ticks.
                let step = if step % 2 == 0 { step * window / 20_000 } else { step };
                clock.advance(Duration::from_micros(step));
                elapsed += step;
                let left = limiter.peek("ada").await.unwrap().remaining();
                let _ = limiter.check_n("ada", left).await.unwrap();
                admitted += u128::from(left);
                let flowed = u128::from(elapsed) * u128::from(limit) / u128::from(window);
                prop_assert!(admitted <= u128::from(limit) + flowed, "{admitted}, {flowed}");
            }
            Ok(())
        })?;
    }
}

/// Returns any algorithm, with 7 buckets.
fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(algorithms(7).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn a_clock_that_steps_back_an_hour_admits_nothing_more_and_locks_for_two_windows_at_most(
        checks in prop::collection::vec((0..150_000_u64, 1..=LIMIT), 1..30),
        algorithm in any_algorithm(),
        at in 0..30_usize,
    ) {
        let clock = TestClock::new();
        let quota = Quota::new(LIMIT, WINDOW).with_algorithm(algorithm);
        let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()), quota);
        block_on(async {
            for (index, (wait, cost)) in checks.into_iter().enumerate() {
                clock.advance(Duration::from_micros(wait));
                if index == at {
                    let before = limiter.peek("ada").await.unwrap().remaining();
                    clock.step_back(Duration::from_secs(3_600));
                    let after = limiter.peek("ada").await.unwrap().remaining();
                    // A whole window of the counter may be brought back into it, as may what was
                    // about to leave; nothing is made room for.
                    prop_assert!(after <= before, "{} then {}", before, after);
                    // The first check that sees it charges the stored units again.
                    let decision = limiter.check_n("ada", 1).await.unwrap();
                    let wait = decision.retry_after().unwrap_or_default();
                    let locked = match algorithm {
                        // The next window has to end too, or to become as good as empty.
                        Algorithm::FixedWindow | Algorithm::SlidingCounter => 2 * WINDOW,
                        _ => WINDOW + WINDOW / 7,
                    };
                    prop_assert!(wait <= locked, "locked for {:?}", wait);
                    clock.advance(wait);
                    let admitted = limiter.check_n("ada", 1).await.unwrap().is_allowed();
                    prop_assert!(admitted || decision.is_allowed());
                }
                let _ = limiter.check_n("ada", cost).await.unwrap();
            }
            Ok(())
        })?;
    }
}
