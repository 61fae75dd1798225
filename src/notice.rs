//! What an operator has to know: one line in the log for each change, never one for each request.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::failure::Then;
use crate::key::KeyError;
use crate::{Error, ErrorKind};

/// How long a store must have answered for it to be back: of a store that fails now and then, not
/// each failure is news.
const QUIET: Duration = Duration::from_secs(1);

/// What has been said already of requests, for one layer.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    keys_unknown: AtomicBool,
    cost_too_large: AtomicBool,
}

impl Notices {
    /// The server cannot know keys as it is set up: said once, it will not pass.
    pub(crate) fn keys_unknown(&self, limiter: &str, error: &KeyError) {
        if !self.keys_unknown.swap(true, Ordering::Relaxed) {
            tracing::error!(limiter, "requests are answered 500: {error}");
        }
    }

    /// A cost that no log takes: said once.
    pub(crate) fn cost_too_large(&self, limiter: &str, error: &Error) {
        if !self.cost_too_large.swap(true, Ordering::Relaxed) {
            tracing::error!(limiter, "requests are answered 500: {error}");
        }
    }
}

/// What has been said already of the store, for one handle of a limiter.
#[derive(Debug)]
pub(crate) struct StoreNotices {
    store_fails: AtomicBool,
    /// When the store last failed, in milliseconds from `begin`.
    last_failure: AtomicU64,
    begin: Instant,
    quiet: Duration,
}

impl Default for StoreNotices {
    fn default() -> Self {
        Self::new(QUIET)
    }
}

impl StoreNotices {
    fn new(quiet: Duration) -> Self {
        Self {
            store_fails: AtomicBool::default(),
            last_failure: AtomicU64::default(),
            begin: Instant::now(),
            quiet,
        }
    }

    /// The store failed: said when it begins.
    pub(crate) fn store_fails(&self, limiter: &str, then: Then, error: &Error) {
        self.last_failure.store(self.millis(), Ordering::Relaxed);
        if self.store_fails.swap(true, Ordering::Relaxed) {
            return;
        }
        let then = match then {
            Then::FallBack => "checks are counted in this process alone",
            Then::Open => "checks are admitted and not counted",
            Then::Closed => "checks are not admitted",
        };
        if error.kind() == ErrorKind::Misconfigured {
            tracing::error!(limiter, "{then} until this is mended: {error}");
        } else {
            tracing::warn!(limiter, "{then} until the store is back: {error}");
        }
    }

    /// The store answered: said when it had failed.
    #[inline]
    pub(crate) fn store_answers(&self, limiter: &str) {
        // Read first: writing would have all cores pass the line around, on each request.
        if self.store_fails.load(Ordering::Relaxed) {
            self.store_is_back(limiter);
        }
    }

    #[cold]
    fn store_is_back(&self, limiter: &str) {
        let failed = Duration::from_millis(self.last_failure.load(Ordering::Relaxed));
        let quiet = self.begin.elapsed().saturating_sub(failed) >= self.quiet;
        if quiet && self.store_fails.swap(false, Ordering::Relaxed) {
            tracing::info!(limiter, "the store answers again");
        }
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
#[path = "../tests/support/log.rs"]
mod log;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeyErrorKind;
    use crate::notice::log;

    /// What is logged while `steps` run, line by line.
    fn log_of(steps: impl FnOnce()) -> Vec<String> {
        log::keep();
        steps();
        log::kept()
    }

    #[test]
    fn unknown_keys_are_one_line_that_says_what_to_do() {
        let error = KeyError::new(KeyErrorKind::Misconfigured, "call the_method()");
        let log = log_of(|| {
            let notices = Notices::default();
            for _ in 0..100 {
                notices.keys_unknown("search", &error);
            }
        });
        assert_eq!(log.len(), 1, "{log:?}");
        assert!(
            log[0].contains("ERROR") && log[0].contains("search"),
            "{log:?}"
        );
        assert!(log[0].contains("call the_method()"), "{log:?}");
    }

    #[test]
    fn a_failing_store_is_a_line_when_it_begins_and_one_when_it_ends() {
        let error = Error::new(ErrorKind::Unavailable, "nobody is there");
        let log = log_of(|| {
            let notices = StoreNotices::new(Duration::ZERO);
            for _ in 0..2 {
                for _ in 0..100 {
                    notices.store_fails("search", Then::Closed, &error);
                }
                for _ in 0..100 {
                    notices.store_answers("search");
                }
            }
        });
        let levels: Vec<_> = log
            .iter()
            .filter_map(|line| line.split_whitespace().nth(1))
            .collect();
        assert_eq!(levels, ["WARN", "INFO", "WARN", "INFO"], "{log:?}");
        assert!(log[0].contains("nobody is there"), "{log:?}");
    }

    #[test]
    fn a_wrong_setup_is_louder() {
        let error = Error::new(ErrorKind::Misconfigured, "WRONGTYPE");
        let log = log_of(|| StoreNotices::default().store_fails("search", Then::Closed, &error));
        assert!(log[0].contains("ERROR"), "{log:?}");
    }

    #[test]
    fn a_store_that_fails_now_and_then_is_not_news_each_time() {
        let error = Error::new(ErrorKind::Timeout, "too late");
        let log = log_of(|| {
            let notices = StoreNotices::new(Duration::from_secs(3_600));
            for _ in 0..100 {
                notices.store_fails("search", Then::Closed, &error);
                notices.store_answers("search");
            }
        });
        assert_eq!(log.len(), 1, "{log:?}");
    }

    #[test]
    fn the_line_says_what_becomes_of_requests() {
        let error = Error::new(ErrorKind::Unavailable, "nobody is there");
        for (then, text) in [
            (Then::FallBack, "counted in this process"),
            (Then::Open, "not counted"),
            (Then::Closed, "not admitted"),
        ] {
            let log = log_of(|| StoreNotices::default().store_fails("search", then, &error));
            assert!(
                log[0].contains(text) && log[0].contains("search"),
                "{log:?}"
            );
        }
    }

    #[test]
    fn a_cost_that_is_too_large_is_one_line() {
        let error = Error::new(ErrorKind::CostTooLarge, "a cost of 100001");
        let log = log_of(|| {
            let notices = Notices::default();
            for _ in 0..100 {
                notices.cost_too_large("search", &error);
            }
        });
        assert_eq!(log.len(), 1, "{log:?}");
        assert!(
            log[0].contains("500") && log[0].contains("a cost of 100001"),
            "{log:?}"
        );
    }
}
