//! The status and the headers of every rejection, regardless of the responder.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::grpc;
use super::rejection::{Rejection, RejectionReason};
use super::text::HEADERS;
use crate::middleware::headers::field_names as field;
use crate::middleware::headers::{Headers, whole_seconds};

impl Rejection {
    /// Calls a responder. A 200 becomes the status of the rejection: a responder that sets none returns it, and
    /// clients would take it for a success. Only gRPC means it, whose own status is in a header.
    pub(in crate::middleware) fn respond(
        &self,
        responder: impl FnOnce(&Self) -> Response<Bytes>,
    ) -> Response<Bytes> {
        let mut response = responder(self);
        if response.status() == StatusCode::OK
            && !response.headers().contains_key(field::GRPC_STATUS)
        {
            *response.status_mut() = self.status();
        }
        response
    }

    /// Adds the headers of every rejection to a response, and this rejection to its extensions.
    pub(in crate::middleware) fn complete(
        self,
        dialects: &Headers,
        response: &mut Response<Bytes>,
    ) {
        let headers = response.headers_mut();
        // Reserves room once, for these headers and for those that are added later.
        headers.reserve(HEADERS);
        // RFC 6585, section 4, forbids caches to store a 429, but not all of them comply.
        headers
            .entry(CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-store"));
        if let Some(wait) = self.retry_after() {
            headers
                .entry(RETRY_AFTER)
                .or_insert_with(|| whole_seconds(wait).max(1).into());
        }
        if let RejectionReason::Refused(decision) = self.reason() {
            dialects.write(decision, headers);
        }
        response.extensions_mut().insert(self);
    }

    /// Lengthens the wait in a response to the wait of an outer layer.
    pub(in crate::middleware) fn lengthen_wait(&self, wait: Duration, headers: &mut HeaderMap) {
        let inner = headers.get(RETRY_AFTER).and_then(parse_seconds);
        if inner.is_some_and(|inner| inner < wait) {
            headers.insert(RETRY_AFTER, whole_seconds(wait).into());
        }
        grpc::lengthen_wait(self, wait, headers);
    }
}

fn parse_seconds(value: &HeaderValue) -> Option<Duration> {
    let seconds = value.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
