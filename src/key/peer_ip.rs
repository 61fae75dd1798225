//! Keys from the address of the connection's other end.

use std::net::{IpAddr, SocketAddr};

use http::request::Parts;

use super::axum_08;
use super::error::{KeyError, KeyErrorKind};
use super::extractor::{KeyExtractor, inherent_or};
use super::ipv6_prefix::Ipv6Prefix;
use super::key::Key;
use super::reads::Reads;

/// Counts by the address of the connection's other end; the default of a layer.
///
/// The server itself sees this address, so a client cannot make it up. Behind a proxy or a load balancer it
/// is the proxy's, and all its clients share one count: use [`client_ip`](super::client_ip()) there.
///
/// An IPv4 address that is written as IPv6 (`::ffff:192.0.2.1`) is the IPv4 address. The first 64 bits of
/// an IPv6 address count; see [`ipv6_prefix`](PeerIp::ipv6_prefix). All bits count if NAT64 made it of an
/// IPv4 address.
///
/// # Server setup
///
/// axum knows the address only if it serves the router like this:
///
/// ```no_run
/// # use std::net::SocketAddr;
/// # async fn serve(app: axum::Router, listener: tokio::net::TcpListener) -> std::io::Result<()> {
/// let app = app.into_make_service_with_connect_info::<SocketAddr>();
/// axum::serve(listener, app).await
/// # }
/// ```
///
/// Other servers insert a [`PeerAddr`] into the request's extensions, which takes precedence. Without
/// either, requests are answered 500 and the log says what to add.
///
/// Tests without a server insert a [`PeerAddr`] too, or add axum's `MockConnectInfo` as a layer.
#[must_use]
pub fn peer_ip() -> PeerIp {
    PeerIp {
        ipv6_prefix: Ipv6Prefix::default(),
    }
}

/// Counts by the address of the connection's other end; made by [`peer_ip`].
#[derive(Clone, Copy, Debug)]
pub struct PeerIp {
    ipv6_prefix: Ipv6Prefix,
}

/// The peer's address for [`peer_ip`], in the extensions of a request: for servers other than axum's.
///
/// It is trusted, so only the server may insert it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "it is an address and nothing else"
)]
pub struct PeerAddr(pub SocketAddr);

impl PeerIp {
    /// Counts IPv6 addresses that share their first `bits` together. The default is 64.
    ///
    /// A provider may give a customer 56 or 48 bits, so that a customer has many prefixes of 64 bits. With
    /// 128, each address is counted separately, and a client has billions of them. Values outside of 32 to
    /// 128 are clamped. A NAT64 address (`64:ff9b::/96`) is always counted separately: it stands for one
    /// IPv4 address.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = Ipv6Prefix::clamped(bits);
        self
    }

    /// Returns the key of a request from this address, to inspect or reset its counts without a request.
    #[must_use]
    pub fn of(&self, address: IpAddr) -> Key {
        self.ipv6_prefix.key_of(address)
    }
}

inherent_or!(PeerIp);

impl KeyExtractor for PeerIp {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        peer_of(parts).map_or_else(|| Err(unknown_peer()), |peer| Ok(self.of(peer)))
    }

    fn reads(&self) -> Reads {
        Reads::peer_address()
    }
}

/// Returns the address of the connection's other end, if the server stored it in the extensions.
pub(crate) fn peer_of(parts: &Parts) -> Option<IpAddr> {
    let peer = parts.extensions.get::<PeerAddr>().map(|peer| peer.0);
    let peer = peer.or_else(|| axum_08::connect_info(parts));
    peer.map(|address| address.ip())
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

    fn text_of(key: PeerIp, address: &str) -> String {
        key.of(address.parse().unwrap()).as_str().to_owned()
    }

    #[test]
    fn an_address_is_known_by_its_bits() {
        for (address, key) in [
            ("192.0.2.1", "ip=192.0.2.1"),
            ("::ffff:192.0.2.1", "ip=192.0.2.1"),
            ("::ffff:c000:201", "ip=192.0.2.1"),
            ("2001:db8:1:2:3:4:5:6", "ip=2001:db8:1:2::/64"),
            ("2001:DB8:1:2::", "ip=2001:db8:1:2::/64"),
            ("::1", "ip=::/64"),
            // NAT64: each is one client of IPv4.
            ("64:ff9b::192.0.2.1", "ip=64:ff9b::c000:201"),
            ("64:ff9b::c000:202", "ip=64:ff9b::c000:202"),
            ("64:ff9b:0:0:0:1::", "ip=64:ff9b::/64"),
            ("64:ff9b:1::192.0.2.1", "ip=64:ff9b:1::/64"),
        ] {
            assert_eq!(text_of(peer_ip(), address), key, "{address}");
        }
    }

    #[test]
    fn the_prefix_can_be_set_within_reason() {
        let address = "2001:db8:1:2:3:4:5:6";
        for (bits, key) in [
            (48, "ip=2001:db8:1::/48"),
            (128, "ip=2001:db8:1:2:3:4:5:6"),
            (0, "ip=2001:db8::/32"),
            (255, "ip=2001:db8:1:2:3:4:5:6"),
        ] {
            assert_eq!(text_of(peer_ip().ipv6_prefix(bits), address), key, "{bits}");
            let nat64 = text_of(peer_ip().ipv6_prefix(bits), "64:ff9b::192.0.2.1");
            assert_eq!(nat64, "ip=64:ff9b::c000:201", "{bits}");
        }
        assert_eq!(
            text_of(peer_ip().ipv6_prefix(32), "::ffff:192.0.2.1"),
            "ip=192.0.2.1"
        );
    }

    #[test]
    fn an_unknown_peer_is_a_fault_of_the_server_and_says_what_to_add() {
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
    fn a_server_stores_the_address_in_an_extension() {
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
            // Not among the mapped addresses, which are IPv4.
            let a = a | 1 << 127;
            let b = a ^ 1 << flip;
            let key = |bits_of: u128| peer_ip().ipv6_prefix(bits).of(Ipv6Addr::from(bits_of).into());
            prop_assume!(b >> 127 == 1);
            prop_assert_eq!(key(a) == key(b), flip < 128 - u32::from(bits));
        }
    }
}
