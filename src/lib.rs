//! Exact, distributed rate limiting for tower and axum.
//!
//! A [`RateLimitLayer`] wraps any tower service of HTTP requests. It takes a [key](mod@key) from each
//! request, an address or a header or a user, asks a [store](mod@store) in one atomic step whether
//! a sliding window has room, and answers `429 Too Many Requests` with a `Retry-After` when it has
//! not. With [`RedisStore`], all processes of a service share one exact limit; [`MemoryStore`] keeps
//! to the same rules in one process.
//!
//! # Examples
//!
//! One line limits a router, here each client's address to 100 requests in any 60 seconds:
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
//! The address is known where the router is served by
//! `into_make_service_with_connect_info::<SocketAddr>()`; see [`key::peer_ip`]. Quotas, names, keys
//! and costs are told to the [layer](RateLimitLayer), or to a [`RateLimiter`] where there is no HTTP.
//!
//! # How a check is decided
//!
//! 1. A check has a key, a cost in units, one unless said otherwise, and a list of [quotas](Quota).
//! 2. The store reads its own clock, once.
//! 3. Each quota admits the check if the units charged to the key within its window, and the cost,
//!    are at most its limit.
//! 4. If every quota admits it, it is charged to all of them; else to none, and nothing is written.
//! 5. The [`Decision`] tells what is used and left, and when a refused check will be admitted: that
//!    is exact to the microsecond, by the predicate of rule 3.
//!
//! That is the default. Other [algorithms](Algorithm) keep less and promise less: see
//! [how to choose](guide::choosing_an_algorithm).
//!
//! # To read first
//!
//! [From nothing to a limit in production](guide::start) in ten steps, and the rest of the [guide]: where
//! the layer goes, which key to take and whom to believe, tenants, what happens when Redis fails, what to
//! watch, how to [look after keys](guide::operating), every default with its reason.
//!
//! # What this does not do
//!
//! It refuses and does not queue; it counts requests, and not those that run; it believes no header about
//! addresses that it was not told to; it reads no bodies; and it is exact as far as its store remembers.
//! What to take instead is in the [guide](guide::what_this_does_not_do).
//!
//! # Features
//!
//! | feature | adds | default |
//! |---|---|---|
//! | `axum-08` | [`key::peer_ip`] reads the `ConnectInfo` of axum 0.8; [`key::path`] | yes |
//! | `cluster` | Redis Cluster, by [its URL](RedisStore#sentinel-cluster-tls) | |
//! | `metrics` | counts of checks, and how the store is, [through the facade `metrics`](guide::watching_it) | |
//! | `redis-1` | [`RedisStore::with_connection`], for connections of redis 1.x | |
//! | `sentinel` | the master that Redis Sentinel names, by its URL | |
//! | `serde` | [`Quota`], [`Quotas`] and [`Algorithm`] in configurations, as text or maps | |
//! | `test-util` | [`store::TestClock`] and [`store::TestStore`]: a clock that a test moves by hand, and a store that fails when it is told to | |
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

// From the outside in; a room knows only rooms below it.
mod algorithm;
mod clock;
mod decision;
mod error;
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
pub use store::redis::doctor;
pub use store::{MemoryStore, RedisStore, Store};
pub use telemetry::RefusedKey;

/// The examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
