//! Rejections by a limiter that a handler asks, without a layer.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use super::rejection::{Rejection, RejectionReason};
use crate::error::Error;
use crate::limiter::{Acquired, Decision, Permit};
use crate::middleware::headers::Headers;

impl Rejection {
    /// Returns the complete response: what the responder returns, with the status and the headers of every rejection.
    ///
    /// For limits that a handler checks, because the key or the cost is in the body. The responder is
    /// [`plain_text`](crate::plain_text()), [`problem_json`](crate::problem_json()) or your own. A response of
    /// status 200 gets the [status](Self::status) of the rejection. These headers are added:
    /// `Cache-Control: no-store`, `Retry-After` unless no wait helps, and the `headers` if a quota refused. The
    /// extensions have this rejection.
    ///
    /// With the feature `axum-08`, a rejection can be returned from a handler. It then has the default headers and
    /// plain text.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Headers, MemoryStore, Quota, RateLimiter, Rejection, problem_json};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// async fn search(limiter: &RateLimiter, tenant: &str) -> Result<&'static str, Rejection> {
    ///     limiter.check(tenant).await?.or_reject()?;
    ///     Ok("found")
    /// }
    ///
    /// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(1)).name("search");
    /// assert_eq!(search(&limiter, "acme").await.unwrap(), "found");
    ///
    /// let rejection = search(&limiter, "acme").await.unwrap_err();
    /// let response = rejection.response(&Headers::default(), problem_json());
    /// assert_eq!(response.status(), 429);
    /// assert_eq!(response.headers()["retry-after"], "60");
    /// assert_eq!(response.headers()["x-ratelimit-remaining"], "0");
    /// # });
    /// ```
    pub fn response(
        &self,
        headers: &Headers,
        responder: impl FnOnce(&Self) -> Response<Bytes>,
    ) -> Response<Bytes> {
        let mut response = responder(self);
        self.clone().complete(headers, &mut response);
        response
    }
}

impl Decision {
    /// Returns the decision if it is an admission, and the rejection of the request otherwise.
    ///
    /// For limits that a handler checks: see [`Rejection::response`]. An [`Error`] of the check becomes a rejection
    /// by `?`.
    ///
    /// # Errors
    ///
    /// Returns the rejection if a quota refused the check, or an operator blocked the key.
    pub fn or_reject(self) -> Result<Self, Rejection> {
        if self.is_allowed() {
            return Ok(self);
        }
        Err(Rejection::refused(self.into_view()))
    }
}

impl Acquired {
    /// Returns the permit, and the rejection of the request if a quota refused it.
    ///
    /// For slots and units that a handler holds: see [`Rejection::response`].
    ///
    /// # Errors
    ///
    /// Returns the rejection if a quota refused the check, or an operator blocked the key.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{RateLimiter, Rejection};
    ///
    /// async fn export(exports: &RateLimiter, tenant: &str) -> Result<&'static str, Rejection> {
    ///     let _permit = exports.try_acquire(tenant).await?.or_reject()?;
    ///     Ok("exported")
    /// }
    /// ```
    pub fn or_reject(self) -> Result<Permit, Rejection> {
        match self {
            Self::Permit(permit) => Ok(permit),
            Self::Refused(decision) => Err(Rejection::refused(decision.into_view())),
        }
    }
}

/// Makes the error of a check a rejection, for `?` in a handler. The name of its limiter is empty: the error does
/// not have it.
impl From<Error> for Rejection {
    fn from(error: Error) -> Self {
        Self::new(&Arc::from(""), RejectionReason::Failed(error))
    }
}
