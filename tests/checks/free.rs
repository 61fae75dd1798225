//! A cost of 0: every rate admits it, also above its limit, and charges nothing. A look says whether a unit would be admitted.

use std::sync::Arc;
use std::time::Duration;

use tollgate::{
    Acquired, Algorithm, Decision, FailurePolicy, MemoryStore, Quota, Quotas, RateLimiter, Share,
    Source, Store,
};

use crate::support::algorithms::algorithms;
use crate::support::both::{Both, Outcome, outcome};
use crate::support::fakes::moody::Moody;
use crate::support::redis_server::RedisServer;
use crate::support::store_on;
use crate::support::test_time::TestTime;

const HOUR: Duration = Duration::from_secs(3_600);

fn stores(server: &RedisServer) -> [Arc<dyn Store>; 2] {
    [Arc::new(MemoryStore::new()), Arc::new(store_on(server))]
}

/// A quota of an hour.
fn per_hour(limit: u32, algorithm: Algorithm) -> Quota {
    Quota::per_hour(limit).with_algorithm(algorithm)
}

/// Has 11 of 10 units used, whatever the algorithm.
async fn exceed(limiters: &Both) {
    assert!(limiters.decide("ada", 10).await.allowed);
    limiters.charge("ada", 1).await;
}

/// What both stores say to a look.
async fn look(limiters: &Both) -> Outcome {
    let [memory, redis] = &limiters.0;
    let in_memory = outcome(&memory.peek("ada").await);
    assert_eq!(in_memory, outcome(&redis.peek("ada").await));
    in_memory.expect("a look")
}

#[tokio::test]
async fn every_rate_admits_a_cost_of_0_above_its_limit_and_charges_nothing() {
    let server = RedisServer::start();
    for algorithm in algorithms(6) {
        let time = TestTime::new(&server);
        exceed(&Both::new(&time, per_hour(10, algorithm))).await;
        let alone = |limit| Quotas::from(per_hour(limit, algorithm));
        let beside = Quotas::from([
            per_hour(10, algorithm),
            Quota::per_minute(100).with_algorithm(algorithm),
            Quota::per_hour(5)
                .with_algorithm(Algorithm::Gcra)
                .with_name("other"),
        ]);
        for quotas in [alone(10), alone(3), beside] {
            let limiters = Both::new(&time, quotas.clone());
            let before = limiters.decide("ada", 0).await;
            assert!(before.allowed, "{quotas}: {before:?}");
            assert_eq!(before.wait(), None, "{quotas}");
            assert_eq!((before.used(), before.whole.remaining), (11, 0), "{quotas}");
            assert!(before.whole.reset_after > Duration::ZERO, "{quotas}");
            assert_eq!(before, limiters.decide("ada", 0).await, "{quotas}");
            // A unit is refused, as before.
            let refused = limiters.decide("ada", 1).await;
            assert!(!refused.allowed && refused.wait().is_some(), "{refused:?}");
        }
    }
}

#[tokio::test]
async fn a_limit_of_0_refuses_a_cost_of_0_and_no_wait_helps() {
    let server = RedisServer::start();
    for algorithm in algorithms(6) {
        let time = TestTime::new(&server);
        let none = Quotas::from(per_hour(0, algorithm));
        let beside = Quotas::from([per_hour(9, algorithm), Quota::per_minute(0)]);
        for quotas in [none.clone(), beside] {
            let limiters = Both::new(&time, quotas.clone());
            let refused = limiters.decide("ada", 0).await;
            assert!(!refused.allowed, "{quotas}: {refused:?}");
            assert_eq!(refused.wait(), None, "{quotas}");
            assert!(!look(&limiters).await.allowed, "{quotas}");
        }
        // Also while units count, of a time when the limit was higher.
        exceed(&Both::new(&time, per_hour(10, algorithm))).await;
        let refused = Both::new(&time, none).decide("ada", 0).await;
        assert!(!refused.allowed && refused.wait().is_none(), "{refused:?}");
        assert_eq!(refused.used(), 11);
    }
}

