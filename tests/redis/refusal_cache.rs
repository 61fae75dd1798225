//! The refusal cache of a process.

use std::time::Duration;

use tollgate::{Algorithm, Quota, RateLimiter, Source};

use crate::support::costs::{calls, forget_calls};
use crate::support::redis_server::RedisServer;
use crate::support::store_on;
use crate::support::test_time::TestTime;

const SECOND: Duration = Duration::from_secs(1);

async fn source(limiter: &RateLimiter, cost: u32) -> (bool, Source) {
    let decision = limiter.check_n("ada", cost).await.unwrap();
    (decision.is_allowed(), decision.source())
}

#[tokio::test]
async fn a_key_far_over_its_limit_costs_redis_nothing() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(10));
    for _ in 0..10 {
        assert_eq!(source(&limiter, 1).await, (true, Source::Redis));
    }
    assert_eq!(source(&limiter, 1).await, (false, Source::Redis));
    forget_calls(&mut connection);
    for _ in 0..1_000 {
        assert_eq!(source(&limiter, 1).await, (false, Source::RefusalCache));
    }
    assert!(calls(&mut connection).is_empty());
}

#[tokio::test]
async fn a_refusal_expires_after_its_maximum_age() {
    let server = RedisServer::start();
    let mut time = TestTime::new(&server);
    let limiter = RateLimiter::new(time.redis.clone(), Quota::per_hour(10));
    assert_eq!(source(&limiter, 10).await, (true, Source::Redis));
    for _ in 0..3 {
        assert_eq!(source(&limiter, 1).await, (false, Source::Redis));
        time.advance(SECOND - Duration::from_micros(1));
        assert_eq!(source(&limiter, 1).await, (false, Source::RefusalCache));
        time.advance(Duration::from_micros(1));
    }
}

#[tokio::test]
async fn a_client_that_asks_each_millisecond_reaches_redis_a_few_times_in_each_wait() {
    const WAITS: u32 = 10;
    // Redis is asked after 0, 1, 801, 961, 993 and 999 ms; and in a window of 125 ms after 0, 1, 101 and 121.
    for (window, asked_in_each) in [(SECOND, 6), (SECOND / 8, 4)] {
        let server = RedisServer::start();
        let mut time = TestTime::new(&server);
        let limiter = RateLimiter::new(time.redis.clone(), Quota::new(1, window));
        let (mut admitted, mut asked) = (0, 0);
        for _ in 0..WAITS * u32::try_from(window.as_millis()).unwrap() {
            let (is_allowed, source) = source(&limiter, 1).await;
            admitted += u32::from(is_allowed);
            asked += u32::from(source == Source::Redis);
            time.advance(Duration::from_millis(1));
        }
        assert_eq!(admitted, WAITS);
        assert_eq!(asked, asked_in_each * WAITS, "{window:?}");
    }
}

#[tokio::test]
async fn a_charge_beyond_the_limit_ends_the_refusals_that_this_process_remembers() {
    let server = RedisServer::start();
    let mut time = TestTime::new(&server);
    let gcra = Quota::per_minute(10).with_algorithm(Algorithm::Gcra);
    let limiter = RateLimiter::new(time.redis.clone(), gcra);
    let _ = limiter.check_n("ada", 10).await.unwrap();
    for source_of_refusal in [Source::Redis, Source::RefusalCache] {
        assert_eq!(source(&limiter, 1).await, (false, source_of_refusal));
    }
    time.advance(Duration::from_millis(300));
    limiter.charge("ada", 100).await.unwrap();
    let refused = limiter.check("ada").await.unwrap();
    assert_eq!((refused.used(), refused.source()), (110, Source::Redis));
    // The 101st unit has to drain.
    let wait = 60 * SECOND / 10 * 101 - Duration::from_millis(300);
    assert_eq!(refused.retry_after(), Some(wait));
}

#[tokio::test]
async fn a_cached_refusal_returns_the_rest_of_the_wait() {
    let server = RedisServer::start();
    let mut time = TestTime::new(&server);
    let limiter = RateLimiter::new(time.redis.clone(), Quota::per_minute(10));
    let _ = limiter.check_n("ada", 10).await.unwrap();
    let _ = limiter.check("ada").await.unwrap();
    time.advance(Duration::from_millis(300));
    let decision = limiter.check("ada").await.unwrap();
    assert_eq!(decision.source(), Source::RefusalCache);
    let left = Duration::from_millis(59_700);
    assert_eq!(decision.retry_after(), Some(left));
    assert_eq!(decision.reset_after(), left);
    assert_eq!((decision.used(), decision.remaining()), (10, 0));
}

#[tokio::test]
async fn only_the_same_check_is_refused_from_the_cache() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(10));
    let _ = limiter.check_n("ada", 8).await.unwrap();
    assert_eq!(source(&limiter, 5).await, (false, Source::Redis));
    assert_eq!(source(&limiter, 5).await, (false, Source::RefusalCache));
    // A look, a smaller cost, another name, limit or key: each asks Redis.
    assert_eq!(source(&limiter, 0).await, (true, Source::Redis));
    let other = limiter.clone().name("other");
    assert_eq!(source(&other, 5).await, (true, Source::Redis));
    let raised = RateLimiter::new(store, Quota::per_hour(20));
    assert_eq!(source(&raised, 5).await, (true, Source::Redis));
    assert!(limiter.check_n("bob", 5).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_local_refund_or_credit_is_admitted_at_once() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(10));
    let mut reserved = limiter.check_n("ada", 10).await.unwrap();
    assert_eq!(source(&limiter, 1).await, (false, Source::Redis));
    reserved.refund(1).await.unwrap();
    assert_eq!(source(&limiter, 1).await, (true, Source::Redis));
    assert_eq!(source(&limiter, 1).await, (false, Source::Redis));
    limiter.admin().credit("ada", 2).await.unwrap();
    assert_eq!(source(&limiter, 2).await, (true, Source::Redis));
    assert_eq!(source(&limiter, 1).await, (false, Source::Redis));
    limiter.admin().reset("ada").await.unwrap();
    assert_eq!(source(&limiter, 1).await, (true, Source::Redis));
}

#[tokio::test]
async fn a_reset_by_another_process_is_seen_within_the_age_of_a_refusal() {
    let server = RedisServer::start();
    let [here, there] = [store_on(&server), store_on(&server)]
        .map(|store| RateLimiter::new(store, Quota::per_hour(10)));
    let _ = here.check_n("ada", 10).await.unwrap();
    assert_eq!(source(&here, 1).await, (false, Source::Redis));
    there.admin().reset("ada").await.unwrap();
    assert_eq!(source(&here, 1).await, (false, Source::RefusalCache));
    tokio::time::sleep(SECOND).await;
    assert_eq!(source(&here, 1).await, (true, Source::Redis));
}

#[tokio::test]
async fn a_zero_age_disables_the_cache() {
    let server = RedisServer::start();
    let store = store_on(&server).refusal_cache(Duration::ZERO);
    let limiter = RateLimiter::new(store, Quota::per_hour(1));
    assert_eq!(source(&limiter, 1).await, (true, Source::Redis));
    for _ in 0..3 {
        assert_eq!(source(&limiter, 1).await, (false, Source::Redis));
    }
}
