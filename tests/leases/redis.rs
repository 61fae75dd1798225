//! Leases: units that a process takes in advance.

use std::future::Future;
use std::task::{Context, Waker};
use std::time::Duration;

use tollgate::{Algorithm, Decision, Key, Quota, RateLimiter, Source};

use crate::support::costs::{calls, forget_calls};
use crate::support::redis_server::{RedisServer, signal};
use crate::support::store_on;

const LEASE: Duration = Duration::from_millis(500);
const WINDOW: Duration = Duration::from_secs(10);

fn limiter(server: &RedisServer, limit: u32) -> RateLimiter {
    RateLimiter::new(store_on(server), Quota::new(limit, WINDOW)).lease(LEASE)
}

/// Checks a key, about every millisecond, until a check is admitted from memory.
async fn until_leased(limiter: &RateLimiter, key: &str, cost: u32) -> (u32, Decision) {
    for checks in 1..1_000 {
        let decision = limiter.check_n(key, cost).await.unwrap();
        assert!(decision.is_allowed());
        if decision.source() == Source::Lease {
            return (checks, decision);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("no lease");
}

/// Waits until all units at hand have returned, and returns the units that count.
async fn used_after_lease(limiter: &RateLimiter, key: &str) -> u32 {
    tokio::time::sleep(LEASE + Duration::from_millis(100)).await;
    limiter.peek(key).await.unwrap().used()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_key_is_admitted_from_memory_and_what_is_left_returns() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    for algorithm in Algorithm::ALL.iter().copied() {
        // The boundary of a fixed window would take units away: at most once a day.
        let quota = Quota::per_day(100_000).with_algorithm(algorithm);
        let limiter = RateLimiter::new(store_on(&server), quota).lease(LEASE);
        let key = format!("{algorithm:?}");
        forget_calls(&mut connection);
        let mut from_memory = 0;
        for _ in 0..2_000 {
            let decision = limiter.check(&*key).await.unwrap();
            assert!(decision.is_allowed());
            from_memory += u32::from(decision.source() == Source::Lease);
            tokio::task::yield_now().await;
        }
        let calls = calls(&mut connection)["evalsha"];
        assert!(from_memory > 1_600, "{algorithm:?}: {from_memory} of 2000");
        assert!(calls < 500, "{algorithm:?}: {calls} calls");
        let used = used_after_lease(&limiter, &key).await;
        // Gcra drains about one unit a second.
        let drained = if algorithm == Algorithm::Gcra { 100 } else { 0 };
        assert!(
            (2_000 - drained..=2_000).contains(&used),
            "{algorithm:?}: {used}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_is_admitted_exactly() {
    let server = RedisServer::start();
    let limiters = [(); 3].map(|()| limiter(&server, 1_000));
    let mut admitted = 0;
    for _ in 0..2_000 {
        for limiter in &limiters {
            admitted += u32::from(limiter.check("ada").await.unwrap().is_allowed());
        }
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
    assert!((950..=1_000).contains(&admitted), "{admitted}");
    for limiter in &limiters {
        limiter.release().await.unwrap();
    }
    assert_eq!(limiters[0].peek("ada").await.unwrap().used(), admitted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn low_limits_and_quiet_keys_are_not_leased() {
    let server = RedisServer::start();
    let low = limiter(&server, 20);
    let quiet = limiter(&server, 10_000);
    for _ in 0..20 {
        assert_eq!(low.check("ada").await.unwrap().source(), Source::Redis);
    }
    for _ in 0..6 {
        assert_eq!(quiet.check("bob").await.unwrap().source(), Source::Redis);
        tokio::time::sleep(LEASE / 2).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_of_a_check_that_is_dropped_before_its_answer_return_to_their_grant() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let leased = RateLimiter::new(store.clone(), Quota::new(10_000, WINDOW)).lease(LEASE);
    let other = RateLimiter::new(store, Quota::per_hour(100)).name("other");
    let (checks, _) = until_leased(&leased, "ada", 10).await;
    let mut check = Box::pin(RateLimiter::check_all([
        leased.level("ada"),
        other.level("ada"),
    ]));
    // The unit of the lease is taken. The other level waits for Redis, which cannot answer yet.
    signal(&server, "STOP");
    let polled = check.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    drop(check);
    signal(&server, "CONT");
    assert_eq!(used_after_lease(&leased, "ada").await, checks * 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_goes_to_its_grant_while_that_lives_and_then_to_redis() {
    let server = RedisServer::start();
    let limiter = limiter(&server, 10_000);
    let (checks, mut decision) = until_leased(&limiter, "ada", 10).await;
    let (_, mut late) = until_leased(&limiter, "ada", 10).await;
    let before = limiter.peek("ada").await.unwrap().used();
    decision.refund(4).await.unwrap();
    assert_eq!(decision.held(), 6);
    // Redis does not know yet.
    assert_eq!(limiter.peek("ada").await.unwrap().used(), before);
    assert_eq!(
        used_after_lease(&limiter, "ada").await,
        (checks + 1) * 10 - 4
    );
    late.refund(3).await.unwrap();
    decision.refund(100).await.unwrap();
    assert_eq!((decision.held(), late.held()), (0, 7));
    let used = limiter.peek("ada").await.unwrap().used();
    assert_eq!(used, (checks - 1) * 10 + 7);
    late.settle(2).await.unwrap();
    let used = limiter.peek("ada").await.unwrap().used();
    assert_eq!(used, (checks - 1) * 10 + 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_used_beyond_a_reservation_is_taken_from_the_lease_first_and_an_overrun_ends_it() {
    let server = RedisServer::start();
    let limiter = limiter(&server, 1_000);
    let (checks, decision) = until_leased(&limiter, "ada", 1).await;
    decision.settle(2).await.unwrap();
    assert_eq!(used_after_lease(&limiter, "ada").await, checks + 1);
    let (checks, decision) = until_leased(&limiter, "bob", 1).await;
    decision.settle(5_000).await.unwrap();
    let refused = limiter.check("bob").await.unwrap();
    assert!(!refused.is_allowed() && refused.source() == Source::Redis);
    assert_eq!(used_after_lease(&limiter, "bob").await, checks - 1 + 5_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_enters_the_grant_that_it_came_from_whatever_other_limiter_has_grants_of_the_key()
{
    let server = RedisServer::start();
    let store = store_on(&server);
    let [one, other] = [(); 2].map(|()| {
        let limiter = RateLimiter::new(store.clone(), Quota::new(10_000, WINDOW));
        limiter.lease(2 * LEASE)
    });
    let (of_one, mut decision) = until_leased(&one, "ada", 10).await;
    let (of_other, _) = until_leased(&other, "ada", 10).await;
    // So that no request for units is in flight.
    tokio::time::sleep(LEASE / 10).await;
    let before = one.peek("ada").await.unwrap().used();
    decision.refund(4).await.unwrap();
    // Redis does not know yet.
    assert_eq!(one.peek("ada").await.unwrap().used(), before);
    other.release().await.unwrap();
    one.release().await.unwrap();
    let used = one.peek("ada").await.unwrap().used();
    assert_eq!(used, (of_one + of_other) * 10 - 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_that_was_held_is_settled_by_its_decision() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let service = RateLimiter::new(store.clone(), Quota::new(10_000, WINDOW)).name("service");
    let service = service.lease(LEASE);
    let user = RateLimiter::new(store, Quota::new(100, WINDOW)).name("user");
    let levels = |cost| {
        [
            user.level("ada").cost(cost),
            service.level("all").cost(cost),
        ]
    };
    let (mut leased, _) = until_leased(&service, "all", 10).await;
    leased *= 10;
    let mut sources = Vec::new();
    for (cost, used) in [(10, 0), (10, 0), (10, 4), (10, 4), (1, 3)] {
        let decision = RateLimiter::check_all(levels(cost)).await.unwrap();
        sources.extend(decision.levels().map(|level| level.source()).last());
        decision.settle(used).await.unwrap();
        leased += used;
    }
    // Some more than are held: of one grant or several, and of Redis.
    let decision = RateLimiter::check_all(levels(80)).await.unwrap();
    decision.settle(1).await.unwrap();
    assert_eq!(user.peek("ada").await.unwrap().used(), 11 + 1);
    assert!(sources.contains(&Source::Lease), "{sources:?}");
    assert_eq!(used_after_lease(&service, "all").await, leased + 1);
    // After the end of its grant.
    let (checks, _) = until_leased(&service, "bob", 10).await;
    let levels = [user.level("bob").cost(10), service.level("bob").cost(10)];
    let late = RateLimiter::check_all(levels).await.unwrap();
    let before = used_after_lease(&service, "bob").await;
    assert_eq!(before, (checks + 1) * 10);
    late.settle(3).await.unwrap();
    let used = service.peek("bob").await.unwrap().used();
    assert_eq!(used, checks * 10 + 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cost_above_what_is_held_asks_redis_for_the_difference() {
    let server = RedisServer::start();
    let limiter = limiter(&server, 1_000);
    let (checks, _) = until_leased(&limiter, "ada", 10).await;
    // So that no request for units is in flight.
    tokio::time::sleep(LEASE / 10).await;
    // The units that Redis has left, and those that this process holds.
    let left = 1_000 - checks * 10;
    let refused = limiter.check_n("ada", left + 1).await.unwrap();
    assert!(!refused.is_allowed());
    let mut all = limiter.check_n("ada", left).await.unwrap();
    assert!(all.is_allowed(), "{all:?}");
    assert_eq!((all.source(), all.held()), (Source::Redis, left));
    assert_eq!(limiter.peek("ada").await.unwrap().remaining(), 0);
    all.refund(left).await.unwrap();
    assert_eq!(used_after_lease(&limiter, "ada").await, checks * 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_and_a_credit_end_what_this_process_holds() {
    let server = RedisServer::start();
    let limiter = limiter(&server, 10_000);
    let _ = until_leased(&limiter, "ada", 10).await;
    limiter.admin().reset("ada").await.unwrap();
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 0);
    assert_eq!(limiter.check("ada").await.unwrap().source(), Source::Redis);
    let (checks, _) = until_leased(&limiter, "bob", 10).await;
    limiter.admin().credit("bob", 5).await.unwrap();
    let used = limiter.peek("bob").await.unwrap().used();
    assert_eq!(used, checks * 10 - 5);
    assert_eq!(limiter.check("bob").await.unwrap().source(), Source::Redis);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_that_is_held_is_put_back_if_another_one_refuses() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let service = RateLimiter::new(store.clone(), Quota::new(10_000, WINDOW)).name("service");
    let service = service.lease(LEASE);
    let user = RateLimiter::new(store, Quota::new(1, WINDOW)).name("user");
    let (checks, _) = until_leased(&service, "all", 1).await;
    let mut admitted = 0;
    let mut sources = Vec::new();
    for name in ["ada", "ada", "bob", "bob", "ada"] {
        let levels = [user.level(name), service.level("all")];
        let decision = RateLimiter::check_all(levels).await.unwrap();
        admitted += u32::from(decision.is_allowed());
        sources.extend(decision.levels().map(|level| level.source()));
    }
    assert_eq!(admitted, 2);
    assert_eq!(sources[..2], [Source::Redis, Source::Lease]);
    assert_eq!(used_after_lease(&service, "all").await, checks + 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_key_is_refused_although_units_are_held() {
    let server = RedisServer::start();
    let limiter = limiter(&server, 10_000);
    let _ = until_leased(&limiter, "ada", 1).await;
    limiter.admin().block("ada", WINDOW).await.unwrap();
    let refused = limiter.check("ada").await.unwrap();
    assert_eq!(
        (refused.is_allowed(), refused.source()),
        (false, Source::Block)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_may_be_used_while_redis_is_away() {
    let mut server = RedisServer::start();
    let limiter = limiter(&server, 10_000);
    for _ in 0..300 {
        let _ = until_leased(&limiter, "ada", 1).await;
    }
    server.kill();
    let mut admitted = 0;
    while limiter.check("ada").await.is_ok() {
        admitted += 1;
    }
    assert!(admitted > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_quotas_and_the_global_key_are_leased_together() {
    let server = RedisServer::start();
    let quotas = [Quota::new(5_000, WINDOW), Quota::per_hour(100_000)];
    let limiter = RateLimiter::new(store_on(&server), quotas).lease(LEASE);
    let mut checks = 0;
    for _ in 0..300 {
        let decision = limiter.check(Key::global()).await.unwrap();
        checks += 1;
        assert_eq!(decision.quotas().len(), 2);
        let windows: Vec<_> = decision
            .quotas()
            .map(|quota| quota.quota().window())
            .collect();
        assert_eq!(windows, [WINDOW, Duration::from_secs(3_600)]);
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(LEASE + Duration::from_millis(100)).await;
    let used = limiter.peek(Key::global()).await.unwrap();
    assert!(
        used.quotas().all(|quota| quota.used() == checks),
        "{used:?}"
    );
}