#[tokio::test]
async fn a_share_that_gets_nothing_refuses_a_cost_of_0_and_others_admit_it_above_their_bound() {
    let shares = || [Share::of("none").at_most(0), Share::of("batch").at_most(4)];
    let server = RedisServer::start();
    let rates = [Algorithm::SlidingLog, Algorithm::SlidingBuckets(6)];
    for (store, algorithm) in stores(&server).into_iter().zip(rates.into_iter().cycle()) {
        let of = |limit| {
            let quota = per_hour(limit, algorithm).shares(shares());
            RateLimiter::new(Arc::clone(&store), quota).name("shares")
        };
        let ask = async |limiter: &RateLimiter, share: &str, cost: u32| {
            let level = limiter.level("ada").share(share).cost(cost);
            RateLimiter::check_all([level]).await.unwrap()
        };
        let limiter = of(9);
        assert!(ask(&limiter, "batch", 4).await.is_allowed());
        for limiter in [limiter.clone(), of(5)] {
            let full = ask(&limiter, "batch", 0).await;
            assert!(full.is_allowed() && full.remaining() == 0, "{full:?}");
            let none = ask(&limiter, "none", 0).await;
            assert!(
                !none.is_allowed() && none.retry_after().is_none(),
                "{none:?}"
            );
        }
        // 2 units less than are used, so that the share is above what it may have.
        let lowered = of(2);
        let above = ask(&lowered, "batch", 0).await;
        assert!(above.is_allowed(), "{above:?}");
        assert!(!ask(&lowered, "batch", 1).await.is_allowed());
    }
}

#[tokio::test]
async fn a_soft_quota_has_room_for_a_cost_of_0_unless_its_limit_is_0() {
    let server = RedisServer::start();
    for algorithm in algorithms(6) {
        let time = TestTime::new(&server);
        let soft = |limit| [per_hour(9, algorithm), per_hour(limit, algorithm).soft()];
        let limiters = Both::new(&time, soft(5));
        assert!(limiters.decide("ada", 5).await.allowed);
        assert!(limiters.decide("ada", 1).await.exceeded);
        let lowered = Both::new(&time, soft(2));
        let free = lowered.decide("ada", 0).await;
        assert!(free.allowed && !free.exceeded, "{algorithm:?}: {free:?}");
        let free = Both::new(&time, soft(0)).decide("ada", 0).await;
        assert!(free.allowed && free.exceeded, "{algorithm:?}: {free:?}");
    }
}

#[tokio::test]
async fn a_level_of_cost_0_above_its_limit_lets_the_others_be_charged() {
    let server = RedisServer::start();
    for store in stores(&server) {
        for algorithm in algorithms(6) {
            let limiter = |name: &str, limit| {
                let quota = per_hour(limit, algorithm);
                RateLimiter::new(Arc::clone(&store), quota).name(format!("{name} {algorithm:?}"))
            };
            let user = limiter("user", 5);
            let tenant = limiter("tenant", 10);
            assert!(tenant.check_n("acme", 10).await.unwrap().is_allowed());
            for (tenants, passes) in [
                (tenant.clone(), true),
                (limiter("tenant", 4), true),
                (limiter("tenant", 0), false),
            ] {
                let levels = [user.level("ada").cost(1), tenants.level("acme").cost(0)];
                let decision = RateLimiter::check_all(levels).await.unwrap();
                assert_eq!(decision.is_allowed(), passes, "{decision:?}");
            }
            assert_eq!(user.peek("ada").await.unwrap().used(), 2);
            assert_eq!(tenant.peek("acme").await.unwrap().used(), 10);
            // And refuse, without the other level.
            let levels = [user.level("ada").cost(4), tenant.level("acme").cost(0)];
            let refused = RateLimiter::check_all(levels).await.unwrap();
            let admits: Vec<_> = refused.levels().map(|level| level.is_allowed()).collect();
            assert_eq!(admits, [false, true]);
        }
    }
}

#[tokio::test]
async fn a_block_refuses_a_cost_of_0() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(10));
    limiter.admin().block("ada", HOUR).await.unwrap();
    let refused = limiter.check_n("ada", 0).await.unwrap();
    assert!(!refused.is_allowed() && refused.source() == Source::Block);
    // What never passes is told no wait, blocked or not.
    let none = RateLimiter::new(MemoryStore::new(), Quota::per_hour(0));
    none.admin().block("ada", HOUR).await.unwrap();
    let refused = none.check_n("ada", 0).await.unwrap();
    assert!(
        !refused.is_allowed() && refused.retry_after().is_none(),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_cost_of_0_is_admitted_by_leased_units_and_by_the_fallback() {
    let server = RedisServer::start();
    let leased =
        RateLimiter::new(store_on(&server), Quota::per_minute(100)).lease(Duration::from_secs(2));
    leased.charge("ada", 101).await.unwrap();
    let failing = RateLimiter::new(Moody::unavailable(), Quota::per_hour(10))
        .on_failure(FailurePolicy::fall_back());
    assert!(failing.check_n("ada", 10).await.unwrap().is_allowed());
    let lowered = RateLimiter::new(Moody::unavailable(), Quota::per_hour(0))
        .on_failure(FailurePolicy::fall_back());
    for (limiter, passes) in [(leased, true), (failing, true), (lowered, false)] {
        let free = limiter.check_n("ada", 0).await.unwrap();
        assert_eq!(free.is_allowed(), passes, "{free:?}");
    }
}

/// Polls a future once.
async fn at_once(
    waits: impl Future<Output = Result<Decision, tollgate::Error>>,
) -> Option<Decision> {
    tokio::select! {
        biased;
        ready = waits => Some(ready.unwrap()),
        () = std::future::ready(()) => None,
    }
}

#[tokio::test]
async fn who_asks_for_no_units_waits_for_nobody() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(2)).queue(1);
    let other = RateLimiter::new(MemoryStore::new(), Quota::per_hour(2));
    for limiter in [&limiter, &other] {
        assert!(limiter.check_n("ada", 2).await.unwrap().is_allowed());
    }
    let mut waiting = Box::pin(limiter.until_ready("ada", 1, 2 * HOUR));
    assert!(at_once(&mut waiting).await.is_none());
    // Not behind the one that waits, and not too late for a full queue.
    for max_wait in [Duration::ZERO, HOUR] {
        let free = at_once(limiter.until_ready("ada", 0, max_wait)).await;
        assert!(free.is_some_and(|free| free.is_allowed()), "{max_wait:?}");
    }
    drop(waiting);
    // Who is never admitted is told so.
    let none = RateLimiter::new(MemoryStore::new(), Quota::per_hour(0));
    let refused = at_once(none.until_ready("ada", 0, HOUR)).await;
    assert!(refused.is_some_and(|refused| !refused.is_allowed()));
}

