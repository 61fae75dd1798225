//! Rate limiting middleware for tower and axum, exact across any number of processes.
//!
//! A [`RateLimitLayer`] wraps any tower service that handles HTTP requests. It takes a [key](mod@key)
//! from each request, such as an address, an API key or a user. It asks a [store](mod@store), in one
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
//!     .layer(RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100)).name("site"));
//! ```
//!
//! To count in Redis, replace the store: `RedisStore::open("redis://127.0.0.1:6379")?.prefix("shop")`.
//! Services without a prefix of their own share counts.
//!
//! The address of the client is known if the router is served by
//! `into_make_service_with_connect_info::<SocketAddr>()`. Behind a proxy, use [`key::client_ip`].
//!
//! Without HTTP, use a [`RateLimiter`].
//!
//! # How a check is decided
//!
//! 1. A check has a key, a cost in units (1 by default), and a list of [quotas](Quota).
//! 2. The store reads its own clock, once.
//! 3. Each quota admits the check if the units charged to the key within its window, plus the cost, are
//!    at most its limit.
//! 4. If every quota admits the check, it is charged to all of them. Otherwise it is charged to none,
//!    and nothing is written.
//! 5. The [`Decision`] has the units used and left. If the check is refused, it also has the shortest wait
//!    after which the same check is admitted, exact to the microsecond.
//!
//! Rule 3 describes the default algorithm. The other [algorithms](Algorithm) store or promise something else:
//! see [which one to choose](guide::algorithms). A quota [in flight](Quota::in_flight) counts what runs at the same time,
//! not what was charged in a window. A [total](Quota::total) never returns units.
//!
//! Windows are durations of 1 ms to 366 days or, with the feature `calendar`, days, weeks and months of a time zone.
//!
//! # Where to find what
//!
//! | item | what it is for |
//! |---|---|
//! | [`RateLimitLayer`], [`RateLimit`] | the middleware, and the service that it makes |
//! | [`OutboundLayer`] | a client that stays below the limit of an upstream, and obeys its answers |
//! | [`RateLimiter`], [`LevelCheck`] | checks without HTTP, of one key or several; [`Admin`] for operators |
//! | [`Permit`], [`Acquired`], [`PermitHandle`] | slots of a quota [in flight](guide::in_flight), and how a handler keeps them |
//! | [`Quota`], [`Share`], [`Quotas`], [`Algorithm`], [`Plan`] | how much is allowed, and how it is counted |
//! | [`BlockRule`] | when a key that is refused too often is blocked, and for how long |
//! | [`key`](mod@key) | who is counted: extractors, and [`Key`] |
//! | [`store`](mod@store), [`RedisStore`], [`MemoryStore`] | where counts are kept, and the [`Store`] trait |
//! | [`Decision`], [`DecisionView`], [`LevelDecision`], [`Source`] | the result of a check, and what decided it |
//! | [`FailurePolicy`] | what happens while the store fails |
//! | [`Headers`], [`Rejection`], [`problem_json`](problem_json()), [`cors`] | what clients see |
//! | [`Reservation`], [`WouldReject`] | what handlers see: a charge to settle, a dry run |
//! | [`Error`], [`ConfigError`] | what can go wrong |
//!
//! The [guide] has one page per question. Read [getting started](guide::getting_started), [keys](guide::keys),
//! [placement](guide::placement), [algorithms](guide::algorithms) and [failures](guide::failures), then what you need.
//!
//! # What this does not do
//!
//! | not done | instead |
//! |---|---|
//! | queue requests before a server | A waiting request holds memory and a connection. [`RateLimitLayer::wait_up_to`] and [`RateLimiter::until_ready`] wait on the side of the client, in the order of arrival. |
//! | shed load | [`Quota::in_flight`] limits what runs at the same time for each key. To protect one process against all keys together, put `tower::load_shed` and `tower::limit::ConcurrencyLimit` inside of the layer. |
//! | stop floods | A refused request still passes the network, TLS and HTTP. Layers 3 and 4 belong to the provider, a load balancer or a firewall: see [security](guide::security). |
//! | recognize clients behind proxies without configuration | [`key::client_ip`] reads forwarding headers only from the proxies that you trust |
//! | read bodies | [Limits known only from the body](guide::bodies) are checked in the handler |
//! | bill | Counts are forgotten after the window, and a lost answer may leave a charge. Bill from a database. |
//! | stay exact across regions | Each Redis counts on its own: see [several regions](guide::deployment#several-regions) |
//! | read rules from a file | [Your service reads it](guide::plans#plans-from-a-file-that-changes), and [`RateLimitLayer::quotas_for`] looks them up per key. For a standalone service, see Envoy's ratelimit or Limitador. |
//!
//! # Features
//!
//! | feature | adds | default |
//! |---|---|---|
//! | `axum-08` | [`key::peer_ip`] reads the `ConnectInfo` of axum 0.8; [`key::path`]; a [responder](RateLimitLayer::responder) returns any `IntoResponse` | yes |
//! | `calendar` | [`Quota::per_calendar_month`] and others: windows that begin with a day, week or month of a time zone | |
//! | `cluster` | Redis Cluster, by [its URL](RedisStore#sentinel-cluster-tls) | |
//! | `grpc` | [`RateLimitLayer::grpc`], which rejects gRPC calls in gRPC's form | |
//! | `metrics` | counts of checks and the state of the store, [through the facade `metrics`](guide::monitoring) | |
//! | `redis` | [`RedisStore`]; without it, the only store is [`MemoryStore`] | yes |
//! | `redis-1` | [`RedisStore::with_connection`], for connections of redis 1.x | |
//! | `sentinel` | the master that Redis Sentinel names, by its URL | |
//! | `serde` | [`Quota`], [`Quotas`], [`Plan`] and [`Algorithm`] in configurations, as text or maps; [`FailurePolicy`] as text; [`KeyStatus`] for customers | |
//! | `test-util` | [`store::TestClock`] and [`store::TestStore`]: a clock that a test moves, and a store that refuses or fails on request | |
//! | `tls` | TLS to Redis by rustls, by its URL | |
//! | `tonic-014` | a [`Rejection`] converts into the `Status` of tonic 0.14 | |
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

