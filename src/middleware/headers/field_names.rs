//! The names of the header fields, and the remaining units in fields that an inner layer or the service has written.

use http::{HeaderMap, HeaderName};

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

/// Returns the lowest number of remaining units in the headers.
///
/// It ignores draft 11: a layer appends to its lists and never replaces them.
pub(in crate::middleware) fn inner_remaining(headers: &HeaderMap) -> Option<u64> {
    // Mostly there is none, which takes a third of three look-ups to see.
    if !headers.keys().any(is_rate_limit) {
        return None;
    }
    let draft_07_numbers = texts(RATELIMIT, headers)
        .flat_map(|line| line.split(','))
        .filter_map(|member| member.trim().strip_prefix("remaining="));
    texts(X_REMAINING, headers)
        .chain(texts(REMAINING, headers))
        .chain(draft_07_numbers)
        .filter_map(|number| number.trim().parse().ok())
        .min()
}

fn texts(name: HeaderName, headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(name)
        .into_iter()
        .filter_map(|line| line.to_str().ok())
}

fn is_rate_limit(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.strip_prefix("x-")
        .unwrap_or(name)
        .starts_with("ratelimit")
}
