//! The rejection of a request whose body is not read.
//!
//! An HTTP/1 server cannot reuse a connection on which a body is still sent. RFC 9110, section 10.1.1, asks
//! it to announce the end of the connection. hyper closes it without an announcement, and the client's next
//! request fails.

use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Version};

const CLOSE: &str = "close";

/// Whether an HTTP/1 request announces a body. Later versions only end the stream, not the connection.
pub(in crate::middleware) fn is_announced(parts: &Parts) -> bool {
    let Parts {
        version, headers, ..
    } = parts;
    let has_length = |length: &HeaderValue| length.as_bytes().iter().any(|digit| *digit != b'0');
    *version < Version::HTTP_2
        && (headers.contains_key(TRANSFER_ENCODING)
            || headers.get(CONTENT_LENGTH).is_some_and(has_length))
}

/// Announces that the connection ends with this response. Other connection options stay.
pub(in crate::middleware) fn announce_close(headers: &mut HeaderMap) {
    let options = headers.get_all(CONNECTION).iter();
    let mut options = options.flat_map(|options| options.as_bytes().split(|byte| *byte == b','));
    if !options.any(|option| option.trim_ascii().eq_ignore_ascii_case(CLOSE.as_bytes())) {
        headers.append(CONNECTION, HeaderValue::from_static(CLOSE));
    }
}
