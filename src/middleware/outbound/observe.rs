//! The answer of an upstream, which tells a limiter when to send again.

use std::time::Duration;

use http::{HeaderMap, StatusCode};

use super::upstream_wait::{UpstreamOutcome, UpstreamWait, read};
use crate::key::IntoKey;
use crate::limiter::RateLimiter;

impl RateLimiter {
    /// Pauses a key in all processes if the response of an upstream says so, as
    /// [`pause`](Self::pause) does. Returns how long. `None` if the response says nothing of that kind.
    ///
    /// - A **refusal** pauses the key for its `Retry-After`, or for its `retry-after-ms`. A refusal has the status 429, 420 or
    ///   529, or 403, 408, 413, 500, 502, 503 or 504 with one of these headers.
    /// - A **refusal by gRPC** pauses the key for its `grpc-retry-pushback-ms` or, with the feature `grpc`, for the
    ///   `RetryInfo` of its details. It has the `grpc-status` 8 or 14 in its head.
    /// - A **429, 420 or 529 without them** pauses the key until the reset of a limit that has no units left. If the headers
    ///   name none, until the first reset. If they tell no time at all, for the [default pause](Self::default_pause).
    /// - A refusal that says that the **allowance is used up** may pause the key for longer: see
    ///   [`max_exhausted_pause`](Self::max_exhausted_pause).
    /// - Any response with **no units left** pauses the key until the reset of that limit. Other numbers change
    ///   nothing.
    ///
    /// [The guide](crate::guide::upstreams#headers-that-are-understood) has the table of all headers. A wait that is longer than
    /// [`max_pause`](Self::max_pause) is cut to it.
    ///
    /// A wait is counted from the `Date` of the response, if it has one, so that the clocks of both sides may differ. What
    /// makes no sense is ignored, and counted in the metric `tollgate_upstream_answers_total`: a date in the past, a
    /// negative number, or several values that differ.
    ///
    /// The headers may also be the trailers of a gRPC call. [`pause`](Self::pause) says when other processes obey.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn get(limiter: tollgate::RateLimiter) -> Result<(), reqwest::Error> {
    /// let response = reqwest::get("http://mail.example/").await?;
    /// limiter.observe("mail.example", response.status(), response.headers());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{HeaderMap, StatusCode};
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(60)).name("mail");
    /// let mut headers = HeaderMap::new();
    /// assert_eq!(limiter.observe("other.example", StatusCode::OK, &headers), None);
    ///
    /// headers.insert("retry-after", "20".parse()?);
    /// let paused = limiter.observe("mail.example", StatusCode::TOO_MANY_REQUESTS, &headers);
    /// assert!(paused > Some(Duration::from_secs(19)));
    /// # Ok::<(), http::header::InvalidHeaderValue>(())
    /// ```
    #[doc(alias("observe_head"))]
    pub fn observe(
        &self,
        key: impl IntoKey,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Option<Duration> {
        self.0.pauses.need_fresh_list();
        let key = key.into_key();
        let answer = read(status, headers);
        if answer.outcome == UpstreamOutcome::Served {
            self.was_served(&key);
        }
        let wait = match answer.wait {
            UpstreamWait::Told(wait) => Some(wait),
            UpstreamWait::Senseless | UpstreamWait::Untold => None,
        };
        if !matches!(answer.wait, UpstreamWait::Untold) {
            self.0.telemetry.record_upstream_answer(wait.is_some());
        }
        let paused = if answer.is_exhausted {
            self.pause_exhausted(&key, wait)
        } else if let Some(wait) = wait {
            self.pause(&key, wait)
        } else if answer.outcome == UpstreamOutcome::TooMany {
            self.pause_by_default(&key)
        } else {
            return None;
        };
        (wait.is_some() || !paused.is_zero()).then_some(paused)
    }
}
