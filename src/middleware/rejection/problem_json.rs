//! Rejections as `application/problem+json` (RFC 9457).

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};

use super::rejection::{Rejection, RejectionCause, RejectionReason};
use super::text::above_share;
use crate::limiter::DecisionView;
use crate::middleware::headers::{violated_policies, whole_seconds};

const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

// The IETF's draft of the `RateLimit` fields asks IANA to register these types.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
/// The type of a problem that its status fully describes (RFC 9457, section 4.2.1).
const BLANK: &str = "about:blank";

/// Returns a responder that answers rejected requests with problem details in JSON (RFC 9457).
///
/// Pass it to [`RateLimitLayer::responder`](crate::RateLimitLayer::responder).
///
/// # Examples
///
/// ```
/// use tollgate::{MemoryStore, Quota, RateLimitLayer, problem_json};
///
/// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60)).responder(problem_json());
/// ```
///
/// A rejection by this layer looks like this:
///
/// ```text
/// HTTP/1.1 429 Too Many Requests
/// content-type: application/problem+json
/// cache-control: no-store
/// retry-after: 3
///
/// {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",
///  "title":"Request cannot be satisfied as assigned quota has been exceeded",
///  "status":429,"detail":"The same request can be satisfied in 3 s.","violated-policies":["default"]}
/// ```
///
/// # Problem types
///
/// | reason | status | `type` |
/// |---|---|---|
/// | a quota has refused the request | 429 | `https://iana.org/assignments/http-problem-types#quota-exceeded` |
/// | the same, with another [status](crate::RateLimitLayer::status) of the layer | that status | `about:blank` |
/// | the store has failed | 503 | `https://iana.org/assignments/http-problem-types#temporary-reduced-capacity` |
/// | the request has no key, or an ambiguous one | 400 | `about:blank` |
/// | the server is misconfigured, or the cost is too large | 500 | `about:blank` |
///
/// The two types of iana.org come from draft 11 of the IETF's `RateLimit` fields, and are not registered yet.
/// For other types, use [`problem_json_typed`].
///
/// `violated-policies` lists the names of the quotas that refused the request, as in the
/// [headers](crate::Headers). The document contains neither the key nor the address of the store.
pub fn problem_json() -> impl Fn(&Rejection) -> Response<Bytes> + Clone + Send + Sync + 'static {
    problem_json_typed(problem_type)
}

/// Returns a responder like [`problem_json`], with your own problem types.
///
/// `type_of` returns the `type` of the document: a URI that identifies the kind of problem. For
/// `about:blank`, the `title` is the text of the status.
///
/// # Examples
///
/// ```
/// use http::StatusCode;
/// use tollgate::problem_json_typed;
///
/// let respond = problem_json_typed(|rejection| match rejection.status() {
///     StatusCode::TOO_MANY_REQUESTS => "https://api.example.com/problems/too-many-requests",
///     _ => "about:blank",
/// });
/// ```
pub fn problem_json_typed<F, U>(
    type_of: F,
) -> impl Fn(&Rejection) -> Response<Bytes> + Clone + Send + Sync + 'static
where
    F: Fn(&Rejection) -> U + Clone + Send + Sync + 'static,
    U: AsRef<str>,
{
    move |rejection| {
        let mut response = Response::new(document(rejection, type_of(rejection).as_ref()));
        *response.status_mut() = rejection.status();
        response.headers_mut().insert(CONTENT_TYPE, MEDIA_TYPE);
        response
    }
}

fn problem_type(rejection: &Rejection) -> &'static str {
    match rejection.reason() {
        // The draft defines this type for 429 only.
        RejectionReason::Refused(_) if rejection.status() == StatusCode::TOO_MANY_REQUESTS => {
            QUOTA_EXCEEDED
        }
        _ if rejection.cause() == RejectionCause::StoreFailed => REDUCED_CAPACITY,
        _ => BLANK,
    }
}

