//! The reason why a request was rejected, and the status and wait that follow from it.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use crate::decision::DecisionView;
use crate::error::{Error, ErrorKind};
use crate::key::{KeyError, KeyErrorKind};

/// The seconds after which a client may retry when the store has failed. Most stores are back soon, but an
/// immediate retry could overload one.
const STORE_RETRY_SECONDS: u64 = 1;

/// The reason why a request was rejected, and how it was answered.
///
/// It is in the extensions of the response, so that an outer layer for logs or metrics need not guess it
/// from the status. Clones are cheap.
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
    /// Used if a quota has refused the request.
    refused_status: StatusCode,
}

/// The reasons of a [`Rejection`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RejectionReason {
    /// A quota has refused the request: 429, or the layer's [status](crate::RateLimitLayer::status).
    Refused(DecisionView),
    /// The request has no key, or an ambiguous one: 400. Or the server is not set up to know the key: 500.
    NoKey(KeyError),
    /// The store did not decide: 503, or 500 if no store could have.
    Failed(Error),
}

impl Rejection {
    pub(in crate::middleware) fn new(limiter: &Arc<str>, reason: RejectionReason) -> Self {
        Self {
            limiter: Arc::clone(limiter),
            reason,
            refused_status: StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// Sets the status of a request that a quota has refused.
    pub(in crate::middleware) fn with_status(self, status: StatusCode) -> Self {
        Self {
            refused_status: status,
            ..self
        }
    }

    /// The name of the limiter.
    #[must_use]
    pub fn limiter(&self) -> &str {
        &self.limiter
    }

    /// The reason why the request was rejected.
    #[must_use]
    pub fn reason(&self) -> &RejectionReason {
        &self.reason
    }

    /// The status of the response, unless a [responder](crate::RateLimitLayer::responder) sets another.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match &self.reason {
            RejectionReason::Refused(_) => self.refused_status,
            RejectionReason::NoKey(error) => match error.kind() {
                KeyErrorKind::Missing | KeyErrorKind::Ambiguous => StatusCode::BAD_REQUEST,
                KeyErrorKind::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
            },
            RejectionReason::Failed(error) => match error.kind() {
                // The application's own cost function, with any store.
                ErrorKind::CostTooLarge | ErrorKind::CostExceedsLimit => {
                    StatusCode::INTERNAL_SERVER_ERROR
                }
                _ => StatusCode::SERVICE_UNAVAILABLE,
            },
        }
    }

    /// The time that the client should wait, if waiting helps.
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

    pub(in crate::middleware) fn is_refused(&self) -> bool {
        matches!(self.reason, RejectionReason::Refused(_))
    }
}

/// The rejection that a request would have got, had a [dry run](crate::RateLimitLayer::dry_run) not let it
/// through.
///
/// It is in the extensions of the response, for outer layers. Clones are cheap.
#[derive(Clone, Debug)]
pub struct WouldReject {
    rejection: Rejection,
}

impl WouldReject {
    pub(in crate::middleware) fn new(rejection: Rejection) -> Self {
        Self { rejection }
    }

    /// The rejection that the request would have got.
    #[must_use]
    pub fn rejection(&self) -> &Rejection {
        &self.rejection
    }
}
