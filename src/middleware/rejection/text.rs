//! Rejections as short plain text.

use std::error::Error as StdError;
use std::fmt;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};

use super::rejection::{Rejection, RejectionCause, RejectionReason};
use crate::error::ErrorKind;
use crate::limiter::DecisionView;

/// The number of headers of a rejection, including those that the server adds.
pub(super) const HEADERS: usize = 8;

/// Returns the default responder, which answers rejected requests with a short text.
///
/// See [`RateLimitLayer::responder`](crate::RateLimitLayer::responder) and
/// [`Rejection::response`](crate::Rejection::response).
pub fn plain_text() -> impl Fn(&Rejection) -> Response<Bytes> + Clone + Send + Sync + 'static {
    respond
}

fn respond(rejection: &Rejection) -> Response<Bytes> {
    let mut response = Response::new(line(rejection));
    *response.status_mut() = rejection.status();
    let headers = response.headers_mut();
    headers.reserve(HEADERS);
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}

/// Writes the text of [`plain_text`], such as `rate limit exceeded`. Any client may see it: it contains no key and no error
/// of the store. If the cost is above the bound of a share, it names both.
impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(line(self).trim_ascii_end()))
    }
}

/// The [source](StdError::source) is the error of the store or of the key, which no client may see.
impl StdError for Rejection {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self.reason() {
            RejectionReason::Refused(_) => None,
            RejectionReason::NoKey(error) => Some(error),
            RejectionReason::Failed(error) => Some(error),
        }
    }
}

/// Says that the cost is above what shares leave of the limit, which no header shows. `None` of any other refusal, and of one
/// by a hidden level.
pub(super) fn above_share(decision: &DecisionView) -> Option<String> {
    // The longest wait, of all levels.
    if decision.retry_after().is_some() {
        return None;
    }
    let visible = decision.visible();
    let refusing = visible
        .reported()
        .filter(|quota| !quota.is_allowed() && quota.retry_after().is_none())?;
    let cost = refusing.cost();
    let most = refusing.ceiling();
    let is_above = cost > most && most < refusing.limit();
    is_above.then(|| {
        format!(
            "the request costs {cost}, more than its {}",
            refusing.bound()
        )
    })
}

fn line(rejection: &Rejection) -> Bytes {
    match rejection.reason() {
        RejectionReason::Refused(decision) => match above_share(decision) {
            Some(text) => format!("{text}\n").into(),
            None => Bytes::from_static(b"rate limit exceeded\n"),
        },
        RejectionReason::NoKey(error) if rejection.cause() == RejectionCause::NoKey => {
            format!("cannot identify the client: {error}\n").into()
        }
        RejectionReason::NoKey(_) => Bytes::from_static(b"the rate limiter is not set up\n"),
        RejectionReason::Failed(error) if error.kind() == ErrorKind::CostExceedsLimit => {
            Bytes::from_static(b"the request costs more than its quota ever admits\n")
        }
        RejectionReason::Failed(_) => Bytes::from_static(b"the rate limiter cannot decide\n"),
    }
}
