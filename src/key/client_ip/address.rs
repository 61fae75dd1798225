//! Addresses as proxies write them: with a port, a zone, brackets.

use std::net::{IpAddr, Ipv6Addr};

/// Parses an address from `X-Forwarded-For` or from a header with a single address.
///
/// A port may follow the address. IPv6 may be in brackets, and must be if a port follows.
pub(super) fn read(text: &[u8]) -> Option<IpAddr> {
    let found = split_port(str::from_utf8(text).ok()?.trim_ascii())?;
    found
        .port
        .is_none_or(is_port)
        .then(|| found.address.to_canonical())
}

/// Parses an address that always has a port, as in `CloudFront-Viewer-Address`. IPv6 has no brackets there:
/// `2001:db8::1:443` is `2001:db8::1`.
pub(super) fn read_with_port(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?.trim_ascii();
    let (text, port) = text.rsplit_once(':')?;
    let found = split_port(text)?;
    (found.port.is_none() && is_port(port)).then(|| found.address.to_canonical())
}

/// Parses a node of `Forwarded` (RFC 7239, section 6): IPv6 is in brackets, and a port may be obfuscated.
pub(super) fn read_node(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    let found = split_port(text)?;
    let is_node = found.address.is_ipv4() || text.starts_with('[');
    let is_complete = found
        .port
        .is_none_or(|port| is_port(port) || is_obfuscated(port));
    (is_node && is_complete).then(|| found.address.to_canonical())
}

struct AddressWithPort<'a> {
    address: IpAddr,
    port: Option<&'a str>,
}

fn split_port(text: &str) -> Option<AddressWithPort<'_>> {
    if let Some((address, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let port = rest.strip_prefix(':');
        if port.is_none() && !rest.is_empty() {
            return None;
        }
        let address = read_v6(address)?;
        return Some(AddressWithPort { address, port });
    }
    match text.split_once(':') {
        Some((address, port)) if !port.contains(':') => Some(AddressWithPort {
            address: read_v4(address)?,
            port: Some(port),
        }),
        Some(_) => Some(AddressWithPort {
            address: read_v6(text)?,
            port: None,
        }),
        None => Some(AddressWithPort {
            address: read_v4(text)?,
            port: None,
        }),
    }
}

/// `std` rejects leading zeros, which some programs read as octal.
fn read_v4(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(IpAddr::V4)
}

/// Drops the zone, which only has a meaning on the host that wrote it.
fn read_v6(text: &str) -> Option<IpAddr> {
    let address = text.split_once('%').map_or(text, |(address, _)| address);
    address.parse().ok().map(|address: Ipv6Addr| address.into())
}

fn is_port(text: &str) -> bool {
    (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_obfuscated(text: &str) -> bool {
    text.strip_prefix('_').is_some_and(|name| {
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    })
}
