//! Simulated clients, so that the dashboard has data.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use tokio::time::{MissedTickBehavior, interval};
use tower::ServiceExt;

/// The requests, sent in turn. One client is busy and exceeds its limit.
const REQUESTS: [(&str, Client); 14] = [
    ("/", Client::Any),
    ("/search", Client::Busy),
    ("/report", Client::Busy),
    ("/healthz", Client::Any),
    ("/search", Client::Any),
    ("/export", Client::Busy),
    ("/search", Client::Busy),
    ("/", Client::Any),
    ("/search", Client::Any),
    ("/", Client::Busy),
    ("/search", Client::Busy),
    ("/export", Client::Any),
    ("/report", Client::Any),
    ("/search", Client::Anonymous),
];

#[derive(Clone, Copy)]
enum Client {
    Busy,
    /// One of twenty clients.
    Any,
    /// A client that does not send the header.
    Anonymous,
}

/// Sends requests at this rate until the process ends. The resolution of the timer is 1 ms, so the rate is at
/// most 1 000 per second.
pub(crate) async fn send(app: Router, per_second: u32) {
    let mut turn = interval(Duration::from_secs(1) / per_second);
    // A busy machine falls behind. It must not make up for it with a burst.
    turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for (number, (path, client)) in (0_u64..).zip(REQUESTS.iter().cycle()) {
        turn.tick().await;
        tokio::spawn(app.clone().oneshot(request(path, *client, number)));
    }
}

fn request(path: &str, client: Client, number: u64) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = path.parse().expect("a path");
    let name = match client {
        Client::Busy => Some("busy".to_owned()),
        Client::Any => Some(format!("client-{}", number % 20)),
        Client::Anonymous => None,
    };
    if let Some(name) = name {
        let name = name.parse().expect("the value of a header");
        request.headers_mut().insert(super::CLIENT, name);
    }
    request
}
