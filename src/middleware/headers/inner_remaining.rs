//! The remaining units in headers that an inner layer or the service has written.

use http::{HeaderMap, HeaderName};

use super::field_names::{RATELIMIT, REMAINING, X_REMAINING};

/// Returns the lowest number of remaining units in the headers.
///
/// It ignores draft 11: a layer appends to its lists and never replaces them.
pub(in crate::middleware) fn inner_remaining(headers: &HeaderMap) -> Option<u64> {
    // Mostly there is none, which takes a third of three look-ups to see.
    if !headers.keys().any(is_rate_limit) {
        return None;
    }
    let lines_of = |name: HeaderName| headers.get_all(name).into_iter();
    let texts_of = |name| lines_of(name).filter_map(|line| line.to_str().ok());
    let draft_07_members = texts_of(RATELIMIT).flat_map(|line| line.split(','));
    let draft_07_numbers =
        draft_07_members.filter_map(|member| member.trim().strip_prefix("remaining="));
    let numbers = texts_of(X_REMAINING)
        .chain(texts_of(REMAINING))
        .chain(draft_07_numbers);
    numbers
        .filter_map(|number| number.trim().parse().ok())
        .min()
}

fn is_rate_limit(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.strip_prefix("x-")
        .unwrap_or(name)
        .starts_with("ratelimit")
}
