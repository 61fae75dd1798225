//! Upper bounds of memory and commands in Redis. `benches/memory.rs` prints the actual values.

use redis::Connection;
use tollgate::{Algorithm, RateLimiter};

use crate::store_on;
use crate::support::costs::{algorithms, commands, fill, forget_calls, limiter, memory_of};
use crate::support::redis_server::{RedisServer, times_to_live};

#[tokio::test]
async fn a_sliding_log_holds_at_most_12_bytes_a_unit() {
    const LIMIT: u32 = 10_000;
    let server = RedisServer::start();
    let limiter = limiter(store_on(&server), Algorithm::SlidingLog, LIMIT).await;
    fill(&limiter, "ada", LIMIT).await;
    assert_eq!(limiter.peek("ada").await.unwrap().remaining(), 0);

    let mut connection = server.connect();
    let keys = times_to_live(&mut connection);
    let bytes = keys.iter().map(|(key, _)| memory_of(&mut connection, key));
    let bytes: u64 = bytes.sum();
    assert!(bytes <= 12 * u64::from(LIMIT), "{bytes} bytes");
}

#[tokio::test]
async fn no_algorithm_runs_more_than_six_commands_for_a_quota_that_needs_no_trim() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let mut connection = server.connect();
    for (name, algorithm) in algorithms() {
        let strict = limiter(store.clone(), algorithm, 1_000).await;
        let lax = limiter(store.clone(), algorithm, 3_000).await;
        // For the last two, the key has used more than their limit.
        let checks = [
            (&lax, 1, true),
            (&lax, 1, true),
            (&lax, 2_000, true),
            (&lax, 998, true),
            (&lax, 1, false),
            (&lax, 7, false),
            (&lax, 0, true),
            (&strict, 1, false),
            (&strict, 7, false),
        ];
        for (at, (limiter, cost, admitted)) in checks.into_iter().enumerate() {
            let ran = commands_of(&mut connection, limiter, cost, admitted).await;
            assert!(ran <= 6, "{name}, check {at}: {ran} commands");
        }
    }
}

async fn commands_of(
    connection: &mut Connection,
    limiter: &RateLimiter,
    cost: u32,
    admitted: bool,
) -> u64 {
    forget_calls(connection);
    let decision = limiter.check_n("ada", cost).await.unwrap();
    assert_eq!(decision.is_allowed(), admitted);
    let ran = commands(connection);
    assert!(ran > 1, "a clock and a count at least");
    ran
}
