//! A header that holds the address of the client and nothing else.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName};

use crate::key::client_ip::node;
use crate::key::error::{KeyError, KeyErrorKind};

/// Writes IPv6 without brackets and always a port, which only its name tells.
const WITH_PORT: &str = "cloudfront-viewer-address";

/// Headers that hold a list, in which a single address cannot be told from a forged one.
const LISTS: [&str; 2] = ["x-forwarded-for", "forwarded"];

/// A header with a single address.
#[derive(Clone, Debug)]
pub(super) struct Single {
    name: HeaderName,
    ambiguous: KeyError,
}

/// The content of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Absent,
    Unreadable,
    Address(IpAddr),
}

impl Single {
    /// Fails with what is wrong about the name.
    pub(super) fn new(given: &str) -> Result<Self, String> {
        let name: HeaderName = given.parse().map_err(|_| {
            format!("the header `{given}` cannot exist: give client_ip().header the name of one")
        })?;
        if LISTS.contains(&name.as_str()) {
            return Err(format!(
                "the header `{name}` is a list: key::client_ip reads X-Forwarded-For without \
                 `.header(..)`, and Forwarded by `.forwarded()`"
            ));
        }
        let text = format!("the header `{name}` has more than one address");
        Ok(Self {
            name,
            ambiguous: KeyError::new(KeyErrorKind::Ambiguous, text),
        })
    }

    pub(super) fn header(&self) -> &str {
        self.name.as_str()
    }

    /// The content of the header, unless it is ambiguous.
    pub(super) fn read(&self, headers: &HeaderMap) -> Result<Read, KeyError> {
        let mut lines = headers.get_all(&self.name).iter();
        let line = match (lines.next(), lines.next()) {
            (None, _) => return Ok(Read::Absent),
            (Some(line), None) if !line.as_bytes().contains(&b',') => line.as_bytes(),
            (Some(_), _) => return Err(self.ambiguous.clone()),
        };
        let address = if self.name == WITH_PORT {
            node::read_with_port(line)
        } else {
            node::read(line)
        };
        Ok(address.map_or(Read::Unreadable, Read::Address))
    }
}
