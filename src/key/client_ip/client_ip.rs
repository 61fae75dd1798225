//! Keys from the address of the client behind trusted proxies.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::FORWARDED;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::list_header::{Entries, ListHeader};
use super::networks;
use super::single_header::{SingleAddress, SingleHeader};
use super::trusted_proxies::{FoundClient, TrustedProxies};
use crate::error::ConfigError;
use crate::key::error::{KeyError, KeyErrorKind};
use crate::key::extractor::{KeyExtractor, inherent_or};
use crate::key::ipv6_prefix::Ipv6Prefix;
use crate::key::key::Key;
use crate::key::peer_ip::{peer_of, unknown_peer};
use crate::key::reads::Reads;

/// Counts by the address of the client, as trusted proxies report it.
///
/// Configure which proxies are trusted, by their networks ([`behind`](ClientIp::behind)) or by their number
/// ([`hops`](ClientIp::hops)): anyone can send an `X-Forwarded-For`. Without either, requests are answered
/// 500.
///
/// # How the client is found
///
/// 1. The **peer** is the connection's other end, as [`peer_ip`](crate::key::peer_ip()) knows it.
/// 2. An address that is not trusted is the client. If the peer is not trusted, no header is read.
/// 3. Only one header is read: `X-Forwarded-For`, or the configured one. Its lines are one list, to which
///    each proxy appended the address that the request came from.
/// 4. From the last entry to the first, an entry is the **hop** before. By networks, the first hop that is
///    in none of them is the client. If all hops are trusted, the client is the first entry.
/// 5. By number, *n* proxies have written the last *n* entries, and the client is the first of these. If
///    the list is shorter, the client is the peer, and the log says so once. With networks too, each hop on
///    the way must be in one.
/// 6. The port, the brackets and the zone of an entry are removed. An IPv4 address that is written as IPv6
///    (`::ffff:192.0.2.1`) is the IPv4 address, here and in the networks.
/// 7. An entry that is not an address, like `unknown`, `_hidden` or an empty one, ends the walk at the hop
///    that supplied it: a client may have written everything to the left. By number alone, such an entry on
///    the way is counted and not read. If the hop that is counted then is a proxy, the log says so once.
/// 8. The walk also ends after 32 hops in trusted networks, and after 8 KiB from the end of the list.
/// 9. A [header with a single address](ClientIp::header) is rejected with 400 if it is sent twice or lists
///    several. If it is absent or cannot be read, the client is the peer. The log says once that a header
///    cannot be read.
/// 10. The first 64 bits of an IPv6 address count; see [`ipv6_prefix`](ClientIp::ipv6_prefix). All bits
///     count if NAT64 made it of an IPv4 address.
///
/// So an absent header never makes another header trusted. At worst, the clients of a proxy share one
/// count.
///
/// # Deployment
///
/// - Every proxy has to append to the header or to overwrite it, and must not pass on what the client sent.
///   For nginx: `proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for`.
/// - The service must not be reachable around its proxies if proxies are trusted by number. The same holds
///   for networks that others use too, such as those of a content delivery network: anyone who rents a
///   server there is trusted.
/// - A client can name `X-Forwarded-For` in `Connection`, and some proxies then remove what they have just
///   written (CVE-2024-45410). The clients of that proxy are then counted together, by rule 4 or 5. No
///   untrusted entry is believed.
/// - Some proxies treat `X_Forwarded_For` as the same header and let it pass. It is not read here, and must
///   not be renamed on the way.
///
/// # Examples
///
/// ```
/// use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
///
/// let limit = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100));
///
/// // Load balancers in a private network.
/// let by_network = limit.clone().key(key::client_ip().behind(["10.0.0.0/8", "fd00::/8"]));
///
/// // One reverse proxy, at the other end of a Unix socket.
/// let by_number = limit.clone().key(key::client_ip().hops(1));
///
/// // A proxy that writes RFC 7239.
/// let forwarded = limit.clone().key(key::client_ip().behind(["10.0.0.0/8"]).forwarded());
///
/// // Networks from a configuration: invalid ones are an error at startup.
/// let configured = std::env::var("TRUSTED_PROXIES").unwrap_or("10.0.0.0/8, 192.0.2.7".into());
/// let layer = limit.key(key::client_ip().behind(configured.split(',')).checked()?);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[must_use]
pub fn client_ip() -> ClientIp {
    ClientIp {
        proxies: TrustedProxies::default(),
        source: AddressSource::List(ListHeader::XForwardedFor),
        ipv6_prefix: Ipv6Prefix::default(),
        config_error: None,
        warnings: Arc::default(),
    }
}

