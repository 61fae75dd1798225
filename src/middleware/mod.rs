//! The middleware: joins a limiter to HTTP.
//!
//! The only room that knows services, requests and responses. It knows `limiter` and what is below it.

#[cfg(feature = "axum-08")]
mod axum_08;
mod body;
mod check;
mod config;
pub mod cors;
mod diagnostics;
mod future;
mod headers;
mod layer;
mod plan_lookup;
mod rejection;
mod reservation;
mod response;
mod service;

pub use body::ResponseBody;
pub use config::MissingKey;
pub use future::ResponseFuture;
pub use headers::{Headers, IetfDraft};
pub use layer::RateLimitLayer;
pub use rejection::{Rejection, RejectionReason, WouldReject, problem_json, problem_json_typed};
pub use reservation::Reservation;
pub use service::RateLimit;
