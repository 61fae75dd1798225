//! A model whose answers are paid by the token: `cargo run --example llm_tokens`
//!
//! The cost of an answer is known when it ends. So 1 000 tokens are reserved before it begins, and the rest
//! is returned after it: 640 used, 360 given back. A client that leaves early pays for the tokens made
//! until then. The first lines of output are the commands to try.

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

/// More than most answers take.
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
    println!("Listening on {address}. Try: (and Ctrl-C in the middle)");
    println!("  curl -N -H 'x-api-key: ada' -d 'Tell me a story.' http://{address}/complete");
    println!(
        "  curl -si -H 'x-api-key: ada' -d 'How many are left?' http://{address}/complete | head -8"
    );
    axum::serve(listener, app).await?;
    Ok(())
}

/// Answers at once, with a body that goes on. The reservation goes with it.
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
            break; // The client is gone.
        }
    }
    // More than was reserved would be charged as well, as far as there is room.
    reservation.settle(used);
    let reserved = reservation.decision().cost();
    let unused = reserved.saturating_sub(used);
    println!("{reserved} reserved, {used} used, {unused} given back");
}

/// A model takes its time.
async fn next_token() -> Bytes {
    sleep(Duration::from_millis(1)).await;
    Bytes::from_static(b"word ")
}
