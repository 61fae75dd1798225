//! Keys from the address at the other end of the connection.

use std::net::{IpAddr, SocketAddr};

use http::request::Parts;

use super::axum_08;
use super::error::{KeyError, KeyErrorKind};
use super::extractor::{KeyExtractor, inherent_or};
use super::ipv6_prefix::Ipv6Prefix;
use super::key::Key;
use super::reads::Reads;
use super::tonic_014;

/// Returns an extractor that counts by the IP address at the other end of the connection: the default of a
/// layer.
///
/// The server sees this address, so a client cannot invent it. Behind a proxy or a load balancer it is the
/// address of the proxy, and all clients would share one count. Use [`client_ip`](super::client_ip())
/// there.
///
/// # Server setup
///
/// With axum, serve the router with `into_make_service_with_connect_info`. Otherwise the address is missing:
/// all requests are answered 500, and one log line says what to add.
///
/// ```no_run
/// # use std::net::SocketAddr;
/// # async fn serve(app: axum::Router, listener: tokio::net::TcpListener) -> std::io::Result<()> {
/// let app = app.into_make_service_with_connect_info::<SocketAddr>();
/// axum::serve(listener, app).await
/// # }
/// ```
///
/// With tonic 0.14 and the feature `grpc`, nothing is needed: tonic's server inserts the address.
///
/// With another server, insert a [`PeerAddr`] into the extensions of each request. It takes precedence over
/// axum's `ConnectInfo`. In a test without a server, do the same, or add axum's `MockConnectInfo` as a
/// layer.
///
/// # Which address counts
///
/// - An IPv4 address counts in full, also in its IPv6 form (`::ffff:192.0.2.1`).
/// - The first 64 bits of an IPv6 address count; see [`ipv6_prefix`](PeerIp::ipv6_prefix).
/// - A NAT64 address (`64:ff9b::/96`) counts in full, since it stands for one IPv4 address.
#[must_use]
#[doc(alias("ip"))]
pub fn peer_ip() -> PeerIp {
    PeerIp {
        ipv6_prefix: Ipv6Prefix::default(),
    }
}

/// A key extractor that counts by the address at the other end of the connection; created by [`peer_ip`].
#[derive(Clone, Copy, Debug)]
pub struct PeerIp {
    ipv6_prefix: Ipv6Prefix,
}

/// The address at the other end of the connection, as a request extension, for servers other than axum's.
///
/// [`peer_ip`] and [`client_ip`](super::client_ip()) trust it. So only the server may insert it, with the
/// address of the connection, never with one from a header.
///
/// # Examples
///
/// ```
/// use std::net::SocketAddr;
/// use http::Request;
/// use tollgate::key::{KeyExtractor, PeerAddr, peer_ip};
///
/// let peer = PeerAddr(SocketAddr::from(([192, 0, 2, 1], 5_000)));
/// let (parts, ()) = Request::builder().extension(peer).body(())?.into_parts();
/// assert_eq!(peer_ip().extract(&parts)?, peer_ip().of(peer.0.ip()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "it is an address and nothing else"
)]
pub struct PeerAddr(pub SocketAddr);

impl PeerIp {
    /// Sets the number of leading bits that identify a client by its IPv6 address, from 32 to 128. The
    /// default is 64, the smallest network that providers give to a customer.
    /// [Pods](crate::guide::keys#ipv6) of one node often share a /64, and so a count: set 128 for them.
    ///
    /// With fewer bits, more clients share a count: a provider may give a customer a /56 or a /48, which
    /// contains many /64 networks. With 128 bits, a client can use a new address, and so a new count, for
    /// each request. Values out of range are clamped.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = Ipv6Prefix::clamped(bits);
        self
    }

    /// Returns the key of requests from this address, to inspect or reset its count.
    #[must_use]
    pub fn of(&self, address: IpAddr) -> Key {
        self.ipv6_prefix.key(address)
    }
}

inherent_or!(PeerIp);

impl KeyExtractor for PeerIp {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        peer_address(parts).map_or_else(|| Err(unknown_peer()), |peer| Ok(self.of(peer)))
    }

    fn reads(&self) -> Reads {
        Reads::peer_address()
    }
}

