//! Random trees of levels, with an oracle that keeps every unit of every key.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::store::TestStore;
use tollgate::store::protocol::{Check, Counters, Subject};
use tollgate::{
    Algorithm, Decision, ErrorKind, Key, LevelCheck, Quota, QuotaDecision, Quotas, RateLimiter,
    Source,
};

use crate::support::algorithms::quota_by;
use crate::support::block_on;

const LIMITERS: [&str; 3] = ["user", "tenant", "service"];
const KEYS: [&str; 3] = ["ada", "bob", "cem"];

/// One check: for each level the limiter, the key and the cost.
#[derive(Clone, Debug)]
struct Step {
    advance_micros: u64,
    levels: Vec<(usize, usize, u32)>,
    store_fails: bool,
    /// Whether a refused check is repeated when its wait ends.
    is_patient: bool,
}

fn quotas() -> impl Strategy<Value = Vec<Quota>> {
    let algorithm = prop_oneof![
        Just(Algorithm::SlidingLog),
        Just(Algorithm::SortedSetLog),
        Just(Algorithm::SlidingCounter),
        Just(Algorithm::SlidingBuckets(4)),
        Just(Algorithm::FixedWindow),
        Just(Algorithm::Gcra),
        Just(Algorithm::Total),
    ];
    let quota = (1_u32..9, 10_u64..200, algorithm).prop_map(|(limit, millis, algorithm)| {
        quota_by(algorithm, limit, Duration::from_millis(millis))
    });
    proptest::collection::vec(quota, 1..4)
}

fn step() -> impl Strategy<Value = Step> {
    let level = (0..LIMITERS.len(), 0..KEYS.len(), 0_u32..5);
    let levels = proptest::collection::vec(level, 1..6);
    (
        0_u64..40_000,
        levels,
        prop::bool::weighted(0.1),
        any::<bool>(),
    )
        .prop_map(|(advance_micros, mut levels, store_fails, is_patient)| {
            let mut seen = Vec::new();
            levels.retain(|(limiter, key, _)| {
                let is_new = !seen.contains(&(*limiter, *key));
                seen.push((*limiter, *key));
                is_new
            });
            Step {
                advance_micros,
                levels,
                store_fails,
                is_patient,
            }
        })
}

/// The counts that the store should have.
struct Oracle {
    quotas: Vec<Quotas>,
    counts: HashMap<(usize, usize), Counters>,
    /// The time and the cost of each charge.
    charges: HashMap<(usize, usize), Vec<(u64, u32)>>,
}

impl Oracle {
    fn with_check<T>(
        &mut self,
        (limiter, key, cost): (usize, usize, u32),
        decide: impl FnOnce(&mut Counters, Check<'_>) -> T,
    ) -> T {
        let (name, stored) = (Key::from(LIMITERS[limiter]), Key::from(KEYS[key]));
        let check = Subject::new(&name, &stored, &self.quotas[limiter]).check(cost);
        decide(self.counts.entry((limiter, key)).or_default(), check)
    }

    fn admits(&mut self, level: (usize, usize, u32), now: u64) -> bool {
        let decide = |counts: &mut Counters, check: Check<'_>| {
            counts
                .clone()
                .decide(check, Source::Memory, now)
                .is_admitted()
        };
        self.with_check(level, decide)
    }

    fn charge(&mut self, level: (usize, usize, u32), now: u64) {
        let charge = |counts: &mut Counters, check: Check<'_>| {
            counts.check(check, Source::Memory, now).is_admitted()
        };
        assert!(self.with_check(level, charge));
        let (limiter, key, cost) = level;
        let charges = self.charges.entry((limiter, key)).or_default();
        charges.push((now, cost));
        for quota in self.quotas[limiter].iter() {
            let is_exact = matches!(
                quota.algorithm(),
                Algorithm::SlidingLog | Algorithm::SortedSetLog | Algorithm::SlidingBuckets(_)
            );
            let window = u64::try_from(quota.window().as_micros()).unwrap();
            let counted = charges.iter().filter(|(time, _)| now < time + window);
            let units: u32 = counted.map(|(_, cost)| cost).sum();
            assert!(!is_exact || units <= quota.limit(), "{quota}: {units}");
        }
    }

    /// The units that count under each quota of a key.
    fn used(&mut self, limiter: usize, key: usize, now: u64) -> Vec<u32> {
        self.with_check((limiter, key, 0), |counts, check| {
            let answer = counts.clone().decide(check, Source::Memory, now);
            answer.quotas().iter().map(|quota| quota.used()).collect()
        })
    }
}

