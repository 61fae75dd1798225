//! Exact, distributed rate limiting for tower and axum.
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

// The core: what is allowed, who is counted, what came of it.
mod decision;
mod error;
mod identity;
mod limiter;
mod quota;

// How it is counted, and where.
mod algorithm;
pub mod store;

// HTTP.
mod body;
mod future;
mod headers;
pub mod key;
mod layer;
mod notice;
mod rejection;
mod service;

pub use body::ResponseBody;
pub use decision::{Decision, DecisionView, QuotaDecision, Source};
pub use error::{ConfigError, ConfigErrorKind, Error, ErrorKind};
pub use future::ResponseFuture;
pub use headers::Headers;
pub use identity::Key;
pub use key::KeyExtractor;
pub use layer::{MissingKey, RateLimitLayer};
pub use limiter::RateLimiter;
pub use quota::{Algorithm, Quota, Quotas};
pub use rejection::{Rejection, RejectionReason};
pub use service::RateLimit;
pub use store::Store;
pub use store::memory::MemoryStore;
pub use store::redis::RedisStore;
