//! What a browser needs to see limits across origins.
//!
//! A script reads of an answer from another origin only the headers that CORS safelists, and neither
//! `Retry-After` nor any `RateLimit` header is among them: [`EXPOSED_HEADERS`] are to be exposed.
//!
//! `CorsLayer` belongs outside of the limit. A 429 that is answered outside of it has no
//! `Access-Control-Allow-Origin`, and all that a script sees of it is a network error. Outside, it also
//! answers preflights itself, which then never reach the limit. Where it is inside, or something else
//! does CORS, let them pass by [`is_preflight`]: a browser that gets a 429 for one gives up the whole
//! call, and since a preflight carries no credentials, it has no key by which a user is counted.
//!
//! # Examples
//!
//! ```
//! use axum::{Router, routing::get};
//! use tollgate::{MemoryStore, Quota, RateLimitLayer, cors};
//! use tower_http::cors::{Any, CorsLayer};
//!
//! let cors = CorsLayer::new()
//!     .allow_origin(Any)
//!     .expose_headers(cors::EXPOSED_HEADERS);
//!
//! // Of two layers of a router, the one that is added last is outside.
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "ok" }))
//!     .layer(RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100)))
//!     .layer(cors);
//! ```

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderName, Method};

use crate::middleware::headers::field_names as field;
use crate::middleware::rejection::grpc;

/// Every header that a layer may write and a script cannot read unless it is exposed: those of all
/// [dialects](crate::Headers), `Retry-After`, and those of gRPC-Web.
///
/// Not the header of a [dry run](crate::RateLimitLayer::dry_run_header), whose name is yours: add it where
/// scripts should read it.
///
/// Exposing `*` does the same, but not for requests with credentials.
pub const EXPOSED_HEADERS: [HeaderName; 13] = [
    RETRY_AFTER,
    field::RATELIMIT,
    field::POLICY,
    field::LIMIT,
    field::REMAINING,
    field::RESET,
    field::X_LIMIT,
    field::X_REMAINING,
    field::X_RESET,
    grpc::STATUS,
    grpc::MESSAGE,
    grpc::STATUS_DETAILS,
    grpc::RETRY_PUSHBACK,
];

/// Whether a browser asks for leave before it sends the request itself: `OPTIONS`, with an `Origin` and
/// the method that is to follow.
///
/// Other `OPTIONS` requests are requests like any, and anybody can send this one: where preflights
/// cost something, give them a generous limit by address rather than none.
#[must_use]
pub fn is_preflight(parts: &Parts) -> bool {
    parts.method == Method::OPTIONS
        && parts.headers.contains_key(ORIGIN)
        && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use http::{Request, header};

    use super::*;
    use crate::decision::{Answer, QuotaAnswer};
    use crate::decision::{Decision, Source};
    use crate::middleware::headers::Templates;
    use crate::middleware::headers::{Headers, IetfDraft};
    use crate::middleware::rejection::plain_text;
    use crate::middleware::rejection::{Rejection, RejectionReason, problem_json};
    use crate::quota::Quota;

    /// What a script reads unless it is told otherwise, by the Fetch standard.
    const SAFELISTED: [HeaderName; 7] = [
        header::CACHE_CONTROL,
        header::CONTENT_LANGUAGE,
        header::CONTENT_LENGTH,
        header::CONTENT_TYPE,
        header::EXPIRES,
        header::LAST_MODIFIED,
        header::PRAGMA,
    ];

    fn refusal() -> Rejection {
        let refused = QuotaAnswer::refused(9, Some(Duration::from_secs(1)), Duration::ZERO);
        let answer = Answer::new(Source::Memory, [refused]);
        let decision = Decision::new(&Quota::per_minute(9).into(), 1, answer).unwrap();
        let reason = RejectionReason::Refused(decision.into_view());
        Rejection::new(&"search".into(), reason)
    }

    #[test]
    fn every_header_that_is_written_is_exposed_and_no_other() {
        let mut written = HashSet::new();
        for draft in [
            IetfDraft::Draft03,
            IetfDraft::Draft06,
            IetfDraft::Draft07,
            IetfDraft::Draft11,
        ] {
            let headers = Headers::x_ratelimit().and(Headers::ietf(draft));
            let wording = Templates::new(&headers, &"search".into(), &Quota::per_minute(9).into());
            let mut response = plain_text(&refusal());
            refusal().complete(&wording, &mut response);
            written.extend(response.headers().keys().cloned());
        }
        for response in [
            grpc::Grpc::Web.refuse(&refusal()),
            problem_json()(&refusal()),
        ] {
            written.extend(response.headers().keys().cloned());
        }
        written.retain(|name| !SAFELISTED.contains(name));
        assert_eq!(written, HashSet::from(EXPOSED_HEADERS));
    }

    #[test]
    fn a_preflight_is_options_with_an_origin_and_a_method() {
        let asks_for_leave = |method: &str, headers: &[(&str, &str)]| {
            let request = headers
                .iter()
                .fold(Request::builder(), |request, (name, value)| {
                    request.header(*name, *value)
                });
            let request = request.method(method).body(()).unwrap();
            is_preflight(&request.into_parts().0)
        };
        let origin = ("origin", "https://example.com");
        let next = ("access-control-request-method", "PUT");
        assert!(asks_for_leave("OPTIONS", &[origin, next]));
        assert!(!asks_for_leave("OPTIONS", &[origin]));
        assert!(!asks_for_leave("OPTIONS", &[next]));
        assert!(!asks_for_leave("GET", &[origin, next]));
    }
}
