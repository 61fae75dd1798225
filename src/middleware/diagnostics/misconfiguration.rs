//! Checks for signs of a misconfiguration in the first requests of a layer.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use http::header::{FORWARDED, HeaderName};
use http::request::Parts;

use crate::error::warning;
use crate::key::{Key, KeyError, KeyExtractor, ReadExtension, has_route, peer_address};
use crate::telemetry::OnceFlag;

/// The number of requests that are inspected. They are enough to detect a misconfiguration, and later requests
/// need no inspection.
const REQUESTS: u32 = 1_000;

/// The number of requests after which a key that no request has is reported. Who tries a layer out sends a few.
const FEW: u32 = if cfg!(debug_assertions) { 3 } else { 20 };

/// The headers in which proxies forward the address of a client.
const FORWARDING: [HeaderName; 3] = [
    FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-real-ip"),
];

/// The findings in the first requests of a layer.
#[derive(Debug, Default)]
pub(in crate::middleware) struct MisconfigurationChecks {
    inspected: AtomicU32,
    proxy_warned: OnceFlag,
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
    fn is_missing(&self, is_there: bool, has_key: bool, nth: u32) -> bool {
        if is_there {
            self.is_settled.first_time();
            return false;
        }
        let without = self.without.fetch_add(1, Ordering::Relaxed) + 1;
        let is_due = (!has_key && without == nth && nth >= FEW) || without >= REQUESTS;
        is_due && self.is_settled.first_time()
    }
}

impl MisconfigurationChecks {
    #[inline]
    pub(in crate::middleware) fn observe(
        &self,
        limiter: &str,
        extractor: &dyn KeyExtractor,
        parts: &Parts,
        extracted: &Result<Key, KeyError>,
    ) {
        if self.inspected.load(Ordering::Relaxed) < REQUESTS {
            self.inspect(limiter, extractor, parts, extracted.is_ok());
        }
    }

    #[cold]
    fn inspect(&self, limiter: &str, extractor: &dyn KeyExtractor, parts: &Parts, has_key: bool) {
        let nth = self.inspected.fetch_add(1, Ordering::Relaxed) + 1;
        let reads = extractor.reads();
        if reads.peer && !self.proxy_warned.is_set() {
            self.check_proxy(limiter, parts);
        }
        if reads.path && self.route.is_missing(has_route(parts), has_key, nth) {
            tracing::warn!(target: "tollgate::diagnostics",
                code = warning::NO_ROUTE,
                limiter,
                "none of the first {nth} requests has a matched path, which `key::path` reads: add the \
                 layer by `Router::layer` to the router that has the routes; under tonic and for a service of \
                 `nest_service`, which match no route, use `key::from_fn` with the path of the URI, or of \
                 `OriginalUri` inside the nested service"
            );
        }
        if let Some(ReadExtension { name, is_in }) = reads.extension
            && self
                .extension
                .is_missing(is_in(&parts.extensions), has_key, nth)
        {
            tracing::warn!(target: "tollgate::diagnostics",
                code = warning::NO_EXTENSION,
                limiter,
                "none of the first {nth} requests has the extension `{name}`, which the key reads: the layer that \
                 inserts it runs too late; with `Router::layer`, add it after this one"
            );
        }
    }

    /// Warns if the peer, whose address is counted, seems to be a proxy.
    fn check_proxy(&self, limiter: &str, parts: &Parts) {
        let header = FORWARDING
            .into_iter()
            .find(|name| parts.headers.contains_key(name));
        // A public peer may be a client that invents the header.
        let is_proxy = peer_address(parts).is_some_and(is_private);
        if let Some(header) = header.filter(|_| is_proxy)
            && self.proxy_warned.first_time()
        {
            tracing::warn!(target: "tollgate::diagnostics",
                code = warning::BEHIND_PROXY,
                limiter,
                "requests arrive from a private address with `{header}`: a proxy is in front, and all \
                 its clients share one limit; use `key::client_ip`"
            );
        }
    }
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
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
        }
    }
}
