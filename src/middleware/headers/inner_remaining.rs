//! What a layer further in tells of its limit, or a service of a limit of its own.

use http::{HeaderMap, HeaderName};

use super::field_names::{RATELIMIT, REMAINING, X_REMAINING};

/// The fewest units that it says are left, as a number.
pub(crate) fn remaining_told(headers: &HeaderMap) -> Option<u64> {
    if headers.is_empty() {
        return None;
    }
    let lines_of = |name: HeaderName| headers.get_all(name).into_iter();
    let texts_of = |name| lines_of(name).filter_map(|line| line.to_str().ok());
    let of_draft_7 = texts_of(RATELIMIT).flat_map(|line| line.split(','));
    let of_draft_7 = of_draft_7.filter_map(|member| member.trim().strip_prefix("remaining="));
    let told = texts_of(X_REMAINING)
        .chain(texts_of(REMAINING))
        .chain(of_draft_7);
    told.filter_map(|number| number.trim().parse().ok()).min()
}
