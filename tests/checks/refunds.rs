//! Refunds return at most what the decision still holds, and never units of another charge. Credits return
//! units of any charge. The model is a plain list of all units; `tests/checks/parity.rs` tests that Redis does the
//! same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tollgate::store::TestClock;
use tollgate::store::protocol::Subject;
use tollgate::{Algorithm, Decision, ErrorKind, MemoryStore, Quota, RateLimiter};

use crate::support::algorithms::{algorithms, part_of, quota_by};
use crate::support::block_on;
use crate::support::cases::cases;
use crate::support::fakes::fake_store::FakeStore;

const LIMIT: u32 = 20;
const WINDOW: u64 = 1_000;
const BUCKET: u64 = 100;

/// One unit that was charged and neither taken back nor given.
struct Unit {
    time: u64,
    /// Which count it was: where nothing was left, another one begins.
    begun: usize,
}

/// Where a unit is counted: those of one place are alike.
fn place(algorithm: Algorithm, unit: &Unit) -> (u64, usize) {
    let Unit { time, begun } = *unit;
    match algorithm {
        Algorithm::SlidingBuckets(_) => (time / BUCKET, begun),
        Algorithm::FixedWindow | Algorithm::SlidingCounter => (time / WINDOW, begun),
        Algorithm::Total => (0, begun),
        // The units of a log are found by their time.
        _ => (time, 0),
    }
}

/// Removes units that count: in a sliding counter first those of the current window, of a log or of buckets the newest,
/// otherwise the oldest.
fn credit(algorithm: Algorithm, units: &mut Vec<Unit>, given: u32, now: u64) {
    let left = used(algorithm, units, now).saturating_sub(given.into());
    let counts = |unit: &Unit| used(algorithm, std::slice::from_ref(unit), now) > 0;
    while used(algorithm, units, now) > left {
        let of_this_window = units
            .iter()
            .position(|unit| unit.time / WINDOW == now / WINDOW)
            .filter(|_| algorithm == Algorithm::SlidingCounter);
        let index = match algorithm {
            Algorithm::SlidingLog | Algorithm::SlidingBuckets(_) | Algorithm::SortedSetLog => {
                units.iter().rposition(counts)
            }
            _ => units.iter().position(counts),
        };
        units.remove(of_this_window.or(index).unwrap());
    }
}

/// The units that count, computed from the list of all units.
fn used(algorithm: Algorithm, units: &[Unit], now: u64) -> u64 {
    let count =
        |counts: &dyn Fn(u64) -> bool| units.iter().filter(|unit| counts(unit.time)).count();
    let window = now / WINDOW;
    let counted = match algorithm {
        Algorithm::SlidingBuckets(_) => {
            count(&|time| (time / BUCKET + 1) * BUCKET - 1 + WINDOW > now)
        }
        Algorithm::FixedWindow => count(&|time| time / WINDOW == window),
        Algorithm::Total => units.len(),
        Algorithm::SlidingCounter => {
            let before = count(&|time| time / WINDOW + 1 == window) as u64;
            let part = (before * (WINDOW - now % WINDOW)).div_ceil(WINDOW);
            return part + count(&|time| time / WINDOW == window) as u64;
        }
        _ => count(&|time| now < time + WINDOW),
    };
    counted as u64
}

#[derive(Clone, Debug)]
enum Step {
    Check(u32),
    Refund { decision: usize, units: u32 },
    Credit(u32),
    Reset,
    Advance(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..6_u32).prop_map(Step::Check),
        4 => (0..100_usize, 0..6_u32)
            .prop_map(|(decision, units)| Step::Refund { decision, units }),
        2 => (0..12_u32).prop_map(Step::Credit),
        1 => Just(Step::Reset),
        4 => prop_oneof![Just(0), Just(1), 0..400_u64, Just(WINDOW)].prop_map(Step::Advance),
    ]
}

fn limiter(clock: &TestClock, algorithm: Algorithm) -> RateLimiter {
    let quota = quota_by(algorithm, LIMIT, Duration::from_micros(WINDOW));
    RateLimiter::new(MemoryStore::with_clock(clock.clone()), quota)
}

/// Returns any algorithm, with 10 buckets, also that of totals.
fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    let all = algorithms(10).chain([Algorithm::Total]);
    prop::sample::select(all.collect::<Vec<_>>())
}

