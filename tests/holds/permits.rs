//! Permits that hold units, on a store in memory and on Redis.

use std::time::Duration;

use tollgate::store::Store;
use tollgate::{
    Acquired, Algorithm, Decision, ErrorKind, MemoryStore, Permit, Quota, RateLimiter, Share,
};

use crate::support::redis_server::RedisServer;
use crate::support::store_on;
use crate::{LEASE, held, reserve, until_held, until_used};

const DAY: Duration = Duration::from_secs(86_400);

/// Runs a test on a store in memory, and on Redis.
async fn on_both(test: impl AsyncFn(&RateLimiter)) {
    let quota = Quota::total(100, DAY);
    test(&RateLimiter::new(MemoryStore::new(), quota.clone()).reserve_lease(LEASE)).await;
    let server = RedisServer::start();
    test(&RateLimiter::new(store_on(&server), quota).reserve_lease(LEASE)).await;
}

async fn refused(limiter: &RateLimiter, units: u32) -> Decision {
    match RateLimiter::try_acquire_all([limiter.level("ada").cost(units)]).await {
        Ok(Acquired::Refused(decision)) => decision,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_was_added_is_charged_and_the_rest_returns() {
    on_both(async |limiter| {
        let mut permit = reserve(limiter, 40).await;
        assert_eq!(permit.decision().used(), 40);
        permit.add(10);
        permit.add(5);
        drop(permit);
        until_used(limiter, 15).await;
        assert_eq!(held(limiter).await, 0);
    })
    .await;
}

#[tokio::test]
async fn each_limiter_of_a_permit_is_charged_what_was_added_to_it_and_settled_apart() {
    let store = MemoryStore::new();
    let reserving = |name: &str| {
        let limiter = RateLimiter::new(store.clone(), Quota::total(1_000, DAY));
        limiter.name(name).reserve_lease(LEASE)
    };
    let limiters = ["tokens", "cents", "calls"].map(reserving);
    let [tokens, cents, calls] = &limiters;
    let levels = limiters
        .iter()
        .map(|limiter| limiter.level("ada").cost(100));
    let mut permit = RateLimiter::acquire_all(levels).await.unwrap();
    permit.add_level(tokens, 30).unwrap();
    permit.add_level(tokens, 5).unwrap();
    permit.add_level(cents, 2).unwrap();
    let error = permit.add_level(&reserving("others"), 9).unwrap_err();
    assert_eq!(error.code(), "tollgate::E015");
    permit.settle_level(cents, 7).unwrap();
    // Nothing is held of it any more.
    permit.settle_level(cents, 50).unwrap();
    permit.add_level(cents, 50).unwrap();
    until_used(cents, 7).await;
    assert_eq!((held(tokens).await, held(cents).await), (65, 0));
    assert_eq!(held(calls).await, 100);
    permit.add(1);
    drop(permit);
    until_used(tokens, 36).await;
    until_used(calls, 1).await;
    until_used(cents, 7).await;
}

#[tokio::test]
async fn a_permit_that_is_dropped_without_a_word_is_charged_as_a_whole() {
    on_both(async |limiter| {
        drop(reserve(limiter, 40).await);
        // Held units are used, too.
        until_held(limiter, 0).await;
        until_used(limiter, 40).await;
    })
    .await;
}

#[tokio::test]
async fn a_permit_to_which_nothing_was_added_returns_all() {
    on_both(async |limiter| {
        let mut permit = reserve(limiter, 40).await;
        permit.add(0);
        drop(permit);
        until_used(limiter, 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_settlement_counts_what_was_added_before() {
    on_both(async |limiter| {
        let mut permit = reserve(limiter, 40).await;
        permit.add(12);
        permit.settle(30);
        until_used(limiter, 30).await;
        // What was added may be charged already.
        let mut permit = reserve(limiter, 40).await;
        permit.add(12);
        permit.settle(5);
        until_used(limiter, 42).await;
    })
    .await;
}

#[tokio::test]
async fn an_overrun_is_charged_in_full_also_beyond_the_limit() {
    on_both(async |limiter| {
        let mut permit = reserve(limiter, 40).await;
        permit.add(70);
        permit.add(60);
        drop(permit);
        until_used(limiter, 130).await;
        let decision = refused(limiter, 1).await;
        assert_eq!((decision.used(), decision.remaining()), (130, 0));
        assert_eq!(decision.retry_after(), None);
    })
    .await;
}

#[tokio::test]
async fn held_units_count_as_used_and_their_end_is_unknown() {
    on_both(async |limiter| {
        assert!(limiter.check_n("ada", 10).await.unwrap().is_allowed());
        let permit = reserve(limiter, 60).await;
        for decision in [
            refused(limiter, 31).await,
            limiter.check_n("ada", 31).await.unwrap(),
        ] {
            assert!(!decision.is_allowed());
            assert_eq!((decision.used(), decision.remaining()), (70, 30));
            assert!(decision.is_wait_estimated());
            assert!(decision.retry_after() >= Some(Duration::from_secs(1)));
            let level = decision.levels().next().unwrap();
            assert_eq!(level.reserved(), 60);
        }
        // More than was ever left refuses without a wait.
        let decision = refused(limiter, 91).await;
        assert_eq!(decision.retry_after(), None);
        assert!(!decision.is_wait_estimated());
        assert!(limiter.check_n("ada", 30).await.unwrap().is_allowed());
        permit.settle(0);
        until_used(limiter, 40).await;
    })
    .await;
}

#[tokio::test]
async fn a_check_without_a_permit_is_charged_and_settled_as_always() {
    on_both(async |limiter| {
        let permit = reserve(limiter, 50).await;
        let decision = limiter.check_n("ada", 20).await.unwrap();
        assert_eq!((decision.used(), decision.held()), (70, 20));
        decision.settle(5).await.unwrap();
        until_used(limiter, 55).await;
        limiter.charge("ada", 60).await.unwrap();
        until_used(limiter, 115).await;
        assert_eq!(permit.into_decision().held(), 0);
        until_used(limiter, 115).await;
    })
    .await;
}

#[tokio::test]
async fn a_caller_that_waits_gets_what_returns() {
    on_both(async |limiter| {
        let first = reserve(limiter, 80).await;
        let waiting = limiter.clone();
        let second = tokio::spawn(async move { reserve(&waiting, 50).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!second.is_finished());
        // No later one overtakes it.
        assert!(!refused(limiter, 10).await.is_allowed());
        first.settle(30);
        let second = tokio::time::timeout(Duration::from_secs(5), second).await;
        let second: Permit = second.expect("room").unwrap();
        assert_eq!(second.decision().used(), 80);
        second.settle(1);
        until_used(limiter, 31).await;
    })
    .await;
}

#[tokio::test]
async fn all_levels_hold_or_none() {
    async fn test(store: impl Store + Clone) {
        let runs = RateLimiter::new(store.clone(), Quota::total(50, DAY))
            .name("run")
            .reserve_lease(LEASE);
        let sessions = RateLimiter::new(store.clone(), Quota::total(80, DAY))
            .name("session")
            .reserve_lease(LEASE);
        let requests = RateLimiter::new(store, Quota::per_hour(3)).name("requests");
        let levels = |run: &'static str| {
            [
                runs.level(run).cost(40),
                sessions.level("ada").cost(40),
                requests.level("ada"),
            ]
        };
        let mut first = RateLimiter::acquire_all(levels("one")).await.unwrap();
        let _second = RateLimiter::acquire_all(levels("two")).await.unwrap();
        // The session is full, so the run holds nothing and no request is charged.
        let refused = RateLimiter::try_acquire_all(levels("three")).await.unwrap();
        assert!(matches!(refused, Acquired::Refused(_)));
        assert_eq!(runs.peek("three").await.unwrap().used(), 0);
        assert_eq!(requests.peek("ada").await.unwrap().used(), 2);
        first.add(7);
        drop(first);
        crate::until_key_used(&runs, "one", 7).await;
        crate::until_key_used(&sessions, "ada", 47).await;
        assert_eq!(requests.peek("ada").await.unwrap().used(), 2);
    }
    test(MemoryStore::new()).await;
    let server = RedisServer::start();
    test(store_on(&server)).await;
}

#[tokio::test]
async fn each_algorithm_holds_units_and_charges_what_was_used() {
    let server = RedisServer::start();
    let algorithms = Algorithm::ALL
        .iter()
        .filter(|algorithm| **algorithm != Algorithm::SortedSetLog);
    for algorithm in algorithms {
        let quota = Quota::new(100, DAY).with_algorithm(*algorithm);
        let limiter = RateLimiter::new(store_on(&server), quota)
            .name(algorithm.to_string())
            .reserve_lease(LEASE);
        let mut permit = reserve(&limiter, 90).await;
        assert!(!refused(&limiter, 11).await.is_allowed(), "{algorithm}");
        permit.add(25);
        drop(permit);
        until_used(&limiter, 25).await;
        drop(reserve(&limiter, 75).await);
        until_used(&limiter, 100).await;
    }
}

#[tokio::test]
async fn what_cannot_be_held_fails_each_check_and_says_so() {
    let limiter = |quota: Quota| {
        let limiter = RateLimiter::new(MemoryStore::new(), [quota, Quota::per_day(9)]);
        limiter.reserve_lease(LEASE)
    };
    let shared = Quota::per_day(9).shares([Share::of("batch").at_most(4)]);
    let by_set = Quota::per_day(9).with_algorithm(Algorithm::SortedSetLog);
    for (limiter, what) in [
        (limiter(Quota::in_flight(3)), "slots in flight"),
        (limiter(Quota::per_hour(9).soft()), "soft quotas"),
        (limiter(shared), "shares"),
        (limiter(by_set), "a sorted-set-log"),
        (
            limiter(Quota::per_hour(9)).lease(Duration::from_millis(50)),
            "units with a `reserve_lease`",
        ),
    ] {
        let levels = [limiter.level("ada")];
        for error in [
            limiter.check("ada").await.unwrap_err(),
            RateLimiter::try_acquire_all(levels).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Misconfigured);
            assert!(error.to_string().contains(what), "{error}");
        }
    }
    let limiter = limiter(Quota::per_hour(9));
    let alternatives = [vec![limiter.level("ada")], vec![limiter.level("bob")]];
    let error = RateLimiter::check_first(alternatives).await.unwrap_err();
    assert!(error.to_string().contains("a `reserve_lease`"), "{error}");
}

#[test]
fn a_lease_is_from_5_seconds_to_10_minutes() {
    let with = |lease| {
        let reserve = move || {
            let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_day(9));
            drop(limiter.reserve_lease(lease));
        };
        std::panic::catch_unwind(reserve).is_ok()
    };
    let seconds = Duration::from_secs;
    assert!(with(seconds(5)) && with(seconds(600)));
    let micro = Duration::from_micros(1);
    assert!(!with(seconds(5) - micro) && !with(seconds(600) + micro));
}

#[tokio::test]
async fn a_plan_holds_units_too() {
    on_both(async |limiter| {
        let level = limiter
            .level("ada")
            .cost(150)
            .quotas(Quota::total(400, DAY));
        let mut permit = RateLimiter::acquire_all([level]).await.unwrap();
        permit.add(120);
        drop(permit);
        until_used(limiter, 120).await;
    })
    .await;
}
