//! The responses to rejected requests: plain text, problem details, or gRPC.
//!
//! This module uses `headers`, and nothing else of the middleware.

mod finish;
#[cfg_attr(not(feature = "grpc"), path = "grpc/disabled.rs")]
mod grpc;
mod in_handler;
mod problem_json;
mod rejection;
mod text;
#[cfg(feature = "tonic-014")]
mod tonic_014;
pub(super) mod unread_body;

pub(super) use finish::{lengthen_retry_after, retry_after};
pub(super) use grpc::{Grpc, retry_delay};
pub use problem_json::{problem_json, problem_json_typed};
pub use rejection::{Rejection, RejectionReason, WouldReject};
pub use text::plain_text;
