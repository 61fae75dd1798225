//! Rate limit keys, and the extractors that take them from requests.
//!
//! | extractor | counts by | a request without it |
//! |---|---|---|
//! | [`peer_ip()`] | the address of the connection's other end; the default | is answered 500: the server is not set up |
//! | [`client_ip()`](client_ip()) | the address of the client behind trusted proxies | is answered 500: the server is not set up |
//! | [`header(name)`](header()) | the value of a header, hashed | has no key |
//! | [`authorization()`](authorization()) | the credentials of the `Authorization` header, hashed | has no key |
//! | [`cookie(name)`](cookie()) | the value of a cookie, hashed | has no key |
//! | [`extension::<T>()`](extension()) | a value that an outer layer put into the request, like a user | has no key |
//! | [`path()`] | the route that axum matched | has no key |
//! | [`global()`] | nothing: all requests share one count | |
//! | [`from_fn(f)`](from_fn()) | the key that a closure returns | has no key where it returns `None` |
//! | `(a, b)` | several at once, up to four | has no key where one has none |
//! | `a.or(b)` | `b` where there is no `a` | has no key where both have none |
//!
//! A request without a key is rejected with 400, unless the layer
//! [exempts it](crate::RateLimitLayer::on_missing_key). So requests without a key never share one count by
//! accident.
//!
//! # Examples
//!
//! ```
//! use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
//!
//! let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60));
//!
//! // By address.
//! let by_client = layer.clone().key(key::peer_ip());
//!
//! // By API key, and by address where there is none. Add this layer inside the one that validates the
//! // API key: otherwise every invented key gets a fresh quota.
//! let by_api_key = layer.clone().key(key::header("x-api-key").or(key::peer_ip()));
//!
//! // By tenant and route.
//! # #[cfg(feature = "axum-08")]
//! let by_route = layer.key((key::header("x-tenant-id"), key::path()));
//! ```

mod address_text;
mod authorization;
#[cfg_attr(not(feature = "axum-08"), path = "without_axum_08.rs")]
mod axum_08;
mod client_ip;
mod cookie;
mod error;
mod extension;
mod extractor;
mod fingerprint;
mod from_fn;
mod hash_key;
mod header;
mod ipv6_prefix;
#[expect(
    clippy::module_inception,
    reason = "a room's main file is named like the room"
)]
mod key;
mod network;
mod peer_ip;
mod reads;
mod single_value;
mod stored_text;
mod tag;
#[cfg(test)]
mod test_request;
mod tuple;

pub use authorization::{Authorization, authorization};
pub(crate) use axum_08::has_route;
#[cfg(feature = "axum-08")]
pub use axum_08::{Path, path};
pub(crate) use client_ip::claimed_client;
pub use client_ip::{ClientIp, client_ip};
pub use cookie::{Cookie, cookie};
pub use error::{KeyError, KeyErrorKind};
pub use extension::{Extension, extension};
pub use extractor::{KeyExtractor, Or};
pub(crate) use fingerprint::{Fingerprint, HashFingerprint};
pub use from_fn::{FromFn, Global, from_fn, global};
pub use header::{Header, header};
pub use key::Key;
pub(crate) use peer_ip::peer_of;
pub use peer_ip::{PeerAddr, PeerIp, peer_ip};
pub use reads::Reads;