fn document(rejection: &Rejection, problem_type: &str) -> Bytes {
    let mut json = String::with_capacity(256);
    json.push_str(r#"{"type":"#);
    push_string(problem_type, &mut json);
    json.push_str(r#","title":"#);
    push_string(title(rejection, problem_type), &mut json);
    json.push_str(r#","status":"#);
    json.push_str(rejection.status().as_str());
    json.push_str(r#","detail":"#);
    push_string(&detail(rejection), &mut json);
    if let RejectionReason::Refused(decision) = rejection.reason() {
        json.push_str(r#","violated-policies":["#);
        for (index, name) in violated_policies(decision).iter().enumerate() {
            if index > 0 {
                json.push(',');
            }
            push_string(name, &mut json);
        }
        json.push(']');
    }
    json.push('}');
    json.into()
}

fn title(rejection: &Rejection, problem_type: &str) -> &'static str {
    match rejection.reason() {
        RejectionReason::Refused(_) if problem_type != BLANK => {
            "Request cannot be satisfied as assigned quota has been exceeded"
        }
        _ if problem_type != BLANK && rejection.cause() == RejectionCause::StoreFailed => {
            "Request cannot be satisfied due to temporary server capacity constraints"
        }
        // RFC 9457, section 4.2.1: a blank type has the status as its title.
        _ => rejection.status().canonical_reason().unwrap_or("Error"),
    }
}

/// Any client may see it.
fn detail(rejection: &Rejection) -> String {
    match (rejection.reason(), rejection.retry_after()) {
        (RejectionReason::Refused(_), Some(wait)) => {
            let seconds = whole_seconds(wait).max(1);
            format!("The same request can be satisfied in {seconds} s.")
        }
        (RejectionReason::Refused(decision), None) if is_used_up(decision) => {
            "The quota is used up: waiting does not help.".to_owned()
        }
        (RejectionReason::Refused(decision), None) if above_share(decision).is_none() => {
            "The request asks for more than the quota ever allows: waiting does not help."
                .to_owned()
        }
        _ => rejection.to_string(),
    }
}

fn is_used_up(decision: &DecisionView) -> bool {
    let visible = decision.visible();
    visible.reported().is_some_and(|quota| quota.is_used_up())
}

/// Appends a JSON string. A document with five members needs no serializer.
fn push_string(text: &str, json: &mut String) {
    json.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => {
                json.push('\\');
                json.push(letter);
            }
            '\0'..' ' => json.push_str(&format!("\\u{:04x}", u32::from(letter))),
            letter => json.push(letter),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::decision::{Answer, QuotaAnswer, Source};
    use crate::error::{Error, ErrorKind};
    use crate::key::{KeyError, KeyErrorKind};
    use crate::limiter::Decision;
    use crate::middleware::headers::policy_names;
    use crate::quota::Quota;

    fn refused(wait: Option<Duration>) -> Rejection {
        let quotas = [
            Quota::per_minute(100).with_name("burst"),
            Quota::per_day(1_000).with_name("daily"),
        ];
        let answers = [
            QuotaAnswer::refused(100, wait, Duration::ZERO),
            QuotaAnswer::admitted(87, Duration::ZERO),
        ];
        let answer = Answer::new(Source::Memory, answers);
        let decision = Decision::new(&quotas.into(), 1, answer);
        let reason = RejectionReason::Refused(decision.into_view());
        Rejection::new(&"search".into(), reason)
    }

    fn failed(kind: ErrorKind) -> Rejection {
        let error = Error::new(kind, "10.1.2.3:6379 is down");
        Rejection::new(&"search".into(), RejectionReason::Failed(error))
    }

    fn no_key(kind: KeyErrorKind, text: &str) -> Rejection {
        let error = KeyError::new(kind, text);
        Rejection::new(&"search".into(), RejectionReason::NoKey(error))
    }

    fn read(response: &Response<Bytes>) -> Value {
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
        let document: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(document["status"], response.status().as_u16());
        document
    }

    #[test]
    fn a_refusal_names_the_violated_policies() {
        let response = problem_json()(&refused(Some(Duration::from_millis(2_001))));
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(
            read(&response),
            json!({
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Request cannot be satisfied as assigned quota has been exceeded",
                "status": 429,
                "detail": "The same request can be satisfied in 3 s.",
                "violated-policies": ["burst"],
            })
        );
    }

    #[test]
    fn the_detail_says_if_no_wait_helps() {
        let detail = &read(&problem_json()(&refused(None)))["detail"];
        assert!(detail.as_str().unwrap().contains("waiting does not help"));
    }

    #[test]
    fn a_failed_store_is_reduced_capacity_and_its_error_is_not_shown() {
        let response = problem_json()(&failed(ErrorKind::Unavailable));
        assert_eq!(
            read(&response),
            json!({
                "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                "title": "Request cannot be satisfied due to temporary server capacity constraints",
                "status": 503,
                "detail": "the rate limiter cannot decide",
            })
        );
    }

    #[test]
    fn problems_that_the_status_describes_are_about_blank() {
        for (rejection, status, title) in [
            (no_key(KeyErrorKind::Missing, "no `x`"), 400, "Bad Request"),
            (no_key(KeyErrorKind::Invalid, "no `x`"), 400, "Bad Request"),
            (
                no_key(KeyErrorKind::Misconfigured, "no `x`"),
                500,
                "Internal Server Error",
            ),
            (
                failed(ErrorKind::CostTooLarge),
                500,
                "Internal Server Error",
            ),
        ] {
            let document = read(&problem_json()(&rejection));
            assert_eq!(document["type"], "about:blank");
            assert_eq!(document["status"], status);
            assert_eq!(document["title"], title);
            assert_eq!(document.get("violated-policies"), None);
        }
    }

    #[test]
    fn a_custom_type_replaces_the_type_of_the_draft() {
        let typed = problem_json_typed(|rejection: &Rejection| match rejection.reason() {
            RejectionReason::Refused(_) => "https://example.com/too-fast",
            _ => BLANK,
        });
        let document = read(&typed(&refused(None)));
        assert_eq!(document["type"], "https://example.com/too-fast");
        assert_eq!(document["violated-policies"], json!(["burst"]));
        let document = read(&typed(&failed(ErrorKind::Unavailable)));
        assert_eq!(document["title"], "Service Unavailable");
    }

    /// A text of any characters, including control characters.
    const ANY_TEXT: &str = "(?s).*";

    proptest! {
        #[test]
        fn every_document_parses(
            text in ANY_TEXT,
            name in ANY_TEXT,
            limiter in ANY_TEXT,
        ) {
            let problem_type = text.clone();
            let typed = problem_json_typed(move |_| problem_type.clone());
            let document = read(&typed(&no_key(KeyErrorKind::Missing, &text)));
            prop_assert_eq!(document["type"].as_str(), Some(&*text));

            let quotas = [Quota::per_second(1).with_name(name), Quota::per_day(1)];
            let refused = QuotaAnswer::refused(1, None, Duration::ZERO);
            let answer = Answer::new(Source::Memory, [refused; 2]);
            let names = policy_names([(&*limiter, &quotas[..])]);
            let decision = Decision::by(&limiter, &quotas.into(), answer);
            let reason = RejectionReason::Refused(decision.into_view());
            let document = read(&typed(&Rejection::new(&(&*limiter).into(), reason)));
            prop_assert_eq!(&document["violated-policies"], &json!(names));
        }
    }
}
