//! Keys from the address of the client behind trusted proxies.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderValue;
use http::request::Parts;

use super::list_header::{AddressEntries, ListHeader};
use super::network_list::NetworkList;
use super::networks;
use super::single_header::SingleHeader;
use super::trusted_proxies::{FoundClient, TrustedProxies};
use crate::error::warning;
use crate::key::error::{KeyError, KeyErrorKind};
use crate::key::extractor::{KeyExtractor, inherent_or};
use crate::key::ipv6_prefix::Ipv6Prefix;
use crate::key::key::Key;
use crate::key::peer_ip::{peer_address, unknown_peer};

/// Returns an extractor that counts by the IP address of the client, as trusted proxies report it.
///
/// Use it behind a reverse proxy, a load balancer or a CDN. Anyone can send an `X-Forwarded-For`, so
/// configure which proxies are trusted: by their networks ([`behind`](ClientIp::behind)) or by their number
/// ([`hops`](ClientIp::hops)). Without either, all requests are answered 500, and one log line says so.
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
/// // One reverse proxy, connected by a Unix socket.
/// let by_number = limit.clone().key(key::client_ip().hops(1));
///
/// // A proxy that sends `Forwarded` (RFC 7239).
/// let forwarded = limit.clone().key(key::client_ip().behind(["10.0.0.0/8"]).forwarded());
///
/// // Networks from the environment: an invalid one is an error at startup.
/// let configured = std::env::var("TRUSTED_PROXIES").unwrap_or("10.0.0.0/8, 192.0.2.7".into());
/// let layer = limit.key(key::client_ip().behind(configured).checked()?);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
///
/// # How the client is found
///
/// Example: `behind(["10.0.0.0/8"])` is set, and a request arrives from 10.0.0.1 with this header:
///
/// ```text
/// X-Forwarded-For: 198.51.100.9, 203.0.113.7, 10.0.0.2
/// ```
///
/// The client is 203.0.113.7, the last address that is not a trusted proxy. It may have invented everything
/// to the left of its address. The rules in detail:
///
/// 1. The **peer** is the other end of the connection, as for [`peer_ip`](crate::key::peer_ip()). If it is
///    not a trusted proxy, it is the client, and no header is read.
/// 2. Only one header is read: `X-Forwarded-For`, or the one configured with
///    [`forwarded`](ClientIp::forwarded) or [`header`](ClientIp::header). Several lines form one list, and
///    empty entries are ignored. Each proxy has appended the address that the request came from.
/// 3. **By networks**: the list is read from the last entry to the first. The first address outside of all
///    trusted networks is the client. If all addresses are trusted, the leftmost entry is the client, or the
///    peer if the list is empty.
/// 4. **By number**: *n* proxies have written the last *n* entries, and the leftmost of these is the client.
///    If the list is shorter, the peer is the client, and a warning is logged once.
/// 5. **By both**: as by number, but the first address outside of all trusted networks is the client.
/// 6. The port, the brackets and the zone of an entry are removed. An IPv4 address in its IPv6 form
///    (`::ffff:192.0.2.1`) is the IPv4 address, here and in the networks.
/// 7. Some entries are not addresses, such as `unknown` or `_hidden`. With networks, the proxy that supplied
///    such an entry is counted in place of the client. By number alone, only the entry of the
///    client has to be an address; if it is not, the nearest known proxy is counted. A warning is logged
///    once.
/// 8. At most 32 hops in trusted networks are followed, and at most the last 8 KiB of the list are read.
/// 9. A [header with a single address](ClientIp::header): if it is sent twice or contains a list, the
///    request is rejected with 400. If it is absent, the peer is the client. If it is not an address, the
///    peer is counted too, and a warning is logged once.
/// 10. The first 64 bits of an IPv6 address count; see [`ipv6_prefix`](ClientIp::ipv6_prefix). A NAT64
///     address (`64:ff9b::/96`) counts in full.
///
/// So a client cannot choose its address, if the proxies meet the requirements below. At worst, all clients
/// of a proxy share one count.
///
/// The key has only a prefix of the address. For an exemption, a cost or a key of your own, call [`checked`](ClientIp::checked)
/// and ask for the [address](crate::key::CheckedClientIp::address). Where these rules count a proxy in place of its client, it
/// is an error.
///
/// # Requirements for the proxies
///
/// - Each proxy has to append to the header or overwrite it. It must not pass on the client's header
///   unchanged. For nginx: `proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for`.
/// - With `hops`, the service must not be reachable without its proxies. The same holds for `behind` with
///   networks that others use too, such as a CDN's: anyone who rents a server there is trusted.
/// - A client can list `X-Forwarded-For` in `Connection`, and some proxies then remove the header that they
///   have just written (CVE-2024-45410). Then all clients of that proxy share one count, by rule 3 or 4.
///   An address from the client is still not trusted.
/// - Some proxies pass on `X_Forwarded_For` from the client. This extractor does not read it. No proxy may
///   rename it to `X-Forwarded-For`.
#[must_use]
#[doc(alias("ip", "smart_ip", "x-forwarded-for"))]
pub fn client_ip() -> ClientIp {
    ClientIp {
        proxies: TrustedProxies::default(),
        source: AddressSource::List(ListHeader::XForwardedFor),
        ipv6_prefix: Ipv6Prefix::default(),
        config_error: None,
        warnings: Arc::default(),
    }
}

