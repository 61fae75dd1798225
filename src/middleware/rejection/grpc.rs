//! Rejections of gRPC calls, as a "Trailers-Only" response.
//!
//! A gRPC client maps a plain 429 to `UNAVAILABLE`, which it may retry at once. So the response has status
//! 200, and `grpc-status` in its headers. The details of a status are also decoded here, as an upstream sends them.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use prost::DecodeError;
use prost::encoding::{self, DecodeContext, WireType};

use super::rejection::{Rejection, RejectionCause};
use crate::middleware::headers::{field_names as field, number_value};

/// The number of headers of a response.
const HEADERS: usize = 5;

/// The characters that are percent-encoded in `grpc-message`: `%`, and all but printable ASCII.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// The content types of calls.
const CONTENT_TYPES: [&str; 3] = [
    "application/grpc",
    "application/grpc-web",
    "application/grpc-web-text",
];

/// The content type of a call. The response has the same one, but names no encoding of messages: it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::middleware) struct Grpc(pub(in crate::middleware) &'static str);

/// A status code of gRPC: a `google.rpc.Code`.
type GrpcCode = i32;
const INVALID_ARGUMENT: GrpcCode = 3;
const RESOURCE_EXHAUSTED: GrpcCode = 8;
const INTERNAL: GrpcCode = 13;
const UNAVAILABLE: GrpcCode = 14;

/// A negative `grpc-retry-pushback-ms` tells clients not to retry.
const DO_NOT_RETRY: HeaderValue = HeaderValue::from_static("-1");

/// The type URL of the message with the wait, for `google.protobuf.Any`.
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

impl Grpc {
    /// Returns the content type of a request, if it is a call of gRPC: a POST. A suffix may name the encoding of the messages.
    pub(in crate::middleware) fn from_request(parts: &Parts) -> Option<Self> {
        if parts.method != Method::POST {
            return None;
        }
        let content_type = parts.headers.get(CONTENT_TYPE)?.as_bytes();
        CONTENT_TYPES
            .into_iter()
            .find(|name| is_content_type(content_type, name.as_bytes()))
            .map(Self)
    }

    /// Creates the response to a rejected call. The body is empty, so that the headers end the stream.
    pub(in crate::middleware) fn reject(self, rejection: &Rejection) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.reserve(HEADERS);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.0));
        headers.insert(field::GRPC_STATUS, HeaderValue::from(code(rejection)));
        let message = utf8_percent_encode(&rejection.to_string(), ENCODED).to_string();
        if let Ok(message) = HeaderValue::try_from(message) {
            headers.insert(field::GRPC_MESSAGE, message);
        }
        match rejection.retry_after() {
            Some(wait) => insert_wait(rejection, wait, headers),
            None => {
                headers.insert(field::GRPC_RETRY_PUSHBACK, DO_NOT_RETRY);
            }
        }
        response
    }
}

fn is_content_type(sent: &[u8], name: &[u8]) -> bool {
    sent.split_at_checked(name.len())
        .is_some_and(|(start, rest)| {
            start.eq_ignore_ascii_case(name) && matches!(rest, [] | [b'+' | b';', ..])
        })
}

/// Lengthens the wait in a gRPC response that has one.
pub(super) fn lengthen_wait(rejection: &Rejection, wait: Duration, headers: &mut HeaderMap) {
    let inner = headers
        .get(field::GRPC_RETRY_PUSHBACK)
        .and_then(|inner| inner.to_str().ok()?.parse::<i32>().ok());
    if inner.is_some_and(|inner| (0..pushback(wait)).contains(&inner)) {
        insert_wait(rejection, wait, headers);
    }
}

fn insert_wait(rejection: &Rejection, wait: Duration, headers: &mut HeaderMap) {
    headers.insert(
        field::GRPC_RETRY_PUSHBACK,
        number_value(pushback(wait).unsigned_abs().into()),
    );
    let details = status_with_retry_info(code(rejection), &rejection.to_string(), wait);
    if let Ok(details) = HeaderValue::try_from(STANDARD_NO_PAD.encode(details)) {
        headers.insert(field::GRPC_STATUS_DETAILS, details);
    }
}

fn code(rejection: &Rejection) -> GrpcCode {
    match rejection.cause() {
        RejectionCause::Refused => RESOURCE_EXHAUSTED,
        RejectionCause::NoKey => INVALID_ARGUMENT,
        RejectionCause::Misconfigured => INTERNAL,
        RejectionCause::StoreFailed => UNAVAILABLE,
    }
}

