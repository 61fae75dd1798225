//! Numbers as the values of fields.

use http::{HeaderMap, HeaderName, HeaderValue};

/// `HeaderValue::from` of a number allocates twice.
pub(in crate::middleware) fn number_value(number: u64) -> HeaderValue {
    if number == 0 {
        // What is left in every refusal.
        return HeaderValue::from_static("0");
    }
    let text = HeaderValue::from_str(itoa::Buffer::new().format(number));
    text.unwrap_or_else(|_| number.into())
}

pub(super) fn number(name: &HeaderName, headers: &HeaderMap) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}
