//! The address of the client behind proxies that are trusted.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::FORWARDED;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::list::{Entries, List};
use super::single::{Read, Single};
use super::walk::{Proxies, Walk};
use crate::error::ConfigError;
use crate::key::address::Ipv6Prefix;
use crate::key::error::{KeyError, KeyErrorKind};
use crate::key::extractor::KeyExtractor;
use crate::key::key::Key;
use crate::key::peer_ip::{peer_of, unknown_peer};
use crate::key::reads::Reads;

/// Counts by the address of the client, as proxies tell it that are trusted.
///
/// Which proxies are trusted has to be said, by their networks ([`behind`](ClientIp::behind)) or by
/// their number ([`hops`](ClientIp::hops)): anybody can send an `X-Forwarded-For`. Until it is said,
/// requests are answered 500.
///
/// # How the client is found
///
/// 1. The **peer** is the connection's other end, as [`peer_ip`](super::peer_ip()) knows it.
/// 2. Who is not trusted is the client: where the peer is not, no header is looked at.
/// 3. `X-Forwarded-For`, or what else was asked for, is read and nothing in its place. Its lines are
///    one list, and each proxy appended to it where the request came from.
/// 4. From the last entry to the first, an entry is the **hop** before. By networks, the first hop
///    that is in none of them is the client; where all are trusted, it is the first entry.
/// 5. By number, *n* proxies have written the last *n* entries, and the client is the first of
///    these. Where the list is shorter, it is the peer, and the log says so once. With networks too,
///    each hop on the way must be in one.
/// 6. Of an entry, the port, the brackets and the zone are taken off. An IPv4 address that is
///    written as IPv6 (`::ffff:192.0.2.1`) is the IPv4 address, here and in the networks.
/// 7. An entry that is not an address, like `unknown`, `_hidden` or an empty one, ends the walk at
///    the hop that supplied it: what is further left, a client may have written. By number alone,
///    one that is on the way is counted and not read. If the hop that is counted then is a proxy, the
///    log says so once.
/// 8. The same happens after 32 hops in trusted networks, and after 8 KiB from the end of the list.
/// 9. A [header with a single address](ClientIp::header) is refused with 400 where it is sent twice
///    or lists several. Where it is absent or cannot be read, the peer is the client. The log says
///    once that a header cannot be read.
/// 10. Of an IPv6 address the first 64 bits count, see [`ipv6_prefix`](ClientIp::ipv6_prefix); of one
///     that NAT64 made of an IPv4 address, all.
///
/// So a header that is absent never makes another one trusted; all that it does is to count the
/// clients of a proxy together.
///
/// # Deployment
///
/// - Every proxy has to append to the header or to overwrite it, and not to pass on what the client
///   sent: nginx wants `proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for`.
/// - The service must not be reachable past its proxies where trust goes by number, or by networks
///   in which others are too, such as those of a content delivery network: who gets a server
///   there of his own is believed.
/// - A client can name `X-Forwarded-For` in `Connection`, and some proxies then take off what they
///   have themselves written (CVE-2024-45410). The clients of that proxy are then counted together,
///   by rule 4 or 5; nobody is believed who should not be.
/// - Some proxies take `X_Forwarded_For` for the same header and let it pass. It is not read here,
///   and must not be renamed on the way.
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
/// // Networks from a configuration: what is wrong with them is said at the start.
/// let configured = std::env::var("TRUSTED_PROXIES").unwrap_or("10.0.0.0/8, 192.0.2.7".into());
/// let layer = limit.key(key::client_ip().behind(configured.split(',')).checked()?);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[must_use]
pub fn client_ip() -> ClientIp {
    ClientIp {
        proxies: Proxies::default(),
        source: AddressSource::List(List::XForwardedFor),
        ipv6_prefix: Ipv6Prefix::default(),
        fault: None,
        reported: Arc::default(),
    }
}

/// Counts by the address of the client behind trusted proxies; made by [`client_ip`].
#[derive(Clone, Debug)]
pub struct ClientIp {
    proxies: Proxies,
    source: AddressSource,
    ipv6_prefix: Ipv6Prefix,
    /// The first thing that was told and cannot be.
    fault: Option<KeyError>,
    reported: Arc<Reported>,
}

