//! The bodies that a responder may return.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use axum::response::{Html, Redirect};
use http_body::Frame;
use http_body_util::BodyExt;
use tollgate::{
    Error, ErrorKind, FailurePolicy, Headers, MemoryStore, Quota, RateLimitLayer, RateLimiter,
    Rejection, RejectionReason, key,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::calls::ok;
use crate::support::fakes::moody::Moody;
use crate::support::log;
use crate::{status, to};

/// A body of several pieces. `None` is a piece that is not ready.
struct Pieces(std::vec::IntoIter<Option<&'static str>>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.next() {
            None => Poll::Ready(None),
            Some(None) => Poll::Pending,
            Some(Some(piece)) => Poll::Ready(Some(Ok(Frame::data(piece.into())))),
        }
    }
}

/// The body of a rejection whose responder returns these pieces.
async fn body_of(pieces: &[Option<&'static str>]) -> Bytes {
    let pieces = pieces.to_vec();
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(0))
        .key(key::global())
        .responder(move |rejection| {
            let body = Body::new(Pieces(pieces.clone().into_iter()));
            let response = Response::builder().status(rejection.status());
            response.body(body).expect("a response")
        });
    let service = layer.layer(service_fn(ok::<()>));
    let response = service.oneshot(to("/")).await.expect("nothing fails");
    assert_eq!(response.status(), 429);
    response.into_body().collect().await.unwrap().to_bytes()
}

#[tokio::test]
async fn a_body_in_pieces_is_sent_whole() {
    assert_eq!(body_of(&[]).await, "");
    assert_eq!(body_of(&[Some("slow down")]).await, "slow down");
    let pieces = [Some("slow"), Some(""), Some(" "), Some("down")];
    assert_eq!(body_of(&pieces).await, "slow down");
}

#[tokio::test]
async fn a_body_that_is_not_ready_is_left_out_and_one_line_says_so() {
    log::keep();
    for _ in 0..3 {
        assert_eq!(body_of(&[Some("slow "), None, Some("down")]).await, "");
    }
    let lines = log::kept();
    for text in ["the body of a rejection is left out", "tollgate::W012"] {
        let said = lines.iter().filter(|line| line.contains(text));
        assert_eq!(said.count(), 1, "{lines:?}");
    }
}

fn refusing() -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(0)).key(key::global())
}

#[tokio::test]
async fn a_response_without_a_status_has_the_status_of_the_rejection() {
    let keyless = || refusing().key(key::header("x-api-key"));
    let failed = || {
        let layer = RateLimitLayer::new(Moody::unavailable(), Quota::per_hour(1));
        layer.key(key::global()).on_failure(FailurePolicy::closed())
    };
    let teapot = || refusing().status(StatusCode::IM_A_TEAPOT);
    let layers: [(&dyn Fn() -> RateLimitLayer, u16); 4] = [
        (&refusing, 429),
        (&teapot, 418),
        (&keyless, 400),
        (&failed, 503),
    ];
    for (layer, expected) in layers {
        for (what, layer) in [
            ("text", layer().responder(|_| "slow down")),
            ("html", layer().responder(|_| Html("<p>slow down"))),
            ("json", layer().responder(|_| Json(["slow down"]))),
            ("http", layer().responder(|_| Response::new("slow down"))),
            (
                "body",
                layer().responder(|_| Response::new(Body::from("slow down"))),
            ),
            (
                "header",
                layer().responder(|_| ([("x-reason", "limit")], "slow down")),
            ),
        ] {
            assert_eq!(status(&layer, "/").await, expected, "{what}");
        }
    }
}

#[tokio::test]
async fn a_status_that_a_responder_sets_stays() {
    for set in [
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::NO_CONTENT,
        StatusCode::ACCEPTED,
    ] {
        let layer = refusing().responder(move |_| (set, "slow down"));
        assert_eq!(status(&layer, "/").await, set);
    }
    let elsewhere = refusing().responder(|_| Redirect::to("/busy"));
    assert_eq!(status(&elsewhere, "/").await, 303);
}

