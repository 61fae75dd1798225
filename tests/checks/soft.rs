//! Soft quotas and warnings: they tell, and refuse nothing.

use std::sync::Arc;
use std::time::Duration;

use tollgate::store::TestClock;
use tollgate::{
    Acquired, Algorithm, ConfigErrorKind, Decision, ErrorKind, MemoryStore, Quota, RateLimiter,
    RedisStore, Share,
};

use crate::support::both::Both;
use crate::support::calls::stores;
use crate::support::process::{Process, argument, report};
use crate::support::redis_server::RedisServer;
use crate::support::test_time::TestTime;
use crate::support::{block_on, store_on};

const HOUR: Duration = Duration::from_secs(3_600);

fn per_hour(limit: u32, algorithm: Algorithm) -> Quota {
    Quota::new(limit, HOUR).with_algorithm(algorithm)
}

/// The soft quota's used units.
fn used_of_soft(decision: &Decision) -> Vec<u32> {
    let soft = decision.quotas().filter(|quota| quota.quota().is_soft());
    soft.map(|quota| quota.used()).collect()
}

/// The units that count against `ada`, as a whole and under the soft quota.
async fn counted(limiter: &RateLimiter) -> (u32, Vec<u32>) {
    let looked = limiter.peek("ada").await.unwrap();
    (looked.used(), used_of_soft(&looked))
}

#[tokio::test]
async fn a_soft_quota_is_charged_what_it_would_admit_and_refuses_nothing() {
    let server = RedisServer::start();
    for algorithm in Algorithm::ALL {
        for store in stores(&server) {
            let quotas = [
                per_hour(10, *algorithm),
                per_hour(5, *algorithm).soft(),
                per_hour(3, Algorithm::SlidingLog).soft(),
            ];
            let limiter = RateLimiter::new(store, quotas).name(algorithm.to_string());
            for (cost, used, exceeded) in [
                (2, [2, 2], false),
                (2, [4, 2], true),
                (2, [4, 2], true),
                // The other soft quota has no room for it.
                (1, [5, 3], false),
                (3, [5, 3], true),
            ] {
                let decision = limiter.check_n("ada", cost).await.unwrap();
                assert!(decision.is_allowed(), "{algorithm}");
                assert_eq!(decision.retry_after(), None);
                assert_eq!(decision.is_exceeded(), exceeded, "{algorithm} {cost}");
                assert_eq!(used_of_soft(&decision), used, "{algorithm} {cost}");
                assert!(decision.quotas().all(|quota| quota.is_allowed()));
                // The numbers are those of the quota that refuses.
                assert_eq!(
                    (decision.limit(), decision.remaining()),
                    (10, 10 - decision.used())
                );
            }
            // What is refused is charged to no quota, and its wait is that of the quota that refuses.
            let refused = limiter.check("ada").await.unwrap();
            assert!(!refused.is_allowed());
            assert_eq!(refused.limit(), 10);
            assert!(refused.retry_after().is_some());
            assert_eq!(used_of_soft(&limiter.peek("ada").await.unwrap()), [5, 3]);
        }
    }
}