/// In milliseconds, rounded up.
fn pushback(wait: Duration) -> i32 {
    i32::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(i32::MAX)
}

/// Encodes a `google.rpc.Status` with a `RetryInfo`. Each inner message is encoded first.
fn status_with_retry_info(code: GrpcCode, message: &str, wait: Duration) -> Vec<u8> {
    let mut duration = Vec::new();
    let seconds = i64::try_from(wait.as_secs()).unwrap_or(i64::MAX);
    encoding::int64::encode(1, &seconds, &mut duration);
    encoding::int32::encode(2, &wait.subsec_nanos().cast_signed(), &mut duration);

    let mut retry_info = Vec::new();
    encoding::bytes::encode(1, &duration, &mut retry_info);

    let mut any = Vec::new();
    encoding::string::encode(1, &RETRY_INFO.to_owned(), &mut any);
    encoding::bytes::encode(2, &retry_info, &mut any);

    let mut status = Vec::new();
    encoding::int32::encode(1, &code, &mut status);
    encoding::string::encode(2, &message.to_owned(), &mut status);
    encoding::bytes::encode(3, &any, &mut status);
    status
}

/// Decodes the `google.rpc.Status` of `grpc-status-details-bin`. Returns the delay of its `RetryInfo`, or zero if it has
/// none. `None` if it makes no sense.
pub(in crate::middleware) fn retry_delay(status: &str) -> Option<Duration> {
    let status = STANDARD_NO_PAD.decode(status.trim_end_matches('='));
    let details: Vec<Vec<u8>> = field(&status.ok()?, 3, encoding::bytes::merge_repeated)?;
    for any in details {
        if field(&any, 1, encoding::string::merge)? == RETRY_INFO {
            let retry_info: Vec<u8> = field(&any, 2, encoding::bytes::merge)?;
            let delay: Vec<u8> = field(&retry_info, 1, encoding::bytes::merge)?;
            let seconds = u64::try_from(field(&delay, 1, encoding::int64::merge)?).ok()?;
            let nanos = u64::try_from(field(&delay, 2, encoding::int32::merge)?).ok()?;
            let micros = Duration::from_micros(nanos.div_ceil(1_000));
            return Duration::from_secs(seconds).checked_add(micros);
        }
    }
    Some(Duration::ZERO)
}

