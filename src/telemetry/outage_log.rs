//! Logs one line when an outage begins and one when it ends.

use std::error::Error as _;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::decision::Source;
use crate::error::{Error, ErrorKind};

/// The time without a failure after which an outage is over. Without it, a store that fails now and then
/// would log each failure.
const QUIET: Duration = Duration::from_secs(1);

/// The factor by which [`QUIET`] is longer for a wrong set-up.
const QUIETER: u32 = 60;

/// The outages of a store or a lookup, as one handle of a limiter has logged them.
#[derive(Debug)]
pub(crate) struct OutageLog {
    /// The name of the store or lookup in the log.
    subject: &'static str,
    /// The state that was logged last.
    logged: AtomicU8,
    /// The time of the last failure, in milliseconds since `start`.
    last_failure: AtomicU64,
    start: Instant,
    quiet: Duration,
}

/// The states that are logged.
const WORKING: u8 = 0;
const FAILING: u8 = 1;
const MISCONFIGURED: u8 = 2;

impl OutageLog {
    /// Creates the log of a subject, such as "the store".
    pub(crate) fn new(subject: &'static str) -> Self {
        Self::with_quiet(subject, QUIET)
    }

    /// Creates the log of a subject that may fail for some keys while it works for others.
    pub(crate) fn per_key(subject: &'static str) -> Self {
        Self::with_quiet(subject, QUIET * QUIETER)
    }

    fn with_quiet(subject: &'static str, quiet: Duration) -> Self {
        Self {
            subject,
            logged: AtomicU8::new(WORKING),
            last_failure: AtomicU64::default(),
            start: Instant::now(),
            quiet,
        }
    }

    /// Records a failure. Logs the first failure of an outage with its consequence, and the first that is due
    /// to a wrong set-up.
    pub(crate) fn record_failure(&self, limiter: &str, consequence: &str, error: &Error) {
        self.last_failure.store(self.millis(), Ordering::Relaxed);
        let is_misconfigured = error.kind() == ErrorKind::Misconfigured;
        let state = if is_misconfigured {
            MISCONFIGURED
        } else {
            FAILING
        };
        if self.logged.fetch_max(state, Ordering::Relaxed) >= state {
            return;
        }
        if is_misconfigured {
            tracing::error!(target: "tollgate::outage", limiter, "{} is misconfigured, {consequence}: {}", self.subject, WithSource(error));
        } else {
            tracing::warn!(target: "tollgate::outage", limiter, "{} failed, {consequence}: {}", self.subject, WithSource(error));
        }
    }

    /// Records a decision. It is a success if the store made it.
    #[inline]
    pub(crate) fn record_decision(&self, limiter: &str, source: Source) {
        if !matches!(
            source,
            Source::Lease | Source::RefusalCache | Source::Block | Source::None
        ) {
            self.record_success(limiter);
        }
    }

    /// Records a success. Logs the end of an outage.
    #[inline]
    pub(crate) fn record_success(&self, limiter: &str) {
        // Read only: a write would move the cache line between cores on each request.
        let logged = self.logged.load(Ordering::Relaxed);
        if logged != WORKING {
            self.end_outage(limiter, logged);
        }
    }