#[tokio::test]
async fn a_cost_above_the_limit_of_a_soft_quota_is_admitted() {
    let server = RedisServer::start();
    for store in stores(&server) {
        for quotas in [
            vec![Quota::per_hour(5).soft()],
            vec![Quota::per_hour(0).soft(), Quota::per_hour(200)],
        ] {
            let limiter = RateLimiter::new(Arc::clone(&store), quotas);
            let decision = limiter.check_n("bob", 100).await.unwrap();
            assert!(decision.is_allowed() && decision.is_exceeded());
            assert_eq!(used_of_soft(&decision), [0]);
            limiter.admin().reset("bob").await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_soft_log_does_not_count_a_cost_above_what_a_log_charges_at_once() {
    let server = RedisServer::start();
    for algorithm in [Algorithm::SlidingLog, Algorithm::SortedSetLog] {
        for limit in [500_000, u32::MAX] {
            for store in stores(&server) {
                let hard = per_hour(1_000_000, Algorithm::SlidingBuckets(60));
                let quotas = [hard, per_hour(limit, algorithm).soft()];
                let limiter = RateLimiter::new(store, quotas).name(format!("{algorithm} {limit}"));
                let mut used = [0, 0];
                for (cost, exceeded) in [(150_000, true), (100_000, false), (100_001, true)] {
                    let decision = limiter.check_n("ada", cost).await.unwrap();
                    used[0] += cost;
                    used[1] += if exceeded { 0 } else { cost };
                    let context = format!("{cost}: {decision:?}");
                    assert_eq!(decision.is_exceeded(), exceeded, "{context}");
                    assert!(decision.is_allowed(), "{context}");
                    assert_eq!(decision.used(), used[0], "{context}");
                    assert_eq!(used_of_soft(&decision), [used[1]], "{context}");
                }
                // What was not charged to the soft log does not return there.
                let mut charged = limiter.check_n("ada", 150_000).await.unwrap();
                charged.refund(30_000).await.unwrap();
                let left = limiter.peek("ada").await.unwrap();
                let total = used[0] + 120_000;
                assert_eq!((left.used(), used_of_soft(&left)), (total, vec![used[1]]));
                charged.settle(0).await.unwrap();
                let left = limiter.peek("ada").await.unwrap();
                assert_eq!((left.used(), used_of_soft(&left)), (used[0], vec![used[1]]));
                limiter.admin().reset("ada").await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn only_quotas_that_refuse_make_a_cost_too_large() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let log = Quota::per_hour(1_000_000);
        let alone = RateLimiter::new(Arc::clone(&store), log.clone().soft()).name("alone");
        let mut decision = alone.check_n("ada", u32::MAX).await.unwrap();
        assert!(decision.is_allowed() && decision.is_exceeded());
        decision.refund(u32::MAX).await.unwrap();
        assert_eq!(alone.peek("ada").await.unwrap().used(), 0);
        let both = RateLimiter::new(store, [log.clone(), log.soft()]);
        let error = both.check_n("ada", 100_001).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::CostTooLarge);
    }
}

#[tokio::test]
async fn levels_and_checks_of_one_call_leave_a_large_cost_out_of_their_soft_logs() {
    let server = RedisServer::start();
    for algorithm in [Algorithm::SlidingLog, Algorithm::SortedSetLog] {
        for store in stores(&server) {
            let quotas = [
                per_hour(1_000_000, Algorithm::Gcra),
                per_hour(400_000, algorithm).soft(),
            ];
            let named = |name| {
                let limiter = RateLimiter::new(Arc::clone(&store), quotas.clone());
                limiter.name(format!("{name} {algorithm}"))
            };
            let (user, tenant) = (named("user"), named("tenant"));
            let check = |user_key: &'static str, cost| {
                RateLimiter::check_all([
                    user.level(user_key).cost(cost),
                    tenant.level("acme").cost(cost),
                ])
            };
            // The first call is under way while the others wait for the next one.
            let checks = ["ada", "bob", "ada", "bob", "ada"].map(|key| check(key, 150_000));
            let decisions = futures_util::future::join_all(checks).await;
            for decision in decisions.into_iter().map(Result::unwrap) {
                assert!(
                    decision.is_allowed() && decision.is_exceeded(),
                    "{decision:?}"
                );
                assert_eq!(used_of_soft(&decision), [0, 0]);
            }
            let counted = check("ada", 100_000).await.unwrap();
            assert_eq!(used_of_soft(&counted), [100_000, 100_000]);
            assert!(!check("ada", 200_000).await.unwrap().is_allowed());
        }
    }
}

#[tokio::test]
async fn soft_buckets_of_one_length_are_counted_apart_if_their_windows_differ() {
    let server = RedisServer::start();
    let buckets = |window, count| {
        let quota = Quota::new(8, Duration::from_secs(window));
        quota
            .with_algorithm(Algorithm::SlidingBuckets(count))
            .soft()
    };
    for store in stores(&server) {
        let [minute, half] =
            [buckets(60, 4), buckets(30, 2)].map(|quota| RateLimiter::new(store.clone(), quota));
        let _ = minute.check_n("ada", 5).await.unwrap();
        assert_eq!(half.peek("ada").await.unwrap().used(), 0);
        assert_eq!(minute.peek("ada").await.unwrap().used(), 5);
    }
}

#[tokio::test]
async fn only_what_was_charged_returns() {
    let server = RedisServer::start();
    for algorithm in Algorithm::ALL {
        for store in stores(&server) {
            let quotas = [per_hour(20, *algorithm), per_hour(5, *algorithm).soft()];
            let limiter = RateLimiter::new(store, quotas).name(algorithm.to_string());
            let mut charged = limiter.check_n("ada", 4).await.unwrap();
            let mut exceeded = limiter.check_n("ada", 4).await.unwrap();
            assert!(!charged.is_exceeded() && exceeded.is_exceeded());
            exceeded.refund(4).await.unwrap();
            assert_eq!(counted(&limiter).await, (4, vec![4]), "{algorithm}");
            charged.refund(3).await.unwrap();
            assert_eq!(counted(&limiter).await, (1, vec![1]), "{algorithm}");

            // A settlement, too: below the reserved cost, and above it.
            let reserved = limiter.check_n("ada", 2).await.unwrap();
            reserved.settle(1).await.unwrap();
            let reserved = limiter.check_n("ada", 9).await.unwrap();
            assert!(reserved.is_exceeded());
            reserved.settle(2).await.unwrap();
            assert_eq!(counted(&limiter).await, (4, vec![2]), "{algorithm}");
            let reserved = limiter.check_n("ada", 1).await.unwrap();
            reserved.settle(3).await.unwrap();
            assert_eq!(counted(&limiter).await, (7, vec![5]), "{algorithm}");

            limiter.admin().credit("ada", 1).await.unwrap();
            assert_eq!(counted(&limiter).await, (6, vec![4]), "{algorithm}");
            limiter.admin().reset("ada").await.unwrap();
            assert_eq!(counted(&limiter).await, (0, vec![0]), "{algorithm}");
        }
    }
}

#[tokio::test]
async fn a_refund_of_what_was_exceeded_takes_no_units_of_another_check_at_the_same_microsecond() {
    let server = RedisServer::start();
    let time = TestTime::new(&server);
    for algorithm in Algorithm::ALL {
        let quotas = [per_hour(20, *algorithm), per_hour(5, *algorithm).soft()];
        for limiter in Both::new(&time, quotas).0 {
            let limiter = limiter.name(algorithm.to_string());
            let _charged = limiter.check_n("ada", 4).await.unwrap();
            let mut exceeded = limiter.check_n("ada", 4).await.unwrap();
            assert!(exceeded.is_exceeded());
            exceeded.refund(4).await.unwrap();
            assert_eq!(counted(&limiter).await, (4, vec![4]), "{algorithm}");
        }
    }
}

/// A hard limit of 400 beside a soft one of 100: checks by eight threads at once.
fn admitted_and_exceeded(limiter: &RateLimiter) -> (usize, usize) {
    let check = || {
        block_on(async {
            let mut outcomes = Vec::new();
            for _ in 0..100 {
                let decision = limiter.check("all").await.expect("an answer");
                outcomes.push((decision.is_allowed(), decision.is_exceeded()));
            }
            outcomes
        })
    };
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(check)).collect();
        let outcomes = threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("no panic"));
        outcomes.collect()
    });
    let admitted = outcomes.iter().filter(|(is_allowed, _)| *is_allowed);
    let exceeded = admitted.clone().filter(|(_, is_exceeded)| *is_exceeded);
    (admitted.count(), exceeded.count())
}

