//! The bodies that a responder may return.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::Response;
use http_body::Frame;
use http_body_util::BodyExt;
use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::calls::ok;
use crate::support::log;
use crate::to;

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
    let said = lines
        .iter()
        .filter(|line| line.contains("the body of a rejection is left out"));
    assert_eq!(said.count(), 1, "{lines:?}");
}