/// A key extractor that counts by the client address behind trusted proxies; created by [`client_ip`].
#[derive(Clone, Debug)]
pub struct ClientIp {
    proxies: TrustedProxies,
    source: AddressSource,
    ipv6_prefix: Ipv6Prefix,
    /// The first invalid network or header name.
    config_error: Option<KeyError>,
    warnings: Arc<Warnings>,
}

/// The header with the address.
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

/// The warnings that have been logged. All clones of an extractor together log each one once.
#[derive(Debug, Default)]
struct Warnings {
    too_short: AtomicBool,
    unreadable: AtomicBool,
    no_address: AtomicBool,
}

fn is_first(flag: &AtomicBool) -> bool {
    !flag.load(Ordering::Relaxed) && !flag.swap(true, Ordering::Relaxed)
}

impl ClientIp {
    /// Trusts the proxies in these networks: CIDRs like `10.0.0.0/8`, or single addresses.
    ///
    /// `networks` is one text, in which commas separate several networks, or a [list](NetworkList) of texts.
    ///
    /// Several calls add up. With an empty list, no proxy is trusted, and the peer is the client.
    ///
    /// With an invalid network, all requests are answered 500, and one log line says so when the layer is added. Call
    /// [`checked`](Self::checked) to get the error at startup. `0.0.0.0/0` and `::/0` trust every peer, so
    /// each client can choose how it is counted; they log a warning.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::key;
    ///
    /// let one = key::client_ip().behind("10.0.0.0/8");
    /// let two = key::client_ip().behind(["10.0.0.0/8", "fd00::/8"]);
    /// let from_environment = key::client_ip().behind("10.0.0.0/8, 192.0.2.7".to_owned()).checked()?;
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn behind<Form: ?Sized>(mut self, networks: impl NetworkList<Form>) -> Self {
        let trusted = self.proxies.networks.get_or_insert_default();
        let config_error = &mut self.config_error;
        let mut trusts_everyone = false;
        networks.for_each_network(|text| match networks::parse(text) {
            Some(network) => {
                trusts_everyone |= network.prefix_len() == 0;
                trusted.push(network);
            }
            None => record_first(config_error, || {
                format!(
                    "invalid network {text:?} of trusted proxies: use an address, or a CIDR like \
                     10.0.0.0/8"
                )
            }),
        });
        if trusts_everyone {
            tracing::warn!(target: "tollgate::diagnostics",
                code = warning::TRUSTS_EVERYONE,
                "`key::client_ip` trusts every peer as a proxy: clients can send any address as their key; \
                 trust only the networks of the proxies"
            );
        }
        self
    }

