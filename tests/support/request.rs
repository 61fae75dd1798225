//! The head of a request, for the tests of keys.

use std::net::IpAddr;

use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Request};
use tollgate::key::PeerAddr;

/// From this peer, or from one that is not known where it is no address, with these header lines.
pub(crate) fn request<V: AsRef<[u8]>>(peer: &str, headers: &[(&str, V)]) -> Parts {
    let mut parts = Request::new(()).into_parts().0;
    if let Ok(peer) = peer.parse::<IpAddr>() {
        parts.extensions.insert(PeerAddr((peer, 5_000).into()));
    }
    for (name, value) in headers {
        let name = name.parse::<HeaderName>().unwrap();
        let value = HeaderValue::from_bytes(value.as_ref()).unwrap();
        parts.headers.append(name, value);
    }
    parts
}
