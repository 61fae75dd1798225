//! The sorted-set script of many tutorials, called through the crate redis.

#![expect(
    clippy::disallowed_methods,
    reason = "the code before is what services have, not what tollgate does"
)]

pub mod before {
    use std::sync::LazyLock;
    use std::time::{SystemTime, UNIX_EPOCH};

    use redis::aio::ConnectionManager;
    use redis::{RedisResult, Script};

    static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("sorted_set.lua")));

    pub async fn is_admitted(redis: &ConnectionManager, client: &str) -> RedisResult<bool> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut call = SCRIPT.key(format!("rate:{client}"));
        call.arg(now.as_millis() as u64).arg(60_000).arg(100);
        call.invoke_async(&mut redis.clone()).await
    }
}

pub mod after {
    // page: after
    use tollgate::{Error, Quota, RateLimiter, Store};

    pub fn limiter(store: impl Store) -> RateLimiter {
        RateLimiter::new(store, Quota::per_minute(100)).name("rate")
    }

    pub async fn is_admitted(limiter: &RateLimiter, client: &str) -> Result<bool, Error> {
        Ok(limiter.check(client).await?.is_allowed())
    }
    // page: end
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redis::Script;
    use redis::aio::ConnectionManager;
    use tollgate::store::TestClock;
    use tollgate::{MemoryStore, Quota, RateLimiter, RedisStore};

    use super::{after, before};
    use crate::redis_server::RedisServer;

    async fn connect(server: &RedisServer) -> ConnectionManager {
        let client = redis::Client::open(server.url()).expect("a URL");
        let connection = ConnectionManager::new(client).await;
        connection.expect("the server answers")
    }

    /// Runs the script at a time of the caller's choice.
    async fn run(redis: &ConnectionManager, key: &str, now: u64, window: u64, limit: u32) -> bool {
        let script = Script::new(include_str!("sorted_set.lua"));
        let mut call = script.key(key);
        call.arg(now).arg(window).arg(limit);
        let reply = call.invoke_async(&mut redis.clone()).await;
        reply.expect("the script runs")
    }

    #[tokio::test]
    async fn both_admit_a_hundred() {
        let server = RedisServer::start();
        let redis = connect(&server).await;
        let store = RedisStore::open(&server.url()).expect("a URL");
        let limiter = after::limiter(store);
        for index in 0..110 {
            // Requests of one millisecond are one member: see below.
            tokio::time::sleep(Duration::from_millis(2)).await;
            let before = before::is_admitted(&redis, "ada")
                .await
                .expect("Redis answers");
            let after = after::is_admitted(&limiter, "ada")
                .await
                .expect("Redis answers");
            assert_eq!(
                (before, after),
                (index < 100, index < 100),
                "request {index}"
            );
        }
    }

    #[tokio::test]
    async fn both_admit_the_same_requests_of_distinct_milliseconds() {
        let server = RedisServer::start();
        let redis = connect(&server).await;
        let clock = TestClock::new();
        let window = Duration::from_millis(1_000);
        let limiter = RateLimiter::new(
            MemoryStore::with_clock(clock.clone()),
            Quota::new(7, window),
        );
        let mut now = 1_795_305_600_000;
        for step in 1..300 {
            let pause = 1 + step * 37 % 211;
            now += pause;
            clock.advance(Duration::from_millis(pause));
            let before = run(&redis, "steps", now, 1_000, 7).await;
            let after = limiter.check("steps").await.expect("in memory");
            assert_eq!(before, after.is_allowed(), "step {step}");
        }
    }

    #[tokio::test]
    async fn requests_of_one_millisecond_exceed_the_limit() {
        let server = RedisServer::start();
        let redis = connect(&server).await;
        let now = 1_795_305_600_000;
        for _ in 0..10 {
            assert!(run(&redis, "burst", now, 60_000, 3).await);
        }
    }

    #[tokio::test]
    async fn a_clock_that_is_ahead_exceeds_the_limit() {
        let server = RedisServer::start();
        let redis = connect(&server).await;
        let now = 1_795_305_600_000;
        for index in 0..4 {
            assert_eq!(
                run(&redis, "ahead", now + index, 60_000, 3).await,
                index < 3
            );
        }
        // Another process, a minute ahead.
        assert!(run(&redis, "ahead", now + 61_000, 60_000, 3).await);
    }

    #[tokio::test]
    async fn other_copies_of_the_script_fail_as_the_page_says() {
        let server = RedisServer::start();
        let redis = connect(&server).await;
        let eval = async |script: &str| -> redis::RedisResult<String> {
            let script = Script::new(script);
            script.key("k").invoke_async(&mut redis.clone()).await
        };
        let seconds = "redis.call('SET', KEYS[1], 1); redis.call('EXPIRE', KEYS[1], 1500 / 1000)";
        assert!(eval(seconds).await.is_err());
        let micros = eval("return 1795305600123456 .. ''").await;
        assert_eq!(micros.expect("text"), "1.7953056001235e+15");
        let unpack = |count| {
            let fill = format!("local t = {{}} for i = 1, {count} do t[i] = i end ");
            fill + "return tostring(select('#', (unpack or table.unpack)(t)))"
        };
        assert_eq!(eval(&unpack(7_000)).await.expect("text"), "7000");
        assert!(eval(&unpack(8_000)).await.is_err());
        // The request is added before the count is compared.
        let add_first = "redis.call('ZADD', KEYS[1], ARGV[1], ARGV[1]) \
                         redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[1] - 1000) \
                         return redis.call('ZCARD', KEYS[1]) <= 2 and 1 or 0";
        let add_first = Script::new(add_first);
        for index in 0..40 {
            let mut call = add_first.key("eager");
            call.arg(1_795_305_600_000_u64 + 400 * index);
            let admitted: bool = call
                .invoke_async(&mut redis.clone())
                .await
                .expect("a reply");
            // A request each 400 ms against 2 in a second: all after the second are refused, for good.
            assert_eq!(admitted, index < 2, "{index}");
        }
    }

    #[tokio::test]
    async fn the_script_sets_a_time_to_live() {
        let server = RedisServer::start();
        let redis = connect(&server).await;
        assert!(run(&redis, "rate:ada", 1_795_305_600_000, 60_000, 3).await);
        let mut ttl = redis::cmd("PTTL");
        let left: i64 = ttl
            .arg("rate:ada")
            .query_async(&mut redis.clone())
            .await
            .expect("a number");
        assert!((1..=60_000).contains(&left), "{left}");
    }
}
