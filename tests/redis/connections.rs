//! How a store makes its connections.

use std::task::Poll;
use std::time::Duration;

use redis::aio::{ConnectionManager, MultiplexedConnection};
use tollgate::{ErrorKind, Quota, RateLimiter, RedisStore};

use crate::support::proxy::{Proxy, Wire};
use crate::support::redis_server::{RedisServer, run};
use crate::support::{runtime, store_on};

#[test]
fn a_store_outlives_the_runtime_that_first_used_it() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(9));
    for used in 1..=3 {
        let decision = runtime().block_on(limiter.check("ada"));
        assert_eq!(decision.unwrap().used(), used);
    }
    // Concurrently, too.
    let (one, other) = (runtime(), runtime());
    for used in 4..=7 {
        let runtime = if used % 2 == 0 { &one } else { &other };
        assert_eq!(runtime.block_on(limiter.check("ada")).unwrap().used(), used);
    }
}

#[test]
fn the_connections_of_ended_runtimes_are_closed() {
    let server = RedisServer::start();
    let store = store_on(&server);
    for _ in 0..20 {
        runtime().block_on(store.ping()).unwrap();
    }
    let mut connection = server.connect();
    let clients: String = redis::cmd("CLIENT")
        .arg("LIST")
        .query(&mut connection)
        .unwrap();
    assert!(clients.lines().count() <= 3, "{clients}");
}

#[tokio::test]
async fn all_checks_of_a_runtime_share_one_connection_of_resp3() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(1_000));
    let checks: Vec<_> = (0..100)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.check("ada").await })
        })
        .collect();
    for check in checks {
        let _ = check.await.unwrap().unwrap();
    }
    let mut connection = server.connect();
    let clients: String = redis::cmd("CLIENT")
        .arg("LIST")
        .query(&mut connection)
        .unwrap();
    let ours: Vec<_> = clients
        .lines()
        .filter(|client| client.contains("cmd=eval"))
        .collect();
    assert_eq!(ours.len(), 1, "{clients}");
    assert!(speaks(ours[0], 3), "{clients}");
}

#[tokio::test]
async fn a_lost_connection_is_reconnected() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(1_000));
    let _ = limiter.check("ada").await.unwrap();
    let mut connection = server.connect();
    for _ in 0..5 {
        run(
            &mut connection,
            &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
        );
        // One check may fail; which one depends on when the loss is noticed.
        let mut failed = 0;
        while let Err(error) = limiter.check("ada").await {
            failed += 1;
            assert!(failed < 10, "{error}");
        }
    }
}

#[tokio::test]
async fn a_server_that_starts_later_is_reached() {
    let mut server = RedisServer::start();
    let port = server.port();
    server.kill();
    let url = format!("redis://127.0.0.1:{port}");
    let store = RedisStore::open(&url).unwrap();
    assert!(store.ping().await.is_err());

    let _server = RedisServer::spawn(port);
    let patience = tokio::time::Instant::now() + Duration::from_secs(10);
    while let Err(error) = store.ping().await {
        assert!(tokio::time::Instant::now() < patience, "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Longer than an attempt to connect takes by default.
const SLOW_START: Wire = Wire::SlowStart(Duration::from_millis(800));

#[tokio::test]
async fn the_first_check_waits_for_a_slow_connection_until_the_deadline() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port()).await;
    proxy.set(SLOW_START);
    let store = RedisStore::open(&proxy.url()).unwrap();
    let patient = store.fork().deadline(Duration::from_secs(2));
    let limiter = RateLimiter::new(patient, Quota::per_hour(9));
    assert_eq!(limiter.check("ada").await.unwrap().used(), 1);
    // The connection that the fork has made.
    store.ping().await.unwrap();
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn the_first_check_waits_for_a_slow_handshake_of_tls_until_the_deadline() {
    use crate::support::tls::TlsServer;

    let server = TlsServer::start(false);
    let port = server.url().rsplit_once(':').unwrap().1.parse().unwrap();
    let proxy = Proxy::before(port).await;
    proxy.set(SLOW_START);
    let ca = server.path("ca.pem").display().to_string();
    let url = format!("rediss://127.0.0.1:{}?ca={ca}", proxy.port());
    let store = RedisStore::open(&url).unwrap();
    let limiter = RateLimiter::new(store.deadline(Duration::from_secs(2)), Quota::per_hour(9));
    assert_eq!(limiter.check("ada").await.unwrap().used(), 1);
}

#[tokio::test]
async fn an_external_connection_can_be_used() {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let multiplexed: MultiplexedConnection =
        client.get_multiplexed_async_connection().await.unwrap();
    let managed = ConnectionManager::new(client).await.unwrap();
    let stores = [
        RedisStore::with_connection(multiplexed),
        RedisStore::with_connection(managed),
        store_on(&server),
    ];
    for (used, store) in (1..).zip(stores) {
        // Speed is not what is tested.
        let store = store.deadline(Duration::from_secs(10));
        store.ping().await.unwrap();
        let limiter = RateLimiter::new(store, Quota::per_hour(9));
        assert_eq!(limiter.check("ada").await.unwrap().used(), used);
    }
}

#[tokio::test]
async fn a_url_may_ask_for_resp2_and_another_database() {
    let server = RedisServer::start();
    let store = RedisStore::open(&format!("{}/3?protocol=resp2", server.url())).unwrap();
    let limiter = RateLimiter::new(store.deadline(Duration::from_secs(10)), Quota::per_hour(9));
    let _ = limiter.check("ada").await.unwrap();
    let mut connection = server.connect();
    let clients: String = redis::cmd("CLIENT")
        .arg("LIST")
        .query(&mut connection)
        .unwrap();
    let ours = clients
        .lines()
        .find(|client| client.contains("cmd=eval"))
        .unwrap();
    assert!(speaks(ours, 2) && ours.contains("db=3"), "{clients}");
}

#[test]
fn a_check_outside_of_a_runtime_is_an_error_and_no_panic() {
    let store = RedisStore::open("redis://127.0.0.1").unwrap();
    let mut check = Box::pin(async move { store.ping().await });
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let Poll::Ready(answer) = check.as_mut().poll(&mut context) else {
        panic!("it waits");
    };
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert_eq!(error.code(), "tollgate::E124");
}

/// Whether a line of CLIENT LIST is a client of this protocol. Before Redis 7.0 the line lacks it.
fn speaks(client: &str, protocol: u8) -> bool {
    !client.contains("resp=") || client.contains(&format!("resp={protocol}"))
}
