//! A property of `RateLimiter::settle` for any reservation: afterwards, the units used are the actual cost
//! plus the charges of others, also beyond the limit.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::store::TestClock;
use tollgate::{Algorithm, Decision, MemoryStore, Quota, RateLimiter};

use crate::{algorithms, used};

use crate::support::block_on;

const LIMIT: u32 = 50;
const WINDOW: u64 = 1_000;

fn limiter(clock: &TestClock, algorithm: Algorithm) -> RateLimiter {
    let quota = Quota::new(LIMIT, Duration::from_micros(WINDOW)).with_algorithm(algorithm);
    RateLimiter::new(MemoryStore::with_clock(clock.clone()), quota)
}

/// What others are charged before, with a wait after each.
fn others() -> impl Strategy<Value = Vec<(u32, u64)>> {
    prop::collection::vec((0..12_u32, 0..300_u64), 0..6)
}

/// Has others charge as much as there is room for.
async fn charge(limiter: &RateLimiter, units: u32) {
    let room = limiter.peek("ada").await.unwrap().remaining();
    let _ = limiter.check_n("ada", units.min(room)).await.unwrap();
}

/// Has others charge before, and reserves as much of this as there is room for then.
async fn reserve_after(
    clock: &TestClock,
    limiter: &RateLimiter,
    before: Vec<(u32, u64)>,
    reserved: u32,
) -> Decision {
    for (units, wait) in before {
        charge(limiter, units).await;
        clock.advance(Duration::from_micros(wait));
    }
    let room = limiter.peek("ada").await.unwrap().remaining();
    limiter.check_n("ada", reserved.min(room)).await.unwrap()
}

/// Returns the units that count after more of them were charged. A sorted set has at most the limit of them as members, and
/// Gcra at most what drains in 1 000 windows.
fn counted(algorithm: Algorithm, before: u32, more: u32) -> u32 {
    match algorithm {
        Algorithm::SortedSetLog => before + more.min(LIMIT),
        Algorithm::Gcra => before.saturating_add(more).min(1_000 * LIMIT),
        _ => before.saturating_add(more),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// At the time of the reservation. Gcra's meter drains all the time, but not within an instant.
    #[test]
    fn what_counts_is_what_others_and_this_one_used(
        algorithm in prop::sample::select(algorithms().collect::<Vec<_>>()),
        before in others(),
        reserved in 1..=LIMIT,
        given_back in 0..10_u32,
        after in 0..30_u32,
        used_units in prop_oneof![0..=2 * LIMIT, Just(u32::MAX)],
    ) {
        block_on(async {
            let clock = TestClock::new();
            let limiter = limiter(&clock, algorithm);
            let mut decision = reserve_after(&clock, &limiter, before, reserved).await;
            decision.refund(given_back).await.unwrap();
            charge(&limiter, after).await;
            let (held, was_charged) = (decision.held(), decision.cost() > 0);
            let others = used(&limiter, "ada").await - held;
            decision.settle(used_units).await.unwrap();
            let more = if was_charged { used_units.saturating_sub(held) } else { 0 };
            let expected = counted(algorithm, others + held.min(used_units), more);
            let counts = used(&limiter, "ada").await;
            // A part of a unit counts as one.
            let is_full = expected == 1_000 * LIMIT && counts == expected + 1;
            prop_assert!(counts == expected || is_full, "{counts}, not {expected}");
            Ok(())
        })?;
    }

    /// Later: what is charged more counts from now on, in full; what is given back is at most what was
    /// reserved, never another's.
    #[test]
    fn later_more_is_charged_in_full_and_no_more_is_given_back_than_was_reserved(
        algorithm in prop::sample::select(algorithms().collect::<Vec<_>>()),
        before in others(),
        reserved in 1..=LIMIT,
        wait in 0..2 * WINDOW,
        after in 0..30_u32,
        used_units in 0..=2 * LIMIT,
    ) {
        block_on(async {
            let clock = TestClock::new();
            let limiter = limiter(&clock, algorithm);
            let decision = reserve_after(&clock, &limiter, before, reserved).await;
            let reserved = decision.held();
            clock.advance(Duration::from_micros(wait));
            charge(&limiter, after).await;
            let counted = used(&limiter, "ada").await;
            decision.settle(used_units).await.unwrap();
            let counts = used(&limiter, "ada").await;
            let more = used_units.saturating_sub(reserved);
            if more > 0 && reserved > 0 {
                prop_assert_eq!(counts, self::counted(algorithm, counted, more));
            } else {
                prop_assert!(counts <= counted);
                prop_assert!(counted - counts <= reserved.saturating_sub(used_units));
            }
            Ok(())
        })?;
    }

    /// Of several quotas, each is charged in full.
    #[test]
    fn of_several_quotas_all_are_charged_in_full(
        limits in (1..60_u32, 1..60_u32),
        reserved in 1..30_u32,
        used_units in 0..90_u32,
    ) {
        block_on(async {
            let (small, large) = (Quota::per_minute(limits.0), Quota::per_hour(limits.1));
            let limiter = RateLimiter::new(MemoryStore::new(), [small, large]);
            let least = limits.0.min(limits.1);
            let decision = limiter.check_n("ada", reserved.min(least)).await.unwrap();
            decision.settle(used_units).await.unwrap();
            let looked = limiter.peek("ada").await.unwrap();
            for quota in looked.quotas() {
                prop_assert_eq!(quota.used(), used_units);
            }
            Ok(())
        })?;
    }
}

#[test]
fn more_than_a_log_takes_at_once_is_charged_in_full() {
    block_on(async {
        let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(1_500_000));
        let decision = limiter.check("ada").await.unwrap();
        decision.settle(1_400_000).await.unwrap();
        assert_eq!(used(&limiter, "ada").await, 1_400_000);
    });
}
