//! The values that a responder may return.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::Response;
use http_body::Body;

use crate::error::warning;
use crate::telemetry::OnceFlag;

/// The values that a [responder](crate::RateLimitLayer::responder) may return. A response of status 200 gets the
/// status of the rejection.
///
/// - An [`http::Response`] whose body is a text or bytes: `&'static str`, `String`, `Bytes`, `Vec<u8>`.
/// - An [`http::Response`] with a body in memory, such as `http_body_util::Full`.
/// - With the feature `axum-08`, anything that implements axum's `IntoResponse`.
/// - An `Option` of one of these. `None` leaves the rejection to [`plain_text`](crate::plain_text()), the default.
///
/// `Form` tells the compiler which of these it is. It is always inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a response to a rejected request",
    label = "the responder returns this",
    note = "return an `http::Response` with a text or bytes as its body or, with the feature `axum-08`, anything \
            that implements axum's `IntoResponse`, such as `\"slow down\"` or `Json(..)`; or an `Option` of these"
)]
pub trait RejectionResponse<Form> {
    /// Converts to a response with a body in memory. `None` declines to respond.
    fn into_rejection_response(self) -> Option<Response<Bytes>>;
}

impl<R: RejectionResponse<Form>, Form> RejectionResponse<Option<Form>> for Option<R> {
    fn into_rejection_response(self) -> Option<Response<Bytes>> {
        self.and_then(R::into_rejection_response)
    }
}

macro_rules! bytes_body {
    ($($body:ty)*) => {$(
        impl RejectionResponse<Bytes> for Response<$body> {
            fn into_rejection_response(self) -> Option<Response<Bytes>> {
                Some(self.map(Bytes::from))
            }
        }
    )*};
}

// None of these bodies implements `Body`, so the other form does not apply to them.
bytes_body!(&'static str &'static [u8] Bytes Vec<u8> Box<[u8]>);

/// Reads a body in memory. A body that is not ready becomes an empty one.
pub(super) fn with_ready_body<B: Body<Data = Bytes>>(response: Response<B>) -> Response<Bytes> {
    static WARNED: OnceFlag = OnceFlag::new();
    response.map(|body| {
        let bytes = ready_bytes(body);
        if bytes.is_none() && WARNED.first_time() {
            tracing::error!(target: "tollgate::diagnostics",
                code = warning::STREAMED_REJECTION,
                "the body of a rejection is left out: a responder has to return a body in memory, and this \
                 one is a stream that is not ready, or has failed"
            );
        }
        bytes.unwrap_or_default()
    })
}

/// `None` if the body is not ready or fails.
fn ready_bytes<B: Body<Data = Bytes>>(body: B) -> Option<Bytes> {
    let mut body = pin!(body);
    let mut context = Context::from_waker(Waker::noop());
    let mut bytes = Bytes::new();
    loop {
        match body.as_mut().poll_frame(&mut context) {
            Poll::Ready(None) => return Some(bytes),
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) if bytes.is_empty() => bytes = data,
                Ok(data) => {
                    let mut joined = BytesMut::from(bytes);
                    joined.extend_from_slice(&data);
                    bytes = joined.freeze();
                }
                Err(_trailers) => {}
            },
            Poll::Ready(Some(Err(_))) | Poll::Pending => return None,
        }
    }
}