    #[cold]
    fn end_outage(&self, limiter: &str, logged: u8) {
        let last_failure = Duration::from_millis(self.last_failure.load(Ordering::Relaxed));
        // A wrong set-up may affect one key, while the store decides others.
        let quiet = if logged == MISCONFIGURED {
            self.quiet * QUIETER
        } else {
            self.quiet
        };
        let is_over = self.start.elapsed().saturating_sub(last_failure) >= quiet;
        if is_over && self.logged.swap(WORKING, Ordering::Relaxed) != WORKING {
            tracing::info!(target: "tollgate::outage", limiter, "{} works again", self.subject);
        }
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Formats an error. Adds the source if the lookup of quotas failed, because the source is an error of the
/// application, which the text does not contain.
struct WithSource<'a>(&'a Error);

impl fmt::Display for WithSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(error) = self;
        match error.source() {
            Some(source) if error.kind() == ErrorKind::QuotasUnknown => {
                write!(f, "{error}: {source}")
            }
            _ => error.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::log_of;

    #[test]
    fn the_beginning_and_the_end_of_an_outage_are_logged() {
        let error = Error::new(ErrorKind::Unavailable, "connection refused");
        let log = log_of(|| {
            let outage = OutageLog::with_quiet("the store", Duration::ZERO);
            for _ in 0..2 {
                for _ in 0..100 {
                    outage.record_failure("search", "checks are not admitted", &error);
                }
                for _ in 0..100 {
                    outage.record_decision("search", Source::Redis);
                }
            }
        });
        let levels: Vec<_> = log
            .iter()
            .filter_map(|line| line.split_whitespace().nth(1))
            .collect();
        assert_eq!(levels, ["WARN", "INFO", "WARN", "INFO"], "{log:?}");
        assert!(log[0].contains("connection refused"), "{log:?}");
    }

    #[test]
    fn a_wrong_setup_is_louder() {
        let error = Error::new(ErrorKind::Misconfigured, "WRONGTYPE");
        let log = log_of(|| {
            OutageLog::new("the store").record_failure("search", "checks are not admitted", &error);
        });
        assert!(log[0].contains("ERROR"), "{log:?}");
    }

    #[test]
    fn a_wrong_setup_is_logged_after_an_outage_too() {
        let log = log_of(|| {
            let outage = OutageLog::new("the store");
            for kind in [ErrorKind::Unavailable, ErrorKind::Misconfigured] {
                for _ in 0..100 {
                    let error = Error::new(kind, "what it is");
                    outage.record_failure("search", "checks are not admitted", &error);
                }
            }
        });
        assert_eq!(log.len(), 2, "{log:?}");
        assert!(log[1].contains("ERROR"), "{log:?}");
    }

    #[test]
    fn a_refusal_from_memory_does_not_end_an_outage() {
        let error = Error::new(ErrorKind::Unavailable, "connection refused");
        let log = log_of(|| {
            let outage = OutageLog::with_quiet("the store", Duration::ZERO);
            outage.record_failure("search", "checks are not admitted", &error);
            outage.record_decision("search", Source::RefusalCache);
            outage.record_decision("search", Source::None);
        });
        assert_eq!(log.len(), 1, "{log:?}");
    }

    #[test]
    fn one_key_with_a_wrong_setup_is_not_logged_each_time() {
        let error = Error::new(ErrorKind::Misconfigured, "WRONGTYPE");
        let log = log_of(|| {
            let outage = OutageLog::with_quiet("the store", Duration::from_millis(1));
            for _ in 0..5 {
                outage.record_failure("search", "checks are not admitted", &error);
                std::thread::sleep(Duration::from_millis(2));
                outage.record_decision("search", Source::Redis);
            }
        });
        assert_eq!(log.len(), 1, "{log:?}");
    }

    #[test]
    fn a_store_that_fails_now_and_then_is_not_logged_each_time() {
        let error = Error::new(ErrorKind::Timeout, "too late");
        let log = log_of(|| {
            let outage = OutageLog::with_quiet("the store", Duration::from_secs(3_600));
            for _ in 0..100 {
                outage.record_failure("search", "checks are not admitted", &error);
                outage.record_decision("search", Source::Redis);
            }
        });
        assert_eq!(log.len(), 1, "{log:?}");
    }

    #[test]
    fn the_line_says_what_happens_until_when() {
        let error = Error::new(ErrorKind::Unavailable, "connection refused");
        let log = log_of(|| {
            OutageLog::new("the store").record_failure("search", "all is admitted", &error);
        });
        let text = "the store failed, all is admitted: connection refused";
        assert!(
            log[0].contains(text) && log[0].contains("search"),
            "{log:?}"
        );
    }

    #[test]
    fn the_line_has_the_source_of_a_failed_lookup() {
        let error = Error::new(ErrorKind::QuotasUnknown, "the quotas could not be found");
        let error = error.with_source(fmt::Error);
        let log =
            log_of(|| OutageLog::new("the plans").record_failure("search", "nothing is", &error));
        let text = format!("the quotas could not be found: {}", fmt::Error);
        assert!(log[0].contains(&text), "{log:?}");
    }
}
