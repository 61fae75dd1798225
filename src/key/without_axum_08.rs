//! Stands in for `axum_08.rs` in builds without that feature, where no request carries axum's extensions.

use std::net::SocketAddr;

use http::request::Parts;

pub(super) fn connect_info(_: &Parts) -> Option<SocketAddr> {
    None
}

pub(crate) fn has_route(_: &Parts) -> bool {
    false
}
