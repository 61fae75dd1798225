//! Addresses as proxies write them: with a port, a zone, brackets.

use std::net::{IpAddr, Ipv6Addr};

/// Parses an address from `X-Forwarded-For` or from a header with a single address.
///
/// A port may follow the address. IPv6 may be in brackets, and must be if a port follows.
pub(super) fn read(text: &[u8]) -> Option<IpAddr> {
    let (address, port) = split_port(str::from_utf8(text).ok()?.trim_ascii())?;
    port.is_none_or(is_port).then(|| address.to_canonical())
}

/// Parses an address that always has a port, as in `CloudFront-Viewer-Address`. IPv6 has no brackets there:
/// `2001:db8::1:443` is `2001:db8::1`.
pub(super) fn read_with_port(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?.trim_ascii();
    let (address, port) = text.rsplit_once(':')?;
    let (address, None) = split_port(address)? else {
        return None;
    };
    is_port(port).then(|| address.to_canonical())
}

/// Parses a node of `Forwarded` (RFC 7239, section 6): IPv6 is in brackets, and a port may be obfuscated.
pub(super) fn read_node(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    let (address, port) = split_port(text)?;
    let is_node = address.is_ipv4() || text.starts_with('[');
    let is_complete = port.is_none_or(|port| is_port(port) || is_obfuscated(port));
    (is_node && is_complete).then(|| address.to_canonical())
}

fn split_port(text: &str) -> Option<(IpAddr, Option<&str>)> {
    if let Some((address, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let port = rest.strip_prefix(':');
        let is_complete = rest.is_empty() || port.is_some();
        return read_v6(address)
            .filter(|_| is_complete)
            .map(|address| (address, port));
    }
    match text.split_once(':') {
        None => Some((read_v4(text)?, None)),
        Some((_, rest)) if rest.contains(':') => Some((read_v6(text)?, None)),
        Some((address, port)) => Some((read_v4(address)?, Some(port))),
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
