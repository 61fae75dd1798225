//! A limit on LLM tokens, reserved before and settled after each answer: `cargo run --example llm_tokens`
//!
//! The number of tokens is known only when the answer ends. The layer reserves 1 000 tokens before the
//! answer; the handler settles the actual number afterwards: 640 used, 360 returned. A client that
//! disconnects early pays for the tokens generated so far.

mod support;

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::{Router, routing::post};
use http_body_util::channel::{Channel, Sender};
use tokio::time::sleep;
use tollgate::{MemoryStore, Quota, RateLimitLayer, Reservation, key};

/// The tokens to reserve: more than most answers use.
const ESTIMATE: u32 = 1_000;
const ANSWER: u32 = 640;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();

    let tokens = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(10_000))
        .name("tokens")
        .key(key::header("x-api-key"))
        .cost(|_| ESTIMATE)
        .reserve();
    let app = Router::new().route("/complete", post(complete).layer(tokens));

    let listener = support::listen().await?;
    let address = listener.local_addr()?;
    println!("Listening on {address}. Try, and press Ctrl-C before the answer ends:");
    println!("  curl -N -H 'x-api-key: ada' -d 'Tell me a story.' http://{address}/complete");
    println!(
        "  curl -si -H 'x-api-key: ada' -d 'How many are left?' http://{address}/complete | head -8"
    );
    axum::serve(listener, app).await?;
    Ok(())
}

/// Returns a streaming body at once. The task that writes the body owns the reservation.
async fn complete(reservation: Reservation) -> Body {
    let (body, channel) = Channel::<Bytes, Infallible>::new(1);
    tokio::spawn(answer(body, reservation));
    Body::new(channel)
}

async fn answer(mut body: Sender<Bytes, Infallible>, reservation: Reservation) {
    let mut used = 0;
    while used < ANSWER {
        let token = next_token().await;
        used += 1;
        if body.send_data(token).await.is_err() {
            break; // The client disconnected.
        }
    }
    // If the answer used more than the reservation, this would charge the difference, up to the limit.
    reservation.settle(used);
    let reserved = reservation.decision().cost();
    let unused = reserved.saturating_sub(used);
    println!("{reserved} reserved, {used} used, {unused} returned");
}

/// Generates a token, one per millisecond.
async fn next_token() -> Bytes {
    sleep(Duration::from_millis(1)).await;
    Bytes::from_static(b"word ")
}