/// Counts by the address of the client behind trusted proxies; made by [`client_ip`].
#[derive(Clone, Debug)]
pub struct ClientIp {
    proxies: TrustedProxies,
    source: AddressSource,
    ipv6_prefix: Ipv6Prefix,
    /// The first invalid network or header name.
    config_error: Option<KeyError>,
    warnings: Arc<Warnings>,
}

/// The header that the address is read from.
#[derive(Clone, Debug)]
enum AddressSource {
    List(ListHeader),
    Single(SingleHeader),
}

impl AddressSource {
    fn header(&self) -> &str {
        match self {
            Self::List(header) => header.name(),
            Self::Single(header) => header.name(),
        }
    }
}

/// The warnings that have been logged. Clones of an extractor log each once.
#[derive(Debug, Default)]
struct Warnings {
    too_short: AtomicBool,
    unreadable: AtomicBool,
}

impl Warnings {
    fn any(&self) -> bool {
        [&self.too_short, &self.unreadable]
            .iter()
            .any(|flag| flag.load(Ordering::Relaxed))
    }
}

/// Sets a flag. Returns whether it was not set before.
fn is_first(flag: &AtomicBool) -> bool {
    !flag.load(Ordering::Relaxed) && !flag.swap(true, Ordering::Relaxed)
}

/// Returns the client that a forwarding header names, trusted or not: the first address that can be read.
pub(crate) fn claimed_client(header: &HeaderName, headers: &HeaderMap) -> Option<IpAddr> {
    let list = if *header == FORWARDED {
        ListHeader::Forwarded
    } else {
        ListHeader::XForwardedFor
    };
    let lines = headers.get_all(header).iter().map(HeaderValue::as_bytes);
    Entries::new(list, lines).flatten().last()
}

impl ClientIp {
    /// Trusts the proxies in these networks: CIDRs like `10.0.0.0/8`, or single addresses.
    ///
    /// The networks of several calls add up. An empty list trusts no proxy. An invalid network is answered
    /// 500 with a log line, as a server that is not set up; [`checked`](Self::checked) returns the error at
    /// startup. `0.0.0.0/0` trusts every peer and logs a warning: each client can choose how it is counted.
    #[must_use]
    pub fn behind<N>(mut self, networks: N) -> Self
    where
        N: IntoIterator<Item: AsRef<str>>,
    {
        let trusted = self.proxies.networks.get_or_insert_default();
        let mut trusts_everyone = false;
        for text in networks {
            let text = text.as_ref();
            match networks::parse(text) {
                Some(network) => {
                    trusts_everyone |= network.prefix_len() == 0;
                    trusted.push(network);
                }
                None => record_first(&mut self.config_error, || {
                    format!(
                        "invalid network {text:?} of trusted proxies: use an address, or a CIDR like \
                         10.0.0.0/8"
                    )
                }),
            }
        }
        if trusts_everyone {
            tracing::warn!(target: "tollgate::diagnostics",
                "`key::client_ip` trusts every peer as a proxy: clients can send any address as their key; \
                 trust only the networks of the proxies"
            );
        }
        self
    }

    /// Trusts exactly this number of proxies, with any addresses. 1 is the peer, which wrote the last
    /// entry.
    ///
    /// For proxies without an address, at a Unix socket, or without a fixed one. If a request comes through
    /// fewer proxies, its client is the peer. With 0 there is no proxy, and the client is the peer.
    #[must_use]
    pub fn hops(mut self, proxies: u8) -> Self {
        self.proxies.hops = Some(proxies);
        self
    }

    /// Reads `Forwarded` (RFC 7239) instead of `X-Forwarded-For`, which is then ignored.
    ///
    /// The grammar is strict: IPv6 is in quotes and brackets, and an address with a port is in quotes. An
    /// element without `for`, or with two, cannot be read, and rule 7 applies.
    #[must_use]
    pub fn forwarded(mut self) -> Self {
        self.source = AddressSource::List(ListHeader::Forwarded);
        self
    }

    /// Reads a header with a single address instead of `X-Forwarded-For`, which is then ignored:
    /// `CF-Connecting-IP`, `Fly-Client-IP`, `X-Real-IP`, `X-Envoy-External-Address`, `True-Client-IP`, and
    /// `CloudFront-Viewer-Address` with its port.
    ///
    /// The header is believed only if the peer is trusted. That must be the proxy that overwrites it, or
    /// one behind it. For example, anyone who reaches the server directly may send `CF-Connecting-IP`, so
    /// trust only [Cloudflare's networks](https://www.cloudflare.com/ips/). By default, other CDNs pass
    /// on `True-Client-IP`, `X-Azure-ClientIP` or `Fastly-Client-IP` as the client sent it.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::key;
    ///
    /// let by_client = key::client_ip()
    ///     .behind(["173.245.48.0/20", "2400:cb00::/32"])
    ///     .header("cf-connecting-ip");
    /// ```
    #[must_use]
    pub fn header(mut self, name: impl AsRef<str>) -> Self {
        match SingleHeader::new(name.as_ref()) {
            Ok(header) => self.source = AddressSource::Single(header),
            Err(text) => record_first(&mut self.config_error, || text),
        }
        self
    }