/// Decodes one field of a message. Returns its default if it is absent. `None` if the message is malformed.
fn field<'a, T: Default>(
    mut message: &'a [u8],
    wanted: u32,
    merge: fn(WireType, &mut T, &mut &'a [u8], DecodeContext) -> Result<(), DecodeError>,
) -> Option<T> {
    let mut value = T::default();
    while !message.is_empty() {
        let (number, wire_type) = encoding::decode_key(&mut message).ok()?;
        let context = DecodeContext::default();
        if number == wanted {
            merge(wire_type, &mut value, &mut message, context).ok()?;
        } else {
            encoding::skip_field(wire_type, number, &mut message, context).ok()?;
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use http::{HeaderName, Request, StatusCode};
    use http_body::Body;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::decision::Source;
    use crate::decision::{Answer, QuotaAnswer};
    use crate::error::{Error, ErrorKind};
    use crate::key::{KeyError, KeyErrorKind};
    use crate::limiter::Decision;
    use crate::middleware::body::ResponseBody;
    use crate::middleware::rejection::RejectionReason;
    use crate::quota::Quota;

    /// `google.rpc.Status`, with the field numbers of its `.proto` file.
    #[derive(Clone, PartialEq, Message)]
    struct Status {
        #[prost(int32, tag = "1")]
        code: i32,
        #[prost(string, tag = "2")]
        message: String,
        #[prost(message, repeated, tag = "3")]
        details: Vec<prost_types::Any>,
    }

    /// `google.rpc.RetryInfo`.
    #[derive(Clone, PartialEq, Message)]
    struct RetryInfo {
        #[prost(message, optional, tag = "1")]
        retry_delay: Option<prost_types::Duration>,
    }

    fn refused(wait: Option<Duration>) -> RejectionReason {
        let refused = QuotaAnswer::refused(5, wait, Duration::ZERO);
        let answer = Answer::new(Source::Memory, [refused]);
        let decision = Decision::new(&Quota::per_minute(5).into(), 1, answer);
        RejectionReason::Refused(decision.into_view())
    }

    fn no_key(kind: KeyErrorKind) -> RejectionReason {
        RejectionReason::NoKey(KeyError::new(kind, "no `x-tenant` of 100 %"))
    }

    fn rejected(reason: RejectionReason) -> Response<Bytes> {
        Grpc("application/grpc").reject(&Rejection::new(&"search".into(), reason))
    }

    fn text<'a>(response: &'a Response<Bytes>, name: &HeaderName) -> &'a str {
        response.headers()[name].to_str().unwrap()
    }

    fn status_details(response: &Response<Bytes>) -> Status {
        let details = text(response, &field::GRPC_STATUS_DETAILS);
        let details = STANDARD_NO_PAD.decode(details).unwrap();
        Status::decode(&*details).unwrap()
    }

    #[test]
    fn a_call_is_recognized_by_its_content_type() {
        for (content_type, expected) in [
            ("application/grpc", Some("application/grpc")),
            ("application/grpc+proto", Some("application/grpc")),
            ("application/grpc+json;x=y", Some("application/grpc")),
            ("Application/GRPC", Some("application/grpc")),
            ("application/grpc-web", Some("application/grpc-web")),
            ("application/grpc-web+proto", Some("application/grpc-web")),
            (
                "application/grpc-web-text",
                Some("application/grpc-web-text"),
            ),
            (
                "application/grpc-web-text+proto",
                Some("application/grpc-web-text"),
            ),
            ("application/grpc;charset=utf-8", Some("application/grpc")),
            (
                "application/grpc-web-text;x=y",
                Some("application/grpc-web-text"),
            ),
            ("application/grp", None),
            ("application/grpcish", None),
            ("application/grpc-webby", None),
            ("application/grpc-web-texts+proto", None),
            ("application/grpc-", None),
            ("application/grpc/x", None),
            ("application/json", None),
            ("", None),
        ] {
            assert_eq!(
                variant(Method::POST, content_type),
                expected.map(Grpc),
                "{content_type}"
            );
            assert_eq!(variant(Method::GET, content_type), None, "{content_type}");
        }
        let without = Request::post("/").body(()).unwrap();
        assert_eq!(Grpc::from_request(&without.into_parts().0), None);
    }

    fn variant(method: Method, content_type: &str) -> Option<Grpc> {
        let request = Request::builder()
            .method(method)
            .header(CONTENT_TYPE, content_type)
            .body(())
            .unwrap();
        Grpc::from_request(&request.into_parts().0)
    }

    #[test]
    fn the_response_has_no_body_and_ends_the_stream() {
        for content_type in CONTENT_TYPES {
            let reason = refused(Some(Duration::from_secs(3)));
            let response = Grpc(content_type).reject(&Rejection::new(&"search".into(), reason));
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(text(&response, &CONTENT_TYPE), content_type);
            assert_eq!(text(&response, &field::GRPC_STATUS), "8");
            assert_eq!(text(&response, &field::GRPC_MESSAGE), "rate limit exceeded");
            assert_eq!(text(&response, &field::GRPC_RETRY_PUSHBACK), "3000");
            let body =
                ResponseBody::<http_body_util::Empty<Bytes>>::rejection(response.into_body());
            assert!(body.is_end_stream());
        }
    }

    #[test]
    fn the_status_depends_on_the_reason() {
        let failed = |kind| RejectionReason::Failed(Error::new(kind, "down"));
        for (reason, expected) in [
            (refused(None), "8"),
            (no_key(KeyErrorKind::Missing), "3"),
            (no_key(KeyErrorKind::Ambiguous), "3"),
            (no_key(KeyErrorKind::Invalid), "3"),
            (no_key(KeyErrorKind::Misconfigured), "13"),
            (failed(ErrorKind::CostTooLarge), "13"),
            (failed(ErrorKind::Unavailable), "14"),
            (failed(ErrorKind::Timeout), "14"),
        ] {
            assert_eq!(
                text(&rejected(reason.clone()), &field::GRPC_STATUS),
                expected,
                "{reason:?}"
            );
        }
    }

    #[test]
    fn a_message_is_percent_encoded() {
        let response = rejected(no_key(KeyErrorKind::Missing));
        assert_eq!(
            text(&response, &field::GRPC_MESSAGE),
            "cannot identify the client: no `x-tenant` of 100 %25"
        );
        let error = KeyError::new(KeyErrorKind::Missing, "kein Schlüssel\n");
        let response = rejected(RejectionReason::NoKey(error));
        assert_eq!(
            text(&response, &field::GRPC_MESSAGE),
            "cannot identify the client: kein Schl%C3%BCssel"
        );
    }

    #[test]
    fn if_no_wait_helps_the_client_must_not_retry() {
        for reason in [refused(None), no_key(KeyErrorKind::Missing)] {
            let response = rejected(reason);
            assert_eq!(text(&response, &field::GRPC_RETRY_PUSHBACK), "-1");
            assert!(!response.headers().contains_key(field::GRPC_STATUS_DETAILS));
        }
    }

    proptest! {
        #[test]
        fn another_decoder_reads_the_wait(micros in prop_oneof![1..u64::MAX - 1, 1..10_000_000_u64]) {
            let wait = Duration::from_micros(micros);
            let response = rejected(refused(Some(wait)));

            let pushback: i32 = text(&response, &field::GRPC_RETRY_PUSHBACK).parse().unwrap();
            let exact = micros.div_ceil(1_000);
            prop_assert_eq!(pushback, i32::try_from(exact).unwrap_or(i32::MAX));

            let status = status_details(&response);
            prop_assert_eq!(status.code, 8);
            prop_assert_eq!(status.message, "rate limit exceeded");
            let [details] = &*status.details else {
                panic!("{:?}", status.details);
            };
            prop_assert_eq!(&details.type_url, "type.googleapis.com/google.rpc.RetryInfo");
            let retry_info = RetryInfo::decode(&*details.value).unwrap();
            let delay = retry_info.retry_delay.unwrap();
            prop_assert_eq!(Duration::try_from(delay).unwrap(), wait);
        }

        #[test]
        fn the_wait_of_another_encoder_is_read(
            seconds in 0..i64::MAX,
            nanos in 0..1_000_000_000_i32,
            before in "[a-z./]{0,20}",
            is_padded: bool,
        ) {
            let delay = prost_types::Duration { seconds, nanos };
            let retry_info = RetryInfo { retry_delay: Some(delay) }.encode_to_vec();
            let other = prost_types::Any {
                type_url: format!("{before}/google.rpc.QuotaFailure"),
                value: before.clone().into(),
            };
            let retry_info = prost_types::Any {
                type_url: RETRY_INFO.to_owned(),
                value: retry_info,
            };
            let details = vec![other, retry_info];
            let status = Status { code: 8, message: before, details }.encode_to_vec();
            let text = if is_padded {
                STANDARD.encode(status)
            } else {
                STANDARD_NO_PAD.encode(status)
            };
            let micros = u64::from(nanos.unsigned_abs()).div_ceil(1_000);
            let expected = Duration::from_secs(seconds.unsigned_abs()) + Duration::from_micros(micros);
            prop_assert_eq!(retry_delay(&text), Some(expected));
        }

        /// Whatever an upstream sends, also after the start of a real status.
        #[test]
        fn no_details_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), kept in 0..80_usize) {
            let status = status_with_retry_info(8, "slow down", Duration::from_millis(1_500));
            for kept in [0, kept] {
                let bytes: Vec<_> = status.iter().take(kept).chain(&bytes).copied().collect();
                let _ = retry_delay(&STANDARD_NO_PAD.encode(bytes));
            }
        }
    }

    #[test]
    fn details_without_a_sensible_wait_tell_none() {
        assert_eq!(read(Vec::new()), Some(Duration::ZERO));
        assert_eq!(read(vec![retry_info(None)]), Some(Duration::ZERO));
        for (seconds, nanos) in [(-1, 0), (0, -1)] {
            let delay = prost_types::Duration { seconds, nanos };
            assert_eq!(read(vec![retry_info(Some(delay))]), None);
        }
        for malformed in ["!", "A", "/w", "Gv8"] {
            assert_eq!(retry_delay(malformed), None, "{malformed}");
        }
    }

    fn read(details: Vec<prost_types::Any>) -> Option<Duration> {
        let status = Status {
            code: 8,
            message: String::new(),
            details,
        };
        retry_delay(&STANDARD.encode(status.encode_to_vec()))
    }

    fn retry_info(retry_delay: Option<prost_types::Duration>) -> prost_types::Any {
        prost_types::Any {
            type_url: RETRY_INFO.to_owned(),
            value: RetryInfo { retry_delay }.encode_to_vec(),
        }
    }
}
