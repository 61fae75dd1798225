//! What the proxies wrote, one entry after the other, from the last to the first.

use std::net::IpAddr;

use crate::key::client_ip::{forwarded, node};

/// The most bytes that are looked at, from the end: 32 hops are half of it in the longest notation
/// that occurs.
const MAX_BYTES: usize = 8_192;

/// In which form a proxy appends where a request came from.
#[derive(Clone, Copy, Debug)]
pub(super) enum List {
    XForwardedFor,
    /// RFC 7239.
    Forwarded,
}

impl List {
    pub(super) fn header(self) -> &'static str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
        }
    }

    /// The address in an entry, if it can be read.
    fn read(self, entry: &[u8]) -> Option<IpAddr> {
        match self {
            Self::XForwardedFor => node::read(entry),
            Self::Forwarded => forwarded::read(entry),
        }
    }

    /// Where the last comma of a line is. Only `Forwarded` has quotes to mind.
    fn last_comma(self, line: &[u8]) -> Option<usize> {
        match self {
            Self::XForwardedFor => line.iter().rposition(|byte| *byte == b','),
            Self::Forwarded => forwarded::last_outside_quotes(line, b','),
        }
    }
}

/// The entries of all lines, from the last to the first. One that cannot be read is `None`; so is
/// what lies beyond the bytes that are looked at, and then it is the last.
pub(super) struct Entries<'a, L> {
    list: List,
    lines: L,
    /// What is left of the line that was begun.
    line: Option<&'a [u8]>,
    bytes_left: usize,
}

impl<'a, L: DoubleEndedIterator<Item = &'a [u8]>> Entries<'a, L> {
    pub(super) fn new(list: List, lines: L) -> Self {
        Self {
            list,
            lines,
            line: None,
            bytes_left: MAX_BYTES,
        }
    }
}

impl<'a, L: DoubleEndedIterator<Item = &'a [u8]>> Iterator for Entries<'a, L> {
    type Item = Option<IpAddr>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes_left == 0 {
            return None;
        }
        let line = self.line.take().or_else(|| self.lines.next_back())?;
        let hidden = line.len().saturating_sub(self.bytes_left);
        let (_, seen) = line.split_at_checked(hidden)?;
        let entry = match self.list.last_comma(seen) {
            Some(comma) => {
                self.line = line.get(..hidden + comma);
                seen.get(comma + 1..)
            }
            None if hidden == 0 => Some(line),
            None => None,
        };
        // An empty entry costs a byte too, so that lines without end are not gone through.
        let cost = entry.map_or(self.bytes_left, |entry| entry.len() + 1);
        self.bytes_left = self.bytes_left.saturating_sub(cost);
        Some(entry.and_then(|entry| self.list.read(entry)))
    }
}
