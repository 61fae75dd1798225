//! A charge that is settled when a streamed response ends or is dropped.

use axum::{Router, http::Request, routing::get};
use http_body_util::BodyExt;
use tollgate::{Key, MemoryStore, Quota, RateLimitLayer, key};
use tower::ServiceExt;

// page: shown
use std::convert::Infallible;

use axum::body::{Body, Bytes};
use futures_util::stream;
use tollgate::Reservation;

/// Settles the charge to the units used when the stream ends or is dropped.
struct Usage {
    reservation: Reservation,
    used: u32,
}

impl Drop for Usage {
    fn drop(&mut self) {
        // At least 1 unit: a client that disconnects at once must not be free.
        self.reservation.settle(self.used.max(1));
    }
}

async fn complete(reservation: Reservation) -> Body {
    let usage = Usage {
        reservation,
        used: 0,
    };
    // Each part of the answer is a token. The stream owns the guard.
    let tokens = stream::unfold((usage, 0), |(mut usage, sent)| async move {
        usage.used += 1;
        (sent < 100).then(|| {
            (
                Ok::<_, Infallible>(Bytes::from("token ")),
                (usage, sent + 1),
            )
        })
    });
    Body::from_stream(tokens)
}
// page: end

#[tokio::test]
async fn a_client_that_disconnects_pays_for_what_it_got() {
    let limit = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(1_000))
        .key(key::global())
        .cost(|_| 500)
        .reserve();
    let limiter = limit.limiter().clone();
    let used = async || {
        let view = limiter.peek(Key::global()).await.expect("an answer");
        view.used()
    };
    let app: Router = Router::new().route("/", get(complete).layer(limit));
    let request = Request::get("/").body(Body::empty()).expect("a request");
    let mut body = app.oneshot(request).await.expect("a response").into_body();
    for _ in 0..3 {
        body.frame().await.expect("a token").expect("no error");
    }
    assert_eq!(used().await, 500);
    drop(body);
    assert_eq!(used().await, 3);
}
