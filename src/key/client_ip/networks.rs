//! The networks of trusted proxies.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

/// Parses a CIDR, or an address as a network of one address.
pub(super) fn parse(text: &str) -> Option<IpNet> {
    let text = text.trim();
    // `std` rejects leading zeros: some programs read `010.0.0.0` as 10.0.0.0, others as 8.0.0.0.
    let address: IpAddr = text.split('/').next()?.parse().ok()?;
    let network = if text.contains('/') {
        text.parse().ok()?
    } else {
        IpNet::from(address)
    };
    Some(canonical(network))
}

/// Converts a network of IPv4-mapped addresses to the IPv4 network. Addresses are converted before they are
/// looked up, so networks must be too.
fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(mapped) = network else {
        return network;
    };
    let IpAddr::V4(address) = IpAddr::from(mapped.addr()).to_canonical() else {
        return network;
    };
    // A prefix below 96 bits contains more than all IPv4 addresses, and stays an IPv6 network.
    mapped
        .prefix_len()
        .checked_sub(96)
        .and_then(|bits| Ipv4Net::new(address, bits).ok())
        .map_or(network, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_a_cidr_or_an_address() {
        for (text, network) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            (" 10.0.0.0/8\n", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("2001:DB8::/32", "2001:db8::/32"),
            ("2001:db8::1", "2001:db8::1/128"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:a00:1", "10.0.0.1/32"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::ffff:0:0/95", "::ffff:0.0.0.0/95"),
            ("64:ff9b::/96", "64:ff9b::/96"),
        ] {
            assert_eq!(
                parse(text).map(|net| net.to_string()).as_deref(),
                Some(network),
                "{text}"
            );
        }
    }

    #[test]
    fn other_texts_are_rejected() {
        for text in [
            "",
            "/8",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/",
            "10.0.0/8",
            "010.0.0.0/8",
            "10.0.0.0/255.0.0.0",
            "2001:db8::/129",
            "fe80::1%eth0",
            "10.0.0.0 /8",
            "loopback",
            "10.0.0.1:80",
            "[::1]",
            "*",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
