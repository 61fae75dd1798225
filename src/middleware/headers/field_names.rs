//! The names of the header fields.

use http::HeaderName;

pub(in crate::middleware) const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(in crate::middleware) const X_REMAINING: HeaderName =
    HeaderName::from_static("x-ratelimit-remaining");
pub(in crate::middleware) const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// A dictionary in draft 7, a list in draft 11.
pub(in crate::middleware) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// A list of integers in drafts 6 and 7, and of names in draft 11.
pub(in crate::middleware) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

// Drafts 3 and 6 have a field for each number.
pub(in crate::middleware) const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
pub(in crate::middleware) const REMAINING: HeaderName =
    HeaderName::from_static("ratelimit-remaining");
pub(in crate::middleware) const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

// Trailers of gRPC. A response without a body has them among its headers.
pub(in crate::middleware) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(in crate::middleware) const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(in crate::middleware) const GRPC_STATUS_DETAILS: HeaderName =
    HeaderName::from_static("grpc-status-details-bin");
pub(in crate::middleware) const GRPC_RETRY_PUSHBACK: HeaderName =
    HeaderName::from_static("grpc-retry-pushback-ms");
