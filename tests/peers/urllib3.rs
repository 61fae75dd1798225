//! urllib3's `Retry` waits for the time in `Retry-After`, and is then admitted.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::{Router, routing::get};
use serde_json::json;
use tollgate::{MemoryStore, Quota, RateLimitLayer, RateLimiter, key};

use crate::{python, serve};

/// What the server saw of a request.
#[derive(Clone, Debug)]
struct Seen {
    at: Instant,
    status: u16,
    retry_after: Option<String>,
}

type Log = Arc<Mutex<Vec<Seen>>>;

async fn note(State(log): State<Log>, request: Request, next: Next) -> Response {
    let at = Instant::now();
    let response = next.run(request).await;
    let retry_after = response.headers().get("retry-after");
    log.lock().unwrap().push(Seen {
        at,
        status: response.status().as_u16(),
        retry_after: retry_after.map(|value| value.to_str().unwrap().to_owned()),
    });
    response
}

/// Serves a router behind a layer, which tells the second request to wait for three seconds.
async fn waits_for_three_seconds(layer: RateLimitLayer) {
    let log = Log::default();
    let app = Router::new()
        .route("/", get(|| async { "ok" }))
        .layer(layer)
        .layer(middleware::from_fn_with_state(Arc::clone(&log), note));
    let address = serve(app).await;

    let report = python::run("retry.py", &[&format!("http://{address}/")]).await;

    let seen = log.lock().unwrap().clone();
    let statuses: Vec<u16> = seen.iter().map(|seen| seen.status).collect();
    assert_eq!(statuses, [200, 429, 200], "{report}");
    assert_eq!(seen[1].retry_after.as_deref(), Some("3"));
    let waited = seen[2].at - seen[1].at;
    let told = Duration::from_secs(3);
    assert!(waited >= told && waited < 2 * told, "{waited:?}");

    let answers = &report["answers"];
    assert_eq!(answers[0]["status"], 200, "{report}");
    assert_eq!(answers[0]["history"], json!([]), "{report}");
    assert_eq!(answers[1]["status"], 200, "{report}");
    assert_eq!(answers[1]["history"], json!([429]), "{report}");
    assert!(answers[1]["seconds"].as_f64() >= Some(3.0), "{report}");
}

#[tokio::test]
async fn urllib3_waits_as_long_as_told_and_is_then_admitted() {
    // One request in any 2.5 seconds. `Retry-After` has whole seconds, rounded up.
    let quota = Quota::new(1, Duration::from_millis(2_500));
    waits_for_three_seconds(RateLimitLayer::new(MemoryStore::new(), quota)).await;
}

#[tokio::test]
async fn urllib3_waits_for_the_longest_of_several_levels_and_is_then_admitted() {
    let store = MemoryStore::new();
    let level = |name: &str, millis| {
        let quota = Quota::new(1, Duration::from_millis(millis));
        RateLimiter::new(store.clone(), quota).name(name)
    };
    let layer = RateLimitLayer::from(level("user", 500))
        .key(key::global())
        .and(level("tenant", 2_500), key::global())
        .and(level("service", 1_000), key::global());
    waits_for_three_seconds(layer).await;
}