/// A layer that rejects for each reason, and the text by which the layer answers unless a responder does.
fn rejecting() -> [(RateLimitLayer, u16, &'static str); 4] {
    let failed = RateLimitLayer::new(Moody::unavailable(), Quota::per_hour(1)).key(key::global());
    [
        (refusing(), 429, "rate limit exceeded"),
        (
            refusing().key(key::header("x-api-key")),
            400,
            "cannot identify the client: the header `x-api-key` is missing",
        ),
        (
            refusing().key(key::client_ip()),
            500,
            "the rate limiter is not set up",
        ),
        (
            failed.on_failure(FailurePolicy::closed()),
            503,
            "the rate limiter cannot decide",
        ),
    ]
}

async fn answer(layer: &RateLimitLayer) -> (u16, Bytes) {
    let service = layer.layer(service_fn(ok::<()>));
    let response = service.oneshot(to("/")).await.expect("nothing fails");
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.expect("in memory");
    (status, body.to_bytes())
}

#[tokio::test]
async fn a_responder_that_returns_none_leaves_the_rejection_to_the_default() {
    for (layer, expected, text) in rejecting() {
        let of_refusals = layer.responder(|rejection| match rejection.reason() {
            RejectionReason::Refused(decision) => Some(Json([
                "rate_limited".to_owned(),
                decision.limit().to_string(),
            ])),
            _ => None,
        });
        let (status, body) = answer(&of_refusals).await;
        assert_eq!(status, expected);
        match status {
            429 => assert_eq!(body, r#"["rate_limited","0"]"#),
            _ => assert_eq!(body, format!("{text}\n")),
        }
    }
    // What it returns else is as without the `Option`: the status of the rejection, unless it sets one.
    for (set, expected) in [(StatusCode::OK, 429), (StatusCode::FORBIDDEN, 403)] {
        let of_http = refusing().responder(move |_| {
            Some(
                Response::builder()
                    .status(set)
                    .body("slow down")
                    .expect("a response"),
            )
        });
        assert_eq!(answer(&of_http).await, (expected, Bytes::from("slow down")));
    }
}

#[tokio::test]
async fn the_text_of_a_rejection_is_that_of_its_default_response() {
    for (layer, expected, text) in rejecting() {
        let (status, body) = answer(&layer).await;
        assert_eq!((status, body), (expected, format!("{text}\n").into()));
        let displayed = layer.responder(|rejection| rejection.to_string());
        assert_eq!(answer(&displayed).await, (expected, text.into()));
    }
}

/// As a GraphQL service does, whose errors are in the body.
#[tokio::test]
async fn a_refusal_is_answered_200_where_the_layer_says_so() {
    let graphql = || refusing().status(StatusCode::OK).responder(|_| "errors");
    assert_eq!(status(&graphql(), "/").await, 200);
    let keyless = graphql().key(key::header("x-api-key"));
    assert_eq!(status(&keyless, "/").await, 400, "not a refusal");
}

/// A gRPC client would take 429 for `UNAVAILABLE`.
#[tokio::test]
async fn a_status_of_grpc_that_a_responder_writes_stays_200() {
    let by_hand = refusing().responder(|_| {
        let response = Response::builder().header("grpc-status", "8");
        response.body("").expect("a response")
    });
    assert_eq!(status(&by_hand, "/").await, 200);
}

#[tokio::test]
async fn a_handler_that_answers_with_a_body_alone_sends_the_status_of_the_rejection() {
    let slow_down = |_: &Rejection| Response::new(Bytes::from("slow down"));
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(1));
    let first = limiter.check("ada").await.expect("in memory");
    assert!(first.is_allowed());
    let decision = limiter.check("ada").await.expect("in memory");
    let refused = decision.or_reject().expect_err("refused");
    let failed = Rejection::from(Error::new(ErrorKind::Unavailable, "no store"));
    for (rejection, expected) in [(refused, 429), (failed, 503)] {
        let response = rejection.response(&Headers::default(), slow_down);
        assert_eq!(response.status(), expected);
    }
}
