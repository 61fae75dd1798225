//! Support for browser scripts that call from another origin (CORS).
//!
//! A layer needs two things from your CORS setup:
//!
//! - **Expose the headers.** A script can read only a few headers of a cross-origin response, and neither
//!   `Retry-After` nor the headers of the limit are among them. Expose [`EXPOSED_HEADERS`].
//! - **Add `CorsLayer` outside of the limit.** Otherwise a 429 has no `Access-Control-Allow-Origin`, and a
//!   script sees only a network error. An outer `CorsLayer` also answers preflight requests itself, so they
//!   are not counted.
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
//! // The layer that is added last is the outer one.
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "ok" }))
//!     .layer(RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100)))
//!     .layer(cors);
//! ```
//!
//! # Preflight requests inside of the limit
//!
//! If `CorsLayer` has to be inside of the limit, or if handlers implement CORS, exempt preflight requests with
//! [`is_preflight`]. A browser that gets a 429 for a preflight request does not send the actual request. A
//! preflight request also has no credentials, so it has no key if users are counted by their credentials.

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderName, Method};

use crate::middleware::headers::field_names as field;

/// The headers of a layer that scripts can read only if CORS exposes them: `Retry-After`, the headers of all
/// [dialects](crate::Headers), and the headers of gRPC-Web.
///
/// Pass it to `CorsLayer::expose_headers` of tower-http. `Access-Control-Expose-Headers: *` has the same
/// effect, but not for requests with credentials.
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
    field::GRPC_STATUS,
    field::GRPC_MESSAGE,
    field::GRPC_STATUS_DETAILS,
    field::GRPC_RETRY_PUSHBACK,
];

/// Returns whether a request is a CORS preflight request: `OPTIONS` with `Origin` and
/// `Access-Control-Request-Method`.
///
/// Use it to exempt preflight requests, if they reach the limit. Any client can send such a request. So if it
/// is expensive to answer, do not exempt it, but give it a generous limit by address.
///
/// # Examples
///
/// ```
/// use tollgate::{MemoryStore, Quota, RateLimitLayer, cors};
///
/// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60)).skip(cors::is_preflight);
/// ```
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
    use crate::decision::{Answer, QuotaAnswer, Source};
    use crate::limiter::Decision;
    use crate::middleware::headers::{Headers, IetfDraft};
    #[cfg(feature = "grpc")]
    use crate::middleware::rejection::Grpc;
    use crate::middleware::rejection::{Rejection, RejectionReason, plain_text, problem_json};
    use crate::quota::Quota;

    /// The headers that scripts can always read, according to the Fetch standard.
    const SAFELISTED: [HeaderName; 7] = [
        header::CACHE_CONTROL,
        header::CONTENT_LANGUAGE,
        header::CONTENT_LENGTH,
        header::CONTENT_TYPE,
        header::EXPIRES,
        header::LAST_MODIFIED,
        header::PRAGMA,
    ];

    fn rejection() -> Rejection {
        let refused = QuotaAnswer::refused(9, Some(Duration::from_secs(1)), Duration::ZERO);
        let answer = Answer::new(Source::Memory, [refused]);
        let decision = Decision::new(&Quota::per_minute(9).into(), 1, answer);
        let reason = RejectionReason::Refused(decision.into_view());
        Rejection::new(&"search".into(), reason)
    }

    #[test]
    fn exactly_the_headers_that_a_layer_writes_are_exposed() {
        let mut written = HashSet::new();
        for draft in [
            IetfDraft::Draft03,
            IetfDraft::Draft06,
            IetfDraft::Draft07,
            IetfDraft::Draft11,
        ] {
            let headers = Headers::x_ratelimit().and(Headers::ietf(draft));
            let mut response = plain_text()(&rejection());
            rejection().complete(&headers, &mut response);
            written.extend(response.headers().keys().cloned());
        }
        let problem = problem_json()(&rejection());
        written.extend(problem.headers().keys().cloned());
        #[cfg(feature = "grpc")]
        {
            let grpc = Grpc("application/grpc-web").reject(&rejection());
            written.extend(grpc.headers().keys().cloned());
        }
        written.retain(|name| !SAFELISTED.contains(name));
        let mut exposed = HashSet::from(EXPOSED_HEADERS);
        exposed.retain(|name| cfg!(feature = "grpc") || !name.as_str().starts_with("grpc-"));
        assert_eq!(written, exposed);
    }

    #[test]
    fn a_preflight_is_options_with_an_origin_and_a_method() {
        let origin = ("origin", "https://example.com");
        let next = ("access-control-request-method", "PUT");
        assert!(is_preflight(&request("OPTIONS", &[origin, next])));
        assert!(!is_preflight(&request("OPTIONS", &[origin])));
        assert!(!is_preflight(&request("OPTIONS", &[next])));
        assert!(!is_preflight(&request("GET", &[origin, next])));
    }

    fn request(method: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }
}
