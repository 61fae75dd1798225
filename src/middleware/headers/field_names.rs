//! The names of the header fields.

use http::HeaderName;

pub(crate) const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(crate) const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(crate) const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// A dictionary in draft 7, a list in draft 11.
pub(crate) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// A list: of integers in drafts 6 and 7, of names in draft 11.
pub(crate) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Drafts 3 and 6 have a field for each number.
pub(crate) const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
pub(crate) const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
pub(crate) const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
