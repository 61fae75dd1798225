//! A web page to try limits and compare the algorithms: `cargo run --example playground`
//!
//! By default it counts in memory. With a Redis, several processes share the limits:
//! `TOLLGATE_STORE=redis://127.0.0.1:6379 cargo run --example playground`
//! The page then offers leases too, and draws the units that the process holds on top of those that it has used.
//! Shares keep a part of the limit for critical requests, and bound that of batch: see `shares.rs`.
//!
//! With `-- --record playground.html`, it records a burst, writes the page with it as one file that needs no server, and ends.
//!
//! Each request of the page passes a [`RateLimitLayer`](tollgate::RateLimitLayer) once per algorithm, see
//! `limited.rs`. The page shows the response of the selected algorithm, and a chart of each.

mod counted;
mod edge;
mod lease;
mod limited;
mod local;
mod page;
mod record;
mod report;
mod settings;
mod shares;
#[path = "../support/store.rs"]
mod store;
mod stream;
#[path = "../support/mod.rs"]
mod support;
mod traffic;

use std::env;
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http_body_util::channel::{Channel, Sender};
use serde_json::{Value, json};
use tokio::signal::ctrl_c;
use tokio::sync::oneshot::Receiver;
use tollgate::ErrorKind;

use settings::{Invalid, Query, Settings};
use stream::{Batch, Pace, Streams};
use traffic::Traffic;

/// Longer than the default of 100 ms. The fallback would decide a check that a busy machine delays, and no other tab
/// would show it.
const DEADLINE: Duration = Duration::from_secs(5);

/// The state that all pages share.
struct Playground {
    traffic: Traffic,
    streams: Streams,
}

type Shared = State<Arc<Playground>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Refusals are logged at info. The page shows them already.
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(tracing::Level::WARN)
        .init();

    let recorded = recorded_file()?;
    let store = store::open(|redis| redis.prefix("playground").deadline(DEADLINE))?;
    if let Some(path) = recorded {
        return record::write(&path, &Traffic::to(Arc::new(store))).await;
    }
    let playground = Arc::new(Playground {
        traffic: Traffic::to(Arc::new(store)),
        streams: Streams::default(),
    });
    let app = Router::new()
        .route("/request", post(request))
        .route("/send", post(send))
        .route("/peek", get(peek))
        .route("/stream", post(start_stream))
        .route("/edge", post(start_edge))
        .route("/stream/stop", post(stop_stream))
        .route("/reset", post(reset))
        .route("/counts", get(counts))
        .with_state(Arc::clone(&playground))
        .merge(page::router())
        .layer(from_fn(local::only));

    let listener = support::listen().await?;
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        return Err("the page can reset any key, so it is for this machine only: set TOLLGATE_ADDR to a loopback address".into());
    }
    println!("Listening on {address}. Try:");
    println!("  http://{address}/ in a browser, or in another terminal:");
    println!(
        "  curl -i -X POST 'http://{address}/request?quotas=5/10s&algorithm=gcra&key=ada&cost=1'"
    );
    tokio::select! {
        served = axum::serve(listener, app).into_future() => served?,
        interrupted = ctrl_c() => {
            interrupted?;
            // Other processes can use the units that this one held.
            playground.traffic.release().await?;
        }
    }
    Ok(())
}

/// Returns the file of `--record`, if that is asked for.
fn recorded_file() -> Result<Option<PathBuf>, &'static str> {
    let mut arguments = env::args_os().skip(1);
    match (arguments.next(), arguments.next(), arguments.next()) {
        (None, _, _) => Ok(None),
        (Some(option), Some(path), None) if option == "--record" => Ok(Some(path.into())),
        _ => Err("usage: playground [--record FILE]"),
    }
}

/// Sends one request through the limit and returns the response, for terminals.
async fn request(State(shared): Shared, uri: Uri) -> Result<Response, Invalid> {
    let settings = Settings::of(&Query::of(&uri))?;
    Ok(shared
        .traffic
        .fire(&settings)
        .await
        .answer_of(settings.chosen))
}