// Unit tests share files with the integration tests, which name the crate.
#[cfg(test)]
extern crate self as tollgate;
#[cfg(test)]
#[path = "../tests/support/spans.rs"]
mod spans;

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
mod lock;
mod middleware;
#[cfg(tollgate_simulation)]
#[doc(hidden)]
pub mod planted;
mod quota;
mod random;
mod runtime;
pub mod store;
mod telemetry;

pub use decision::{LevelDecision, QuotaDecision, Source};
pub use error::{ConfigError, ConfigErrorKind, Error, ErrorKind};
pub use key::{IntoKey, Key, KeyExtractor};
pub use limiter::{
    Acquired, Admin, BlockReason, Decision, DecisionView, FailurePolicy, KeyStatus, LevelCheck,
    Permit, RateLimiter,
};
pub use middleware::{
    Headers, IetfDraft, Level, MissingKey, OutboundLayer, PermitHandle, RateLimit, RateLimitLayer,
    Rejection, RejectionReason, RejectionResponse, Reservation, ResponseBody, ResponseFuture,
    WouldReject, cors, plain_text, problem_json, problem_json_typed,
};
pub use quota::{Algorithm, BlockRule, IntoPlan, IntoQuotas, Plan, Quota, Quotas, Share};
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use store::RedisStore;
#[cfg(feature = "redis")]
#[doc(hidden)]
pub use store::redis::hooks as __doctor;
pub use store::{MemoryStore, Store};
pub use telemetry::RejectedKey;

/// Runs the examples of the README as doctests.
#[cfg(all(doctest, feature = "axum-08", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// Runs the examples of `llms.txt` as doctests.
#[cfg(all(doctest, feature = "axum-08", feature = "redis"))]
#[doc = include_str!("../llms.txt")]
struct Llms;
