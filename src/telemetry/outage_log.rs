//! Logs one line when an outage begins and one when it ends.

use std::error::Error as _;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::decision::Source;
use crate::error::{Error, ErrorKind};

/// The time without a failure after which an outage is over. Without it, a store that fails now and then
/// would log each failure.
const QUIET: Duration = Duration::from_secs(1);

/// The factor by which [`QUIET`] is longer for a wrong set-up that concerns some keys.
const QUIETER: u32 = 60;

/// The outages of a store or a lookup, as one handle of a limiter has logged them.
///
/// An outage and a wrong set-up are two states: a key of another type stays wrong while the store fails and answers
/// again.
#[derive(Debug)]
pub(crate) struct OutageLog {
    /// The name of the store or lookup in the log.
    subject: &'static str,
    outage: OutageState,
    misconfiguration: OutageState,
    start: Instant,
    quiet: Duration,
}

/// A state whose beginning and end are logged. Times are milliseconds since the creation of the log.
#[derive(Debug, Default)]
struct OutageState {
    is_on: AtomicBool,
    first_failure: AtomicU64,
    last_failure: AtomicU64,
    has_succeeded: AtomicBool,
    /// Whether there was a success between two failures.
    is_partial: AtomicBool,
    /// Whether there was a failure that a store which answers a probe may have as well.
    outlasts_probe: AtomicBool,
}

impl OutageState {
    /// Records a failure. Returns whether the state begins.
    fn begins(&self, now: u64) -> bool {
        self.last_failure.store(now, Ordering::Relaxed);
        let begins =
            !self.is_on.load(Ordering::Relaxed) && !self.is_on.swap(true, Ordering::Relaxed);
        if begins {
            self.first_failure.store(now, Ordering::Relaxed);
            self.has_succeeded.store(false, Ordering::Relaxed);
            self.is_partial.store(false, Ordering::Relaxed);
            self.outlasts_probe.store(false, Ordering::Relaxed);
        } else if self.has_succeeded.load(Ordering::Relaxed) {
            self.is_partial.store(true, Ordering::Relaxed);
        }
        begins
    }

    #[inline]
    fn is_on(&self) -> bool {
        // Read only: a write would move the cache line between cores on each request.
        self.is_on.load(Ordering::Relaxed)
    }

    /// Records a success after `quiet` without a failure. Returns whether the state ends.
    fn ends(&self, now: u64, quiet: u64) -> bool {
        let last_failure = self.last_failure.load(Ordering::Relaxed);
        now.saturating_sub(last_failure) >= quiet && self.is_on.swap(false, Ordering::Relaxed)
    }

    /// Records a success. Returns whether all checks had failed for at least `quiet`.
    fn was_total(&self, quiet: u64) -> bool {
        self.has_succeeded.store(true, Ordering::Relaxed);
        let [first, last] =
            [&self.first_failure, &self.last_failure].map(|time| time.load(Ordering::Relaxed));
        last.saturating_sub(first) >= quiet && !self.is_partial.load(Ordering::Relaxed)
    }
}

