//! Refusals of requests whose body is not read.
//!
//! A server of HTTP/1 cannot keep a connection that still carries a body. RFC 9110, section 10.1.1, has it
//! say so: hyper closes the connection without announcing it, and the client's next request fails.

use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Version};

const CLOSE: &str = "close";

/// Whether a request of HTTP/1 announces a body. Later versions end the stream and keep the connection.
pub(crate) fn is_announced(parts: &Parts) -> bool {
    let Parts {
        version, headers, ..
    } = parts;
    let has_length = |length: &HeaderValue| length.as_bytes().iter().any(|digit| *digit != b'0');
    *version < Version::HTTP_2
        && (headers.contains_key(TRANSFER_ENCODING)
            || headers.get(CONTENT_LENGTH).is_some_and(has_length))
}

/// Announces that the connection ends with this response. Other connection options are kept.
pub(crate) fn announce_close(headers: &mut HeaderMap) {
    let options = headers.get_all(CONNECTION).iter();
    let mut options = options.flat_map(|options| options.as_bytes().split(|byte| *byte == b','));
    if !options.any(|option| option.trim_ascii().eq_ignore_ascii_case(CLOSE.as_bytes())) {
        headers.append(CONNECTION, HeaderValue::from_static(CLOSE));
    }
}
