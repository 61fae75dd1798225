//! The address of the connection's other end.

use std::net::{IpAddr, SocketAddr};

use http::request::Parts;

use super::address::Ipv6Prefix;
use super::error::{KeyError, KeyErrorKind};
use super::extractor::KeyExtractor;
use super::key::Key;
use super::reads::Reads;

/// Counts by the address of the connection's other end; the default of a layer.
///
/// The address is the one that the server saw, which cannot be made up. Behind a proxy or a load
/// balancer that is the proxy, and all its clients are counted together: there it is
/// [`client_ip`](super::client_ip()) that tells them apart.
///
/// An IPv4 address that is written as IPv6 (`::ffff:192.0.2.1`) is the IPv4 address. Of an IPv6
/// address the first 64 bits count, see [`ipv6_prefix`](PeerIp::ipv6_prefix); of one that NAT64 made
/// of an IPv4 address, all.
///
/// # What the server must do
///
/// axum knows the address only if the router is served so:
///
/// ```no_run
/// # use std::net::SocketAddr;
/// # async fn serve(app: axum::Router, listener: tokio::net::TcpListener) -> std::io::Result<()> {
/// let app = app.into_make_service_with_connect_info::<SocketAddr>();
/// axum::serve(listener, app).await
/// # }
/// ```
///
/// Other servers insert a [`PeerAddr`] into the request's extensions, which goes before. Without
/// either, requests are answered 500 and the log says what to add.
///
/// Tests without a server insert a [`PeerAddr`] too, or add a layer of axum's `MockConnectInfo`.
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

/// Tells [`peer_ip`] the address, in the extensions of a request: for servers other than axum's.
///
/// It is believed, so only the server may insert it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "it is an address and nothing else"
)]
pub struct PeerAddr(pub SocketAddr);

impl PeerIp {
    /// Counts IPv6 addresses that share their first `bits` together: 64 unless said otherwise. A
    /// customer may have 56 or 48 of his own; 128 counts each address by itself, of which anybody
    /// has billions. Values outside of 32 to 128 are taken as the nearest of these. An address of
    /// NAT64 (`64:ff9b::/96`) counts by itself in any case: it stands for one of IPv4.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = Ipv6Prefix::nearest(bits);
        self
    }

    /// The key of a request from this address: to look at it or reset it without a request.
    #[must_use]
    pub fn of(&self, address: IpAddr) -> Key {
        self.ipv6_prefix.key_of(address)
    }
}

impl KeyExtractor for PeerIp {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        peer_of(parts).map_or_else(|| Err(unknown_peer()), |peer| Ok(self.of(peer)))
    }

    fn reads(&self) -> Reads {
        Reads::PEER
    }
}

/// The address of the other end, if the server told it.
pub(crate) fn peer_of(parts: &Parts) -> Option<IpAddr> {
    let told = parts.extensions.get::<PeerAddr>().map(|peer| peer.0);
    #[cfg(feature = "axum-08")]
    let told = told.or_else(|| connect_info(parts));
    told.map(|address| address.ip())
}

pub(super) fn unknown_peer() -> KeyError {
    KeyError::new(
        KeyErrorKind::Misconfigured,
        "the peer's address is not known: serve the router by \
         `into_make_service_with_connect_info::<SocketAddr>()`, or insert a \
         `tollgate::key::PeerAddr` into the extensions of each request",
    )
}

/// What axum's own extractor of `ConnectInfo` would find.
#[cfg(feature = "axum-08")]
fn connect_info(parts: &Parts) -> Option<SocketAddr> {
    use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

    let info = parts.extensions.get::<ConnectInfo<SocketAddr>>();
    let mock = || parts.extensions.get::<MockConnectInfo<SocketAddr>>();
    info.map(|info| info.0)
        .or_else(|| mock().map(|mock| mock.0))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::key::extractor::test_request::get;

    fn of(key: PeerIp, address: &str) -> String {
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
            assert_eq!(of(peer_ip(), address), key, "{address}");
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
            assert_eq!(of(peer_ip().ipv6_prefix(bits), address), key, "{bits}");
            let nat64 = of(peer_ip().ipv6_prefix(bits), "64:ff9b::192.0.2.1");
            assert_eq!(nat64, "ip=64:ff9b::c000:201", "{bits}");
        }
        assert_eq!(
            of(peer_ip().ipv6_prefix(32), "::ffff:192.0.2.1"),
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
    fn a_server_tells_the_address_by_an_extension() {
        let mut parts = get();
        parts
            .extensions
            .insert(PeerAddr("192.0.2.7:5000".parse().unwrap()));
        assert_eq!(peer_ip().extract(&parts).unwrap().as_str(), "ip=192.0.2.7");
    }

    #[cfg(feature = "axum-08")]
    #[test]
    fn axum_tells_the_address_and_tests_of_axum_do() {
        use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

        let mut parts = get();
        let of = |parts: &Parts| peer_ip().extract(parts).unwrap().as_str().to_owned();
        let address = |last: u8| SocketAddr::from(([192, 0, 2, last], 5_000));
        parts.extensions.insert(MockConnectInfo(address(1)));
        assert_eq!(of(&parts), "ip=192.0.2.1");
        parts.extensions.insert(ConnectInfo(address(2)));
        assert_eq!(of(&parts), "ip=192.0.2.2");
        parts.extensions.insert(PeerAddr(address(3)));
        assert_eq!(of(&parts), "ip=192.0.2.3");
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
