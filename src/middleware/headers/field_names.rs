//! The names of the header fields.

use http::HeaderName;

pub(in crate::middleware) const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(in crate::middleware) const X_REMAINING: HeaderName =
    HeaderName::from_static("x-ratelimit-remaining");
pub(in crate::middleware) const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// A dictionary in draft 7, a list in draft 11.
pub(in crate::middleware) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// A list: of integers in drafts 6 and 7, of names in draft 11.
pub(in crate::middleware) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Drafts 3 and 6 have a field for each number.
pub(in crate::middleware) const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
pub(in crate::middleware) const REMAINING: HeaderName =
    HeaderName::from_static("ratelimit-remaining");
pub(in crate::middleware) const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
