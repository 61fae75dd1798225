//! The contract of tower: the order of calls, and cancelled requests.

use axum::body::Bytes;
use axum::http::request::Parts;
use axum::http::{Request, Response};
use http_body_util::Full;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;
use tollgate::{Quota, RateLimit, RateLimitLayer, RateLimiter, Store};
use tower::{Layer, ServiceExt, service_fn};
use tower_test::mock::{self, Mock, Spawn};

use crate::support::calls::stores;
use crate::support::redis_server::RedisServer;
use crate::{by_hand, by_path, to, used};

type Inner = Mock<Request<()>, Response<Full<Bytes>>>;
type Handle = mock::Handle<Request<()>, Response<Full<Bytes>>>;

const LIMIT: u32 = 9;

/// What is not to happen has this long to happen.
const A_WHILE: Duration = Duration::from_millis(20);

/// What is to happen happens sooner, however slow the machine is.
const SOON: Duration = Duration::from_secs(10);

struct Mocked {
    service: Spawn<RateLimit<Inner>>,
    inner: Handle,
    limiter: RateLimiter,
}

/// A mock behind a layer, which is as ready as the test says.
fn mocked(
    store: impl Store,
    limit: u32,
    change: impl FnOnce(RateLimitLayer) -> RateLimitLayer,
) -> Mocked {
    let limiter = RateLimiter::new(store, Quota::per_hour(limit));
    let layer = change(RateLimitLayer::from(limiter.clone()).key(by_path()));
    let (service, inner) = mock::spawn_layer(layer);
    Mocked {
        service,
        inner,
        limiter,
    }
}

impl Mocked {
    async fn ready(&mut self) {
        let ready = std::future::poll_fn(|_| self.service.poll_ready());
        ready.await.expect("it is ready");
    }

    async fn used(&self) -> u32 {
        used(&self.limiter, "/ada").await
    }

    /// The call that must come.
    async fn next_call(&mut self) -> (Request<()>, mock::SendResponse<Response<Full<Bytes>>>) {
        let called = tokio::time::timeout(SOON, self.inner.next_request()).await;
        called.ok().flatten().expect("a call")
    }

    async fn is_called(&mut self) -> bool {
        let called = tokio::time::timeout(A_WHILE, self.inner.next_request());
        called.await.is_ok()
    }
}

#[tokio::test]
async fn a_refused_request_never_calls_the_inner_service() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let mut mocked = mocked(store, 0, |layer| layer);
        for _ in 0..3 {
            mocked.inner.allow(1);
            mocked.ready().await;
            let refused = mocked.service.call(to("/ada")).await.unwrap();
            assert_eq!(refused.status(), 429);
            assert!(!mocked.is_called().await);
        }
    }
}

#[tokio::test]
async fn an_inner_service_that_is_not_ready_is_not_called() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let mut mocked = mocked(store, LIMIT, |layer| layer);
        mocked.inner.allow(0);
        assert!(mocked.service.poll_ready().is_pending());
        assert!(!mocked.is_called().await);
        assert_eq!(mocked.used().await, 0);
        mocked.inner.allow(1);
        // A waiting task is woken.
        assert!(mocked.service.is_woken());
        assert!(matches!(mocked.service.poll_ready(), Poll::Ready(Ok(()))));
        let response = tokio::spawn(mocked.service.call(to("/ada")));
        let (_, answer) = mocked.next_call().await;
        answer.send_response(Response::new(Full::from("ok")));
        assert_eq!(response.await.unwrap().unwrap().status(), 200);
        assert!(mocked.service.poll_ready().is_pending());
    }
}

#[tokio::test]
async fn that_an_inner_service_failed_is_passed_on() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let mut mocked = mocked(store, LIMIT, |layer| layer);
        mocked.inner.send_error("out of order");
        let Poll::Ready(Err(error)) = mocked.service.poll_ready() else {
            panic!("it is not ready for good");
        };
        assert_eq!(error.to_string(), "out of order");
    }
}

