//! Metrics of slots in flight.

use std::pin::pin;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::time::timeout;
use tollgate::{Acquired, MemoryStore, Quota, RateLimiter};

use crate::outcomes::{WHO, scrape, scraped};
use crate::support::redis_server::RedisServer;
use crate::support::store_on;

/// A metric of the limiter `exports`, as Prometheus would scrape it.
fn of_exports(prometheus: &PrometheusHandle, name: &str) -> f64 {
    assert!(!prometheus.render().contains(WHO));
    scraped(
        prometheus,
        &format!(r#"tollgate_{name}{{limiter="exports"}}"#),
    )
}

#[tokio::test]
async fn slots_are_held_until_their_permit_is_dropped() {
    let (prometheus, _guard) = scrape();
    let told = |name: &str| of_exports(&prometheus, name);
    let exports = RateLimiter::new(MemoryStore::new(), Quota::in_flight(3)).name("exports");
    let two = RateLimiter::acquire_all([exports.level(WHO).slots(2)]).await;
    let two = two.unwrap();
    let Acquired::Permit(one) = exports.try_acquire(WHO).await.unwrap() else {
        panic!("a slot is free");
    };
    assert_eq!(
        (told("permits_held"), told("permits_lost_total")),
        (3.0, 0.0)
    );
    drop(two);
    assert_eq!(told("permits_held"), 1.0);
    tokio::time::sleep(Duration::from_millis(20)).await;
    one.release().await.unwrap();
    assert_eq!(
        (told("permits_held"), told("permits_lost_total")),
        (0.0, 0.0)
    );
    assert_eq!(told("permit_seconds_count"), 2.0);
    assert!((0.02..10.0).contains(&told("permit_seconds_sum")));
}

#[tokio::test]
async fn a_wait_in_vain_counts_as_a_refusal_of_the_limiter_that_lacks_room() {
    let (prometheus, _guard) = scrape();
    let store = MemoryStore::new();
    let wait = Duration::from_millis(20);
    let user = RateLimiter::new(store.clone(), Quota::per_minute(1_000)).name("user");
    let user = user.max_wait(wait);
    let exports = RateLimiter::new(store, Quota::in_flight(1)).name("exports");
    let exports = exports.max_wait(wait);
    let _held = exports.acquire("acme").await.unwrap();
    for _ in 0..4 {
        let levels = [user.level(WHO), exports.level("acme")];
        assert!(RateLimiter::acquire_all(levels).await.is_err());
    }
    let refused = |limiter: &str| {
        let series = format!(r#"tollgate_checks_total{{limiter="{limiter}",outcome="refused""#);
        let text = prometheus.render();
        let refused = text.lines().filter(|line| line.starts_with(&series));
        let counts = refused.filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok());
        counts.sum::<u32>()
    };
    assert_eq!((refused("user"), refused("exports")), (0, 4));
}

#[tokio::test]
async fn calls_wait_until_they_get_a_permit_or_give_up() {
    let (prometheus, _guard) = scrape();
    let told = |name: &str| of_exports(&prometheus, name);
    let exports = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1)).name("exports");
    let first = exports.acquire(WHO).await.unwrap();
    assert_eq!(told("permits_waiting"), 0.0);
    // Refused at once.
    let refused = exports.try_acquire(WHO).await.unwrap();
    assert!(matches!(refused, Acquired::Refused(_)));

    let mut second = pin!(exports.acquire(WHO));
    let wait = Duration::from_millis(20);
    assert!(timeout(wait, &mut second).await.is_err());
    assert_eq!(told("permits_waiting"), 1.0);
    assert!(timeout(wait, exports.acquire(WHO)).await.is_err());
    assert_eq!(told("permits_waiting"), 1.0);
    drop(first);
    let second = second.await.unwrap();
    assert_eq!(told("permits_waiting"), 0.0);
    assert_eq!(told("permit_wait_seconds_count"), 2.0);
    assert!((0.04..10.0).contains(&told("permit_wait_seconds_sum")));

    let hurried = exports.clone().max_wait(wait);
    assert!(hurried.acquire(WHO).await.is_err());
    assert_eq!(told("permits_waiting"), 0.0);
    assert_eq!(told("permit_wait_seconds_count"), 2.0);
    drop(second);
    assert_eq!(told("permits_held"), 0.0);
}

#[tokio::test]
async fn permits_are_renewed_while_redis_answers_and_lost_after_that() {
    let mut server = RedisServer::start();
    let (prometheus, _guard) = scrape();
    let told = |name: &str| of_exports(&prometheus, name);
    let quota = Quota::in_flight(2).slot_lease(Duration::from_secs(5));
    let store = store_on(&server).deadline(Duration::from_secs(5));
    let exports = RateLimiter::new(store, quota).name("exports");
    let permit = RateLimiter::acquire_all([exports.level(WHO).slots(2)]).await;
    let permit = permit.unwrap();
    assert_eq!(told("permit_renewals_total"), 0.0);
    // Each third of the lease, and half of that later or earlier.
    tokio::time::sleep(Duration::from_millis(2_600)).await;
    assert!(told("permit_renewals_total") >= 1.0);
    assert_eq!(told("permits_lost_total"), 0.0);

    server.kill();
    let lost = timeout(Duration::from_secs(8), permit.lost()).await;
    lost.unwrap();
    assert_eq!(
        (told("permits_held"), told("permits_lost_total")),
        (2.0, 2.0)
    );
    drop(permit);
    assert_eq!(
        (told("permits_held"), told("permits_lost_total")),
        (0.0, 2.0)
    );
}
