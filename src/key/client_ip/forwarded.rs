//! A parser of `Forwarded` (RFC 7239) that reads from the end.
//!
//! The crates rfc7239 and forwarded-header-value also split the header at commas inside quotes. A proxy may
//! quote the client's `Host` there, so a client could add an element after the one of the proxy.
//!
//! The end is what trusted proxies appended. If a client opens a quote and never closes it, a parser from
//! the start would take the elements of the proxies for quoted text.

use std::net::IpAddr;

use arrayvec::ArrayVec;

use super::address;

/// Finds the last `wanted` byte that is not quoted. The text ends outside of quotes.
pub(super) fn last_outside_quotes(text: &[u8], wanted: u8) -> Option<usize> {
    let mut end = text.len();
    loop {
        let text = text.get(..end)?;
        let position = text
            .iter()
            .rposition(|byte| *byte == wanted || *byte == b'"')?;
        if text.get(position) == Some(&wanted) {
            return Some(position);
        }
        // This quote ends a quoted string: skip it.
        end = opening_quote(text.get(..position)?)?;
    }
}

/// Finds the quote that opens a string. The text ends just before the closing quote.
fn opening_quote(text: &[u8]) -> Option<usize> {
    let mut end = text.len();
    loop {
        let before = text.get(..end)?;
        let quote = before.iter().rposition(|byte| *byte == b'"')?;
        let backslashes = before
            .get(..quote)?
            .iter()
            .rev()
            .take_while(|byte| **byte == b'\\')
            .count();
        if backslashes.is_multiple_of(2) {
            return Some(quote);
        }
        end = quote - backslashes;
    }
}

/// Parses the address in the `for` parameter of an element. The parameter must occur once.
pub(super) fn read(element: &[u8]) -> Option<IpAddr> {
    let mut rest = Some(element);
    let mut found = None;
    while let Some(pairs) = rest {
        let mut pair = pairs;
        rest = None;
        if let Some(semicolon) = last_outside_quotes(pairs, b';') {
            pair = pairs.get(semicolon + 1..)?;
            rest = pairs.get(..semicolon);
        }
        // RFC 7239 forbids a second `for`, and it is unclear which one counts.
        if let Some(node) = for_value(pair.trim_ascii())
            && found.replace(node).is_some()
        {
            return None;
        }
    }
    read_value(found?)
}

fn for_value(pair: &[u8]) -> Option<&[u8]> {
    let (name, value) = pair.split_at_checked(4)?;
    name.eq_ignore_ascii_case(b"for=").then_some(value)
}

/// Parses a node from a token or a quoted string. A node with a colon or brackets must be quoted.
fn read_value(value: &[u8]) -> Option<IpAddr> {
    let Some(quoted) = value.strip_prefix(b"\"") else {
        let is_token = !value.iter().any(|byte| b":[]\"".contains(byte));
        return is_token.then(|| address::read_node(value)).flatten();
    };
    address::read_node(&unescaped(quoted.strip_suffix(b"\"")?)?)
}

/// Removes the escapes of a quoted string. Returns `None` if it is too long for a node.
fn unescaped(quoted: &[u8]) -> Option<ArrayVec<u8, 64>> {
    let mut text = ArrayVec::new();
    let mut bytes = quoted.iter();
    while let Some(byte) = bytes.next() {
        let unescaped = match byte {
            b'\\' => bytes.next()?,
            b'"' => return None,
            byte => byte,
        };
        text.try_push(*unescaped).ok()?;
    }
    Some(text)
}
