//! tonic 0.14: the peer's address, which tonic stores in the request extensions.
//!
//! This is the only file in this directory that names tonic. The next major version of tonic gets its own file.

use std::net::SocketAddr;

use http::request::Parts;
use tonic::transport::server::TcpConnectInfo;

/// tonic's server inserts it, with TLS too.
pub(super) fn connect_info(parts: &Parts) -> Option<SocketAddr> {
    parts.extensions.get::<TcpConnectInfo>()?.remote_addr()
}
