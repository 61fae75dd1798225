//! Replaces `axum_08.rs` in builds without the feature `axum-08`: no request has axum's extensions.

use std::net::SocketAddr;

use http::request::Parts;

pub(super) fn connect_info(_: &Parts) -> Option<SocketAddr> {
    None
}

pub(crate) fn has_route(_: &Parts) -> bool {
    false
}