impl OutageLog {
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
            outage: OutageState::default(),
            misconfiguration: OutageState::default(),
            start: Instant::now(),
            quiet,
        }
    }

    /// Records a failure. Logs the first failure of an outage with its consequence, and the first that is due
    /// to a wrong set-up. Returns whether an outage begins.
    pub(crate) fn record_failure(&self, limiter: &str, consequence: &str, error: &Error) -> bool {
        let now = self.millis();
        if error.kind() == ErrorKind::Misconfigured {
            if self.misconfiguration.begins(now) {
                tracing::error!(target: "tollgate::outage", code = error.code(), limiter, "{} is misconfigured, {consequence}: {}", self.subject, WithSource(error));
            }
            return false;
        }
        let begins = self.outage.begins(now);
        if begins {
            tracing::warn!(target: "tollgate::outage", code = error.code(), limiter, "{} failed, {consequence}: {}", self.subject, WithSource(error));
        }
        if error.outlasts_probe() {
            self.outage.outlasts_probe.store(true, Ordering::Relaxed);
        }
        begins
    }

    /// Returns the time until an outage is over if nothing fails. `None` without one, or if only a check can tell.
    pub(crate) fn until_quiet(&self) -> Option<Duration> {
        let is_watched = self.outage.is_on() && !self.outage.outlasts_probe.load(Ordering::Relaxed);
        let last_failure = Duration::from_millis(self.outage.last_failure.load(Ordering::Relaxed));
        let quiet_at = last_failure + self.quiet;
        is_watched.then(|| quiet_at.saturating_sub(self.start.elapsed()))
    }

    /// Records that the store has answered a probe. Logs the end of an outage.
    pub(crate) fn record_probe(&self, limiter: &str) {
        if self.until_quiet().is_some_and(|left| left.is_zero()) {
            self.end_outage(limiter, self.millis());
        }
    }

    /// Records a decision. It is a success if the store made it.
    #[inline]
    pub(crate) fn record_decision(&self, limiter: &str, source: Source) {
        if !matches!(
            source,
            Source::Lease
                | Source::RefusalCache
                | Source::Block
                | Source::Paused
                | Source::Exhausted
                | Source::None
        ) {
            self.record_success(limiter);
        }
    }

    /// Records a success. Logs the end of an outage or of a wrong set-up.
    #[inline]
    pub(crate) fn record_success(&self, limiter: &str) {
        if self.outage.is_on() || self.misconfiguration.is_on() {
            self.end(limiter);
        }
    }

    #[cold]
    fn end(&self, limiter: &str) {
        let now = self.millis();
        let quiet = millis(self.quiet);
        self.end_outage(limiter, now);
        if !self.misconfiguration.is_on() {
            return;
        }
        // A wrong set-up may affect one key, while the store decides others.
        let longer = if self.misconfiguration.was_total(quiet) {
            quiet
        } else {
            quiet.saturating_mul(QUIETER.into())
        };
        if self.misconfiguration.ends(now, longer) {
            tracing::info!(target: "tollgate::outage", limiter, "{} is no longer misconfigured", self.subject);
        }
    }

    fn end_outage(&self, limiter: &str, now: u64) {
        if self.outage.ends(now, millis(self.quiet)) {
            tracing::info!(target: "tollgate::outage", limiter, "{} works again", self.subject);
        }
    }

    fn millis(&self) -> u64 {
        millis(self.start.elapsed())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Formats an error. Adds the source if the lookup of quotas failed, because the source is an error of the
/// application, which the text does not contain.
struct WithSource<'a>(&'a Error);

