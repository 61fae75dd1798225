//! Connections that end, and transactions that Postgres rolls back.

use std::sync::Arc;
use std::time::Duration;

use tollgate::{FailurePolicy, Quota, RateLimiter, Source};
use tollgate_postgres::PostgresRows;

use crate::server::Server;

const CUTS: u32 = 200;

/// As a pooler, a proxy or a failover cuts it. Nothing was sent on it, so the check is asked once more on another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_was_cut_while_it_was_idle_fails_no_check() {
    let server = Server::start();
    let store = server.store("cut").await;
    let limiter = RateLimiter::new(store, Quota::per_day(10_000)).name("cut");
    for cut in 0..CUTS {
        let mut decision = limiter.check_n("ada", 3).await.unwrap();
        assert_eq!(decision.source(), Source::Other);
        server.cut_connections().await;
        // A settlement, then a check, on connections that are gone.
        decision.refund(2).await.unwrap();
        server.cut_connections().await;
        assert_eq!(limiter.peek("ada").await.unwrap().used(), cut + 1);
        server.cut_connections().await;
    }
    assert_eq!(limiter.peek("ada").await.unwrap().used(), CUTS);
}

/// With counts in memory as the fallback, a check that failed would be admitted beside the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_admits_nothing_beside_the_limit() {
    let server = Server::start();
    let store = server.store("cut_limit").await;
    let limiter = RateLimiter::new(store, Quota::per_day(3)).on_failure(FailurePolicy::fall_back());
    let mut admitted = 0;
    for key in 0..12 {
        // Of two keys, so that no refusal is remembered all the time.
        let key = if key % 2 == 0 { "ada" } else { "bob" };
        admitted += u32::from(limiter.check(key).await.unwrap().is_allowed());
        server.cut_connections().await;
    }
    assert_eq!(admitted, 6);
}

/// The first attempt of a busy key fails at this level. It is repeated under a lock, where the level is another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_role_at_repeatable_read_decides_a_busy_key_exactly() {
    let server = Server::start();
    server.store("repeatable").await;
    for level in ["repeatable read", "serializable"] {
        let role = level.replace(' ', "_");
        let settings = format!(
            "CREATE ROLE {role} LOGIN SUPERUSER; ALTER ROLE {role} SET default_transaction_isolation TO '{level}'"
        );
        server.run(&settings).await;
        let url = server.url_as(&role);
        let limiters: Vec<_> = (0..3)
            .map(|_| {
                let rows = PostgresRows::open(&url).unwrap().schema("repeatable");
                let store = rows.into_store().deadline(Duration::from_secs(20));
                RateLimiter::new(store, Quota::per_day(300)).name(role.as_str())
            })
            .collect();
        let limiters = Arc::new(limiters);
        let tasks = (0..12).map(|task| {
            let limiters = Arc::clone(&limiters);
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..40 {
                    let decision = limiters[task % 3].check("ada").await.unwrap();
                    admitted += u32::from(decision.is_allowed());
                }
                admitted
            })
        });
        let mut admitted = 0;
        for task in tasks.collect::<Vec<_>>() {
            admitted += task.await.unwrap();
        }
        assert_eq!(admitted, 300, "{level}");
    }
}

/// A pool needs a runtime to take a connection back.
#[test]
fn a_store_may_be_dropped_outside_the_runtime_that_has_ended() {
    let build = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    };
    let runtime = build();
    let (server, store) = runtime.block_on(async {
        let server = Server::start();
        let store = server.store("dropped").await;
        let limiter = RateLimiter::new(store.clone(), Quota::per_day(9));
        assert!(limiter.check("ada").await.unwrap().is_allowed());
        (server, store)
    });
    runtime.shutdown_background();
    drop(store);
    drop(server);
}