    /// Counts IPv6 addresses that share their first `bits` together. The default is 64.
    ///
    /// A provider may give a customer 56 or 48 bits, so that a customer has many prefixes of 64 bits. With
    /// 128, each address is counted separately, and a client has billions of them. Values outside of 32 to
    /// 128 are clamped. A NAT64 address (`64:ff9b::/96`) is always counted separately: it stands for one
    /// IPv4 address.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = Ipv6Prefix::clamped(bits);
        self
    }

    /// Returns an error for an invalid configuration, instead of a 500 for each request: for networks and
    /// names that come from a configuration file.
    ///
    /// # Errors
    ///
    /// When a network or a header name is invalid, or when no trusted proxies are configured.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::key;
    ///
    /// let error = key::client_ip().behind(["10.0.0.0/33"]).checked().unwrap_err();
    /// assert!(error.to_string().contains("10.0.0.0/33"));
    /// ```
    pub fn checked(self) -> Result<Self, ConfigError> {
        match self.config_error() {
            Some(error) => Err(ConfigError::key(error.to_string())),
            None => Ok(self),
        }
    }

    /// Returns the key of a request from this client, to inspect or reset its counts without a request.
    #[must_use]
    pub fn of(&self, address: IpAddr) -> Key {
        self.ipv6_prefix.key_of(address)
    }

    fn config_error(&self) -> Option<KeyError> {
        let no_proxies = || {
            KeyError::new(
                KeyErrorKind::Misconfigured,
                "`key::client_ip` has no trusted proxies: name their networks with `.behind([..])`, or \
                 their number with `.hops(1)`",
            )
        };
        let error = self.config_error.clone();
        error.or_else(|| (!self.proxies.are_configured()).then(no_proxies))
    }

    /// Finds the client; `None` if neither the peer nor a header identifies it.
    fn find(&self, parts: &Parts) -> Result<Option<IpAddr>, KeyError> {
        let peer = peer_of(parts).map(|peer| peer.to_canonical());
        match &self.source {
            AddressSource::Single(header) if self.proxies.trust_peer(peer) => {
                Ok(match header.read(&parts.headers)? {
                    SingleAddress::Address(client) => Some(client),
                    SingleAddress::Absent => peer,
                    SingleAddress::Unreadable => self.count_proxy(peer),
                })
            }
            AddressSource::Single(_) => Ok(peer),
            AddressSource::List(header) => {
                let lines = parts.headers.get_all(header.name()).iter();
                let entries = Entries::new(*header, lines.map(HeaderValue::as_bytes));
                Ok(match self.proxies.find_client(peer, entries) {
                    FoundClient::Client(client) => client,
                    FoundClient::Unreadable(proxy) => self.count_proxy(proxy),
                    FoundClient::TooShort => {
                        self.warn_too_short(*header);
                        peer
                    }
                })
            }
        }
    }

    /// Counts a proxy whose header cannot be read, with a warning.
    #[cold]
    fn count_proxy(&self, proxy: Option<IpAddr>) -> Option<IpAddr> {
        if proxy.is_some() && is_first(&self.warnings.unreadable) {
            tracing::warn!(target: "tollgate::diagnostics",
                "cannot read an address in `{}` from a trusted proxy: the proxy is counted, and all its \
                 clients share one limit; configure the proxy to write IP addresses, or choose another \
                 header with `client_ip().header(name)` or `.forwarded()`",
                self.source.header()
            );
        }
        proxy
    }

    #[cold]
    fn warn_too_short(&self, header: ListHeader) {
        if is_first(&self.warnings.too_short) {
            tracing::warn!(target: "tollgate::diagnostics",
                header = header.name(),
                hops = self.proxies.hops,
                "a request passed fewer proxies than `key::client_ip().hops(..)` expects: the address of \
                 its peer is the key; lower the number of hops, or let no request bypass a proxy"
            );
        }
    }
}

inherent_or!(ClientIp);

impl KeyExtractor for ClientIp {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        match self.config_error() {
            Some(error) => Err(error),
            None => match self.find(parts)? {
                Some(client) => Ok(self.of(client)),
                None => Err(unknown_peer()),
            },
        }
    }

    fn reads(&self) -> Reads {
        Reads {
            warned: self.warnings.any(),
            ..Reads::nothing()
        }
    }
}

/// Records an error, unless an earlier one is recorded.
fn record_first(error: &mut Option<KeyError>, text: impl FnOnce() -> String) {
    error.get_or_insert_with(|| KeyError::new(KeyErrorKind::Misconfigured, text()));
}
