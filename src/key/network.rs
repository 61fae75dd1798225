//! The network of an address, which is counted in place of the address when there are too many addresses.

use std::net::IpAddr;
use std::num::NonZeroU64;

use super::fingerprint::Fingerprint;

/// The first 24 bits of an IPv4 address, or the first 48 bits of an IPv6 address.
///
/// Providers rarely give a customer more than this, so a client that changes its address mostly stays in
/// its network. For IPv6, see [RFC 6177](https://www.rfc-editor.org/rfc/rfc6177).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Network(NonZeroU64);

impl Network {
    /// The IP version, above the 48 bits of the network.
    const V4: u64 = 4 << 48;
    const V6: u64 = 6 << 48;

    pub(super) fn of(address: IpAddr) -> Option<Self> {
        let number = match address {
            IpAddr::V4(address) => Self::V4 | u64::from(u32::from(address) >> 8),
            IpAddr::V6(address) => {
                let first = u64::try_from(u128::from(address) >> 80);
                Self::V6 | first.unwrap_or_default()
            }
        };
        NonZeroU64::new(number).map(Self)
    }

    pub(super) fn fingerprint(self) -> Fingerprint {
        Fingerprint::of_number(self.0.get())
    }
}
