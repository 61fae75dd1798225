//! Responses to requests that failed.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tollgate::{Error, ErrorKind};

/// The response to a request that failed: status and cause.
pub(crate) struct Failure(pub(crate) StatusCode, pub(crate) String);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::CostTooLarge => StatusCode::BAD_REQUEST,
            ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
            ErrorKind::Full => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self(status, error.to_string())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Self(status, cause) = self;
        (status, cause).into_response()
    }
}
