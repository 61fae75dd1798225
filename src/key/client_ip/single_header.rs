//! Headers that contain the address of the client and nothing else.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName};

use super::address;
use super::trusted_proxies::{FoundClient, TrustedProxies};
use crate::key::error::{KeyError, KeyErrorKind};

/// The header that always contains a port and has IPv6 without brackets, so the value alone is ambiguous.
const WITH_PORT: &str = "cloudfront-viewer-address";

/// Headers that contain a list. A client can forge a single address in them.
const LISTS: [&str; 2] = ["x-forwarded-for", "forwarded"];

/// A header with a single address.
#[derive(Clone, Debug)]
pub(super) struct SingleHeader {
    name: HeaderName,
    ambiguous: KeyError,
}

impl SingleHeader {
    /// Returns an error that says why the name cannot be used.
    pub(super) fn new(configured: &str) -> Result<Self, String> {
        let name: HeaderName = configured.parse().map_err(|_| {
            format!(
                "invalid header name `{configured}`: pass a valid one to key::client_ip().header"
            )
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

    pub(super) fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Parses the address of a client behind this peer, which is a trusted proxy. Returns an error if the header occurs twice
    /// or contains a list.
    pub(super) fn read(
        &self,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
        proxies: &TrustedProxies,
    ) -> Result<FoundClient, KeyError> {
        let mut lines = headers.get_all(&self.name).iter();
        let line = match (lines.next(), lines.next()) {
            (None, _) => return Ok(FoundClient::Proxy(peer)),
            (Some(line), None) if !line.as_bytes().contains(&b',') => line.as_bytes(),
            (Some(_), _) => return Err(self.ambiguous.clone()),
        };
        let address = if self.name == WITH_PORT {
            address::read_with_port(line)
        } else {
            address::read(line)
        };
        Ok(match address {
            Some(_) => proxies.client_at(address),
            None => FoundClient::Unreadable(peer),
        })
    }
}
