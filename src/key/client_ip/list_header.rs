//! Forwarding headers to which each proxy appends an address, read from the last entry to the first.

use std::net::IpAddr;

use super::{address, forwarded};

/// The number of bytes that are read from the end of the list: twice the length of 32 hops in the longest
/// notation in use.
const MAX_BYTES: usize = 8_192;

/// A header to which each proxy appends the address that the request came from.
#[derive(Clone, Copy, Debug)]
pub(super) enum ListHeader {
    XForwardedFor,
    /// RFC 7239.
    Forwarded,
}

impl ListHeader {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
        }
    }

    fn read(self, entry: &[u8]) -> Option<IpAddr> {
        match self {
            Self::XForwardedFor => address::read(entry),
            Self::Forwarded => forwarded::read(entry),
        }
    }

    /// Only `Forwarded` has quotes.
    fn last_comma(self, line: &[u8]) -> Option<usize> {
        match self {
            Self::XForwardedFor => line.iter().rposition(|byte| *byte == b','),
            Self::Forwarded => forwarded::last_outside_quotes(line, b','),
        }
    }
}

/// An iterator over the entries of all lines, from the last to the first.
///
/// Empty entries are left out (RFC 9110, section 5.6.1.2). An entry that cannot be parsed is `None`. If the list is longer
/// than [`MAX_BYTES`], the final item is `None` too.
pub(super) struct AddressEntries<'a, L> {
    header: ListHeader,
    lines: L,
    /// The unread part of the current line.
    line: Option<&'a [u8]>,
    bytes_left: usize,
}

impl<'a, L: DoubleEndedIterator<Item = &'a [u8]>> AddressEntries<'a, L> {
    pub(super) fn new(header: ListHeader, lines: L) -> Self {
        Self {
            header,
            lines,
            line: None,
            bytes_left: MAX_BYTES,
        }
    }
}

impl<'a, L: DoubleEndedIterator<Item = &'a [u8]>> Iterator for AddressEntries<'a, L> {
    type Item = Option<IpAddr>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.bytes_left > 0 {
            let line = self.line.take().or_else(|| self.lines.next_back())?;
            let hidden = line.len().saturating_sub(self.bytes_left);
            let visible = line.get(hidden..)?;
            let entry = match self.header.last_comma(visible) {
                Some(comma) => {
                    self.line = line.get(..hidden + comma);
                    visible.get(comma + 1..)
                }
                None if hidden == 0 => Some(line),
                None => None,
            };
            // An empty entry costs one byte, which bounds the number of lines.
            let cost = entry.map_or(self.bytes_left, |entry| entry.len() + 1);
            self.bytes_left = self.bytes_left.saturating_sub(cost);
            if !entry.is_some_and(|entry| entry.trim_ascii().is_empty()) {
                return Some(entry.and_then(|entry| self.header.read(entry)));
            }
        }
        None
    }
}
