//! The response to a request that is not let through: as text, as problem details, or in gRPC's form.

pub(super) mod grpc;
mod problem_json;
mod rejection;
pub(super) mod unread_body;

pub(super) use grpc::Grpc;
pub use problem_json::{problem_json, problem_json_typed};
pub(super) use rejection::plain_text;
pub use rejection::{Rejection, RejectionReason, WouldReject};
