//! Clients of its own, so that there is something to watch.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use tokio::time::{MissedTickBehavior, interval};
use tower::ServiceExt;

/// The requests in turn. One client is busy, and wants more than its limit.
const REQUESTS: [(&str, Who); 12] = [
    ("/", Who::Any),
    ("/search", Who::Busy),
    ("/healthz", Who::Any),
    ("/search", Who::Any),
    ("/export", Who::Busy),
    ("/search", Who::Busy),
    ("/", Who::Any),
    ("/search", Who::Any),
    ("/", Who::Busy),
    ("/search", Who::Busy),
    ("/export", Who::Any),
    ("/search", Who::Nobody),
];

#[derive(Clone, Copy)]
enum Who {
    Busy,
    /// One of twenty.
    Any,
    /// Does not say who it is.
    Nobody,
}

/// Sends so many requests a second, as long as the process lives: up to a thousand, since the timer tells
/// milliseconds apart.
pub(crate) async fn send(app: Router, a_second: u32) {
    let mut turn = interval(Duration::from_secs(1) / a_second);
    // Requests that a busy machine could not send in time are not sent in a burst.
    turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for (number, (path, who)) in (0_u64..).zip(REQUESTS.iter().cycle()) {
        turn.tick().await;
        tokio::spawn(app.clone().oneshot(request(path, *who, number)));
    }
}

fn request(path: &str, who: Who, number: u64) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = path.parse().expect("a path");
    let name = match who {
        Who::Busy => Some("busy".to_owned()),
        Who::Any => Some(format!("client-{}", number % 20)),
        Who::Nobody => None,
    };
    if let Some(name) = name {
        let name = name.parse().expect("the value of a header");
        request.headers_mut().insert(super::CLIENT, name);
    }
    request
}