    /// Trusts this number of proxies, regardless of their addresses.
    ///
    /// Use it for proxies that have no fixed address, or none at all because they connect by a Unix socket.
    /// With 1, the peer is the only proxy, and the last entry of the list is the client. With 0, there is
    /// no proxy, and the peer is the client. If a request has passed fewer proxies, the peer is the client,
    /// and a warning is logged once.
    ///
    /// Make sure that the service is reachable only through these proxies.
    #[must_use]
    pub fn hops(mut self, proxies: u8) -> Self {
        self.proxies.hops = Some(proxies);
        self
    }

    /// Reads `Forwarded` (RFC 7239) instead of `X-Forwarded-For`, which is then ignored.
    ///
    /// The grammar is strict: IPv6 is in brackets and quotes, and an address with a port is in quotes. An
    /// element without `for`, or with two, is not an address: rule 7 of [`client_ip`] applies.
    #[must_use]
    pub fn forwarded(mut self) -> Self {
        self.source = AddressSource::List(ListHeader::Forwarded);
        self
    }

    /// Reads a header with a single address, such as `CF-Connecting-IP`, instead of `X-Forwarded-For`, which
    /// is then ignored.
    ///
    /// Other such headers are `Fly-Client-IP`, `X-Real-IP`, `X-Envoy-External-Address`, `True-Client-IP`, and
    /// `CloudFront-Viewer-Address`, which includes a port.
    ///
    /// The header is read only if the peer is trusted. The peer must be the proxy that overwrites the
    /// header, or one behind it. For example, anyone who reaches the server directly can send
    /// `CF-Connecting-IP`, so trust only [Cloudflare's networks](https://www.cloudflare.com/ips/). By
    /// default, a CDN passes on `True-Client-IP`, `X-Azure-ClientIP` or `Fastly-Client-IP` from the client,
    /// if it does not set that header itself.
    ///
    /// With an invalid name, or the name of a list header, all requests are answered 500, and one log line says
    /// so. Call [`checked`](Self::checked) to get the error at startup.
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

