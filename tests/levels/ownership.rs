//! A decision has its limiters, and with them their store.

use std::convert::Infallible;
use std::sync::{Arc, Weak};
#[cfg(feature = "redis")]
use std::time::Duration;

use http::{Request, Response};

use tollgate::{
    Decision, DecisionView, MemoryStore, Permit, Quota, RateLimitLayer, RateLimiter, Rejection,
    Reservation, key,
};
use tower::{Layer, Service};

use crate::support::fakes::fake_store::FakeStore;
use crate::support::log;
use crate::used;

#[test]
fn decisions_and_what_holds_them_may_go_to_any_thread() {
    fn may_go<T: Send + Sync + 'static>() {}
    may_go::<Decision>();
    may_go::<DecisionView>();
    may_go::<Reservation>();
    may_go::<Rejection>();
    may_go::<Permit>();
}

#[tokio::test]
async fn a_decision_settles_itself_after_its_limiters_and_store_handles_are_gone() {
    let kept = MemoryStore::new();
    let store = kept.clone();
    let account = RateLimiter::new(store.clone(), Quota::per_hour(50)).name("account");
    let address = RateLimiter::new(store, Quota::per_hour(50)).name("address");
    let levels = [
        account.level("ada").cost(5),
        address.level("192.0.2.1").cost(3),
    ];
    let decision = RateLimiter::check_all(levels).await.unwrap();
    let mut refunded = account.check_n("ada", 7).await.unwrap();
    drop((account, address));
    let account = RateLimiter::new(kept.clone(), Quota::per_hour(50)).name("account");
    let address = RateLimiter::new(kept, Quota::per_hour(50)).name("address");
    assert_eq!(used(&account, "ada").await, 12);
    decision.settle(2).await.unwrap();
    assert_eq!(used(&account, "ada").await, 9);
    assert_eq!(used(&address, "192.0.2.1").await, 2);
    refunded.refund(6).await.unwrap();
    assert_eq!(used(&account, "ada").await, 3);
}

/// Returns a store in memory, and what tells whether it still exists.
fn watched() -> (FakeStore, Weak<()>) {
    let exists = Arc::new(());
    let watch = Arc::downgrade(&exists);
    let store = FakeStore::in_memory().adjusts_by(move |counts, adjust| {
        // The closure, and so the store, keeps it.
        let _ = &exists;
        counts.adjust(adjust)
    });
    (store, watch)
}

#[tokio::test]
async fn a_view_in_a_response_keeps_the_store_until_it_is_dropped_and_no_longer() {
    let (store, watch) = watched();
    let layer = RateLimitLayer::new(store, Quota::per_hour(50)).key(key::global());
    let mut service = layer.layer(tower::service_fn(|request: Request<String>| async move {
        let view = request.extensions().get::<DecisionView>().cloned();
        let mut response = Response::new(String::new());
        response.extensions_mut().insert(view.expect("a decision"));
        Ok::<_, Infallible>(response)
    }));
    let request = Request::new(String::new());
    let response = service.call(request).await.expect("a response");
    drop((layer, service));
    assert!(watch.upgrade().is_some());
    let view = response.extensions().get::<DecisionView>();
    assert_eq!(view.expect("a view").used(), 1);
    drop(response);
    assert!(watch.upgrade().is_none());
}

#[tokio::test]
async fn a_limiter_that_only_a_view_remembers_warns_of_no_conflict() {
    let store = MemoryStore::new();
    let limited_to = |limit| RateLimiter::new(store.clone(), Quota::per_hour(limit)).name("search");
    log::keep();
    let before = limited_to(50);
    let decision = before.check("ada").await.unwrap();
    // After a reload of the settings.
    drop(before);
    let after = limited_to(60);
    assert_eq!(after.check("ada").await.unwrap().used(), 2);
    assert_eq!(log::kept(), Vec::<String>::new());
    // The units of the earlier one are still its own.
    decision.settle(0).await.unwrap();
    assert_eq!(used(&after, "ada").await, 1);
    // Two that are both in use differ.
    let other = limited_to(70);
    assert_eq!(other.check("ada").await.unwrap().used(), 2);
    let lines = log::kept();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("different quotas"), "{lines:?}");
}

#[cfg(feature = "redis")]
mod without_a_runtime {
    use std::thread;

    use tokio::runtime::Builder;

    use super::*;
    use crate::support::redis_server::RedisServer;
    use crate::support::store_on;

    #[test]
    fn the_last_view_may_be_dropped_outside_of_a_runtime() {
        let server = RedisServer::start();
        for ends_first in [false, true] {
            let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
            let views = runtime.block_on(async {
                let store = store_on(&server);
                let quotas = [Quota::per_hour(1_000), Quota::in_flight(9)];
                let jobs = RateLimiter::new(store.clone(), quotas).name("jobs");
                let leased = RateLimiter::new(store, Quota::per_hour(100_000)).name("leased");
                let leased = leased.lease(Duration::from_millis(500));
                let mut views = Vec::new();
                for _ in 0..64 {
                    views.push(leased.check("ada").await.unwrap().view().clone());
                }
                let permit = jobs.acquire("ada").await.unwrap();
                views.push(permit.decision().clone());
                views
            });
            if ends_first {
                drop(runtime);
                thread::spawn(move || drop(views)).join().unwrap();
            } else {
                thread::spawn(move || drop(views)).join().unwrap();
                // Its tasks end, though the store is gone.
                drop(runtime);
            }
        }
    }
}
