//! Replaces `tonic_014.rs` in builds without the feature `grpc`: no request has tonic's extensions.

use std::net::SocketAddr;

use http::request::Parts;

pub(super) fn connect_info(_: &Parts) -> Option<SocketAddr> {
    None
}
