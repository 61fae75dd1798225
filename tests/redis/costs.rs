//! Upper bounds of commands in Redis. `stored.rs` has those of memory; `benches/memory.rs` prints the actual values.

use redis::Connection;
use tollgate::RateLimiter;

use crate::support::costs::{algorithms, commands, forget_calls, limiter};
use crate::support::redis_server::RedisServer;
use crate::support::store_on;

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
