//! The tower middleware, which applies a limiter to HTTP requests.
//!
//! This is the only module that knows services and responses. It uses `limiter` and the modules below it.

#[cfg_attr(not(feature = "axum-08"), path = "axum_08/disabled.rs")]
mod axum_08;
mod body;
mod config;
pub mod cors;
mod diagnostics;
mod future;
mod headers;
mod layer;
mod level;
mod outbound;
mod outcome;
mod permit;
mod rejection;
mod rejection_response;
mod request;
mod reservation;
mod response;
mod service;
mod skip;

pub use body::ResponseBody;
pub use future::ResponseFuture;
pub use headers::{Headers, IetfDraft};
pub use layer::RateLimitLayer;
pub use level::{Level, MissingKey};
pub use outbound::OutboundLayer;
pub use permit::PermitHandle;
pub use rejection::{
    Rejection, RejectionReason, WouldReject, plain_text, problem_json, problem_json_typed,
};
pub use rejection_response::RejectionResponse;
pub use reservation::Reservation;
pub use service::RateLimit;