pub(crate) fn peer_address(parts: &Parts) -> Option<IpAddr> {
    parts
        .extensions
        .get::<PeerAddr>()
        .map(|peer| peer.0)
        .or_else(|| axum_08::connect_info(parts))
        .or_else(|| tonic_014::connect_info(parts))
        .map(|address| address.ip())
}

pub(super) fn unknown_peer() -> KeyError {
    KeyError::new(
        KeyErrorKind::Misconfigured,
        "the peer's address is not known: serve the router by \
         `into_make_service_with_connect_info::<SocketAddr>()`, or insert a \
         `tollgate::key::PeerAddr` into the extensions of each request",
    )
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::key::test_request::get;

    fn key_text(key: PeerIp, address: &str) -> String {
        key.of(address.parse().unwrap()).as_str().to_owned()
    }

    #[test]
    fn equivalent_addresses_have_the_same_key() {
        for (address, key) in [
            ("192.0.2.1", "ip=192.0.2.1"),
            ("::ffff:192.0.2.1", "ip=192.0.2.1"),
            ("::ffff:c000:201", "ip=192.0.2.1"),
            ("2001:db8:1:2:3:4:5:6", "ip=2001:db8:1:2::/64"),
            ("2001:DB8:1:2::", "ip=2001:db8:1:2::/64"),
            ("::1", "ip=::/64"),
            // NAT64: each address stands for an IPv4 address.
            ("64:ff9b::192.0.2.1", "ip=64:ff9b::c000:201"),
            ("64:ff9b::c000:202", "ip=64:ff9b::c000:202"),
            ("64:ff9b:0:0:0:1::", "ip=64:ff9b::/64"),
            ("64:ff9b:1::192.0.2.1", "ip=64:ff9b:1::/64"),
        ] {
            assert_eq!(key_text(peer_ip(), address), key, "{address}");
        }
    }

    #[test]
    fn the_prefix_can_be_set_from_32_to_128_bits() {
        let address = "2001:db8:1:2:3:4:5:6";
        for (bits, key) in [
            (48, "ip=2001:db8:1::/48"),
            (128, "ip=2001:db8:1:2:3:4:5:6"),
            (0, "ip=2001:db8::/32"),
            (255, "ip=2001:db8:1:2:3:4:5:6"),
        ] {
            assert_eq!(
                key_text(peer_ip().ipv6_prefix(bits), address),
                key,
                "{bits}"
            );
            let nat64 = key_text(peer_ip().ipv6_prefix(bits), "64:ff9b::192.0.2.1");
            assert_eq!(nat64, "ip=64:ff9b::c000:201", "{bits}");
        }
        assert_eq!(
            key_text(peer_ip().ipv6_prefix(32), "::ffff:192.0.2.1"),
            "ip=192.0.2.1"
        );
    }

    #[test]
    fn an_unknown_peer_is_a_misconfiguration_and_the_error_names_the_remedy() {
        let error = peer_ip().extract(&get()).unwrap_err();
        assert_eq!(error.kind(), KeyErrorKind::Misconfigured);
        let text = error.to_string();
        assert!(
            text.contains("into_make_service_with_connect_info::<SocketAddr>()"),
            "{text}"
        );
        assert!(text.contains("PeerAddr"), "{text}");
    }

    #[test]
    fn the_address_is_read_from_the_extension_of_the_server() {
        let mut parts = get();
        parts
            .extensions
            .insert(PeerAddr("192.0.2.7:5000".parse().unwrap()));
        assert_eq!(peer_ip().extract(&parts).unwrap().as_str(), "ip=192.0.2.7");
    }

    proptest! {
        #[test]
        fn two_addresses_share_a_key_if_and_only_if_they_share_the_prefix(
            a: u128, flip in 0_u32..128, bits in 32_u8..=128,
        ) {
            // Sets a bit that excludes the IPv4-mapped addresses.
            let a = a | 1 << 127;
            let b = a ^ 1 << flip;
            prop_assume!(b >> 127 == 1);
            let [a, b] = [a, b].map(|bits| IpAddr::from(Ipv6Addr::from(bits)));
            let extractor = peer_ip().ipv6_prefix(bits);
            prop_assert_eq!(extractor.of(a) == extractor.of(b), flip < 128 - u32::from(bits));
        }
    }
}
