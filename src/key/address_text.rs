//! The text of an address in a key, as `std` formats it, in less than half the time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use arrayvec::ArrayString;

/// The text of an address, on the stack. An IPv6 address with its prefix has at most 43 characters.
pub(super) struct AddressText(ArrayString<64>);

impl AddressText {
    pub(super) fn of(address: IpAddr) -> Self {
        let mut text = Self(ArrayString::new());
        match address {
            IpAddr::V4(address) => text.push_v4(address),
            IpAddr::V6(address) => text.push_v6(address),
        }
        text
    }

    /// The text of a network: `2001:db8:1:2::/64`.
    pub(super) fn of_network(first: Ipv6Addr, bits: u8) -> Self {
        let mut text = Self::of(first.into());
        text.0.push('/');
        text.0.push_str(itoa::Buffer::new().format(bits));
        text
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn push_v4(&mut self, address: Ipv4Addr) {
        for (index, octet) in address.octets().into_iter().enumerate() {
            if index > 0 {
                self.0.push('.');
            }
            self.0.push_str(itoa::Buffer::new().format(octet));
        }
    }

    /// Writes an address in the form of RFC 5952, with `::` for its longest row of zeros.
    fn push_v6(&mut self, address: Ipv6Addr) {
        let segments = address.segments();
        let zeros = longest_zeros(segments);
        for (index, segment) in segments.into_iter().enumerate() {
            if zeros.contains(&index) {
                if index == zeros.start {
                    self.0.push_str("::");
                }
                continue;
            }
            if index > 0 && index != zeros.end {
                self.0.push(':');
            }
            self.push_hexadecimal(segment);
        }
    }

    /// Writes a number without leading zeros.
    fn push_hexadecimal(&mut self, number: u16) {
        let digits = (u16::BITS - number.leading_zeros()).div_ceil(4).max(1);
        for position in (0..digits).rev() {
            let digit = u32::from(number >> (4 * position)) & 0xf;
            self.0.push(char::from_digit(digit, 16).unwrap_or('0'));
        }
    }
}

/// Returns the indices of the longest row of at least two zeros, the first of several. Empty if there is
/// none.
fn longest_zeros(segments: [u16; 8]) -> Range<usize> {
    let (mut longest, mut start) = (0..0, 0);
    for (index, segment) in segments.into_iter().enumerate() {
        if segment != 0 {
            start = index + 1;
        } else if index + 1 - start > longest.len().max(1) {
            longest = start..index + 1;
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(address: IpAddr) -> String {
        String::from_utf8(AddressText::of(address).as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn a_network_ends_with_its_bits() {
        let network = AddressText::of_network("2001:db8:1:2::".parse().unwrap(), 64);
        assert_eq!(network.as_bytes(), b"2001:db8:1:2::/64");
    }

    proptest! {
        #[test]
        fn an_address_is_formatted_as_std_does(
            octets: [u8; 4],
            segments in prop::array::uniform8(prop_oneof![Just(0), any::<u16>(), 0..0x100_u16]),
        ) {
            let (v4, v6) = (IpAddr::from(octets), IpAddr::from(segments));
            prop_assert_eq!(text(v4), v4.to_string());
            // An IPv4 address that is written as IPv6 is the IPv4 address in a key.
            prop_assume!(v6.to_canonical() == v6);
            prop_assert_eq!(text(v6), v6.to_string());
        }
    }
}