/// Compares the reported numbers with the rule: the refusing quota with the longest wait, else the one with the
/// fewest units left, then the longer reset, then the first.
fn verify_reported(decision: &Decision) {
    let quotas: Vec<QuotaDecision<'_>> = decision.quotas().collect();
    assert_eq!(decision.quotas().len(), quotas.len());
    let order = |quota: &&QuotaDecision<'_>| {
        let wait = match quota.is_allowed() {
            true => Duration::ZERO,
            false => quota.retry_after().unwrap_or(Duration::MAX),
        };
        (
            Reverse(wait),
            quota.remaining(),
            Reverse(quota.reset_after()),
        )
    };
    let reported = quotas.iter().min_by_key(order).unwrap();
    assert_eq!(decision.cost(), reported.cost());
    assert_eq!(decision.limit(), reported.limit());
    assert_eq!(decision.used(), reported.used());
    assert_eq!(decision.retry_after(), reported.retry_after());
    assert_eq!(decision.reset_after(), reported.reset_after());
    let least = quotas.iter().map(QuotaDecision::remaining).min();
    assert_eq!(Some(decision.remaining()), least);
    let by_level = decision.levels().flat_map(|level| level.quotas());
    let name = |quota: QuotaDecision<'_>| (quota.limiter().to_owned(), quota.used());
    assert!(by_level.map(name).eq(decision.quotas().map(name)));
}

async fn run(quotas: Vec<Vec<Quota>>, steps: Vec<Step>) {
    let store = TestStore::new();
    let clock = store.clock().clone();
    let limiters: Vec<_> = LIMITERS
        .iter()
        .zip(&quotas)
        .map(|(name, quotas)| RateLimiter::new(store.clone(), quotas.clone()).name(*name))
        .collect();
    let mut oracle = Oracle {
        quotas: quotas.into_iter().map(Quotas::from).collect(),
        counts: HashMap::new(),
        charges: HashMap::new(),
    };
    let mut failures = 0;
    for step in &steps {
        clock.advance(Duration::from_micros(step.advance_micros));
        let checks = || -> Vec<LevelCheck<'_>> {
            let levels = step.levels.iter();
            levels
                .map(|(limiter, key, cost)| limiters[*limiter].level(KEYS[*key]).cost(*cost))
                .collect()
        };
        let now = clock.now_micros();
        let exceeds = step.levels.iter().any(|(limiter, _, cost)| {
            let mut quotas = oracle.quotas[*limiter].iter();
            quotas.any(|quota| *cost > quota.limit())
        });
        // More failures in a row would open the circuit breaker.
        if !exceeds && step.store_fails && failures < 3 {
            failures += 1;
            store.fail_next(1, ErrorKind::Unavailable);
            let error = RateLimiter::check_all(checks()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
        } else if exceeds {
            let error = RateLimiter::check_all(checks()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::CostExceedsLimit);
        } else {
            failures = 0;
            let decision = RateLimiter::check_all(checks()).await.unwrap();
            verify_reported(&decision);
            let expected: Vec<_> = step
                .levels
                .iter()
                .map(|level| oracle.admits(*level, now))
                .collect();
            let admitted: Vec<_> = decision.levels().map(|level| level.is_allowed()).collect();
            assert_eq!(admitted, expected);
            assert_eq!(
                decision.is_allowed(),
                expected.iter().all(|admitted| *admitted)
            );
            if decision.is_allowed() {
                for level in step.levels.iter().filter(|(_, _, cost)| *cost > 0) {
                    oracle.charge(*level, now);
                }
            } else if let (true, Some(wait)) = (step.is_patient, decision.retry_after()) {
                clock.advance(wait - Duration::from_micros(1));
                let early = RateLimiter::check_all(checks()).await.unwrap();
                assert!(
                    !early.is_allowed(),
                    "admitted 1 µs before the end of {wait:?}"
                );
                clock.advance(Duration::from_micros(1));
                let decision = RateLimiter::check_all(checks()).await.unwrap();
                assert!(decision.is_allowed(), "refused after {wait:?}");
                for level in step.levels.iter().filter(|(_, _, cost)| *cost > 0) {
                    oracle.charge(*level, clock.now_micros());
                }
            }
        }
        for (index, limiter) in limiters.iter().enumerate() {
            for (key, name) in KEYS.iter().enumerate() {
                let counted = limiter.peek(*name).await.unwrap();
                let counted: Vec<_> = counted.quotas().map(|quota| quota.used()).collect();
                let expected = oracle.used(index, key, clock.now_micros());
                assert_eq!(counted, expected, "{} {name}", LIMITERS[index]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_level_is_charged_or_none_and_waits_are_exact(
        quotas in proptest::collection::vec(quotas(), LIMITERS.len()),
        steps in proptest::collection::vec(step(), 1..30),
    ) {
        block_on(run(quotas, steps));
    }
}
