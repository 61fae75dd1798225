//! Checks for signs of a misconfiguration in the first requests of a layer.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use http::header::{FORWARDED, HeaderName};
use http::request::Parts;

use super::forwarded_values::{ForwardedValues, VALUES, Value};
use crate::key::{Key, KeyError, KeyExtractor, ReadExtension, claimed_client, has_route, peer_of};
use crate::telemetry::OnceFlag;

/// The number of requests that are inspected. They are enough to detect a misconfiguration, and later requests
/// need no inspection.
const REQUESTS: u32 = 1_000;

/// The number of requests after which a key that no request has is reported. Who tries a layer out sends a few.
const FEW: u32 = if cfg!(debug_assertions) { 3 } else { 20 };

/// The number of layers per minute from which on handlers probably create them.
const LAYERS: u32 = 100;
const MINUTE: Duration = Duration::from_secs(60);

/// The headers in which proxies forward the address of a client.
const FORWARDING: [HeaderName; 3] = [
    FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-real-ip"),
];

/// The findings in the first requests of a layer.
#[derive(Debug, Default)]
pub(super) struct MisconfigurationChecks {
    inspected: AtomicU32,
    proxy_warned: OnceFlag,
    forwarded: ForwardedValues,
    /// The key of the first request, if it is a private address.
    first_key: OnceLock<Option<Key>>,
    /// Whether a later request had another key.
    keys_differ: AtomicBool,
    route: PartOfKey,
    extension: PartOfKey,
}

/// A part of requests that the key reads, such as an extension.
#[derive(Debug, Default)]
struct PartOfKey {
    without: AtomicU32,
    /// Whether it was there, or was reported as missing: nothing is left to report.
    is_settled: OnceFlag,
}

impl PartOfKey {
    /// Returns whether to report it as missing: after a few requests if they have no key for it, and otherwise after
    /// many, because some clients may come without it.
    fn is_missing(&self, is_there: bool, extracted: &Result<Key, KeyError>, nth: u32) -> bool {
        if is_there {
            self.is_settled.first_time();
            return false;
        }
        let without = self.without.fetch_add(1, Ordering::Relaxed) + 1;
        let is_due = (extracted.is_err() && without == nth && nth >= FEW) || without >= REQUESTS;
        is_due && self.is_settled.first_time()
    }
}

