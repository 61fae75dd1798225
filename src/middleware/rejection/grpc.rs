//! The refusal of a gRPC call: trailers only, whatever the responder.
//!
//! A client of gRPC that gets a bare 429 takes it for `UNAVAILABLE`, which it may ask again at once. So
//! the answer is 200, and the reason stands in `grpc-status`, as the call's own status would.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use prost::encoding;

use super::rejection::{Rejection, RejectionReason};
use crate::error::ErrorKind;
use crate::key::KeyErrorKind;

pub(crate) const STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(crate) const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(crate) const STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
pub(crate) const RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// How many headers an answer has.
const HEADERS: usize = 5;

/// What `grpc-message` does not hold as it is: all but space, printable ASCII without the sign.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// How a client speaks gRPC, and so how it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grpc {
    Http2,
    Web,
    WebText,
}

/// `google.rpc.Code`, as far as a limit comes to it.
type Code = i32;
const INVALID_ARGUMENT: Code = 3;
const RESOURCE_EXHAUSTED: Code = 8;
const INTERNAL: Code = 13;
const UNAVAILABLE: Code = 14;

/// A negative pushback.
const DO_NOT_RETRY: HeaderValue = HeaderValue::from_static("-1");

/// What `Any` calls the message that says when to ask again.
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

impl Grpc {
    /// How a request speaks gRPC, if it does: by its content type, whatever the encoding of messages.
    /// Calls are posted, and nothing else.
    pub(crate) fn of(parts: &Parts) -> Option<Self> {
        if parts.method != Method::POST {
            return None;
        }
        let content_type = parts.headers.get(CONTENT_TYPE)?.as_bytes();
        let families = [Self::WebText, Self::Web, Self::Http2];
        families.into_iter().find(|family| {
            let name = family.content_type().as_bytes();
            let divided = content_type.split_at_checked(name.len());
            divided.is_some_and(|(beginning, rest)| {
                beginning.eq_ignore_ascii_case(name) && matches!(rest, [] | [b'+' | b';', ..])
            })
        })
    }

    /// There are no messages whose encoding could be told.
    fn content_type(self) -> &'static str {
        match self {
            Self::Http2 => "application/grpc",
            Self::Web => "application/grpc-web",
            Self::WebText => "application/grpc-web-text",
        }
    }

    /// Answers a call that is not let through. The body is empty, so that its headers end the stream.
    pub(crate) fn refuse(self, rejection: &Rejection) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.reserve(HEADERS);
        let content_type = HeaderValue::from_static(self.content_type());
        headers.insert(CONTENT_TYPE, content_type);
        headers.insert(STATUS, HeaderValue::from(code(rejection)));
        let message = utf8_percent_encode(&message(rejection), ENCODED).to_string();
        if let Ok(message) = HeaderValue::try_from(message) {
            headers.insert(MESSAGE, message);
        }
        match rejection.retry_after() {
            Some(wait) => insert_wait(rejection, wait, headers),
            None => {
                headers.insert(RETRY_PUSHBACK, DO_NOT_RETRY);
            }
        }
        response
    }
}

/// Tells a longer wait in an answer that tells one in the way of gRPC.
pub(super) fn lengthen_wait(rejection: &Rejection, wait: Duration, headers: &mut HeaderMap) {
    let told = headers.get(RETRY_PUSHBACK);
    let told = told.and_then(|told| told.to_str().ok()?.parse::<i32>().ok());
    if told.is_some_and(|told| (0..pushback(wait)).contains(&told)) {
        insert_wait(rejection, wait, headers);
    }
}

fn insert_wait(rejection: &Rejection, wait: Duration, headers: &mut HeaderMap) {
    headers.insert(RETRY_PUSHBACK, HeaderValue::from(pushback(wait)));
    let details = status_with_retry_info(code(rejection), &message(rejection), wait);
    if let Ok(details) = HeaderValue::try_from(STANDARD_NO_PAD.encode(details)) {
        headers.insert(STATUS_DETAILS, details);
    }
}

fn message(rejection: &Rejection) -> String {
    String::from_utf8_lossy(rejection.body().trim_ascii_end()).into_owned()
}

fn code(rejection: &Rejection) -> Code {
    match rejection.reason() {
        RejectionReason::Refused(_) => RESOURCE_EXHAUSTED,
        RejectionReason::NoKey(error) => match error.kind() {
            KeyErrorKind::Missing | KeyErrorKind::Ambiguous => INVALID_ARGUMENT,
            KeyErrorKind::Misconfigured => INTERNAL,
        },
        RejectionReason::Failed(error) => match error.kind() {
            ErrorKind::CostTooLarge | ErrorKind::CostExceedsLimit => INTERNAL,
            _ => UNAVAILABLE,
        },
    }
}

/// The milliseconds after which a client retries, rounded up.
fn pushback(wait: Duration) -> i32 {
    i32::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(i32::MAX)
}