/// Sends one request through the limit and returns a report, for the page. The status is 200 even if the
/// request is refused, because browsers log an error for each 429.
async fn send(State(shared): Shared, uri: Uri) -> Result<Json<Value>, Invalid> {
    let settings = Settings::of(&Query::of(&uri))?;
    let fired = shared.traffic.fire(&settings).await;
    let mut batch = Batch::default();
    batch.add(fired);
    Ok(Json(batch.report(&shared.traffic, &settings).await))
}

/// Returns the current counts without sending a request. Invalid settings are reported with status 200 too,
/// because the page asks while the user types.
async fn peek(State(shared): Shared, uri: Uri) -> Json<Value> {
    let settings = match Settings::of(&Query::of(&uri)) {
        Ok(settings) => settings,
        Err(invalid) => return Json(json!({ "invalid": invalid.to_json() })),
    };
    Json(look(&shared.traffic, &settings).await)
}

async fn look(traffic: &Traffic, settings: &Settings) -> Value {
    let answers = traffic.peek(settings).await;
    let mut report = report::of(&[], &answers, &[], settings, traffic.now());
    report["quotas"] = report::quotas(&settings.quotas);
    report["lease"] = traffic.lease(settings);
    report["edge_off"] = edge::why_off(&settings.quotas, settings.cost).into();
    report
}

/// Sends requests at a steady rate, and reports them as lines of JSON, about 25 per second.
async fn start_stream(State(shared): Shared, uri: Uri) -> Result<Response, Invalid> {
    let query = Query::of(&uri);
    let (settings, pace) = (Settings::of(&query)?, Pace::of(&query)?);
    Ok(start(
        &shared,
        query.text("id"),
        async move |shared, stop, page| {
            stream::run(&shared.traffic, &settings, pace, stop, page).await;
        },
    ))
}

/// Sends a burst across the next edge of aligned windows, and reports it like a stream.
async fn start_edge(State(shared): Shared, uri: Uri) -> Result<Response, Invalid> {
    let query = Query::of(&uri);
    let settings = Settings::of(&query)?;
    if let Some(why) = edge::why_off(&settings.quotas, settings.cost) {
        return Err(Invalid::new("quotas", why));
    }
    Ok(start(
        &shared,
        query.text("id"),
        async move |shared, stop, page| {
            edge::run(&shared.traffic, &settings, stop, page).await;
        },
    ))
}

/// Runs in the background what the page can stop by this id, and responds with the lines that it reports.
fn start<R>(
    shared: &Arc<Playground>,
    id: &str,
    run: impl FnOnce(Arc<Playground>, Receiver<()>, Sender<Bytes>) -> R,
) -> Response
where
    R: Future<Output = ()> + Send + 'static,
{
    let Some(stop) = shared.streams.begin(id) else {
        let why = "too many streams, or the id is in use\n";
        return (StatusCode::CONFLICT, why).into_response();
    };
    let (page, body) = Channel::new(4);
    let running = run(Arc::clone(shared), stop, page);
    let (shared, id) = (Arc::clone(shared), id.to_owned());
    tokio::spawn(async move {
        running.await;
        shared.streams.end(&id);
    });
    Body::new(body).into_response()
}

async fn stop_stream(State(shared): Shared, uri: Uri) {
    shared.streams.end(Query::of(&uri).text("id"));
}

/// Resets the counts of the key. A failure of the store is reported with status 200, like a refusal.
async fn reset(State(shared): Shared, uri: Uri) -> Result<Json<Value>, Invalid> {
    let settings = Settings::of(&Query::of(&uri))?;
    let failure = match shared.traffic.reset(&settings).await {
        Ok(()) => Value::Null,
        Err(error) => match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Timeout => {
                "Redis is unreachable. Try again when it is back.".into()
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