    /// Sets the number of leading bits that identify a client by its IPv6 address, from 32 to 128. The
    /// default is 64, the smallest network that providers give to a customer.
    /// [Pods](crate::guide::keys#ipv6) of one node often share a /64, and so a count: set 128 for them.
    ///
    /// With fewer bits, more clients share a count: a provider may give a customer a /56 or a /48, which
    /// contains many /64 networks. With 128 bits, a client can use a new address, and so a new count, for
    /// each request. Values out of range are clamped.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = Ipv6Prefix::clamped(bits);
        self
    }

    /// Returns the key of requests from this client, to inspect or reset its count.
    #[must_use]
    pub fn of(&self, address: IpAddr) -> Key {
        self.ipv6_prefix.key(address)
    }

    /// A proxy is counted in place of a client that is not known. The configuration has to be valid.
    pub(super) fn key(&self, parts: &Parts) -> Result<Key, KeyError> {
        let peer = canonical_peer(parts);
        let counted = match self.find(peer, parts)? {
            FoundClient::Client(client) => client,
            FoundClient::Proxy(proxy) => proxy,
            FoundClient::Unreadable(proxy) => {
                if proxy.is_some() {
                    self.warn_unreadable();
                }
                proxy
            }
            FoundClient::TooShort => {
                self.warn_too_short();
                peer
            }
        };
        counted
            .map(|address| self.of(address))
            .ok_or_else(unknown_peer)
    }

    /// An error if the client is not known. The configuration has to be valid.
    pub(super) fn address(&self, parts: &Parts) -> Result<IpAddr, KeyError> {
        match self.find(canonical_peer(parts), parts)? {
            FoundClient::Client(Some(client)) => return Ok(client),
            FoundClient::Client(None) => return Err(self.report_no_peer()),
            FoundClient::Proxy(_) => self.report_no_client(),
            FoundClient::Unreadable(_) => self.warn_unreadable(),
            FoundClient::TooShort => self.warn_too_short(),
        }
        let header = self.source.header();
        let text = format!("no trusted proxy names the client in `{header}`");
        Err(KeyError::new(KeyErrorKind::Missing, text))
    }

    fn find(&self, peer: Option<IpAddr>, parts: &Parts) -> Result<FoundClient, KeyError> {
        match &self.source {
            AddressSource::Single(header) if self.proxies.trust_peer(peer) => {
                header.read(&parts.headers, peer, &self.proxies)
            }
            AddressSource::Single(_) => Ok(FoundClient::Client(peer)),
            AddressSource::List(header) => {
                let lines = parts
                    .headers
                    .get_all(header.name())
                    .iter()
                    .map(HeaderValue::as_bytes);
                let entries = AddressEntries::new(*header, lines);
                Ok(self.proxies.find_client(peer, entries))
            }
        }
    }

    #[cold]
    fn warn_unreadable(&self) {
        if is_first(&self.warnings.unreadable) {
            tracing::warn!(target: "tollgate::diagnostics",
                code = warning::UNREADABLE_ADDRESS,
                "cannot read an address in `{}` from a trusted proxy, so its clients are not told apart: configure the \
                 proxy to write IP addresses, or choose another header with `client_ip().header(name)` or `.forwarded()`",
                self.source.header()
            );
        }
    }

    #[cold]
    fn warn_too_short(&self) {
        if is_first(&self.warnings.too_short) {
            tracing::warn!(target: "tollgate::diagnostics",
                code = warning::FEWER_PROXIES,
                header = self.source.header(),
                hops = self.proxies.hops,
                "a request passed fewer proxies than `key::client_ip().hops(..)` expects, so its client is not known: \
                 lower the number of hops, or let no request bypass a proxy"
            );
        }
    }

    /// Logs that a trusted proxy names no client. As an event of level INFO, because health checks of a proxy name none.
    #[cold]
    fn report_no_client(&self) {
        if is_first(&self.warnings.no_address) {
            tracing::info!(target: "tollgate::diagnostics",
                code = warning::NO_ADDRESS,
                "a request from a trusted proxy names no client in `{}`, so its address is not known: if clients are in \
                 the trusted networks, trust only the addresses of the proxies, or add their number with `.hops(1)`",
                self.source.header()
            );
        }
    }

    #[cold]
    fn report_no_peer(&self) -> KeyError {
        let error = unknown_peer();
        if is_first(&self.warnings.no_address) {
            tracing::error!(target: "tollgate::diagnostics",
                code = warning::NO_ADDRESS,
                "cannot tell the address of a client: {error}"
            );
        }
        error
    }
}

fn canonical_peer(parts: &Parts) -> Option<IpAddr> {
    peer_address(parts).map(|peer| peer.to_canonical())
}

inherent_or!(ClientIp);

impl KeyExtractor for ClientIp {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        match self.config_error() {
            Some(error) => Err(error),
            None => self.key(parts),
        }
    }

    fn config_error(&self) -> Option<KeyError> {
        if self.config_error.is_none() && !self.proxies.are_configured() {
            return Some(no_proxies());
        }
        self.config_error.clone()
    }
}

fn no_proxies() -> KeyError {
    KeyError::new(
        KeyErrorKind::Misconfigured,
        "`key::client_ip` has no trusted proxies: name their networks with `.behind([..])`, or \
         their number with `.hops(1)`",
    )
}

fn record_first(error: &mut Option<KeyError>, text: impl FnOnce() -> String) {
    error.get_or_insert_with(|| KeyError::new(KeyErrorKind::Misconfigured, text()));
}
