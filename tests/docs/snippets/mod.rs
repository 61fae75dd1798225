//! Code as somebody might guess it who has read only the docs: all of it compiles and does what it says.
//!
//! Here are the guesses that no doctest and no other test has. Those that cannot compile are in `ui/`, with the error
//! that says what to write instead. `shown/` has code that pages show.

mod keys;
mod layers;
mod quotas;
mod responses;
mod routers;
mod shown;
mod ui;

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use tollgate::key::PeerAddr;
use tower::ServiceExt;

/// A request from 192.0.2.1.
fn get(path: &str) -> Request<Body> {
    let peer = PeerAddr(SocketAddr::from(([192, 0, 2, 1], 5_000)));
    let request = Request::get(path).extension(peer);
    request.body(Body::empty()).expect("a request")
}

/// The status of the answer to a request.
async fn status(app: &Router, path: &str) -> StatusCode {
    let response = app.clone().oneshot(get(path)).await;
    response.unwrap_or_else(|never| match never {}).status()
}