#[derive(Clone, Debug)]
enum AddressSource {
    List(List),
    Single(Single),
}

impl AddressSource {
    fn header(&self) -> &str {
        match self {
            Self::List(list) => list.header(),
            Self::Single(single) => single.header(),
        }
    }
}

/// The warnings that were logged.
#[derive(Debug, Default)]
struct Reported {
    too_short: AtomicBool,
    unreadable: AtomicBool,
}

/// Sets a flag. Returns whether it was not set before.
fn is_first(flag: &AtomicBool) -> bool {
    !flag.load(Ordering::Relaxed) && !flag.swap(true, Ordering::Relaxed)
}

/// The client that a forwarding header names, trusted or not: the first address that can be read.
pub(crate) fn claimed_client(header: &HeaderName, headers: &HeaderMap) -> Option<IpAddr> {
    let list = if *header == FORWARDED {
        List::Forwarded
    } else {
        List::XForwardedFor
    };
    let lines = headers.get_all(header).iter().map(HeaderValue::as_bytes);
    Entries::new(list, lines).flatten().last()
}

impl ClientIp {
    /// Trusts the proxies in these networks: CIDRs like `10.0.0.0/8`, or single addresses. Of
    /// several calls, the networks add up; none at all trusts nobody.
    ///
    /// What is no network is answered as a server that is not set up, with 500 and a line in the
    /// log; [`checked`](Self::checked) says it at the start. To trust everybody (`0.0.0.0/0`) lets
    /// each client choose how it is counted, and is worth a warning in the log.
    #[must_use]
    pub fn behind<N>(mut self, networks: N) -> Self
    where
        N: IntoIterator<Item: AsRef<str>>,
    {
        let trusted = self.proxies.networks.get_or_insert_default();
        let mut everybody = false;
        for text in networks {
            let text = text.as_ref();
            match super::networks::parse(text) {
                Some(network) => {
                    everybody |= network.prefix_len() == 0;
                    trusted.push(network);
                }
                None => note(&mut self.fault, || {
                    format!(
                        "invalid network {text:?} of trusted proxies: it is an address, or a CIDR \
                         like 10.0.0.0/8"
                    )
                }),
            }
        }
        if everybody {
            tracing::warn!(target: "tollgate::diagnostics",
                "key::client_ip trusts everybody to be a proxy: each client chooses under which \
                 address it is counted"
            );
        }
        self
    }

    /// Trusts exactly so many proxies, wherever they are: 1 is the peer, whose entry is the last.
    ///
    /// For proxies without an address, at a Unix socket, or without a fixed one. If a request can
    /// come by a shorter way, its client is the peer. 0 is no proxy, and the client is the peer.
    #[must_use]
    pub fn hops(mut self, proxies: u8) -> Self {
        self.proxies.hops = Some(proxies);
        self
    }

    /// Reads `Forwarded` (RFC 7239) in place of `X-Forwarded-For`, which is not looked at then.
    ///
    /// The grammar is kept to: IPv6 stands in quotes and brackets, and an address with a port in
    /// quotes. An element without `for`, or with two, cannot be read, and rule 7 applies.
    #[must_use]
    pub fn forwarded(mut self) -> Self {
        self.source = AddressSource::List(List::Forwarded);
        self
    }

