//! Rate limits for browsers that call from another origin (CORS).
//!
//! A script can read only the safelisted headers of a cross-origin response. Neither `Retry-After` nor any
//! `RateLimit` header is among them: expose [`EXPOSED_HEADERS`].
//!
//! Add `CorsLayer` outside the limit. There it also answers preflights itself, so they never reach the
//! limit. A 429 from a limit outside of it has no `Access-Control-Allow-Origin`, and a script sees only a
//! network error.
//!
//! If `CorsLayer` is inside, or something else handles CORS, let preflights pass by [`is_preflight`]. A
//! browser that gets a 429 for a preflight gives up the whole call. And a preflight carries no credentials,
//! so it has no key by which a user is counted.
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

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderName, Method};

use crate::middleware::headers::field_names as field;

/// The headers that a layer may write and that scripts can read only if they are exposed: those of all
/// [dialects](crate::Headers), `Retry-After`, and those of gRPC-Web.
///
/// The header of a [dry run](crate::RateLimitLayer::dry_run_header) is not among them, since the application
/// chooses its name. Add it if scripts should read it.
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
    field::GRPC_STATUS,
    field::GRPC_MESSAGE,
    field::GRPC_STATUS_DETAILS,
    field::GRPC_RETRY_PUSHBACK,
];

/// Whether a request is a preflight, which a browser sends before the request itself: `OPTIONS` with an
/// `Origin` and an `Access-Control-Request-Method`.
///
/// Any client can send one. If preflights are expensive, give them a generous limit by address rather than
/// none. Other `OPTIONS` requests are ordinary requests.
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
    use crate::decision::{Answer, Decision, QuotaAnswer, Source};
    use crate::middleware::headers::{Headers, IetfDraft, Templates};
    use crate::middleware::rejection::{Rejection, RejectionReason, plain_text, problem_json};
    use crate::quota::Quota;

    /// The headers that scripts can always read, by the Fetch standard.
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
            let templates =
                Templates::new(&headers, &"search".into(), &Quota::per_minute(9).into());
            let mut response = plain_text(&rejection());
            rejection().complete(&templates, &mut response);
            written.extend(response.headers().keys().cloned());
        }
        for response in [
            #[cfg(feature = "grpc")]
            crate::middleware::rejection::Grpc::Web.reject(&rejection()),
            problem_json()(&rejection()),
        ] {
            written.extend(response.headers().keys().cloned());
        }
        written.retain(|name| !SAFELISTED.contains(name));
        let mut exposed = HashSet::from(EXPOSED_HEADERS);
        exposed.retain(|name| cfg!(feature = "grpc") || !name.as_str().starts_with("grpc-"));
        assert_eq!(written, exposed);
    }

    #[test]
    fn a_preflight_is_options_with_an_origin_and_a_method() {
        let is_preflight_of = |method: &str, headers: &[(&str, &str)]| {
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
        assert!(is_preflight_of("OPTIONS", &[origin, next]));
        assert!(!is_preflight_of("OPTIONS", &[origin]));
        assert!(!is_preflight_of("OPTIONS", &[next]));
        assert!(!is_preflight_of("GET", &[origin, next]));
    }
}
