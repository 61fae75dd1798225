//! What an operator has to know: one line in the log for each change, never one for each request.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::failure::Then;
use crate::key::KeyError;
use crate::{Error, ErrorKind, Source};

/// How long a store must have answered for it to be back: of a store that fails now and then, not
/// each failure is news.
const QUIET: Duration = Duration::from_secs(1);

/// So many times as long for what is set up wrongly.
const QUIETER: u32 = 60;

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
    said: AtomicU8,
    /// When the store last failed, in milliseconds from `begin`.
    last_failure: AtomicU64,
    begin: Instant,
    quiet: Duration,
}

/// What was said last: that the store is fine, fails, or is set up wrongly.
const FINE: u8 = 0;
const FAILS: u8 = 1;
const MISCONFIGURED: u8 = 2;

impl Default for StoreNotices {
    fn default() -> Self {
        Self::new(QUIET)
    }
}

impl StoreNotices {
    fn new(quiet: Duration) -> Self {
        Self {
            said: AtomicU8::new(FINE),
            last_failure: AtomicU64::default(),
            begin: Instant::now(),
            quiet,
        }
    }

    /// The store failed: said when it begins, and when it turns out to be set up wrongly.
    pub(crate) fn store_fails(&self, limiter: &str, then: Then, error: &Error) {
        self.last_failure.store(self.millis(), Ordering::Relaxed);
        let is_misconfigured = error.kind() == ErrorKind::Misconfigured;
        let now = if is_misconfigured {
            MISCONFIGURED
        } else {
            FAILS
        };
        if self.said.fetch_max(now, Ordering::Relaxed) >= now {
            return;
        }
        let then = match then {
            Then::FallBack => "checks are counted in this process alone",
            Then::Open => "checks are admitted and not counted",
            Then::Closed => "checks are not admitted",
        };
        if is_misconfigured {
            tracing::error!(limiter, "{then} until this is mended: {error}");
        } else {
            tracing::warn!(limiter, "{then} until the store is back: {error}");
        }
    }

    /// A check was decided: said when the store had failed, and it was the store that decided.
    #[inline]
    pub(crate) fn decided(&self, limiter: &str, by: Source) {
        // Read first: writing would have all cores pass the line around, on each request.
        let said = self.said.load(Ordering::Relaxed);
        if said != FINE && !matches!(by, Source::LocalDenial | Source::None) {
            self.store_is_back(limiter, said);
        }
    }

    #[cold]
    fn store_is_back(&self, limiter: &str, said: u8) {
        let failed = Duration::from_millis(self.last_failure.load(Ordering::Relaxed));
        // What is set up wrongly may be so for one key, while others are decided.
        let quiet = if said == MISCONFIGURED {
            self.quiet * QUIETER
        } else {
            self.quiet
        };
        let is_back = self.begin.elapsed().saturating_sub(failed) >= quiet;
        if is_back && self.said.swap(FINE, Ordering::Relaxed) != FINE {
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
                    notices.decided("search", Source::Redis);
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
    fn a_wrong_setup_is_said_though_the_store_had_failed_before() {
        let log = log_of(|| {
            let notices = StoreNotices::default();
            for kind in [ErrorKind::Unavailable, ErrorKind::Misconfigured] {
                for _ in 0..100 {
                    let error = Error::new(kind, "what it is");
                    notices.store_fails("search", Then::Closed, &error);
                }
            }
        });
        assert_eq!(log.len(), 2, "{log:?}");
        assert!(log[1].contains("ERROR"), "{log:?}");
    }

    #[test]
    fn a_refusal_from_memory_does_not_say_that_the_store_is_back() {
        let error = Error::new(ErrorKind::Unavailable, "nobody is there");
        let log = log_of(|| {
            let notices = StoreNotices::new(Duration::ZERO);
            notices.store_fails("search", Then::Closed, &error);
            notices.decided("search", Source::LocalDenial);
            notices.decided("search", Source::None);
        });
        assert_eq!(log.len(), 1, "{log:?}");
    }

    #[test]
    fn one_key_that_is_set_up_wrongly_is_not_news_each_time() {
        let error = Error::new(ErrorKind::Misconfigured, "WRONGTYPE");
        let log = log_of(|| {
            let notices = StoreNotices::new(Duration::from_millis(1));
            for _ in 0..5 {
                notices.store_fails("search", Then::Closed, &error);
                std::thread::sleep(Duration::from_millis(2));
                notices.decided("search", Source::Redis);
            }
        });
        assert_eq!(log.len(), 1, "{log:?}");
    }

    #[test]
    fn a_store_that_fails_now_and_then_is_not_news_each_time() {
        let error = Error::new(ErrorKind::Timeout, "too late");
        let log = log_of(|| {
            let notices = StoreNotices::new(Duration::from_secs(3_600));
            for _ in 0..100 {
                notices.store_fails("search", Then::Closed, &error);
                notices.decided("search", Source::Redis);
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
