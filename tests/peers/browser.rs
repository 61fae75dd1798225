//! The headers of a limit that a script in Chromium can read from another origin.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderName, Method};
use axum::middleware::{self, Next};
use axum::response::{Html, Response};
use axum::{Router, routing::get};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;
use tollgate::cors::{EXPOSED_HEADERS, is_preflight};
use tollgate::{Headers, IetfDraft, MemoryStore, Quota, RateLimitLayer};
use tower_http::cors::{Any, CorsLayer};

use crate::serve;

/// Several times what Chromium takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Every header that says something of a limit.
const HEADERS: [&str; 6] = [
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
];

/// Allows all origins to ask with the header that the page adds, and to ask for leave each time.
fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(Any)
        .allow_headers([HeaderName::from_static("x-client")])
        .max_age(Duration::ZERO)
}

/// Two requests an hour, to all together.
fn limit() -> RateLimitLayer {
    let quota = Quota::new(2, Duration::from_secs(3_600));
    RateLimitLayer::new(MemoryStore::new(), quota)
        .name("api")
        .key(tollgate::key::global())
        .headers(
            Headers::x_ratelimit()
                .delta_reset()
                .and(Headers::ietf(IetfDraft::Draft11)),
        )
}

fn api() -> Router {
    Router::new().route("/", get(|| async { "ok" }))
}

/// What the page's script saw of its four requests, and how many preflights the API was sent.
async fn seen_of(api: Router) -> (Vec<Value>, u32) {
    let preflights = Arc::new(AtomicU32::new(0));
    let api = api.layer(middleware::from_fn_with_state(
        Arc::clone(&preflights),
        count,
    ));
    let api = serve(api).await;
    let page = Router::new().route("/", get(|| async { Html(include_str!("page.html")) }));
    let page = serve(page).await;
    let dom = dom_of(&format!("http://{page}/?api=http://{api}/")).await;
    let (_, outcome) = dom.split_once("<pre id=\"outcome\">").expect(&dom);
    let (outcome, _) = outcome.split_once("</pre>").expect(&dom);
    let outcome = serde_json::from_str(outcome).unwrap_or_else(|error| panic!("{error}: {dom}"));
    (outcome, preflights.load(Ordering::Relaxed))
}

async fn count(State(preflights): State<Arc<AtomicU32>>, request: Request, next: Next) -> Response {
    if request.method() == Method::OPTIONS {
        preflights.fetch_add(1, Ordering::Relaxed);
    }
    next.run(request).await
}

/// A page as Chromium has it when its scripts have run.
async fn dom_of(url: &str) -> String {
    let profile = tempfile::tempdir().expect("a directory");
    let mut chromium = Command::new("chromium");
    chromium
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
        ])
        // What lies around on this machine, and what a first start asks of the world.
        .args(["--no-first-run", "--no-proxy-server", "--disable-sync"])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
        ])
        // Containers have little shared memory.
        .arg("--disable-dev-shm-usage")
        .arg(format!("--user-data-dir={}", profile.path().display()))
        // Timers run ahead, but not while an answer is waited for.
        .args(["--virtual-time-budget=10000", "--dump-dom", url]);
    let run = chromium.kill_on_drop(true).output();
    let output = timeout(PATIENCE, run).await.expect("it ends in time");
    let output = output.expect("chromium is installed");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    String::from_utf8(output.stdout).expect("text")
}

/// The number after `before` at the end of a header.
fn number_after(answer: &Value, name: &str, before: &str) -> u64 {
    let value = answer[name]
        .as_str()
        .unwrap_or_else(|| panic!("{name}: {answer}"));
    let number = value
        .strip_prefix(before)
        .unwrap_or_else(|| panic!("{answer}"));
    number.parse().unwrap_or_else(|_| panic!("{answer}"))
}

fn assert_admitted(answer: &Value, remaining: u64) {
    assert_eq!(answer["status"], 200, "{answer}");
    assert_eq!(number_after(answer, "x-ratelimit-limit", ""), 2);
    assert_eq!(number_after(answer, "x-ratelimit-remaining", ""), remaining);
    let reset = number_after(answer, "x-ratelimit-reset", "");
    assert!((3_500..=3_600).contains(&reset), "{answer}");
    let available = format!("\"api\";r={remaining};t=");
    assert_eq!(number_after(answer, "ratelimit", &available), reset);
    assert_eq!(answer["ratelimit-policy"], "\"api\";q=2;w=3600");
    assert_eq!(answer["retry-after"], Value::Null);
}

fn assert_refused(answer: &Value) {
    assert_eq!(answer["status"], 429, "{answer}");
    let wait = number_after(answer, "retry-after", "");
    assert!((3_500..=3_600).contains(&wait), "{answer}");
    assert_eq!(number_after(answer, "x-ratelimit-limit", ""), 2);
    assert_eq!(number_after(answer, "x-ratelimit-remaining", ""), 0);
    assert_eq!(number_after(answer, "x-ratelimit-reset", ""), wait);
    assert_eq!(number_after(answer, "ratelimit", "\"api\";r=0;t="), wait);
    assert_eq!(answer["ratelimit-policy"], "\"api\";q=2;w=3600");
}

#[tokio::test]
async fn a_page_reads_the_limit_of_another_origin_and_its_preflights_are_free() {
    let (answers, preflights) = seen_of(
        api()
            .layer(limit())
            .layer(cors().expose_headers(EXPOSED_HEADERS)),
    )
    .await;
    assert_eq!(answers.len(), 4);
    assert_admitted(&answers[0], 1);
    assert_admitted(&answers[1], 0);
    assert_refused(&answers[2]);
    assert_refused(&answers[3]);
    assert_eq!(preflights, 2);
}

#[tokio::test]
async fn what_is_not_exposed_a_page_does_not_see() {
    let (answers, _) = seen_of(api().layer(limit()).layer(cors())).await;
    let statuses: Vec<_> = answers.iter().map(|answer| &answer["status"]).collect();
    assert_eq!(statuses, [200, 200, 429, 429]);
    for answer in &answers {
        for name in HEADERS {
            assert_eq!(answer[name], Value::Null, "{name}");
        }
    }
}

/// A limit may stand outside, and then has to know preflights itself.
#[tokio::test]
async fn outside_of_cors_a_limit_lets_preflights_pass_and_its_refusals_are_network_errors() {
    let outside = limit().skip(is_preflight);
    let cors = cors().expose_headers(EXPOSED_HEADERS);
    let (answers, preflights) = seen_of(api().layer(cors).layer(outside)).await;
    assert_eq!(answers.len(), 4);
    assert_admitted(&answers[0], 1);
    assert_admitted(&answers[1], 0);
    for refused in &answers[2..] {
        assert_eq!(*refused, json!({"error": "TypeError"}));
    }
    assert_eq!(preflights, 2);
}
