//! Replaces `grpc.rs` in builds without the feature `grpc`: no layer sends gRPC responses.

use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Response};

use super::rejection::Rejection;

/// The variants of gRPC: none.
pub(in crate::middleware) enum Grpc {}

impl Grpc {
    pub(in crate::middleware) fn from_request(_: &Parts) -> Option<Self> {
        None
    }

    pub(in crate::middleware) fn reject(self, _: &Rejection) -> Response<Bytes> {
        match self {}
    }
}

pub(super) fn lengthen_wait(_: &Rejection, _: Duration, _: &mut HeaderMap) {}

/// The details are not read.
pub(in crate::middleware) fn retry_delay(_: &str) -> Option<Duration> {
    Some(Duration::ZERO)
}
