//! axum 0.8: extractors of `Reservation`, `DecisionView` and `PermitHandle`, `Rejection` as a response, and what implements
//! `IntoResponse` as the response to a rejection.
//!
//! This is the only file in this directory that names axum. The next major version of axum gets its own file.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::IntoResponse;
use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};

use super::headers::Headers;
use super::permit::PermitHandle;
use super::rejection::{Rejection, plain_text};
use super::rejection_response::{RejectionResponse, with_ready_body};
use super::reservation::Reservation;
use crate::limiter::DecisionView;

/// Implements the extractors of a type that layers insert into the extensions of a request: the type itself, and an
/// `Option` of it.
macro_rules! extract {
    ($(#[$docs:meta])* $type:ty, $missing:literal) => {
        $(#[$docs])*
        #[cfg_attr(docsrs, doc(cfg(feature = "axum-08")))]
        impl<S: Sync> FromRequestParts<S> for $type {
            type Rejection = (StatusCode, &'static str);

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
                let missing = (StatusCode::INTERNAL_SERVER_ERROR, $missing);
                parts.extensions.get::<Self>().cloned().ok_or(missing)
            }
        }

        /// Extracts `None` where the type itself is answered 500.
        #[cfg_attr(docsrs, doc(cfg(feature = "axum-08")))]
        impl<S: Sync> OptionalFromRequestParts<S> for $type {
            type Rejection = Infallible;

            async fn from_request_parts(
                parts: &mut Parts,
                _: &S,
            ) -> Result<Option<Self>, Infallible> {
                Ok(parts.extensions.get::<Self>().cloned())
            }
        }
    };
}

extract! {
    /// Extracts the decision of the innermost layer, with the units that are left. A request that no layer has counted
    /// is answered 500: extract an `Option` where requests are exempt.
    DecisionView, "no decision: no rate limit has counted this request\n"
}

extract! {
    /// Extracts the reservation of the innermost layer that [reserves](crate::RateLimitLayer::reserve). Without
    /// such a layer, the request is answered 500.
    Reservation, "no reservation: the rate limit of this route does not reserve\n"
}

extract! {
    /// Extracts the handle of the permit, with the slots of all layers. A request that holds no slots is answered 500:
    /// extract an `Option` where requests are exempt.
    PermitHandle, "no permit: no rate limit of this route holds slots for this request\n"
}

/// Responds with plain text and the default headers. For others, see [`Rejection::response`].
#[cfg_attr(docsrs, doc(cfg(feature = "axum-08")))]
impl IntoResponse for Rejection {
    fn into_response(self) -> Response<Body> {
        self.response(&Headers::default(), plain_text())
            .map(Body::from)
    }
}

/// Converts as axum converts what a handler returns.
#[cfg_attr(docsrs, doc(cfg(feature = "axum-08")))]
#[diagnostic::do_not_recommend]
impl<R: IntoResponse> RejectionResponse<Response<Bytes>> for R {
    fn into_rejection_response(self) -> Option<Response<Bytes>> {
        Some(with_ready_body(self.into_response()))
    }
}