#[test]
fn beside_a_soft_quota_threads_are_admitted_all_that_the_hard_one_allows() {
    let server = RedisServer::start();
    for algorithm in Algorithm::ALL {
        let quotas = || [per_hour(400, *algorithm), per_hour(100, *algorithm).soft()];
        let memory = RateLimiter::new(MemoryStore::new(), quotas());
        // Units of a gcra return one by one, and some while the test runs.
        let most = if *algorithm == Algorithm::Gcra { 20 } else { 0 };
        let redis = RateLimiter::new(store_on(&server), quotas()).name(algorithm.to_string());
        for limiter in [memory, redis] {
            let (admitted, exceeded) = admitted_and_exceeded(&limiter);
            assert!(
                (400..=400 + most).contains(&admitted),
                "{algorithm}: {admitted}"
            );
            let charged = admitted - exceeded;
            assert!(
                (100..=100 + most).contains(&charged),
                "{algorithm}: {charged}"
            );
        }
    }
}

#[test]
fn beside_a_soft_quota_four_processes_are_admitted_all_that_the_hard_one_allows() {
    const TEST: &str =
        "soft::beside_a_soft_quota_four_processes_are_admitted_all_that_the_hard_one_allows";
    if let Some(url) = argument() {
        let store = RedisStore::open(&url).unwrap();
        let store = store.deadline(Duration::from_secs(20));
        let quotas = [Quota::per_hour(400), Quota::per_hour(100).soft()];
        let (admitted, exceeded) = admitted_and_exceeded(&RateLimiter::new(store, quotas));
        return report(format_args!("{admitted} {exceeded}"));
    }
    let server = RedisServer::start();
    let children = [(); 4].map(|()| Process::of(TEST, &server.url()));
    let mut sums = [0, 0];
    for child in children {
        for (sum, number) in sums.iter_mut().zip(child.report().split(' ')) {
            *sum += number.parse::<u32>().unwrap();
        }
    }
    assert_eq!(sums, [400, 300]);
}

