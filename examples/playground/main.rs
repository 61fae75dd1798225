//! A limit to play with, in the browser: `cargo run --example playground`
//!
//! It counts in memory, so that it starts at once. On a Redis, any number of these share one limit:
//! `TOLLGATE_STORE=redis://127.0.0.1:6379 cargo run --example playground`
//!
//! Each request of the page passes a [`RateLimitLayer`](tollgate::RateLimitLayer) like that of any
//! service: see `limited.rs`. It passes one for each algorithm, so that they can be compared; the page
//! gets the answer of the one that was chosen, and a report of all.

mod limited;
mod local;
mod page;
mod report;
mod settings;
mod stream;
#[path = "../support/mod.rs"]
mod support;
mod traffic;

use std::error::Error;
use std::sync::Arc;
use std::{env, io};

use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tollgate::ErrorKind;

use settings::{Invalid, Query, Settings};
use stream::{Pace, Streams};
use traffic::Traffic;

/// The state that all pages share.
struct Playground {
    traffic: Traffic,
    streams: Streams,
}

type Shared = State<Arc<Playground>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Refusals are told on level info, and here they are drawn.
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(tracing::Level::WARN)
        .init();

    let url = env::var("TOLLGATE_STORE").unwrap_or_else(|_| "memory:".into());
    let playground = Playground {
        traffic: Traffic::to(tollgate::store::from_url(&url)?),
        streams: Streams::default(),
    };
    let app = Router::new()
        .route("/request", post(request))
        .route("/send", post(send))
        .route("/peek", get(peek))
        .route("/stream", post(start_stream))
        .route("/stream/stop", post(stop_stream))
        .route("/reset", post(reset))
        .route("/counts", get(counts))
        .with_state(Arc::new(playground))
        .merge(page::router())
        .layer(from_fn(local::only));

    let listener = support::listen().await?;
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        return Err("anybody may reset any key here: it listens on this machine only".into());
    }
    println!("Listening on {address}. Try:");
    println!("  http://{address}/ in a browser, or without one:");
    println!(
        "  curl -i -X POST 'http://{address}/request?quotas=5/10s&algorithm=gcra&key=ada&cost=1'"
    );
    axum::serve(listener, app).await?;
    Ok(())
}

/// Sends one request to the limit, and answers as it was answered: for terminals.
async fn request(State(shared): Shared, uri: Uri) -> Result<Response, Invalid> {
    let settings = Settings::of(&Query::of(&uri))?;
    Ok(shared
        .traffic
        .fire(&settings)
        .await
        .answer_of(settings.chosen))
}

/// Sends one request to the limit, and reports of it: for the page. A browser writes an error to its
/// console for each 429 that a page is answered, and a refusal is none here; so it is told in a 200.
async fn send(State(shared): Shared, uri: Uri) -> Result<Json<Value>, Invalid> {
    let settings = Settings::of(&Query::of(&uri))?;
    let fired = shared.traffic.fire(&settings).await;
    let now = shared.traffic.now();
    let report = report::of(&[fired.seen], &fired.answers, &settings, now);
    Ok(Json(report))
}

/// How things stand, without a request: others may use the same key. What cannot be used, half typed
/// maybe, is told in a 200 too.
async fn peek(State(shared): Shared, uri: Uri) -> Json<Value> {
    let settings = match Settings::of(&Query::of(&uri)) {
        Ok(settings) => settings,
        Err(invalid) => return Json(json!({ "invalid": invalid.told() })),
    };
    let answers = shared.traffic.peek(&settings).await;
    let mut report = report::of(&[], &answers, &settings, shared.traffic.now());
    report["quotas"] = report::quotas(&settings.quotas);
    Json(report)
}

/// Sends requests at a steady rate, and reports of them by a line of JSON many times a second.
async fn start_stream(State(shared): Shared, uri: Uri) -> Result<Response, Invalid> {
    let query = Query::of(&uri);
    let (settings, pace) = (Settings::of(&query)?, Pace::of(&query)?);
    let id = query.text("id").to_owned();
    let Some(stop) = shared.streams.begin(&id) else {
        return Ok((StatusCode::CONFLICT, "too many streams, or two of one id\n").into_response());
    };
    let (page, body) = http_body_util::channel::Channel::new(4);
    tokio::spawn(async move {
        stream::run(&shared.traffic, &settings, pace, stop, page).await;
        shared.streams.end(&id);
    });
    Ok(Body::new(body).into_response())
}

async fn stop_stream(State(shared): Shared, uri: Uri) {
    shared.streams.end(Query::of(&uri).text("id"));
}

/// Forgets what is charged to the key. That the store failed is told in a 200, as what it refuses is.
async fn reset(State(shared): Shared, uri: Uri) -> Result<Json<Value>, Invalid> {
    let settings = Settings::of(&Query::of(&uri))?;
    let failure = match shared.traffic.reset(&settings).await {
        Ok(()) => Value::Null,
        Err(error) => match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Timeout => {
                "Redis does not answer. Start over once it does.".into()
            }
            _ => error.to_string().into(),
        },
    };
    Ok(Json(json!({ "failure": failure })))
}

/// Returns the number of requests since the start, for tests.
async fn counts(State(shared): Shared) -> Json<Value> {
    let (asked, admitted) = shared.traffic.counts();
    Json(json!({ "asked": asked, "admitted": admitted }))
}
