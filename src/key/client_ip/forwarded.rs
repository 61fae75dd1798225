//! `Forwarded` (RFC 7239), read from its end.
//!
//! Not by a crate, because those that there are (rfc7239, forwarded-header-value) divide the header
//! at commas inside of quotes too. A proxy quotes there what the client sent as `Host`, so a client
//! could write an element of his own behind the proxy's. And it has to be read from the end: a quote
//! that a client opens and never closes must not swallow what the proxies append.

use std::net::IpAddr;

use arrayvec::ArrayVec;

use crate::key::client_ip::node;

/// Where `wanted` last occurs in a text that ends outside of quotes.
pub(super) fn last_outside_quotes(text: &[u8], wanted: u8) -> Option<usize> {
    let mut end = text.len();
    loop {
        let text = text.get(..end)?;
        let at = text
            .iter()
            .rposition(|byte| *byte == wanted || *byte == b'"')?;
        if text.get(at) == Some(&wanted) {
            return Some(at);
        }
        // It closes a quoted string, in which nothing is wanted.
        end = opening_quote(text.get(..at)?)?;
    }
}

/// Where the quote is that opens a string which ends before its closing one.
fn opening_quote(text: &[u8]) -> Option<usize> {
    let mut end = text.len();
    loop {
        let before = text.get(..end)?;
        let quote = before.iter().rposition(|byte| *byte == b'"')?;
        let backslashes = before.get(..quote)?.iter().rev();
        let backslashes = backslashes.take_while(|byte| **byte == b'\\').count();
        if backslashes.is_multiple_of(2) {
            return Some(quote);
        }
        end = quote - backslashes;
    }
}

/// The address that the one `for` of an element names.
pub(super) fn read(element: &[u8]) -> Option<IpAddr> {
    let mut rest = Some(element);
    let mut found = None;
    while let Some(pairs) = rest {
        let semicolon = last_outside_quotes(pairs, b';');
        let (left, pair) = match semicolon {
            Some(at) => (pairs.get(..at), pairs.get(at + 1..)?),
            None => (None, pairs),
        };
        if let Some(node) = value_of_for(pair.trim_ascii()) {
            // Twice is not of the grammar, and which of the two was meant is not known.
            if found.replace(node).is_some() {
                return None;
            }
        }
        rest = left;
    }
    read_value(found?)
}

/// What `for=` is followed by.
fn value_of_for(pair: &[u8]) -> Option<&[u8]> {
    let (name, value) = pair.split_at_checked(4)?;
    name.eq_ignore_ascii_case(b"for=").then_some(value)
}

/// A node in a token, or in a quoted string, which it must be in where it has a colon or brackets.
fn read_value(value: &[u8]) -> Option<IpAddr> {
    let Some(quoted) = value.strip_prefix(b"\"") else {
        let is_token = !value.iter().any(|byte| b":[]\"".contains(byte));
        return is_token.then(|| node::read_node(value)).flatten();
    };
    node::read_node(&unescaped(quoted.strip_suffix(b"\"")?)?)
}

/// What a quoted string says, if it is short enough for a node.
fn unescaped(quoted: &[u8]) -> Option<ArrayVec<u8, 64>> {
    let mut text = ArrayVec::new();
    let mut bytes = quoted.iter();
    while let Some(byte) = bytes.next() {
        let said = match byte {
            b'\\' => bytes.next()?,
            b'"' => return None,
            byte => byte,
        };
        text.try_push(*said).ok()?;
    }
    Some(text)
}