/// `google.rpc.Status` with a `RetryInfo`, encoded from the inside out: a message in a message is
/// written as its bytes are.
fn status_with_retry_info(code: Code, message: &str, wait: Duration) -> Vec<u8> {
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

#[cfg(test)]
mod tests {
    use http::{HeaderName, Request, StatusCode};
    use http_body::Body;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::decision::{Answer, QuotaAnswer};
    use crate::decision::{Decision, Source};
    use crate::error::Error;
    use crate::key::KeyError;
    use crate::middleware::body::ResponseBody;
    use crate::quota::Quota;

    /// `google.rpc.Status`, as its `.proto` file numbers it.
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

    fn limited(wait: Option<Duration>) -> RejectionReason {
        let refused = QuotaAnswer::refused(5, wait, Duration::ZERO);
        let answer = Answer::new(Source::Memory, [refused]);
        let decision = Decision::new(&Quota::per_minute(5).into(), 1, answer).unwrap();
        RejectionReason::Refused(decision.into_view())
    }

    fn no_key(kind: KeyErrorKind) -> RejectionReason {
        RejectionReason::NoKey(KeyError::new(kind, "no `x-tenant` of 100 %"))
    }

    fn refused(reason: RejectionReason) -> Response<Bytes> {
        Grpc::Http2.refuse(&Rejection::new(&"search".into(), reason))
    }

    fn text<'a>(response: &'a Response<Bytes>, name: &HeaderName) -> &'a str {
        response.headers()[name].to_str().unwrap()
    }

    fn status_details(response: &Response<Bytes>) -> Status {
        let details = text(response, &STATUS_DETAILS);
        let details = STANDARD_NO_PAD.decode(details).unwrap();
        Status::decode(&*details).unwrap()
    }

    #[test]
    fn a_call_is_known_by_its_content_type() {
        for (content_type, expected) in [
            ("application/grpc", Some(Grpc::Http2)),
            ("application/grpc+proto", Some(Grpc::Http2)),
            ("application/grpc+json;x=y", Some(Grpc::Http2)),
            ("Application/GRPC", Some(Grpc::Http2)),
            ("application/grpc-web", Some(Grpc::Web)),
            ("application/grpc-web+proto", Some(Grpc::Web)),
            ("application/grpc-web-text", Some(Grpc::WebText)),
            ("application/grpc-web-text+proto", Some(Grpc::WebText)),
            ("application/grpc;charset=utf-8", Some(Grpc::Http2)),
            ("application/grpc-web-text;x=y", Some(Grpc::WebText)),
            ("application/grp", None),
            ("application/grpcish", None),
            ("application/grpc-webby", None),
            ("application/grpc-web-texts+proto", None),
            ("application/grpc-", None),
            ("application/grpc/x", None),
            ("application/json", None),
            ("", None),
        ] {
            let of = |method| {
                let request = Request::builder().method(method);
                let request = request.header(CONTENT_TYPE, content_type).body(());
                Grpc::of(&request.unwrap().into_parts().0)
            };
            assert_eq!(of(Method::POST), expected, "{content_type}");
            assert_eq!(of(Method::GET), None, "{content_type}");
        }
        let without = Request::post("/").body(()).unwrap();
        assert_eq!(Grpc::of(&without.into_parts().0), None);
    }

    #[test]
    fn the_answer_has_trailers_only_and_ends_the_stream() {
        for (grpc, content_type) in [
            (Grpc::Http2, "application/grpc"),
            (Grpc::Web, "application/grpc-web"),
            (Grpc::WebText, "application/grpc-web-text"),
        ] {
            let reason = limited(Some(Duration::from_secs(3)));
            let response = grpc.refuse(&Rejection::new(&"search".into(), reason));
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(text(&response, &CONTENT_TYPE), content_type);
            assert_eq!(text(&response, &STATUS), "8");
            assert_eq!(text(&response, &MESSAGE), "rate limit exceeded");
            assert_eq!(text(&response, &RETRY_PUSHBACK), "3000");
            let body =
                ResponseBody::<http_body_util::Empty<Bytes>>::rejection(response.into_body());
            assert!(body.is_end_stream());
        }
    }

    #[test]
    fn the_status_says_whose_fault_it_is() {
        let failed = |kind| RejectionReason::Failed(Error::new(kind, "down"));
        for (reason, expected) in [
            (limited(None), "8"),
            (no_key(KeyErrorKind::Missing), "3"),
            (no_key(KeyErrorKind::Ambiguous), "3"),
            (no_key(KeyErrorKind::Misconfigured), "13"),
            (failed(ErrorKind::CostTooLarge), "13"),
            (failed(ErrorKind::Unavailable), "14"),
            (failed(ErrorKind::Timeout), "14"),
        ] {
            assert_eq!(
                text(&refused(reason.clone()), &STATUS),
                expected,
                "{reason:?}"
            );
        }
    }

    #[test]
    fn a_message_is_percent_encoded() {
        let response = refused(no_key(KeyErrorKind::Missing));
        assert_eq!(
            text(&response, &MESSAGE),
            "cannot tell who the request is from: no `x-tenant` of 100 %25"
        );
        let error = KeyError::new(KeyErrorKind::Missing, "kein Schlüssel\n");
        let response = refused(RejectionReason::NoKey(error));
        assert_eq!(
            text(&response, &MESSAGE),
            "cannot tell who the request is from: kein Schl%C3%BCssel"
        );
    }

    #[test]
    fn where_no_wait_helps_a_client_is_told_not_to_retry() {
        for reason in [limited(None), no_key(KeyErrorKind::Missing)] {
            let response = refused(reason);
            assert_eq!(text(&response, &RETRY_PUSHBACK), "-1");
            assert!(!response.headers().contains_key(STATUS_DETAILS));
        }
    }

    proptest! {
        #[test]
        fn others_read_the_wait(micros in prop_oneof![1..u64::MAX - 1, 1..10_000_000_u64]) {
            let wait = Duration::from_micros(micros);
            let response = refused(limited(Some(wait)));

            let pushback: i32 = text(&response, &RETRY_PUSHBACK).parse().unwrap();
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
    }
}
