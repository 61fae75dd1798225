//! A rate of tokens, and at most five streams of each user at the same time: `cargo run --example in_flight`
//!
//! A stream of events holds its slot until its body ends, also when the client disconnects. A socket, as a WebSocket
//! is one, takes the permit, because its response ends with the head. With a Redis, several processes share the five streams:
//! `TOLLGATE_STORE=redis://127.0.0.1:6379 cargo run --example in_flight`

#[path = "support/store.rs"]
mod store;
mod support;

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{CONNECTION, UPGRADE};
use axum::response::IntoResponse;
use axum::response::sse::{Event, Sse};
use axum::{Router, routing::get};
use futures_util::Stream;
use futures_util::stream::unfold;
use hyper::upgrade::{self, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::signal::ctrl_c;
use tokio::time::sleep;
use tollgate::{Algorithm, Permit, PermitHandle, Quota, RateLimitLayer, key};

/// The tokens that a stream costs.
const TOKENS: u32 = 100;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();

    let store = store::open(|redis| redis.prefix("in_flight"))?;
    let tokens = Quota::per_minute(10_000).with_algorithm(Algorithm::SlidingBuckets(60));
    let streams = RateLimitLayer::new(store, [tokens, Quota::in_flight(5)])
        .name("streams")
        .key(key::header("x-api-key"))
        .cost(|_| TOKENS);
    let limiter = streams.limiter().clone();
    let app = Router::new()
        .route("/events", get(events))
        .route("/socket", get(socket))
        .layer(streams);

    let listener = support::listen().await?;
    let address = listener.local_addr()?;
    println!("Listening on {address}. Try, in another terminal:");
    // Five of the six get 200, and run for three seconds. The other one gets 429.
    println!(
        "  for i in $(seq 6); do curl -sm 3 -o /dev/null -w '%{{http_code}} ' -H 'x-api-key: ada' http://{address}/events & done; wait"
    );
    println!(
        "  curl -iN -H 'x-api-key: ada' -H 'connection: upgrade' -H 'upgrade: echo' http://{address}/socket"
    );
    // Ctrl-C lets the event streams end, and then other processes have their slots at once. The slot of an open socket
    // returns when its lease ends, after 15 s.
    let stop = async { ctrl_c().await.unwrap_or_default() };
    axum::serve(listener, app)
        .with_graceful_shutdown(stop)
        .await?;
    limiter.release().await?;
    Ok(())
}

/// Sends a token every 100 ms. The slot returns when the stream ends or the client disconnects.
async fn events() -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    Sse::new(unfold(0, async |sent| {
        if sent == TOKENS {
            return None;
        }
        sleep(Duration::from_millis(100)).await;
        Some((Ok(Event::default().data("word")), sent + 1))
    }))
}

/// Holds the slot for as long as the socket is open.
async fn socket(handle: PermitHandle, request: Request) -> impl IntoResponse {
    // Otherwise the slot would return with the status 101.
    let permit = handle.take();
    tokio::spawn(async move {
        if let (Some(permit), Ok(socket)) = (permit, upgrade::on(request).await) {
            echo(TokioIo::new(socket), permit).await;
        }
    });
    let head = [(CONNECTION, "upgrade"), (UPGRADE, "echo")];
    (StatusCode::SWITCHING_PROTOCOLS, head)
}

async fn echo(mut socket: TokioIo<Upgraded>, permit: Permit) {
    let mut bytes = [0; 1_024];
    loop {
        tokio::select! {
            read = socket.read(&mut bytes) => {
                let Ok(length @ 1..) = read else { return };
                let Some(read) = bytes.get(..length) else { return };
                if socket.write_all(read).await.is_err() {
                    return;
                }
            }
            // Redis has not answered for 12 s, so another process may have given the slot away.
            () = permit.lost() => return,
        }
    }
}
