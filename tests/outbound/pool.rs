//! A pool of keys of one upstream: each request goes by the first key that has room.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use tollgate::store::TestStore;
use tollgate::{
    DecisionView, OutboundLayer, Quota, RateLimiter, Rejection, RejectionReason, Source, Store,
};
use tower::{Layer, ServiceExt, service_fn};

const SECOND: Duration = Duration::from_secs(1);
const POOL: [&str; 3] = ["key-a", "key-b", "key-c"];

type Body = Empty<bytes::Bytes>;

/// An upstream that keeps by which key of the pool each request came. It answers `/refuse` with a 429, and a wait of 20 s.
#[derive(Clone, Default)]
struct Upstream(Arc<Mutex<Vec<usize>>>);

impl Upstream {
    fn take_received(&self) -> Vec<usize> {
        std::mem::take(&mut self.0.lock().expect("a list"))
    }

    async fn send(&self, layer: &OutboundLayer, path: &str) -> Response<()> {
        let received = Arc::clone(&self.0);
        let upstream = service_fn(move |request: Request<Body>| {
            let decision = request.extensions().get::<DecisionView>();
            let chosen = decision.and_then(DecisionView::alternative);
            let chosen = chosen.expect("the choice is in the extensions");
            received.lock().expect("a list").push(chosen);
            let response = match request.uri().path() {
                "/refuse" => Response::builder().status(429).header("retry-after", "20"),
                _ => Response::builder(),
            };
            let response = response.body(Body::new()).expect("a response");
            async { Ok::<_, Infallible>(response) }
        });
        let url = format!("http://a.example{path}");
        let request = Request::get(url).body(Body::new()).expect("a request");
        let response = layer.layer(upstream).oneshot(request).await;
        response.expect("an answer").map(drop)
    }
}

fn limiter(store: impl Store, quota: Quota) -> RateLimiter {
    RateLimiter::new(store, quota).name("upstream")
}

#[tokio::test]
async fn a_request_goes_by_the_first_key_that_has_room_and_by_none_at_once_if_all_refuse() {
    let store = TestStore::new();
    let upstream = Upstream::default();
    let layer = OutboundLayer::new(limiter(store.clone(), Quota::per_minute(2))).first_of(POOL);
    for _ in 0..6 {
        assert_eq!(upstream.send(&layer, "/").await.status(), StatusCode::OK);
    }
    assert_eq!(upstream.take_received(), [0, 0, 1, 1, 2, 2]);
    store.clock().advance(SECOND * 15);
    let rejected = upstream.send(&layer, "/").await;
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.headers()["retry-after"], "45");
    assert!(upstream.take_received().is_empty());
    store.clock().advance(SECOND * 45);
    assert_eq!(upstream.send(&layer, "/").await.status(), StatusCode::OK);
    assert_eq!(upstream.take_received(), [0]);
}

#[tokio::test]
async fn a_429_pauses_the_key_that_was_chosen_and_no_other() {
    let store = TestStore::new();
    let upstream = Upstream::default();
    let layer = OutboundLayer::new(limiter(store.clone(), Quota::per_minute(9))).first_of(POOL);
    assert_eq!(upstream.send(&layer, "/refuse").await.status(), 429);
    assert_eq!(upstream.send(&layer, "/").await.status(), 200);
    assert_eq!(upstream.send(&layer, "/refuse").await.status(), 429);
    assert_eq!(upstream.send(&layer, "/").await.status(), 200);
    assert_eq!(upstream.take_received(), [0, 1, 1, 2]);
    // A paused key costs no call.
    let asked = store.take_checks();
    let asked: Vec<_> = asked
        .iter()
        .map(|check| check.key().as_str().to_owned())
        .collect();
    assert_eq!(asked, ["key-a", "key-b", "key-b", "key-c"]);
    assert_eq!(upstream.send(&layer, "/refuse").await.status(), 429);
    // All are paused: nothing is sent.
    let rejected = upstream.send(&layer, "/").await;
    assert_eq!(upstream.take_received(), [2]);
    let rejection = rejected.extensions().get::<Rejection>();
    let Some(RejectionReason::Refused(decision)) = rejection.map(Rejection::reason) else {
        panic!("{rejection:?}");
    };
    assert_eq!(decision.source(), Source::Paused);
    assert_eq!(decision.alternative(), None);
}

#[tokio::test]
async fn a_pool_that_would_wait_or_has_no_keys_is_an_error_that_names_it() {
    let upstream = Upstream::default();
    let pool = |store: TestStore| OutboundLayer::new(limiter(store, Quota::per_minute(9)));
    let none: [&str; 0] = [];
    for (layer, text) in [
        (
            pool(TestStore::new()).first_of(POOL).wait_up_to(SECOND),
            "wait for room",
        ),
        (pool(TestStore::new()).first_of(none), "0 alternatives"),
        (pool(TestStore::new()).first_of(0..9_u64), "9 alternatives"),
    ] {
        let rejected = upstream.send(&layer, "/").await;
        assert_eq!(rejected.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let rejection = rejected.extensions().get::<Rejection>();
        let Some(RejectionReason::Failed(error)) = rejection.map(Rejection::reason) else {
            panic!("{rejection:?}");
        };
        assert!(error.to_string().contains(text), "{error}");
    }
    assert!(upstream.take_received().is_empty());
}
