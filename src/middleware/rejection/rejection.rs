//! The rejection of a request: its reason, and the status and wait that follow from it.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use crate::error::{Error, ErrorKind};
use crate::key::{KeyError, KeyErrorKind};
use crate::limiter::DecisionView;
use crate::middleware::headers::ResetFormat;

/// The seconds after which a client may retry if the store has failed. Most stores recover soon, but immediate
/// retries could overload one.
const STORE_RETRY_SECONDS: u64 = 1;

/// The rejection of a request: the reason, the name of the limiter, the status and the wait.
///
/// You get one in three places:
///
/// - in the extensions of the response, for outer layers such as logs and metrics. There it proves that a
///   rate limit rejected the request, which the status alone does not;
/// - as the argument of a [responder](crate::RateLimitLayer::responder),
/// - from [`Decision::or_reject`](crate::Decision::or_reject), for limits that a handler checks.
///
/// Clones are cheap.
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
    /// `None` if the decision has it: all threads would contend for its reference count.
    limiter: Option<Arc<str>>,
    reason: RejectionReason,
    /// The status if a quota refused the request.
    pub(in crate::middleware) refused_status: StatusCode,
    pub(in crate::middleware) told: ToldTimes,
}

/// The times that the response to a rejection tells. Layers outside lengthen them.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::middleware) struct ToldTimes {
    /// `None` if the response tells no wait.
    pub(in crate::middleware) wait: Option<Duration>,
    /// The format of `X-RateLimit-Reset`, if a layer has written it.
    pub(in crate::middleware) reset: Option<ResetFormat>,
}

/// The cause of a [`Rejection`], from which its status follows, and the code of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RejectionCause {
    /// A quota refuses the request.
    Refused,
    /// The client sent no valid key.
    NoKey,
    /// The server is misconfigured.
    Misconfigured,
    /// The store failed, and is expected to recover.
    StoreFailed,
}

/// The reason of a [`Rejection`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RejectionReason {
    /// A quota refused the request, or an operator [blocked](crate::Admin::block) the key: 429, or the
    /// [status](crate::RateLimitLayer::status) of the layer.
    Refused(DecisionView),
    /// The request has no key, or an ambiguous one: 400. If the server is misconfigured: 500.
    NoKey(KeyError),
    /// The check failed, and the [failure policy](crate::RateLimitLayer::on_failure) does not admit the
    /// request: 503. If a limiter without a layer refused because the cost is above a limit: 429. If the [cost](crate::RateLimitLayer::cost) is too large for any store, if the
    /// [levels](crate::RateLimitLayer::and) of the layer cannot be checked together, or if a limiter has a
    /// [lease](crate::RateLimitLayer::lease) and slots in flight: 500.
    Failed(Error),
}

impl Rejection {
    pub(in crate::middleware) fn new(limiter: &Arc<str>, reason: RejectionReason) -> Self {
        match reason {
            RejectionReason::Refused(decision) => Self::refused(decision),
            RejectionReason::NoKey(_) | RejectionReason::Failed(_) => Self {
                limiter: Some(Arc::clone(limiter)),
                ..Self::without_limiter(reason)
            },
        }
    }

    pub(super) fn refused(decision: DecisionView) -> Self {
        Self::without_limiter(RejectionReason::Refused(decision))
    }

    fn without_limiter(reason: RejectionReason) -> Self {
        Self {
            limiter: None,
            reason,
            refused_status: StatusCode::TOO_MANY_REQUESTS,
            told: ToldTimes::default(),
        }
    }

    /// Returns the name of the limiter that rejected the request. In a layer with several
    /// [levels](crate::RateLimitLayer::and), it is the limiter of the level that refused, also if that is
    /// [hidden](crate::LevelDecision::is_hidden): a responder should not show it to clients then.
    #[must_use]
    pub fn limiter(&self) -> &str {
        match &self.reason {
            RejectionReason::Refused(decision) => decision
                .reported_level()
                .map_or("", |level| level.limiter()),
            RejectionReason::NoKey(_) | RejectionReason::Failed(_) => {
                self.limiter.as_deref().unwrap_or_default()
            }
        }
    }

    /// Returns the reason why the request was rejected.
    #[must_use]
    pub fn reason(&self) -> &RejectionReason {
        &self.reason
    }

    /// Returns the status of the response; [`RejectionReason`] lists the status of each reason.
    ///
    /// A [responder](crate::RateLimitLayer::responder) may set another status than 200, and the rejection of a gRPC
    /// call has status 200.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.cause() {
            RejectionCause::Refused => self.refused_status,
            RejectionCause::NoKey => StatusCode::BAD_REQUEST,
            RejectionCause::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
            RejectionCause::StoreFailed => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(super) fn cause(&self) -> RejectionCause {
        match &self.reason {
            RejectionReason::Refused(_) => RejectionCause::Refused,
            RejectionReason::NoKey(error) => match error.kind() {
                KeyErrorKind::Missing | KeyErrorKind::Ambiguous | KeyErrorKind::Invalid => {
                    RejectionCause::NoKey
                }
                KeyErrorKind::Misconfigured => RejectionCause::Misconfigured,
            },
            RejectionReason::Failed(error) => match error.kind() {
                // The cost function of the application returned it, so no store could decide.
                ErrorKind::CostTooLarge => RejectionCause::Misconfigured,
                // A limiter without a layer refuses by this error.
                ErrorKind::CostExceedsLimit => RejectionCause::Refused,
                // The limiters of the layer are misconfigured.
                _ if error.is_config_error() => RejectionCause::Misconfigured,
                _ => RejectionCause::StoreFailed,
            },
        }
    }

    /// Returns the time after which the client can retry.
    ///
    /// It is the exact wait if a rate refused the request, an [estimate](DecisionView::is_wait_estimated) if slots did, and
    /// one second if the store failed. `None` if no wait helps: the cost is above a limit, a
    /// [total](crate::Quota::total) is used up, or the request has no key.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.reason {
            RejectionReason::Refused(decision) => decision.retry_after(),
            _ if self.cause() == RejectionCause::StoreFailed => {
                Some(Duration::from_secs(STORE_RETRY_SECONDS))
            }
            RejectionReason::Failed(_) | RejectionReason::NoKey(_) => None,
        }
    }

    /// Returns whether a quota refused the request, and the headers tell so: it is not of a hidden level.
    pub(in crate::middleware) fn tells_refusal(&self) -> bool {
        matches!(&self.reason, RejectionReason::Refused(decision) if !decision.visible().is_allowed())
    }
}

/// The rejection that a request would have got without the [dry run](crate::RateLimitLayer::dry_run).
///
/// A layer in a dry run inserts it into the extensions of the response, for outer layers such as logs and
/// metrics. Clones are cheap.
#[derive(Clone, Debug)]
pub struct WouldReject(pub(in crate::middleware) Rejection);

impl WouldReject {
    /// Returns the rejection that the request would have got.
    #[must_use]
    pub fn rejection(&self) -> &Rejection {
        &self.0
    }
}