    /// Reads a header with a single address in place of `X-Forwarded-For`, which is not looked at
    /// then: `CF-Connecting-IP`, `Fly-Client-IP`, `X-Real-IP`, `X-Envoy-External-Address`,
    /// `True-Client-IP`, and `CloudFront-Viewer-Address` with the port that follows there.
    ///
    /// It is believed from a trusted peer only. That must be the proxy that overwrites it, or one
    /// behind it: Cloudflare's `CF-Connecting-IP` may be sent by anybody who reaches the server
    /// directly, so trust [Cloudflare's networks](https://www.cloudflare.com/ips/) and nobody else.
    /// Other networks let `True-Client-IP`, `X-Azure-ClientIP` or `Fastly-Client-IP` pass as the
    /// client sent it, unless told otherwise.
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
        match Single::new(name.as_ref()) {
            Ok(single) => self.source = AddressSource::Single(single),
            Err(text) => note(&mut self.fault, || text),
        }
        self
    }

    /// Counts IPv6 addresses that share their first `bits` together: 64 unless said otherwise. A
    /// customer may have 56 or 48 of his own; 128 counts each address by itself, of which anybody
    /// has billions. Values outside of 32 to 128 are taken as the nearest of these. An address of
    /// NAT64 (`64:ff9b::/96`) counts by itself in any case: it stands for one of IPv4.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = Ipv6Prefix::nearest(bits);
        self
    }

    /// Says what is wrong with what was told, rather than answering requests with 500 for it: for
    /// networks and names that come from a configuration.
    ///
    /// # Errors
    ///
    /// When a network or a name is none, or when it was not said which proxies are trusted.
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
        match self.fault() {
            Some(fault) => Err(ConfigError::key(fault.to_string())),
            None => Ok(self),
        }
    }

    /// The key of a request from this client: to look at it or reset it without a request.
    #[must_use]
    pub fn of(&self, address: IpAddr) -> Key {
        self.ipv6_prefix.key_of(address)
    }

    fn fault(&self) -> Option<KeyError> {
        let untold = || {
            KeyError::new(
                KeyErrorKind::Misconfigured,
                "key::client_ip was not told which proxies are trusted: name their networks by \
                 `.behind([..])`, or their number by `.hops(1)`",
            )
        };
        let fault = self.fault.clone();
        fault.or_else(|| (!self.proxies.are_told()).then(untold))
    }

    /// The client, if the peer is known or has told it.
    fn find(&self, parts: &Parts) -> Result<Option<IpAddr>, KeyError> {
        let peer = peer_of(parts).map(|peer| peer.to_canonical());
        match &self.source {
            AddressSource::Single(single) if self.proxies.trust_peer(peer) => {
                Ok(match single.read(&parts.headers)? {
                    Read::Address(client) => Some(client),
                    Read::Absent => peer,
                    Read::Unreadable => self.proxy_instead(peer),
                })
            }
            AddressSource::Single(_) => Ok(peer),
            AddressSource::List(list) => {
                let lines = parts.headers.get_all(list.header()).iter();
                let entries = Entries::new(*list, lines.map(HeaderValue::as_bytes));
                Ok(match self.proxies.walk(peer, entries) {
                    Walk::Client(client) => client,
                    Walk::Unreadable(proxy) => self.proxy_instead(proxy),
                    Walk::TooShort => {
                        self.tell_too_short(*list);
                        peer
                    }
                })
            }
        }
    }

    /// Warns that a proxy is counted, because the header that it sent cannot be read.
    #[cold]
    fn proxy_instead(&self, proxy: Option<IpAddr>) -> Option<IpAddr> {
        if proxy.is_some() && is_first(&self.reported.unreadable) {
            tracing::warn!(target: "tollgate::diagnostics",
                "cannot read an address in `{}` from a trusted proxy: the proxy is counted, and all its \
                 clients share one limit; configure the proxy to write IP addresses, or choose another \
                 header by `client_ip().header(name)` or `.forwarded()`",
                self.source.header()
            );
        }
        proxy
    }

    #[cold]
    fn tell_too_short(&self, list: List) {
        if is_first(&self.reported.too_short) {
            tracing::warn!(target: "tollgate::diagnostics",
                header = list.header(),
                hops = self.proxies.hops,
                "a request came by fewer proxies than key::client_ip was told of: it is counted by \
                 the address of the peer"
            );
        }
    }
}

impl KeyExtractor for ClientIp {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        match self.fault() {
            Some(fault) => Err(fault),
            None => match self.find(parts)? {
                Some(client) => Ok(self.of(client)),
                None => Err(unknown_peer()),
            },
        }
    }

    fn reads(&self) -> Reads {
        let reported = [&self.reported.too_short, &self.reported.unreadable];
        Reads {
            reported: reported.iter().any(|flag| flag.load(Ordering::Relaxed)),
            ..Reads::default()
        }
    }
}

/// Keeps what is wrong first.
fn note(fault: &mut Option<KeyError>, text: impl FnOnce() -> String) {
    fault.get_or_insert_with(|| KeyError::new(KeyErrorKind::Misconfigured, text()));
}