impl fmt::Display for WithSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(error) = self;
        match error.source() {
            Some(source) if error.kind() == ErrorKind::QuotasUnknown => {
                write!(f, "{}: {source} [{}]", error.problem(), error.code())
            }
            _ => error.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::capture_log;

    #[test]
    fn the_beginning_and_the_end_of_an_outage_are_logged() {
        let error = Error::new(ErrorKind::Unavailable, "connection refused");
        let log = capture_log(|| {
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
        let log = capture_log(|| {
            OutageLog::new("the store").record_failure("search", "checks are not admitted", &error);
        });
        assert!(log[0].contains("ERROR"), "{log:?}");
    }

    #[test]
    fn a_wrong_setup_is_logged_after_an_outage_too() {
        let log = capture_log(|| {
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
        let log = capture_log(|| {
            let outage = OutageLog::with_quiet("the store", Duration::ZERO);
            outage.record_failure("search", "checks are not admitted", &error);
            outage.record_decision("search", Source::RefusalCache);
            outage.record_decision("search", Source::None);
        });
        assert_eq!(log.len(), 1, "{log:?}");
    }

    #[test]
    fn a_probe_ends_an_outage_unless_the_store_has_replied_an_error() {
        let gone = Error::new(ErrorKind::Unavailable, "connection refused");
        let full = Error::new(ErrorKind::Full, "OOM");
        for (errors, lines) in [(&[&gone][..], 2), (&[&full], 1), (&[&gone, &full], 1)] {
            let log = capture_log(|| {
                let outage = OutageLog::with_quiet("the store", Duration::ZERO);
                for error in errors {
                    outage.record_failure("search", "checks are not admitted", error);
                }
                outage.record_probe("search");
            });
            assert_eq!(log.len(), lines, "{log:?}");
        }
    }

    #[test]
    fn one_key_with_a_wrong_setup_is_not_logged_each_time() {
        let error = Error::new(ErrorKind::Misconfigured, "WRONGTYPE");
        let log = capture_log(|| {
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
    fn an_outage_beside_a_key_with_a_wrong_setup_has_a_beginning_and_an_end() {
        let wrong = Error::new(ErrorKind::Misconfigured, "WRONGTYPE");
        let failed = Error::new(ErrorKind::Unavailable, "connection refused");
        let log = capture_log(|| {
            let outage = OutageLog::with_quiet("the store", Duration::from_millis(20));
            for _ in 0..2 {
                for error in [&wrong, &failed, &wrong] {
                    outage.record_failure("search", "checks are not admitted", error);
                }
                std::thread::sleep(Duration::from_millis(25));
                outage.record_decision("search", Source::Redis);
                outage.record_failure("search", "checks are not admitted", &wrong);
            }
        });
        let said: Vec<_> = log
            .iter()
            .map(|line| line.contains("misconfigured"))
            .collect();
        assert_eq!(said, [true, false, false, false, false], "{log:?}");
        for (line, text) in log
            .iter()
            .skip(1)
            .zip(["refused", "works again"].iter().cycle())
        {
            assert!(line.contains(text), "{log:?}");
        }
    }

    #[test]
    fn a_wrong_setup_of_all_keys_ends_with_the_first_success() {
        let error = Error::new(ErrorKind::Misconfigured, "NOAUTH");
        let log = capture_log(|| {
            let outage = OutageLog::with_quiet("the store", Duration::from_millis(20));
            for _ in 0..2 {
                for _ in 0..4 {
                    outage.record_failure("search", "checks are not admitted", &error);
                    std::thread::sleep(Duration::from_millis(10));
                }
                std::thread::sleep(Duration::from_millis(20));
                outage.record_decision("search", Source::Redis);
            }
        });
        assert_eq!(log.len(), 4, "{log:?}");
        for (line, text) in log
            .iter()
            .zip(["NOAUTH", "no longer misconfigured"].iter().cycle())
        {
            assert!(line.contains(text), "{log:?}");
        }
    }

    #[test]
    fn a_wrong_setup_of_some_keys_does_not_end_while_others_succeed() {
        let error = Error::new(ErrorKind::Misconfigured, "WRONGTYPE");
        let log = capture_log(|| {
            let outage = OutageLog::with_quiet("the store", Duration::from_millis(20));
            for _ in 0..6 {
                outage.record_failure("search", "checks are not admitted", &error);
                outage.record_decision("search", Source::Redis);
                std::thread::sleep(Duration::from_millis(10));
            }
            std::thread::sleep(Duration::from_millis(20));
            outage.record_decision("search", Source::Redis);
        });
        assert_eq!(log.len(), 1, "{log:?}");
    }

    #[test]
    fn a_store_that_fails_now_and_then_is_not_logged_each_time() {
        let error = Error::new(ErrorKind::Timeout, "too late");
        let log = capture_log(|| {
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
        let log = capture_log(|| {
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
        let log = capture_log(|| {
            OutageLog::new("the plans").record_failure("search", "nothing is", &error);
        });
        let text = format!("the quotas could not be found: {}", fmt::Error);
        assert!(log[0].contains(&text), "{log:?}");
    }
}
