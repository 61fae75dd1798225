//! The scripts of tutorials that count in other ways than a sorted set, and the quotas in their place.

pub mod before {
    /// A fixed window that begins with the first request.
    pub const INCR_EXPIRE: &str = include_str!("incr_expire.lua");
    /// A sliding window counter.
    pub const TWO_COUNTERS: &str = include_str!("two_counters.lua");
    /// Sub-buckets with a precision.
    pub const HASH_OF_BUCKETS: &str = include_str!("hash_of_buckets.lua");
}

pub mod after {
    use tollgate::{Algorithm, Quota};

    pub const INCR_EXPIRE: Quota = Quota::per_minute(100).with_algorithm(Algorithm::FixedWindow);
    pub const TWO_COUNTERS: Quota =
        Quota::per_minute(100).with_algorithm(Algorithm::SlidingCounter);
    /// A window of 60 s with a precision of 5 s.
    pub const HASH_OF_BUCKETS: Quota =
        Quota::per_minute(100).with_algorithm(Algorithm::SlidingBuckets(12));
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "the scripts run as services call them"
)]
mod tests {
    use std::time::Duration;

    use redis::aio::ConnectionManager;
    use redis::{Script, ToRedisArgs};
    use tollgate::store::TestClock;
    use tollgate::{Algorithm, MemoryStore, Quota, RateLimiter};

    use super::before;
    use crate::redis_server::RedisServer;

    async fn connect(server: &RedisServer) -> ConnectionManager {
        let client = redis::Client::open(server.url()).expect("a URL");
        let connection = ConnectionManager::new(client).await;
        connection.expect("the server answers")
    }

    async fn run(
        redis: &ConnectionManager,
        script: &str,
        keys: &[&str],
        arguments: impl ToRedisArgs,
    ) -> bool {
        let script = Script::new(script);
        let mut call = script.prepare_invoke();
        for key in keys {
            call.key(*key);
        }
        let reply = call.arg(arguments).invoke_async(&mut redis.clone()).await;
        reply.expect("the script runs")
    }

    #[tokio::test]
    async fn a_fixed_window_admits_twice_the_limit_across_its_edge() {
        let server = RedisServer::start();
        let redis = connect(&server).await;
        let mut admitted = 0;
        // In the middle, as if the first request of the window were 60 s old.
        for request in 0..20 {
            if request == 10 {
                let _: () = redis::cmd("DEL")
                    .arg("ada")
                    .query_async(&mut redis.clone())
                    .await
                    .expect("the server answers");
            }
            admitted += u32::from(run(&redis, before::INCR_EXPIRE, &["ada"], &[60, 5]).await);
        }
        assert_eq!(admitted, 10);
    }

    #[tokio::test]
    async fn two_counters_admit_half_a_unit_too_many_and_the_sliding_counter_does_not() {
        let server = RedisServer::start();
        let redis = connect(&server).await;
        for _ in 0..2 {
            assert!(run(&redis, before::TWO_COUNTERS, &["0", "none"], &[0, 60, 5]).await);
        }
        for _ in 0..3 {
            assert!(run(&redis, before::TWO_COUNTERS, &["1", "none"], &[0, 60, 5]).await);
        }
        // 2 × 0.75 + 3 = 4.5: one more makes 5.5.
        let keys = ["1", "0"];
        assert!(run(&redis, before::TWO_COUNTERS, &keys, &[15, 60, 5]).await);
        assert!(!run(&redis, before::TWO_COUNTERS, &keys, &[15, 60, 5]).await);

        let clock = TestClock::new();
        let window = Duration::from_secs(60);
        let quota = Quota::new(5, window).with_algorithm(Algorithm::SlidingCounter);
        let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()), quota);
        let begin = Duration::from_micros(clock.now_micros() % 60_000_000);
        clock.advance(window - begin);
        let _ = limiter.check_n("ada", 2).await.expect("in memory");
        clock.advance(window);
        let _ = limiter.check_n("ada", 3).await.expect("in memory");
        clock.advance(Duration::from_secs(15));
        let refused = limiter.check("ada").await.expect("in memory");
        assert!(!refused.is_allowed());
    }

    #[tokio::test]
    async fn units_leave_the_hash_of_buckets_early_and_sliding_buckets_late() {
        let server = RedisServer::start();
        let redis = connect(&server).await;
        let at = async |time: u32| {
            run(
                &redis,
                before::HASH_OF_BUCKETS,
                &["ada"],
                &[time, 60, 10, 1],
            )
            .await
        };
        assert!(at(9).await);
        assert!(!at(59).await);
        // 51 s later.
        assert!(at(60).await);

        let clock = TestClock::new();
        let window = Duration::from_secs(60);
        let quota = Quota::new(1, window).with_algorithm(Algorithm::SlidingBuckets(6));
        let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()), quota);
        let begin = Duration::from_micros(clock.now_micros() % 60_000_000);
        clock.advance(window - begin + Duration::from_secs(1));
        let mut admitted = Vec::new();
        for _ in 0..2 {
            let decision = limiter.check("ada").await.expect("in memory");
            admitted.push(decision.is_allowed());
            if let Some(wait) = decision.retry_after() {
                // Until 70 s, the end of the bucket of second 1 and a window more.
                assert_eq!(wait.as_secs(), 68, "{wait:?}");
            }
        }
        assert_eq!(admitted, [true, false]);
    }

    #[tokio::test]
    async fn before_redis_7_a_random_suffix_is_the_same_in_each_call() {
        let server = RedisServer::start();
        let redis = connect(&server).await;
        let eval = async |script: &str| -> String {
            let reply = Script::new(script).invoke_async(&mut redis.clone()).await;
            reply.expect("the script runs")
        };
        let info = redis::cmd("INFO").query_async(&mut redis.clone()).await;
        let info: redis::InfoDict = info.expect("the server answers");
        let version: String = info.get("redis_version").expect("a version");
        let is_old = version.starts_with(['5', '6']);
        let suffix = "return tostring(math.random(1000000000))";
        assert_eq!(
            eval(suffix).await == eval(suffix).await,
            is_old,
            "{version}"
        );
    }
}
