//! Key extractors: they decide who shares a count.
//!
//! A layer extracts one [`Key`] from each request, and counts the requests of each key separately. Set the
//! extractor with [`RateLimitLayer::key`](crate::RateLimitLayer::key). The default is [`peer_ip()`].
//!
//! ```
//! use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
//!
//! let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60));
//!
//! // By client address, behind a load balancer in 10.0.0.0/8.
//! let by_client = layer.clone().key(key::client_ip().behind(["10.0.0.0/8"]));
//!
//! // By API key, or by address if a request has none. Add this layer inside the one that validates the
//! // API key: otherwise each invented key gets a fresh quota.
//! let by_api_key = layer.clone().key(key::header("x-api-key").or(key::peer_ip()));
//!
//! // By tenant and route.
//! # #[cfg(feature = "axum-08")]
//! let by_route = layer.key((key::header("x-tenant-id"), key::path()));
//! ```
//!
//! # Extractors
//!
//! | extractor | requests share a count if they have the same | if it is missing |
//! |---|---|---|
//! | [`peer_ip()`] | address at the other end of the connection | 500: the server does not provide it |
//! | [`client_ip()`](client_ip()) | client address, as reported by trusted proxies | 500: the server does not provide it |
//! | [`header(name)`](header()) | value of a header, stored as a hash | no key |
//! | [`authorization()`](authorization()) | credentials in the `Authorization` header, stored as a hash | no key |
//! | [`cookie(name)`](cookie()) | value of a cookie, stored as a hash | no key |
//! | [`extension::<T>()`](extension()) | request extension, such as the user that an outer layer inserted | no key |
//! | [`extension_with(f)`](extension_with()) | part of a request extension, which a closure returns | no key |
//! | [`path()`] | route that axum matched | no key |
//! | [`global()`] | limiter: all requests share one count | |
//! | [`from_fn(f)`](from_fn()) | key returned by a closure | no key, if the closure returns `None` |
//! | `(a, b)` | keys of two to eight extractors | no key, if one of them finds none |
//! | `a.or(b)` | key of `a`, or of `b` if `a` finds none | no key, if both find none |
//!
//! # Requests without a key
//!
//! A request without a key is rejected with 400 by default, so requests without a key never share a count
//! by accident. [`on_missing_key`](crate::RateLimitLayer::on_missing_key) exempts them instead.
//!
//! An ambiguous key, such as a header that is sent twice, is always rejected with 400. Otherwise a client
//! could choose which value counts.

mod alias;
mod authorization;
#[cfg_attr(not(feature = "axum-08"), path = "axum_08/disabled.rs")]
mod axum_08;
mod client_ip;
mod cookie;
mod error;
mod extension;
mod extractor;
mod fingerprint;
mod from_fn;
mod hash_key;
mod hashed_value;
mod header;
mod ipv6_prefix;
#[expect(
    clippy::module_inception,
    reason = "a room's main file is named like the room"
)]
mod key;
mod peer_ip;
mod reads;
mod stored_text;
mod tag;
#[cfg(test)]
mod test_request;
#[cfg_attr(not(feature = "grpc"), path = "tonic_014/disabled.rs")]
mod tonic_014;
mod tuple;

pub(crate) use alias::KeyAliases;
pub use authorization::{Authorization, authorization};
pub(crate) use axum_08::has_route;
#[cfg(feature = "axum-08")]
pub use axum_08::{Path, path};
pub use client_ip::{CheckedClientIp, ClientIp, NetworkList, client_ip};
pub use cookie::{Cookie, cookie};
pub use error::{KeyError, KeyErrorKind};
pub use extension::{Extension, extension, extension_with};
pub use extractor::{KeyExtractor, Or};
pub use fingerprint::Fingerprint;
pub(crate) use fingerprint::HashFingerprint;
pub use from_fn::{FromFn, OptionalKey, from_fn, global};
pub use header::{Header, header};
pub use key::{IntoKey, Key};
pub(crate) use peer_ip::peer_address;
pub use peer_ip::{PeerAddr, PeerIp, peer_ip};
pub(crate) use reads::ReadExtension;
pub use reads::Reads;
