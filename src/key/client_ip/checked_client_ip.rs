//! The client address behind trusted proxies, by a configuration that is valid.

use std::net::IpAddr;

use http::request::Parts;

use super::client_ip::ClientIp;
use crate::error::ConfigError;
use crate::key::error::KeyError;
use crate::key::extractor::{KeyExtractor, inherent_or};
use crate::key::key::Key;

/// A [`ClientIp`] with a valid configuration, which also tells the address of a client; created by
/// [`ClientIp::checked`].
///
/// As an extractor it returns the same keys.
#[derive(Clone, Debug)]
pub struct CheckedClientIp(ClientIp);

impl ClientIp {
    /// Validates the configuration at startup, instead of answering all requests with 500 later.
    ///
    /// Call it if the networks or the header name come from a configuration file, or if something other than the key
    /// depends on the [address of the client](CheckedClientIp::address), such as an exemption.
    ///
    /// # Errors
    ///
    /// Returns an error if a network or a header name is invalid, or if neither [`behind`](Self::behind) nor
    /// [`hops`](Self::hops) was called.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::key;
    ///
    /// let error = key::client_ip().behind(["10.0.0.0/33"]).checked().unwrap_err();
    /// assert!(error.to_string().contains("10.0.0.0/33"));
    /// ```
    #[doc(alias("address"))]
    pub fn checked(self) -> Result<CheckedClientIp, ConfigError> {
        match self.config_error() {
            Some(error) => Err(ConfigError::key(error.to_string())),
            None => Ok(CheckedClientIp(self)),
        }
    }
}

impl CheckedClientIp {
    /// Returns the address of the client, as the trusted proxies report it. Use it to exempt a network, or to choose a cost
    /// or a key by the address.
    ///
    /// The text of a [key](Key) is not an address: it has a tag, and only a prefix of an IPv6 address.
    ///
    /// - A client that connects directly has the address of its connection, whatever headers it sends.
    /// - An IPv4 address in its IPv6 form (`::ffff:192.0.2.1`) is returned as IPv4, and an IPv6 address in full, without a
    ///   zone. Compare it with networks, for example of the crate `ipnet`.
    /// - **A trusted proxy is never a client here.** If a proxy sends no header, or one that leads to other trusted proxies
    ///   only, the extractor counts the proxy, but anyone may be behind it. With [`hops`](ClientIp::hops), the entry beyond
    ///   the last proxy is a client, also in a trusted network.
    /// - A call reads the header again, and allocates only for an error.
    ///
    /// # Errors
    ///
    /// The client is not known. The log says why, once: with the code `tollgate::W002`, `W003` or `W024`.
    ///
    /// - [`Missing`](crate::key::KeyErrorKind::Missing): no trusted proxy names the client, as in a health check of the
    ///   proxy.
    /// - [`Ambiguous`](crate::key::KeyErrorKind::Ambiguous): the header with a single address has several.
    /// - [`Misconfigured`](crate::key::KeyErrorKind::Misconfigured): the server does not provide the peer's address.
    ///
    /// # Examples
    ///
    /// The office is exempt, behind load balancers in 10.0.0.0/8:
    ///
    /// ```
    /// use ipnet::IpNet;
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
    ///
    /// let clients = key::client_ip().behind("10.0.0.0/8").checked()?;
    /// let office: IpNet = "203.0.113.0/24".parse()?;
    ///
    /// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60))
    ///     .key(clients.clone())
    ///     .skip(move |parts| clients.address(parts).is_ok_and(|address| office.contains(&address)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn address(&self, parts: &Parts) -> Result<IpAddr, KeyError> {
        self.0.address(parts)
    }

    /// Returns the key of requests from this client, to inspect or reset its count.
    #[must_use]
    pub fn of(&self, address: IpAddr) -> Key {
        self.0.of(address)
    }
}

inherent_or!(CheckedClientIp);

impl KeyExtractor for CheckedClientIp {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        self.0.key(parts)
    }
}
