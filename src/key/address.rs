//! The key of an address, however it was found.

use std::fmt;
use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr};

use arrayvec::ArrayString;

use super::key::Key;
use super::key::{Network, Tag};

/// The part of an IPv6 address that is one client, in bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ipv6Prefix(u8);

impl Default for Ipv6Prefix {
    /// What a provider gives to one customer at least (RFC 6177), who has all the addresses below
    /// it.
    fn default() -> Self {
        Self(64)
    }
}

impl Ipv6Prefix {
    /// The nearest to `bits` of 32 to 128.
    pub(super) fn nearest(bits: u8) -> Self {
        Self(bits.clamp(32, 128))
    }

    /// The key of a client at this address. Of one that NAT64 made (RFC 6052), all bits count: each
    /// is one client of IPv4, and all of them share the prefix.
    pub(super) fn key_of(self, address: IpAddr) -> Key {
        // Unmapped before it is masked: else all of IPv4 would be one client.
        let address = address.to_canonical();
        let text = match address {
            IpAddr::V4(address) => Text::from(format_args!("{address}")),
            IpAddr::V6(address) if self.0 >= 128 || is_nat64(address) => {
                Text::from(format_args!("{address}"))
            }
            IpAddr::V6(address) => {
                let network = network(address, self.0);
                Text::from(format_args!("{network}/{}", self.0))
            }
        };
        Key::tagged(Tag::Ip, text.0.as_bytes()).in_network(Network::of(client_of(address)))
    }
}

/// The IPv4 address of a client whose packets NAT64 translates, otherwise the address itself.
fn client_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) if is_nat64(address) => {
            let [.., a, b, c, d] = address.octets();
            IpAddr::from([a, b, c, d])
        }
        address => address,
    }
}

/// An address in text, on the stack.
struct Text(ArrayString<64>);

impl From<fmt::Arguments<'_>> for Text {
    fn from(address: fmt::Arguments<'_>) -> Self {
        let mut text = ArrayString::new();
        // An IPv6 address with its prefix has at most 43 characters.
        let _ = text.write_fmt(address);
        Self(text)
    }
}

/// Whether it is in `64:ff9b::/96`, and so the address of an IPv4 client, as hosts without IPv4
/// see it.
fn is_nat64(address: Ipv6Addr) -> bool {
    matches!(address.segments(), [0x64, 0xff9b, 0, 0, 0, 0, _, _])
}

fn network(address: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
    Ipv6Addr::from(u128::from(address) & mask)
}
