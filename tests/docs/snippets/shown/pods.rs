//! Pods are counted by their whole address, other clients by their /64.

use axum::http::Request;

// page: shown
use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use tollgate::key::{self, KeyExtractor};

fn by_pod_or_customer() -> impl KeyExtractor {
    key::from_fn(|parts| {
        let ConnectInfo::<SocketAddr>(peer) = parts.extensions.get()?;
        let is_private = matches!(peer.ip(), IpAddr::V6(address) if address.is_unique_local());
        let bits = if is_private { 128 } else { 64 };
        Some(key::peer_ip().ipv6_prefix(bits).of(peer.ip()))
    })
}
// page: end

#[test]
fn two_pods_are_two_keys_and_a_customer_is_one() {
    let key_of = |address: &str| {
        let peer = SocketAddr::new(address.parse().expect("an address"), 4711);
        let request = Request::builder().extension(ConnectInfo(peer)).body(());
        let parts = request.expect("a request").into_parts().0;
        by_pod_or_customer().extract(&parts).expect("a key")
    };
    assert_ne!(key_of("fd00:1::a"), key_of("fd00:1::b"));
    assert_eq!(key_of("2001:db8::a"), key_of("2001:db8::b"));
}