#[tokio::test]
async fn dropped_before_the_decision_the_service_is_not_called_and_at_most_one_charge_stays() {
    let server = RedisServer::start();
    let [memory, redis] = stores(&server);
    // In memory, the decision is made by the call.
    let mut decided = mocked(memory, LIMIT, |layer| layer);
    decided.inner.allow(1);
    decided.ready().await;
    drop(decided.service.call(to("/ada")));
    assert_eq!(decided.used().await, 1);

    for polls in [0, 1] {
        let mut asked = mocked(Arc::clone(&redis), LIMIT, |layer| layer);
        asked.limiter.admin().reset("/ada").await.unwrap();
        asked.inner.allow(1);
        asked.ready().await;
        let mut response = by_hand(asked.service.call(to("/ada")));
        for _ in 0..polls {
            assert!(response.poll().is_pending());
        }
        drop(response);
        assert!(!asked.is_called().await);
        assert!(asked.used().await <= 1);
        // The next one is served as ever.
        asked.inner.allow(1);
        asked.ready().await;
        let response = tokio::spawn(asked.service.call(to("/ada")));
        let (_, answer) = asked.next_call().await;
        answer.send_response(Response::new(Full::from("ok")));
        assert_eq!(response.await.unwrap().unwrap().status(), 200);
    }
}

#[tokio::test]
async fn dropped_after_the_decision_the_charge_stays_though_it_would_be_settled() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let mut mocked = mocked(store, LIMIT, |layer| layer.settle(|_, _, _| 0).reserve());
        mocked.inner.allow(1);
        mocked.ready().await;
        let response = tokio::spawn(mocked.service.call(to("/ada")));
        let (_request, _answer) = mocked.next_call().await;
        response.abort();
        assert!(response.await.unwrap_err().is_cancelled());
        tokio::time::sleep(A_WHILE).await;
        assert_eq!(mocked.used().await, 1);
    }
}

#[tokio::test]
async fn dropped_before_its_plan_is_known_a_request_has_charged_nothing() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let (tell, plan) = oneshot::channel::<Quota>();
        let plan = std::sync::Mutex::new(Some(plan));
        let mut mocked = mocked(store, LIMIT, |layer| {
            layer.quotas_for(move |_, _| {
                let plan = plan.lock().unwrap().take().unwrap();
                async move { plan.await.ok() }
            })
        });
        mocked.inner.allow(1);
        mocked.ready().await;
        let mut response = by_hand(mocked.service.call(to("/ada")));
        assert!(response.poll().is_pending());
        drop(response);
        assert!(tell.is_closed());
        assert!(!mocked.is_called().await);
        assert_eq!(mocked.used().await, 0);
    }
}

/// Panics for one of the keys.
fn spares_bob(parts: &Parts) {
    assert_eq!(parts.uri.path(), "/bob");
}

fn share_of(parts: &Parts) -> Option<&'static str> {
    spares_bob(parts);
    None
}

/// Layers with a closure or a lookup that panics.
const PANICKING: [fn(RateLimitLayer) -> RateLimitLayer; 4] = [
    |layer| {
        layer.cost(|parts| {
            spares_bob(parts);
            1
        })
    },
    |layer| layer.share(share_of),
    |layer| {
        layer.quotas_for(|_, parts| {
            spares_bob(parts);
            async { None::<Quota> }
        })
    },
    |layer| {
        layer.quotas_for(|_, parts| {
            let parts = parts.clone();
            async move {
                tokio::task::yield_now().await;
                spares_bob(&parts);
                None::<Quota>
            }
        })
    },
];

#[tokio::test]
async fn a_request_whose_closure_or_lookup_panics_has_charged_nothing() {
    let server = RedisServer::start();
    for store in stores(&server) {
        for change in PANICKING {
            let limiter = RateLimiter::new(Arc::clone(&store), Quota::per_hour(LIMIT));
            let layer = change(RateLimitLayer::from(limiter.clone()).key(by_path()));
            let service = layer.layer(service_fn(async |_: Request<()>| {
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
            }));
            let panicked = tokio::spawn(service.clone().oneshot(to("/ada")));
            assert!(panicked.await.unwrap_err().is_panic());
            assert_eq!(used(&limiter, "/ada").await, 0);
            let others = service.oneshot(to("/bob")).await.unwrap();
            assert_eq!(others.status(), 200);
        }
    }
}