async fn taken_back_as_listed(algorithm: Algorithm, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let clock = TestClock::new();
    let limiter = limiter(&clock, algorithm);
    let mut decisions: Vec<(Decision, (u64, usize))> = Vec::new();
    let mut units: Vec<Unit> = Vec::new();
    let mut begun = 0;
    for step in steps {
        let now = clock.now_micros();
        match step {
            Step::Check(cost) => {
                let decision = limiter.check_n("ada", cost).await.unwrap();
                let room = used(algorithm, &units, now) + u64::from(cost) <= u64::from(LIMIT);
                prop_assert_eq!(decision.is_allowed(), room);
                if room {
                    let unit = || Unit { time: now, begun };
                    decisions.push((decision, place(algorithm, &unit())));
                    units.extend((0..cost).map(|_| unit()));
                    prop_assert!(cost > 0);
                }
            }
            Step::Refund {
                decision,
                units: back,
            } => {
                let count = decisions.len().max(1);
                let index = decision % count;
                if let Some((decision, charged_at)) = decisions.get_mut(index) {
                    let held = decision.held();
                    decision.refund(back).await.unwrap();
                    prop_assert_eq!(decision.held(), held.saturating_sub(back));
                    let is_alike = |unit: &Unit| place(algorithm, unit) == *charged_at;
                    for _ in 0..back.min(held) {
                        if let Some(at) = units.iter().position(is_alike) {
                            units.remove(at);
                        }
                    }
                }
            }
            Step::Credit(given) => {
                // As on a server, it comes later than what was charged.
                clock.advance(Duration::from_micros(1));
                let now = clock.now_micros();
                let counted = used(algorithm, &units, now);
                if counted > 0 && given > 0 && matches!(algorithm, Algorithm::SlidingBuckets(_)) {
                    // No refund of an earlier charge finds its units any more.
                    begun += 1;
                    units.iter_mut().for_each(|unit| unit.begun = begun);
                }
                credit(algorithm, &mut units, given, now);
                limiter.admin().credit("ada", given).await.unwrap();
                let left = limiter.peek("ada").await.unwrap().used();
                prop_assert_eq!(u64::from(left), counted.saturating_sub(given.into()));
            }
            Step::Reset => {
                limiter.admin().reset("ada").await.unwrap();
                units.clear();
            }
            Step::Advance(micros) => clock.advance(Duration::from_micros(micros)),
        }
        if used(algorithm, &units, clock.now_micros()) == 0 {
            begun += 1;
            // As on a server, what comes next comes later.
            clock.advance(Duration::from_micros(1));
        }
        let now = clock.now_micros();
        let looked = limiter.peek("ada").await.unwrap();
        prop_assert_eq!(u64::from(looked.used()), used(algorithm, &units, now));
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn what_is_taken_back_is_what_the_list_of_units_says(
        algorithm in any_algorithm().prop_filter("a meter lists no units", |any| *any != Algorithm::Gcra),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        block_on(taken_back_as_listed(algorithm, steps))?;
    }

    /// Of a meter that drains there is no list of units. But there is one beside it that was never
    /// charged what may be taken back, and one of which nothing is.
    #[test]
    fn gcra_takes_back_no_more_than_was_charged_and_has_not_drained(
        steps in prop::collection::vec((0..400_u64, 0..4_u8, 0..8_u32, 0..100_usize), 1..40),
    ) {
        block_on(async {
            let clock = TestClock::new();
            let [refunding, without, keeping] = [(); 3].map(|()| limiter(&clock, Algorithm::Gcra));
            let mut decisions: Vec<Decision> = Vec::new();
            for (wait, kind, units, decision) in steps {
                clock.advance(Duration::from_micros(wait));
                // Only what all three admit, so that they differ in nothing else.
                let cost = units.min(keeping.peek("ada").await.unwrap().remaining());
                match kind {
                    0 => {
                        for limiter in [&refunding, &without, &keeping] {
                            let _ = limiter.check_n("ada", cost).await.unwrap();
                        }
                    }
                    1 => {
                        let _ = keeping.check_n("ada", cost).await.unwrap();
                        decisions.push(refunding.check_n("ada", cost).await.unwrap());
                    }
                    2 => {
                        for limiter in [&refunding, &without, &keeping] {
                            limiter.admin().credit("ada", units).await.unwrap();
                        }
                        // As on a server, what comes after it comes later.
                        clock.advance(Duration::from_micros(1));
                    }
                    _ => {
                        let count = decisions.len().max(1);
                        if let Some(decision) = decisions.get_mut(decision % count) {
                            decision.refund(units).await.unwrap();
                        }
                    }
                }
                let used = async |limiter: &RateLimiter| limiter.peek("ada").await.unwrap().used();
                let (least, most) = (used(&without).await, used(&keeping).await);
                let used = used(&refunding).await;
                prop_assert!((least..=most).contains(&used), "{used} of {least} to {most}");
            }
            Ok(())
        })?;
    }

    /// A refund by a limiter whose limit has changed since neither frees another's units nor locks.
    #[test]
    fn a_refund_after_a_changed_limit_or_a_step_back_frees_nobody_elses_and_locks_nobody(
        algorithm in any_algorithm(),
        limits in (1..10_u32, 1..90_u32),
        charged in 1..10_u32,
        others in 0..90_u32,
        wait in 0..2 * WINDOW,
        back in prop_oneof![Just(0), 1..5_000_u64],
        units in 1..10_u32,
    ) {
        block_on(async {
            let clock = TestClock::new();
            let store = MemoryStore::with_clock(clock.clone());
            let limited_to = |limit| {
                let quota = quota_by(algorithm, limit, Duration::from_micros(WINDOW));
                RateLimiter::new(store.clone(), quota)
            };
            let (before, after) = (limited_to(limits.0), limited_to(limits.1));
            let charged = charged.min(limits.0);
            let mut decision = before.check_n("ada", charged).await.unwrap();
            // As on a server, the next call comes later.
            clock.advance(Duration::from_micros(1));
            let room = after.peek("ada").await.unwrap().remaining();
            let _ = after.check_n("ada", others.min(room)).await.unwrap();
            clock.advance(Duration::from_micros(wait));
            clock.step_back(Duration::from_micros(back));
            let (one, other) = (after.peek("ada").await.unwrap(), before.peek("ada").await.unwrap());
            decision.refund(units).await.unwrap();
            for (limiter, looked) in [(&after, one), (&before, other)] {
                let refunded = limiter.peek("ada").await.unwrap();
                prop_assert!(refunded.used() <= looked.used());
                prop_assert!(looked.used() - refunded.used() <= units.min(charged));
            }
            Ok(())
        })?;
    }

    /// Gives back units of any charge, with or without a decision that holds it.
    #[test]
    fn just_so_many_fewer_count_as_are_given_and_waits_stay_exact(
        algorithm in any_algorithm(),
        window in prop_oneof![1_000..5_000_u64, 1_000..31_622_400_000_000_u64],
        limit in prop_oneof![1..30_u32, 1..100_000_u32],
        charges in prop::collection::vec((0.0..0.7_f64, 0.0..0.5_f64), 1..12),
        back in prop_oneof![3 => Just(0.0), 1 => 0.0..3.0_f64],
        given in prop_oneof![0.0..0.3_f64, 0.0..2.0_f64],
    ) {
        block_on(async {
            let clock = TestClock::new();
            let window = Duration::from_micros(window);
            let quota = quota_by(algorithm, limit, window);
            let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()), quota);
            for (cost, step) in charges {
                let _ = limiter.check_n("ada", part_of(limit, cost)).await.unwrap();
                clock.advance(window.mul_f64(step));
            }
            clock.step_back(window.mul_f64(back));
            let used = async || limiter.peek("ada").await.unwrap().used();
            // More than that at once no log takes.
            let (before, given) = (used().await, part_of(limit, given).min(100_000));
            limiter.admin().credit("ada", given).await.unwrap();
            prop_assert_eq!(used().await, before.saturating_sub(given));
            let refused = limiter.check_n("ada", limit).await.unwrap();
            if let Some(wait) = refused.retry_after() {
                prop_assert!(wait <= 2 * window);
                clock.advance(wait - Duration::from_micros(1));
                prop_assert!(!limiter.check_n("ada", limit).await.unwrap().is_allowed());
                clock.advance(Duration::from_micros(1));
                prop_assert!(limiter.check_n("ada", limit).await.unwrap().is_allowed());
            }
            Ok(())
        })?;
    }

    #[test]
    fn gcra_takes_back_all_of_what_was_charged_just_now(
        before in prop::collection::vec((0..300_u64, 0..5_u32), 0..8),
        charged in 1..8_u32,
    ) {
        block_on(async {
            let clock = TestClock::new();
            let limiter = limiter(&clock, Algorithm::Gcra);
            for (wait, cost) in before {
                clock.advance(Duration::from_micros(wait));
                let _ = limiter.check_n("ada", cost).await.unwrap();
            }
            let looked = limiter.peek("ada").await.unwrap();
            let mut decision = limiter.check_n("ada", charged).await.unwrap();
            decision.refund(charged).await.unwrap();
            let after = limiter.peek("ada").await.unwrap();
            prop_assert_eq!(
                (after.used(), after.reset_after()),
                (looked.used(), looked.reset_after())
            );
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn nothing_is_given_back_twice_nor_what_was_refused() {
    let clock = TestClock::new();
    let limiter = limiter(&clock, Algorithm::SlidingLog);
    let mut decision = limiter.check_n("ada", 5).await.unwrap();
    let _ = limiter.check_n("ada", 15).await.unwrap();
    let mut refused = limiter.check_n("ada", 5).await.unwrap();
    assert_eq!((decision.held(), refused.held()), (5, 0));
    for _ in 0..3 {
        decision.refund(4).await.unwrap();
        refused.refund(4).await.unwrap();
    }
    assert_eq!(decision.held(), 0);
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 15);
}

#[tokio::test]
async fn a_level_is_given_back_to_the_limiter_that_made_it() {
    let clock = TestClock::new();
    let search = limiter(&clock, Algorithm::SlidingLog).name("search");
    let export = search.clone().name("export");
    let mut decision = search.check_n("ada", 5).await.unwrap();
    let error = decision.settle_level(&export, 0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert_eq!(decision.held(), 5);
}

#[tokio::test]
async fn all_quotas_get_back_what_all_were_charged() {
    let quotas = [
        Quota::per_second(10),
        Quota::per_second(20),
        Quota::per_day(30).with_algorithm(Algorithm::Gcra),
        Quota::per_hour(40).with_algorithm(Algorithm::SlidingBuckets(60)),
    ];
    let limiter = RateLimiter::new(MemoryStore::new(), quotas);
    let mut decision = limiter.check_n("ada", 8).await.unwrap();
    decision.refund(3).await.unwrap();
    let looked = limiter.peek("ada").await.unwrap();
    let used: Vec<_> = looked.quotas().map(|quota| quota.used()).collect();
    assert_eq!(used, [5; 4]);
}

#[tokio::test]
async fn waiting_for_room_ends_when_there_is_some_or_says_that_it_would_be_too_long() {
    let window = Duration::from_millis(100);
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::new(2, window));
    let begin = std::time::Instant::now();
    for _ in 0..4 {
        let decision = limiter
            .until_ready("ada", 1, Duration::from_secs(60))
            .await
            .unwrap();
        assert!(decision.is_allowed());
    }
    assert!(begin.elapsed() >= window);

    let slow = RateLimiter::new(MemoryStore::new(), Quota::per_hour(1));
    let _ = slow.check("ada").await.unwrap();
    let begin = std::time::Instant::now();
    let refused = slow
        .until_ready("ada", 1, Duration::from_secs(60))
        .await
        .unwrap();
    assert!(!refused.is_allowed() && refused.retry_after() > Some(Duration::from_secs(60)));
    assert!(begin.elapsed() < Duration::from_secs(1));
}

/// Returns a store on which another caller takes a unit before each of the next large charges, `races` in number.
fn contended(races: &Arc<AtomicU32>) -> FakeStore {
    let races = Arc::clone(races);
    FakeStore::in_memory().checks_by(move |counts, checks| {
        let (order, first) = (Ordering::SeqCst, checks[0]);
        let is_race = first.cost > 100
            && races
                .fetch_update(order, order, |left| left.checked_sub(1))
                .is_ok();
        if is_race {
            let other = Subject::new(first.limiter, first.key, first.quotas).check(1);
            let taken = counts.check(&[other]).try_ready();
            assert!(taken.expect("an answer at once").is_ok());
        }
        counts.check(checks)
    })
}

#[tokio::test]
async fn a_settlement_takes_all_that_is_left_after_lost_races() {
    for races in [0, 1, 3] {
        let left = Arc::new(AtomicU32::new(0));
        let limiter = RateLimiter::new(contended(&left), Quota::per_hour(1_010));
        let reserved = limiter.check_n("ada", 10).await.unwrap();
        left.store(races, Ordering::SeqCst);
        reserved.settle(1_010).await.unwrap();
        assert_eq!(limiter.peek("ada").await.unwrap().used(), 1_010, "{races}");
    }
}
