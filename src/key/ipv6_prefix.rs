//! Keys of IP addresses: all IPv6 addresses with the same prefix count as one client.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU64;

use arrayvec::ArrayString;

use super::key::Key;

/// The number of leading bits that identify a client by its IPv6 address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ipv6Prefix(u8);

impl Default for Ipv6Prefix {
    /// Returns 64 bits, the smallest network that providers give to a customer (RFC 6177). The customer can
    /// use all addresses in it.
    fn default() -> Self {
        Self(64)
    }
}

impl Ipv6Prefix {
    pub(super) fn clamped(bits: u8) -> Self {
        Self(bits.clamp(32, 128))
    }

    /// A NAT64 address (RFC 6052) counts in full: each one stands for an IPv4 address, and all of them share
    /// their prefix.
    pub(super) fn key(self, address: IpAddr) -> Key {
        // Before the mask: otherwise all IPv4-mapped addresses would be one client.
        let address = address.to_canonical();
        // It fits: an IPv6 address with its prefix has at most 43 characters.
        let mut text = ArrayString::<64>::new();
        let _ = match address {
            IpAddr::V6(address) if self.0 < 128 && !is_nat64(address) => {
                write!(text, "{}/{}", mask(address, self.0), self.0)
            }
            address => write!(text, "{address}"),
        };
        let network = customer_network(unmap_nat64(address));
        Key::tagged("ip=", text.as_bytes()).in_network(network)
    }
}

/// The key of [`peer_ip`](crate::key::peer_ip()) for the address: all IPv6 addresses of a /64 network have one key.
impl From<IpAddr> for Key {
    fn from(address: IpAddr) -> Self {
        Ipv6Prefix::default().key(address)
    }
}

/// The key of [`peer_ip`](crate::key::peer_ip()) for the address.
impl From<Ipv4Addr> for Key {
    fn from(address: Ipv4Addr) -> Self {
        Self::from(IpAddr::from(address))
    }
}

/// The key of [`peer_ip`](crate::key::peer_ip()) for the address: all addresses of a /64 network have one key.
impl From<Ipv6Addr> for Key {
    fn from(address: Ipv6Addr) -> Self {
        Self::from(IpAddr::from(address))
    }
}

/// Returns the network of an address as a number: its IP version, above the first 24 bits of an IPv4 address, or the first
/// 48 bits of an IPv6 address.
///
/// Providers rarely give a customer more than this, so a client that changes its address mostly stays in
/// its network. For IPv6, see [RFC 6177](https://www.rfc-editor.org/rfc/rfc6177).
fn customer_network(address: IpAddr) -> Option<NonZeroU64> {
    let number = match address {
        IpAddr::V4(address) => 4 << 48 | u64::from(u32::from(address) >> 8),
        IpAddr::V6(address) => {
            6 << 48 | u64::try_from(u128::from(address) >> 80).unwrap_or_default()
        }
    };
    NonZeroU64::new(number)
}

fn unmap_nat64(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) if is_nat64(address) => {
            let [.., a, b, c, d] = address.octets();
            IpAddr::from([a, b, c, d])
        }
        address => address,
    }
}

/// `64:ff9b::/96` (RFC 6052).
fn is_nat64(address: Ipv6Addr) -> bool {
    matches!(address.segments(), [0x64, 0xff9b, 0, 0, 0, 0, _, _])
}

fn mask(address: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
    Ipv6Addr::from(u128::from(address) & mask)
}
