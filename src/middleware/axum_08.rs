//! axum 0.8: `Reservation` as an extractor, and what implements `IntoResponse` as the response to a rejection.
//!
//! This is the only file in this directory that names axum. The next major version of axum gets its own file.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::IntoResponse;
use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};

use super::rejection_response::{RejectionResponse, with_ready_body};
use super::reservation::Reservation;

/// The response to a request without a reservation.
const MISSING: (StatusCode, &str) = (
    StatusCode::INTERNAL_SERVER_ERROR,
    "no reservation: the rate limit of this route does not reserve\n",
);

/// Extracts the reservation of the innermost layer that [reserves](crate::RateLimitLayer::reserve). Without
/// such a layer, the request is answered 500.
#[cfg_attr(docsrs, doc(cfg(feature = "axum-08")))]
impl<S: Sync> FromRequestParts<S> for Reservation {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        parts.extensions.get::<Self>().cloned().ok_or(MISSING)
    }
}

/// Extracts `None` if no layer [reserves](crate::RateLimitLayer::reserve).
#[cfg_attr(docsrs, doc(cfg(feature = "axum-08")))]
impl<S: Sync> OptionalFromRequestParts<S> for Reservation {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}

/// Converts as axum converts what a handler returns.
#[cfg_attr(docsrs, doc(cfg(feature = "axum-08")))]
#[diagnostic::do_not_recommend]
impl<R: IntoResponse> RejectionResponse<Response<Bytes>> for R {
    fn into_rejection_response(self) -> Response<Bytes> {
        with_ready_body(self.into_response())
    }
}