#[tokio::test]
async fn a_look_says_what_is_left_and_whether_the_next_unit_would_be_admitted() {
    let server = RedisServer::start();
    for algorithm in algorithms(6) {
        let mut time = TestTime::new(&server);
        let limiters = Both::new(&time, per_hour(10, algorithm));
        let fresh = look(&limiters).await;
        assert!(fresh.allowed && fresh.whole.remaining == 10, "{fresh:?}");
        assert!(limiters.decide("ada", 9).await.allowed);
        let one_left = look(&limiters).await;
        assert!(
            one_left.allowed && one_left.whole.remaining == 1,
            "{one_left:?}"
        );
        assert!(limiters.decide("ada", 1).await.allowed);
        time.advance(Duration::from_secs(7));
        limiters.charge("ada", 1).await;
        for limit in [10, 3] {
            let limiters = Both::new(&time, per_hour(limit, algorithm));
            let looked = look(&limiters).await;
            assert!(!looked.allowed, "{algorithm:?}: {looked:?}");
            assert_eq!((looked.used(), looked.whole.remaining), (11, 0));
            // The same as who asks for a unit is told, and nothing was charged.
            let refused = limiters.decide("ada", 1).await;
            assert_eq!(looked, refused, "{algorithm:?}");
        }
    }
}

#[tokio::test]
async fn a_look_at_several_keys_and_at_slots_says_whether_the_next_request_would_be_admitted() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = |name: &str, quotas: Vec<Quota>| {
            RateLimiter::new(Arc::clone(&store), quotas).name(name)
        };
        let user = limiter("user", vec![Quota::per_hour(5)]);
        let streams = limiter("streams", vec![Quota::per_hour(9), Quota::in_flight(1)]);
        let levels = || [user.level("ada"), streams.level("acme")];
        let status = RateLimiter::peek_all(levels()).await.unwrap();
        assert!(status.view.is_allowed());
        let Acquired::Permit(permit) = streams.try_acquire("acme").await.unwrap() else {
            panic!("a slot is free");
        };
        let status = RateLimiter::peek_all(levels()).await.unwrap();
        assert!(!status.view.is_allowed() && status.view.is_wait_estimated());
        // At least a second, as for a refusal.
        assert!(status.view.retry_after() >= Some(Duration::from_secs(1)));
        let looked = streams.admin().status("acme").await.unwrap();
        assert!(!looked.view.is_allowed());
        // A cost of 0 that takes no slot is not refused by those that are held.
        assert!(streams.check_n("acme", 0).await.unwrap().is_allowed());
        permit.release().await.unwrap();
        assert!(streams.peek("acme").await.unwrap().is_allowed());
        // A block is told apart.
        user.admin().block("ada", HOUR).await.unwrap();
        let status = RateLimiter::peek_all(levels()).await.unwrap();
        assert!(status.view.is_allowed() && status.blocked_for.is_some());
    }
}

#[tokio::test]
async fn a_look_while_nothing_counts_says_that_a_unit_would_be_admitted() {
    let open = RateLimiter::new(Moody::unavailable(), Quota::per_hour(0))
        .on_failure(FailurePolicy::open());
    assert!(open.check_n("ada", 0).await.unwrap().is_allowed());
    assert!(open.peek("ada").await.unwrap().is_allowed());
    let unlimited = RateLimiter::new(MemoryStore::new(), Quotas::from([]));
    assert!(unlimited.peek("ada").await.unwrap().is_allowed());
}
