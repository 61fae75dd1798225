//! Signs that a layer is not set up well, in the first requests that it sees.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use http::header::{FORWARDED, HeaderName};
use http::request::Parts;

use super::forwarded_values::{ForwardedValues, VALUES, Value};
use super::layer_log::Once;
use crate::key::Key;
use crate::key::{KeyError, KeyExtractor, claimed_client, has_route, peer_of};

/// So many requests of a layer are looked at: what is set up wrongly shows in them, and those that come
/// later are not held up.
const REQUESTS: u32 = 1_000;

/// So many layers that are made in a minute while requests are answered are made in handlers.
const LAYERS: u32 = 100;
const MINUTE: Duration = Duration::from_secs(60);

/// The headers in which proxies forward the address of a client.
const FORWARDING: [HeaderName; 3] = [
    FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-real-ip"),
];

/// What has been seen of a layer's first requests.
#[derive(Debug, Default)]
pub(super) struct MisconfigurationChecks {
    seen: AtomicU32,
    proxied: Once,
    forwarded: ForwardedValues,
    /// The key of the first request, if it is a private address.
    first: OnceLock<Option<Key>>,
    is_shared: AtomicBool,
    has_route: AtomicBool,
    pathless: AtomicU32,
    routeless: Once,
}

impl MisconfigurationChecks {
    #[inline]
    pub(super) fn are_looked_for(&self) -> bool {
        self.seen.load(Ordering::Relaxed) < REQUESTS
    }

    #[cold]
    pub(super) fn look_at(
        &self,
        limiter: &str,
        extractor: &dyn KeyExtractor,
        parts: &Parts,
        found: &Result<Key, KeyError>,
    ) {
        let nth = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        SERVES.store(true, Ordering::Relaxed);
        let reads = extractor.reads();
        if reads.peer && !self.proxied.was_said() {
            self.look_for_proxy(limiter, parts);
        }
        if reads.path {
            self.look_for_route(limiter, parts);
        }
        if let Ok(key) = found {
            let is_reported = reads.warned || self.proxied.was_said();
            self.look_for_one_address(limiter, key, nth, is_reported);
        }
        if nth == REQUESTS {
            self.forwarded.clear();
        }
    }

    fn look_for_proxy(&self, limiter: &str, parts: &Parts) {
        let mut names = FORWARDING.into_iter();
        let header = names.find(|name| parts.headers.contains_key(name));
        let Some((peer, header)) = peer_of(parts).zip(header) else {
            return;
        };
        if is_private(peer) {
            if self.proxied.is_first() {
                tracing::warn!(target: "tollgate::diagnostics",
                    limiter,
                    "requests arrive from a private address with `{header}`: a proxy is in front, and all \
                     its clients share one limit; use `key::client_ip`"
                );
            }
        } else if self.has_many_values(peer, &header, parts) && self.proxied.is_first() {
            // The peer is not named: a client that makes up the header is no proxy.
            tracing::warn!(target: "tollgate::diagnostics",
                limiter,
                "one peer sent {VALUES} different values of `{header}`: if it is a proxy, all its clients \
                 share one limit; use `key::client_ip`"
            );
        }
    }

    /// Whether a peer with a public address forwards like a proxy: clients have public addresses too.
    fn has_many_values(&self, peer: IpAddr, header: &HeaderName, parts: &Parts) -> bool {
        let headers = &parts.headers;
        let raw = || headers.get(header).map(|value| value.as_bytes());
        let value = claimed_client(header, headers)
            .map(Value::Address)
            .or_else(|| raw().map(Value::Unreadable));
        value.is_some_and(|value| self.forwarded.add(peer.to_canonical(), &value))
    }

    fn look_for_route(&self, limiter: &str, parts: &Parts) {
        if self.has_route.load(Ordering::Relaxed) {
            return;
        }
        if has_route(parts) {
            self.has_route.store(true, Ordering::Relaxed);
        } else if self.pathless.fetch_add(1, Ordering::Relaxed) + 1 >= REQUESTS
            && self.routeless.is_first()
        {
            tracing::warn!(target: "tollgate::diagnostics",
                limiter,
                "none of {REQUESTS} requests has a route for `key::path` to count by: it is known on \
                 layers that are added by `layer` or `route_layer` of the axum router itself"
            );
        }
    }

    fn look_for_one_address(&self, limiter: &str, key: &Key, nth: u32, is_reported: bool) {
        let first = self
            .first
            .get_or_init(|| is_private_address(key).then(|| key.clone()));
        if first.as_ref() != Some(key) {
            self.is_shared.store(true, Ordering::Relaxed);
        } else if nth == REQUESTS && !is_reported && !self.is_shared.load(Ordering::Relaxed) {
            tracing::warn!(target: "tollgate::diagnostics",
                limiter,
                "all of the first {REQUESTS} requests are counted as {}, a private address: if it is a \
                 proxy's, its clients share one limit; count by `key::client_ip`",
                key.as_str()
            );
        }
    }
}

/// Whether a key is nothing but an address, and a private one.
fn is_private_address(key: &Key) -> bool {
    let address = key.as_str().strip_prefix("ip=");
    let address = address.and_then(|address| address.split('/').next()?.parse().ok());
    address.is_some_and(is_private)
}

/// Whether no public client can have an address: loopback, RFC 1918, RFC 6598, link-local, unique local.
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
                // What a prefix leaves of the loopback.
                || address.is_unspecified()
        }
    }
}

/// Whether a layer of this process has seen a request.
static SERVES: AtomicBool = AtomicBool::new(false);

/// A layer was made: at first to be set up with, later in a handler, where each layer has a count of
/// its own, unless it is of a store that is shared, and is asked once.
pub(crate) fn note_layer() {
    static MADE: Mutex<Option<Made>> = Mutex::new(None);
    static SAID: Once = Once::new();
    if !SERVES.load(Ordering::Relaxed) || SAID.was_said() {
        return;
    }
    let made = one_more(&mut MADE.lock().unwrap_or_else(PoisonError::into_inner));
    if made >= LAYERS && SAID.is_first() {
        tracing::warn!(target: "tollgate::diagnostics",
            "{LAYERS} rate limit layers were made in a minute in which this process answers requests: \
             make a layer once and clone it, not in a handler, where each may have a count of its own"
        );
    }
}

/// How many layers were made since then.
type Made = (Instant, u32);

fn one_more(made: &mut Option<Made>) -> u32 {
    let (since, before) = made
        .filter(|(since, _)| since.elapsed() < MINUTE)
        .unwrap_or_else(|| (Instant::now(), 0));
    let now = before.saturating_add(1);
    *made = Some((since, now));
    now
}
