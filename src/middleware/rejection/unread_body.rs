//! `Connection: close` for the rejection of a request with an unread body.
//!
//! An HTTP/1 server cannot reuse a connection on which the client still sends a body. RFC 9110, section
//! 10.1.1, asks the server to announce that it closes the connection. hyper does not announce it, and then
//! the next request of the client fails.

use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Version};

const CLOSE: &str = "close";

/// Returns whether an HTTP/1 request announces a body. Later versions end only the stream, not the connection.
pub(in crate::middleware) fn is_announced(parts: &Parts) -> bool {
    let Parts {
        version, headers, ..
    } = parts;
    // One pass in place of two look-ups.
    *version < Version::HTTP_2
        && headers.iter().any(|(name, value)| {
            name == TRANSFER_ENCODING || name == CONTENT_LENGTH && is_not_zero(value)
        })
}

fn is_not_zero(length: &HeaderValue) -> bool {
    length.as_bytes().iter().any(|digit| *digit != b'0')
}

/// Adds `Connection: close`. Other connection options stay.
pub(in crate::middleware) fn announce_close(headers: &mut HeaderMap) {
    let is_announced = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|options| options.as_bytes().split(|byte| *byte == b','))
        .any(|option| option.trim_ascii().eq_ignore_ascii_case(CLOSE.as_bytes()));
    if !is_announced {
        headers.append(CONNECTION, HeaderValue::from_static(CLOSE));
    }
}