#[tokio::test]
async fn checks_of_one_call_are_exceeded_one_by_one() {
    // While one call is in flight, the others wait for the next one, in which identical checks are one entry.
    let server = RedisServer::start();
    for algorithm in Algorithm::ALL {
        let quotas = [per_hour(30, *algorithm), per_hour(10, *algorithm).soft()];
        let limiter = RateLimiter::new(store_on(&server), quotas).name(algorithm.to_string());
        let checks = (0..40).map(|_| limiter.check("ada"));
        let decisions = futures_util::future::join_all(checks).await;
        let decisions: Vec<_> = decisions.into_iter().map(Result::unwrap).collect();
        let admitted = decisions.iter().filter(|decision| decision.is_allowed());
        let exceeded = admitted.clone().filter(|decision| decision.is_exceeded());
        assert_eq!(
            (admitted.clone().count(), exceeded.count()),
            (30, 20),
            "{algorithm}"
        );
        for (number, decision) in (1..).zip(admitted) {
            assert_eq!(decision.used(), number);
            assert_eq!(used_of_soft(decision), [number.min(10)]);
        }
    }
}

#[tokio::test]
async fn a_decision_is_warned_from_its_percentage_on() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let quotas = [
            Quota::per_hour(10).warn_at(75),
            Quota::per_hour(5).soft().warn_at(100),
        ];
        let limiter = RateLimiter::new(store, quotas);
        for used in 1..=10 {
            let decision = limiter.check("ada").await.unwrap();
            assert_eq!(decision.is_warned(), used >= 5, "{used}");
        }
        assert!(limiter.peek("ada").await.unwrap().is_warned());
        let only = RateLimiter::new(MemoryStore::new(), Quota::per_hour(10).warn_at(75));
        for used in 1..=10 {
            assert_eq!(
                only.check("ada").await.unwrap().is_warned(),
                used >= 8,
                "{used}"
            );
        }
    }
}

