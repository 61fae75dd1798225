//! A client that goes on through an outage of Redis, and one of the upstream.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::response::{IntoResponse, Response as Answer};
use axum::{Router, extract::State, routing::get};
use tollgate::{MemoryStore, RedisStore};
use tower::{Layer, service_fn};

use crate::support::redis_server::{RedisServer, free_port};
use crate::support::served::serve;

// page: shown
use std::time::Duration;

use http::{Request, Response};
use tollgate::{OutboundLayer, Quota, RateLimiter, Rejection, Store};
use tower::{Service, ServiceExt};

const PATIENCE: Duration = Duration::from_secs(600);

fn outbound(store: impl Store) -> OutboundLayer {
    let limiter = RateLimiter::new(store, Quota::per_second(9))
        .name("upstream")
        .wait_through_outages(); // of Redis: nothing is sent uncounted
    OutboundLayer::new(limiter).wait_up_to(PATIENCE)
}

/// Sends a request again while the upstream refuses it, at most at the rate of the limit.
async fn send<C, B>(client: &mut C, request: Request<String>) -> Result<Response<B>, C::Error>
where
    C: Service<Request<String>, Response = Response<B>>,
{
    loop {
        let response = client.ready().await?.call(request.clone()).await?;
        let was_sent = response.extensions().get::<Rejection>().is_none();
        // After a `Retry-After`, the next request waits for its end.
        if !was_sent || !matches!(response.status().as_u16(), 429 | 503) {
            return Ok(response);
        }
    }
}
// page: end

/// When an upstream was asked.
type Asked = Arc<Mutex<Vec<Instant>>>;

/// An upstream that fails once, and says for how long.
async fn answer(State(asked): State<Asked>) -> Answer {
    let mut asked = asked.lock().expect("no panic");
    asked.push(Instant::now());
    match asked.len() {
        1 => (
            http::StatusCode::SERVICE_UNAVAILABLE,
            [("retry-after", "1")],
        )
            .into_response(),
        _ => "done".into_response(),
    }
}

async fn upstream() -> (String, Asked) {
    let asked = Asked::default();
    let app = Router::new().route("/", get(answer));
    let url = serve(app.with_state(Arc::clone(&asked))).await;
    (url, asked)
}

/// A client over HTTP behind this layer.
macro_rules! client {
    ($layer:expr) => {
        $layer.layer(service_fn(|request: Request<String>| async move {
            let request = request.map(reqwest::Body::from).try_into()?;
            let response = reqwest::Client::new().execute(request).await?;
            reqwest::Result::Ok(Response::from(response))
        }))
    };
}

fn to(url: &str) -> Request<String> {
    Request::get(url).body(String::new()).expect("a request")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_waits_for_redis_and_then_for_the_upstream() {
    let (url, asked) = upstream().await;
    let port = free_port();
    let store = RedisStore::open(&format!("redis://127.0.0.1:{port}")).expect("a URL");
    let request = to(&url);
    let sending = tokio::spawn(async move { send(&mut client!(outbound(store)), request).await });

    // Several deadlines of the store: nothing is sent uncounted.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(asked.lock().expect("no panic").len(), 0);
    let server = RedisServer::spawn(port);
    let response = sending.await.expect("no panic").expect("an answer");
    assert_eq!(response.status(), 200);

    let asked = asked.lock().expect("no panic").clone();
    assert_eq!(asked.len(), 2);
    let waited = asked[1] - asked[0];
    assert!(waited >= Duration::from_secs(1), "{waited:?}");
    drop(server);
}

#[tokio::test]
async fn a_request_that_its_own_limit_refuses_is_not_tried_again() {
    let (url, asked) = upstream().await;
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(2)).name("upstream");
    let mut client = client!(OutboundLayer::new(limiter).wait_up_to(Duration::from_secs(5)));
    let served = send(&mut client, to(&url)).await.expect("an answer");
    assert_eq!(served.status(), 200);
    let refused = send(&mut client, to(&url)).await.expect("an answer");
    assert_eq!(refused.status(), 429);
    assert_eq!(asked.lock().expect("no panic").len(), 2);
}
