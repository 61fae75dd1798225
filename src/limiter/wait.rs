//! The wait for units or slots while the store fails.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::limiter::RateLimiter;
use crate::error::{Error, ErrorKind};
use crate::random::random;
use crate::telemetry::LineInterval;

/// The maximum waits before a failed check is repeated: the first one, and the last one.
const FIRST_OUTAGE_BACKOFF: Duration = Duration::from_millis(50);
const MAX_OUTAGE_BACKOFF: Duration = Duration::from_secs(1);

impl RateLimiter {
    /// Lets [`until_ready`](Self::until_ready), [`acquire`](Self::acquire) and those for several keys keep waiting while the
    /// store fails. By default, they return its error at once.
    ///
    /// Use it for jobs that should survive a restart of Redis, and for the requests of an
    /// [`OutboundLayer`](crate::OutboundLayer::new). Other checks still return the error, and other layers do not use the
    /// setting. Earlier clones keep their own.
    ///
    /// | kind of error | example | the wait |
    /// |---|---|---|
    /// | [`Timeout`](ErrorKind::Timeout) | Redis hangs | goes on |
    /// | [`QueueTimeout`](ErrorKind::QueueTimeout) | more checks than the connections carry | goes on |
    /// | [`Unavailable`](ErrorKind::Unavailable) | connection refused or lost, failover, open circuit breaker | goes on |
    /// | [`Full`](ErrorKind::Full) | Redis is out of memory | goes on |
    /// | [`Misconfigured`](ErrorKind::Misconfigured), [`InvalidReply`](ErrorKind::InvalidReply), [`Unsupported`](ErrorKind::Unsupported) | wrong password, another program on the port | ends with the error |
    /// | [`CostExceedsLimit`](ErrorKind::CostExceedsLimit), [`CostTooLarge`](ErrorKind::CostTooLarge) | a cost of 6 with a limit of 5 | ends with the error |
    /// | [`QuotasUnknown`](ErrorKind::QuotasUnknown) | only in layers | ends with the error |
    ///
    /// An open circuit breaker counts as the failure that opened it.
    ///
    /// After a failure, the limiter waits up to 50 ms and checks again, then up to 100 ms, and so on up to one
    /// second. Each wait is a random time between half of that and the whole, so that many workers do not return
    /// at once. A check while the [circuit breaker](crate::guide::failures) is open does not reach the store.
    /// It only starts the probe when that is due. So workers go on within about two seconds after the store has
    /// recovered.
    ///
    /// A line in the log says that the limiter waits, at most once a minute.
    ///
    /// `max_wait` is still counted from the call. When it is over, the limiter checks one last time, and returns
    /// the last error with the time that it waited. Its [source](std::error::Error::source) is the error of the
    /// store.
    ///
    /// With a [failure policy](Self::on_failure) that decides, there is no error to wait for: the wait goes by
    /// the fallback counts, or ends at once with [`open`](crate::FailurePolicy::open). With
    /// [`closed`](crate::FailurePolicy::closed), the wait goes on as without a policy.
    ///
    /// # Units that are charged twice
    ///
    /// If a reply was lost, because the check timed out or its connection broke, the store may have charged it. The
    /// wait cannot know, and its next check charges again. So a wait may charge its cost once more for each check
    /// that reached the store and failed. The circuit breaker bounds these: it opens after five such failures in a
    /// row, and then only sends probes, which charge nothing. The limit is never exceeded. These units are available
    /// again after their window.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "redis")]
    /// # {
    /// use std::time::Duration;
    /// use tollgate::{Error, Quota, RateLimiter, RedisStore};
    ///
    /// let store = RedisStore::open("redis://127.0.0.1:6379")?.prefix("jobs");
    /// let limiter = RateLimiter::new(store, Quota::per_day(9_500))
    ///     .name("video-api")
    ///     .wait_through_outages();
    ///
    /// async fn search(limiter: &RateLimiter) -> Result<bool, Error> {
    ///     let ten_minutes = Duration::from_secs(600);
    ///     let decision = limiter.until_ready("key1", 100, ten_minutes).await?;
    ///     Ok(decision.is_allowed())
    /// }
    /// # }
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn wait_through_outages(self) -> Self {
        let lines = LineInterval::new(Duration::from_secs(60));
        self.with(|inner| inner.waits_through_outages = Some(Arc::new(lines)))
    }

    pub(crate) fn is_waiting_through_outages(&self) -> bool {
        self.0.waits_through_outages.is_some()
    }

