//! Why a request was not let through, and what it is answered.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::decision::DecisionView;
use crate::error::{Error, ErrorKind};
use crate::key::{KeyError, KeyErrorKind};
use crate::middleware::headers::{Place, Templates, value_of, whole_seconds};

/// After how many seconds a client may ask again when the store has failed: soon, since a store is
/// mostly back at once, and not at once, since it may be drowning.
const STORE_RETRY_SECONDS: u64 = 1;

/// How many headers a refusal has, with those that a server adds.
const HEADERS: usize = 8;

/// Why a request was not let through.
///
/// It stands in the extensions of the answer, so that a layer outside, of logs or metrics, need not
/// guess from the status. Cheap to clone.
///
/// # Examples
///
/// ```
/// use tollgate::{Rejection, RejectionReason};
///
/// fn log(response: &http::Response<()>) {
///     if let Some(rejection) = response.extensions().get::<Rejection>() {
///         match rejection.reason() {
///             RejectionReason::Refused(decision) => {
///                 println!("{}: over {}", rejection.limiter(), decision.limit());
///             }
///             reason => println!("{}: {reason:?}", rejection.limiter()),
///         }
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Rejection {
    limiter: Arc<str>,
    reason: RejectionReason,
    /// Where a quota has no room.
    status: StatusCode,
}

/// The reasons of a [`Rejection`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RejectionReason {
    /// A quota has no room: 429, or what the layer was
    /// [told](crate::RateLimitLayer::status).
    Refused(DecisionView),
    /// The request has no key that can be used: 400, or 500 where the server is not set up to know
    /// it.
    NoKey(KeyError),
    /// The store did not decide: 503, or 500 where no store could have.
    Failed(Error),
}

impl Rejection {
    pub(crate) fn new(limiter: &Arc<str>, reason: RejectionReason) -> Self {
        Self {
            limiter: Arc::clone(limiter),
            reason,
            status: StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// Has another status where a quota has no room.
    pub(crate) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// The name of the limiter.
    #[must_use]
    pub fn limiter(&self) -> &str {
        &self.limiter
    }

    /// Why the request was not let through.
    #[must_use]
    pub fn reason(&self) -> &RejectionReason {
        &self.reason
    }

    /// The status of the answer, unless a [responder](crate::RateLimitLayer::responder) gives it another.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match &self.reason {
            RejectionReason::Refused(_) => self.status,
            RejectionReason::NoKey(error) => match error.kind() {
                KeyErrorKind::Missing | KeyErrorKind::Ambiguous => StatusCode::BAD_REQUEST,
                KeyErrorKind::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
            },
            RejectionReason::Failed(error) => match error.kind() {
                // The author's cost, whichever store.
                ErrorKind::CostTooLarge | ErrorKind::CostExceedsLimit => {
                    StatusCode::INTERNAL_SERVER_ERROR
                }
                _ => StatusCode::SERVICE_UNAVAILABLE,
            },
        }
    }

    /// How long the client should wait, if waiting helps.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.reason {
            RejectionReason::Refused(decision) => decision.retry_after(),
            RejectionReason::Failed(_) if self.status() == StatusCode::SERVICE_UNAVAILABLE => {
                Some(Duration::from_secs(STORE_RETRY_SECONDS))
            }
            RejectionReason::Failed(_) | RejectionReason::NoKey(_) => None,
        }
    }

    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.reason, RejectionReason::Refused(_))
    }

    /// A short text, for people. It says nothing of the inside.
    pub(crate) fn body(&self) -> Bytes {
        match &self.reason {
            RejectionReason::Refused(_) => Bytes::from_static(b"rate limit exceeded\n"),
            RejectionReason::NoKey(error) if self.status() == StatusCode::BAD_REQUEST => {
                format!("cannot tell who the request is from: {error}\n").into()
            }
            RejectionReason::NoKey(_) => Bytes::from_static(b"the rate limiter is not set up\n"),
            RejectionReason::Failed(_) => Bytes::from_static(b"the rate limiter cannot decide\n"),
        }
    }

    /// Adds to an answer what every refusal has, and leaves this rejection in its extensions.
    pub(crate) fn complete(self, wording: &Templates, response: &mut Response<Bytes>) {
        let headers = response.headers_mut();
        // Made once, for all of these and those that others add.
        headers.reserve(HEADERS);
        // RFC 6585, section 4, forbids caches to store a 429; not all of them know.
        headers
            .entry(CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-store"));
        if let Some(wait) = self.retry_after() {
            headers
                .entry(RETRY_AFTER)
                .or_insert_with(|| value_of(whole_seconds(wait).max(1)));
        }
        if let RejectionReason::Refused(decision) = &self.reason {
            wording.write(decision, Place::Tightest, headers);
        }
        response.extensions_mut().insert(self);
    }

    /// Tells a longer wait in an answer that tells one, since a layer outside has no room before.
    pub(crate) fn lengthen_wait(&self, wait: Duration, headers: &mut HeaderMap) {
        let told = headers.get(RETRY_AFTER).and_then(seconds_of);
        if told.is_some_and(|told| told < wait) {
            headers.insert(RETRY_AFTER, value_of(whole_seconds(wait)));
        }
        super::grpc::lengthen_wait(self, wait, headers);
    }
}

fn seconds_of(value: &HeaderValue) -> Option<Duration> {
    let seconds = value.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// The answer of a layer that is told of no other: a short text.
pub(crate) fn plain_text(rejection: &Rejection) -> Response<Bytes> {
    let mut response = Response::new(rejection.body());
    *response.status_mut() = rejection.status();
    let headers = response.headers_mut();
    headers.reserve(HEADERS);
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}

/// Of a request that a [dry run](crate::RateLimitLayer::dry_run) let through: why it would have been
/// rejected.
///
/// It stands in the extensions of the answer, for layers outside. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WouldReject {
    rejection: Rejection,
}

impl WouldReject {
    pub(crate) fn new(rejection: Rejection) -> Self {
        Self { rejection }
    }

    /// The rejection that was spared.
    #[must_use]
    pub fn rejection(&self) -> &Rejection {
        &self.rejection
    }
}