#[tokio::test]
async fn units_of_a_soft_quota_return_when_their_window_ends() {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let limiter = RateLimiter::new(store, [Quota::per_minute(9), Quota::per_second(1).soft()]);
    assert!(!limiter.check("ada").await.unwrap().is_exceeded());
    clock.advance(Duration::from_micros(999_999));
    assert!(limiter.check("ada").await.unwrap().is_exceeded());
    clock.advance(Duration::from_micros(1));
    assert!(!limiter.check("ada").await.unwrap().is_exceeded());
}

#[tokio::test]
async fn a_soft_quota_is_charged_what_is_settled_after_the_window_of_the_reservation() {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let limiter = RateLimiter::new(store, [Quota::per_second(9), Quota::per_hour(9).soft()]);
    let reserved = limiter.check_n("ada", 2).await.unwrap();
    clock.advance(Duration::from_secs(1));
    reserved.settle(5).await.unwrap();
    let left = limiter.peek("ada").await.unwrap();
    assert_eq!((left.used(), used_of_soft(&left)), (3, vec![5]));
}

#[tokio::test]
async fn a_soft_quota_may_stand_beside_slots() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(store, [Quota::in_flight(2), Quota::per_hour(1).soft()]);
        let first = limiter.acquire("ada").await.unwrap();
        let second = limiter.acquire("ada").await.unwrap();
        assert!(!first.decision().is_exceeded() && second.decision().is_exceeded());
        assert_eq!(second.decision().limit(), 2);
        let Acquired::Refused(refused) = limiter.try_acquire("ada").await.unwrap() else {
            panic!("both slots are held");
        };
        assert_eq!(used_of_soft(&refused), [1]);
    }
}

#[tokio::test]
async fn a_lease_beside_a_soft_quota_is_a_config_error() {
    let quotas = [Quota::per_minute(9), Quota::per_minute(5).soft()];
    let limiter = RateLimiter::new(MemoryStore::new(), quotas).lease(Duration::from_millis(50));
    let error = limiter.check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("soft quota"), "{error}");
    let source = std::error::Error::source(&error).unwrap();
    let source = source.downcast_ref::<tollgate::ConfigError>().unwrap();
    assert_eq!(source.kind(), ConfigErrorKind::Lease);
}

#[tokio::test]
async fn a_blocked_key_is_refused_though_all_quotas_are_soft() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(5).soft());
    limiter.admin().block("ada", HOUR).await.unwrap();
    let decision = limiter.check("ada").await.unwrap();
    assert!(!decision.is_allowed() && !decision.is_exceeded());
    assert!(decision.retry_after().is_some());
}

#[tokio::test]
async fn a_soft_quota_may_have_shares() {
    let server = RedisServer::start();
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingBuckets(60)] {
        for store in stores(&server) {
            let soft = per_hour(10, algorithm)
                .shares([Share::of("critical").reserve(4)])
                .soft();
            assert_eq!(soft.to_string().parse::<Quota>().unwrap(), soft);
            let limiter = RateLimiter::new(store, [Quota::per_day(100), soft]);
            let limiter = limiter.name(algorithm.to_string());
            // Four units are kept for critical requests.
            for (share, cost, used, exceeded) in [
                (None, 6, 6, false),
                (None, 1, 6, true),
                (Some("critical"), 3, 9, false),
                (Some("critical"), 2, 9, true),
                (Some("critical"), 1, 10, false),
            ] {
                let level = limiter.level("ada").cost(cost);
                let level = match share {
                    Some(share) => level.share(share),
                    None => level,
                };
                let decision = RateLimiter::check_all([level]).await.unwrap();
                let context = format!("{algorithm}: {cost} of {share:?}: {decision:?}");
                assert!(decision.is_allowed(), "{context}");
                assert_eq!(decision.is_exceeded(), exceeded, "{context}");
                if share.is_some() {
                    assert_eq!(used_of_soft(&decision), [used], "{context}");
                }
            }
        }
    }
}