    /// Logs a wait that goes on, at most once a minute.
    pub(super) fn waits_through(&self, failure: &Error) -> bool {
        let Some(lines) = &self.0.waits_through_outages else {
            return false;
        };
        if may_pass(failure) && lines.is_due() {
            let limiter = &*self.0.facts.name;
            tracing::warn!(target: "tollgate::outage", code = failure.code(), limiter, "waiting until the store works again: {failure}");
        }
        true
    }
}

/// A wait that goes on while the store fails, from the call on.
pub(crate) struct OutageWait {
    started_at: Instant,
    max_wait: Duration,
    /// The failed checks since the last answer of the store.
    failures: u32,
}

impl OutageWait {
    pub(crate) fn new(max_wait: Duration) -> Self {
        Self {
            started_at: Instant::now(),
            max_wait,
            failures: 0,
        }
    }

    pub(in crate::limiter) fn answered(&mut self) {
        self.failures = 0;
    }

    /// Sleeps after a failure that may pass. Returns whether to check again.
    pub(in crate::limiter) async fn after_failure(&mut self, error: &Error) -> bool {
        let time_left = self.max_wait.saturating_sub(self.started_at.elapsed());
        if time_left.is_zero() || !may_pass(error) {
            return false;
        }
        let backoff = outage_backoff(self.failures, random());
        self.failures = self.failures.saturating_add(1);
        sleep(backoff.min(time_left)).await;
        true
    }

    /// Adds the time of the wait to the error that ended it, if the wait went on after an earlier failure.
    pub(crate) fn explain(&self, error: Error) -> Error {
        if self.failures == 0 || !may_pass(&error) {
            return error;
        }
        let waited = self.started_at.elapsed();
        error.within(&format!(
            "the store still fails after a wait of {waited:.1?}"
        ))
    }
}

/// The wait before a failed check is repeated, after this many earlier failures in a row. `random` is of the whole range of a `u32`.
fn outage_backoff(failures: u32, random: u32) -> Duration {
    let longest = FIRST_OUTAGE_BACKOFF
        .saturating_mul(2_u32.saturating_pow(failures))
        .min(MAX_OUTAGE_BACKOFF);
    let half = longest / 2;
    half + half.saturating_mul(random) / u32::MAX
}

/// Returns whether a check may pass later without a change of the set-up or of the check.
fn may_pass(error: &Error) -> bool {
    // The error of an open circuit breaker has the failure that opened it as its source.
    let cause = error
        .source()
        .and_then(|source| source.downcast_ref::<Error>())
        .unwrap_or(error);
    match cause.kind() {
        ErrorKind::Timeout | ErrorKind::QueueTimeout | ErrorKind::Unavailable | ErrorKind::Full => {
            true
        }
        ErrorKind::CostExceedsLimit
        | ErrorKind::CostTooLarge
        | ErrorKind::Misconfigured
        | ErrorKind::InvalidReply
        | ErrorKind::Unsupported
        | ErrorKind::QuotasUnknown
        | ErrorKind::MaxWait => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn waits_double_up_to_a_second_and_are_at_least_half_of_that() {
        let longest = [50, 100, 200, 400, 800, 1_000, 1_000];
        for (failures, longest) in (0..).zip(longest.map(|millis| millis * MILLI)) {
            assert_eq!(outage_backoff(failures, 0), longest / 2);
            assert_eq!(outage_backoff(failures, u32::MAX), longest);
        }
        assert_eq!(outage_backoff(u32::MAX, u32::MAX), MAX_OUTAGE_BACKOFF);
    }

    #[test]
    fn workers_that_failed_together_wait_for_different_times() {
        let waits: std::collections::HashSet<_> =
            (0..100).map(|_| outage_backoff(5, random())).collect();
        assert!(waits.len() > 90, "{}", waits.len());
        let first = *waits.iter().min().unwrap();
        let last = *waits.iter().max().unwrap();
        assert!(last - first > 250 * MILLI, "{first:?} to {last:?}");
    }

    #[test]
    fn an_open_breaker_counts_as_the_failure_that_opened_it() {
        for kind in ErrorKind::ALL {
            let open = Error::new(ErrorKind::Unavailable, "the circuit breaker is open")
                .with_source(Error::new(kind, "the last error"));
            let passes = matches!(
                kind,
                ErrorKind::Timeout
                    | ErrorKind::QueueTimeout
                    | ErrorKind::Unavailable
                    | ErrorKind::Full
            );
            assert_eq!(may_pass(&Error::new(kind, "an error")), passes, "{kind:?}");
            assert_eq!(may_pass(&open), passes, "{kind:?}");
        }
    }
}