impl MisconfigurationChecks {
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.inspected.load(Ordering::Relaxed) < REQUESTS
    }

    #[cold]
    pub(super) fn observe(
        &self,
        limiter: &str,
        extractor: &dyn KeyExtractor,
        parts: &Parts,
        extracted: &Result<Key, KeyError>,
    ) {
        let nth = self.inspected.fetch_add(1, Ordering::Relaxed) + 1;
        SERVING.store(true, Ordering::Relaxed);
        let reads = extractor.reads();
        if reads.peer && !self.proxy_warned.is_set() {
            self.check_proxy(limiter, parts);
        }
        if reads.path {
            self.check_route(limiter, parts, extracted, nth);
        }
        if let Some(extension) = reads.extension {
            self.check_extension(limiter, extension, parts, extracted, nth);
        }
        if let Ok(key) = extracted {
            let is_reported = reads.warned || self.proxy_warned.is_set();
            self.check_single_address(limiter, key, nth, is_reported);
        }
        if nth == REQUESTS {
            self.forwarded.clear();
        }
    }

    /// Warns if the peer, whose address is counted, seems to be a proxy.
    fn check_proxy(&self, limiter: &str, parts: &Parts) {
        let mut names = FORWARDING.into_iter();
        let header = names.find(|name| parts.headers.contains_key(name));
        let Some((peer, header)) = peer_of(parts).zip(header) else {
            return;
        };
        if is_private(peer) {
            if self.proxy_warned.first_time() {
                tracing::warn!(target: "tollgate::diagnostics",
                    limiter,
                    "requests arrive from a private address with `{header}`: a proxy is in front, and all \
                     its clients share one limit; use `key::client_ip`"
                );
            }
        } else if self.has_many_values(peer, &header, parts) && self.proxy_warned.first_time() {
            // The peer may also be a client that invents the header.
            tracing::warn!(target: "tollgate::diagnostics",
                limiter,
                "one peer sent {VALUES} different values of `{header}`: if it is a proxy, all its clients \
                 share one limit; use `key::client_ip`"
            );
        }
    }

    /// Returns whether a peer has sent as many forwarded addresses as a proxy. For a public peer, one header
    /// proves nothing: it may be a client that sends it.
    fn has_many_values(&self, peer: IpAddr, header: &HeaderName, parts: &Parts) -> bool {
        let headers = &parts.headers;
        let raw = || headers.get(header).map(|value| value.as_bytes());
        let value = claimed_client(header, headers)
            .map(Value::Address)
            .or_else(|| raw().map(Value::Unreadable));
        value.is_some_and(|value| self.forwarded.add(peer.to_canonical(), &value))
    }

    /// Warns if no request has a matched route, although the key contains it.
    fn check_route(
        &self,
        limiter: &str,
        parts: &Parts,
        extracted: &Result<Key, KeyError>,
        nth: u32,
    ) {
        if self.route.is_missing(has_route(parts), extracted, nth) {
            tracing::warn!(target: "tollgate::diagnostics",
                limiter,
                "none of the first {nth} requests has a matched path, which `key::path` reads: add the \
                 layer by `Router::layer` to the router that has the routes; under tonic and for a service of \
                 `nest_service`, which match no route, use `key::from_fn` with the path of the URI, or of \
                 `OriginalUri` inside the nested service"
            );
        }
    }

    /// Warns if no request has the extension that the key reads.
    fn check_extension(
        &self,
        limiter: &str,
        extension: ReadExtension,
        parts: &Parts,
        extracted: &Result<Key, KeyError>,
        nth: u32,
    ) {
        let ReadExtension { name, is_in, .. } = extension;
        let is_there = is_in(&parts.extensions);
        if self.extension.is_missing(is_there, extracted, nth) {
            tracing::warn!(target: "tollgate::diagnostics",
                limiter,
                "none of the first {nth} requests has the extension `{name}`, which the key reads: the layer that \
                 inserts it runs too late; with `Router::layer`, add it after this one"
            );
        }
    }

    /// Warns if all requests have the same private address as their key.
    fn check_single_address(&self, limiter: &str, key: &Key, nth: u32, is_reported: bool) {
        let first_key = self
            .first_key
            .get_or_init(|| is_private_address(key).then(|| key.clone()));
        if first_key.as_ref() != Some(key) {
            self.keys_differ.store(true, Ordering::Relaxed);
        } else if nth == REQUESTS && !is_reported && !self.keys_differ.load(Ordering::Relaxed) {
            tracing::warn!(target: "tollgate::diagnostics",
                limiter,
                "the first {REQUESTS} requests all have the same private address as their key: if it is a \
                 proxy, all its clients share one limit; use `key::client_ip`"
            );
        }
    }
}

/// Returns whether a key is a single private address.
fn is_private_address(key: &Key) -> bool {
    let address = key.as_str().strip_prefix("ip=");
    let address = address.and_then(|address| address.split('/').next()?.parse().ok());
    address.is_some_and(is_private)
}

/// Returns whether an address cannot belong to a public client: loopback, RFC 1918, RFC 6598, link-local or
/// unique local.
fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let [first, second, ..] = address.octets();
            address.is_loopback()
                || address.is_private()
                || address.is_link_local()
                || (first == 100 && (64..128).contains(&second))
        }
        IpAddr::V6(address) => {
            address.is_loopback()
                || address.is_unique_local()
                || address.is_unicast_link_local()
                // The key of `::1`, which is masked to `::/64`.
                || address.is_unspecified()
        }
    }
}

/// Whether a layer of this process has received a request.
static SERVING: AtomicBool = AtomicBool::new(false);

/// Counts a created layer, and warns if handlers seem to create layers.
///
/// Layers that are created before the first request do not count. A layer that a handler creates serves only
/// one request, and has its own counts unless it shares a store.
pub(in crate::middleware) fn layer_created() {
    static CREATED: Mutex<Option<LayerCount>> = Mutex::new(None);
    static WARNED: OnceFlag = OnceFlag::new();
    if !SERVING.load(Ordering::Relaxed) || WARNED.is_set() {
        return;
    }
    let count = count_layer(&mut CREATED.lock().unwrap_or_else(PoisonError::into_inner));
    if count >= LAYERS && WARNED.first_time() {
        tracing::warn!(target: "tollgate::diagnostics",
            "{LAYERS} rate limit layers were created within a minute while this process answers requests: \
             create one layer at startup and clone it; layers created in a handler may each have their own \
             count"
        );
    }
}

/// The start of a minute, and the number of layers that were created since then.
type LayerCount = (Instant, u32);

fn count_layer(count: &mut Option<LayerCount>) -> u32 {
    let (since, before) = count
        .filter(|(since, _)| since.elapsed() < MINUTE)
        .unwrap_or_else(|| (Instant::now(), 0));
    let now = before.saturating_add(1);
    *count = Some((since, now));
    now
}
