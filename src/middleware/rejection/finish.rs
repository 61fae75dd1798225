//! The status and the headers of every rejection, regardless of the responder.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, Entry, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::grpc;
use super::rejection::{Rejection, RejectionReason};
use super::text::HEADERS;
use crate::middleware::headers::field_names as field;
use crate::middleware::headers::{Headers, Tightness, number_value, raise_resets, whole_seconds};

impl Rejection {
    /// Completes the response of a responder. A 200 becomes the status of the rejection: a responder that sets none returns it,
    /// and clients would take it for a success. Only gRPC means it, whose own status is in a header.
    pub(in crate::middleware) fn complete(
        mut self,
        dialects: &Headers,
        response: &mut Response<Bytes>,
    ) {
        if response.status() == StatusCode::OK
            && !response.headers().contains_key(field::GRPC_STATUS)
        {
            *response.status_mut() = self.status();
        }
        let headers = response.headers_mut();
        // Reserves room once, for these headers and for those that are added later.
        headers.reserve(HEADERS);
        // RFC 6585, section 4, forbids caches to store a 429, but not all of them comply.
        headers
            .entry(CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-store"));
        self.told.wait = self.retry_after();
        match headers.entry(RETRY_AFTER) {
            // A responder may have set a longer one.
            Entry::Occupied(told) => self.told.wait = self.told.wait.max(seconds(told.get())),
            Entry::Vacant(untold) => {
                if let Some(wait) = self.told.wait {
                    untold.insert(number_value(whole_seconds(wait).max(1)));
                }
            }
        }
        if let RejectionReason::Refused(decision) = self.reason() {
            let wait = self.told.wait.unwrap_or_default();
            let visible = decision.visible();
            let reset = dialects.write_beside(Tightness::Tightest, &visible, wait, headers);
            self.told.reset = reset;
        }
        response.extensions_mut().insert(self);
    }

    /// Lengthens the wait in a response to the wait of an outer layer, if it tells one.
    pub(in crate::middleware) fn lengthen_wait(&mut self, wait: Duration, headers: &mut HeaderMap) {
        if self.told.wait.is_none_or(|told| told >= wait) {
            return;
        }
        self.told.wait = Some(wait);
        lengthen_retry_after(wait, headers);
        grpc::lengthen_wait(self, wait, headers);
        raise_resets(self.told.reset, wait, headers);
    }
}

/// Lengthens the `Retry-After` of a response, if it has one in seconds.
pub(in crate::middleware) fn lengthen_retry_after(wait: Duration, headers: &mut HeaderMap) {
    if retry_after(headers).is_some_and(|told| told < wait) {
        headers.insert(RETRY_AFTER, number_value(whole_seconds(wait)));
    }
}

/// `None` if it is not in seconds.
pub(in crate::middleware) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    seconds(headers.get(RETRY_AFTER)?)
}

fn seconds(value: &HeaderValue) -> Option<Duration> {
    let seconds = value.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
