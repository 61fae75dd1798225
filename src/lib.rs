//! Exact, distributed rate limiting for tower and axum.
//!
//! A [`RateLimitLayer`] wraps any tower service that handles HTTP requests. It takes a [key](mod@key)
//! from each request, such as an address, a header or a user. It asks a [store](mod@store), in one
//! atomic step, whether a sliding window has room. If not, it answers `429 Too Many Requests` with a
//! `Retry-After`. With [`RedisStore`], all processes of a service share one exact limit.
//! [`MemoryStore`] applies the same rules in one process.
//!
//! # Examples
//!
//! One line limits a router, here to 100 requests of each client address in any 60 seconds:
//!
//! ```
//! use axum::{Router, routing::get};
//! use tollgate::{MemoryStore, Quota, RateLimitLayer};
//!
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "ok" }))
//!     .layer(RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100)));
//! ```
//!
//! The address is known if the router is served by
//! `into_make_service_with_connect_info::<SocketAddr>()`; see [`key::peer_ip`]. Quotas, names, keys and
//! costs are methods of the [layer](RateLimitLayer). Without HTTP, use a [`RateLimiter`].
//!
//! # How a check is decided
//!
//! 1. A check has a key, a cost in units (1 by default), and a list of [quotas](Quota).
//! 2. The store reads its own clock, once.
//! 3. Each quota admits the check if the units charged to the key within its window, plus the cost, are
//!    at most its limit.
//! 4. If every quota admits the check, it is charged to all of them. Otherwise it is charged to none,
//!    and nothing is written.
//! 5. The [`Decision`] has the units used and left, and the wait after which a refused check is
//!    admitted. That wait is exact to the microsecond, by the predicate of rule 3.
//!
//! This is the default algorithm. Other [algorithms](Algorithm) store less and promise less: see
//! [how to choose](guide::algorithms).
//!
//! # Where to find what
//!
//! | item | what it is for |
//! |---|---|
//! | [`RateLimitLayer`], [`RateLimit`] | the middleware, and the service that it makes |
//! | [`RateLimiter`] | checks without HTTP; [`Admin`] for operators |
//! | [`Quota`], [`Quotas`], [`Algorithm`], [`Plan`] | what is allowed, and how it is counted |
//! | [`key`](mod@key) | who is counted: extractors, and [`Key`] |
//! | [`store`](mod@store), [`RedisStore`], [`MemoryStore`] | where counts are kept, and the [`Store`] trait |
//! | [`Decision`], [`DecisionView`], [`Source`] | the result of a check, and who decided |
//! | [`FailurePolicy`] | what happens while the store fails |
//! | [`Headers`], [`Rejection`], [`problem_json`](problem_json()), [`cors`] | what clients see |
//! | [`Reservation`], [`WouldReject`] | what handlers see: a charge to settle, a dry run |
//! | [`doctor`] | the report of [`RedisStore::doctor`] about a server |
//! | [`Error`], [`ConfigError`] | what can go wrong |
//!
//! The [guide] starts with [ten steps to a limit in production](guide::getting_started). Its pages cover the place
//! of the layer, keys and proxies, tenants, failures of Redis, monitoring,
//! [operating on keys](guide::operations), and every default with its reason.
//!
//! # What this does not do
//!
//! It refuses requests and does not queue them. It counts requests, not those in flight. It trusts no
//! header about addresses unless you configure one. It reads no bodies. It is as exact as the memory of
//! its store. The guide has [alternatives](guide::security).
//!
//! # Features
//!
//! | feature | adds | default |
//! |---|---|---|
//! | `axum-08` | [`key::peer_ip`] reads the `ConnectInfo` of axum 0.8; [`key::path`] | yes |
//! | `cluster` | Redis Cluster, by [its URL](RedisStore#sentinel-cluster-tls) | |
//! | `grpc` | [`RateLimitLayer::grpc`], which rejects gRPC calls in gRPC's form | |
//! | `metrics` | counts of checks and the state of the store, [through the facade `metrics`](guide::operations) | |
//! | `redis` | [`RedisStore`]; without it, the only store is [`MemoryStore`] | yes |
//! | `redis-1` | [`RedisStore::with_connection`], for connections of redis 1.x | |
//! | `sentinel` | the master that Redis Sentinel names, by its URL | |
//! | `serde` | [`Quota`], [`Quotas`] and [`Algorithm`] in configurations, as text or maps | |
//! | `test-util` | [`store::TestClock`] and [`store::TestStore`]: a clock that a test moves, and a store that refuses or fails on request | |
//! | `tls` | TLS to Redis by rustls, by its URL | |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::print_stdout,
        clippy::print_stderr
    )
)]

// Each room may use the rooms that CONTRIBUTING.md lists below it.
mod algorithm;
mod clock;
mod decision;
mod error;
// Its examples need these features; its pages are there without them.
#[cfg(any(not(doctest), all(feature = "axum-08", feature = "redis")))]
pub mod guide;
pub mod key;
mod limiter;
mod middleware;
mod quota;
pub mod store;
mod telemetry;

pub use decision::{Decision, DecisionView, QuotaDecision, Source};
pub use error::{ConfigError, ConfigErrorKind, Error, ErrorKind};
pub use key::{Key, KeyExtractor};
pub use limiter::{Admin, FailurePolicy, KeyStatus, RateLimiter};
pub use middleware::{
    Headers, IetfDraft, MissingKey, RateLimit, RateLimitLayer, Rejection, RejectionReason,
    Reservation, ResponseBody, ResponseFuture, WouldReject, cors, problem_json, problem_json_typed,
};
pub use quota::{Algorithm, AlgorithmFacts, IntoPlan, Plan, Promise, Quota, Quotas};
pub use store::{MemoryStore, Store};
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use store::{RedisStore, redis::doctor};
pub use telemetry::RefusedKey;

/// Runs the examples of the README as doctests.
#[cfg(all(doctest, feature = "axum-08", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
