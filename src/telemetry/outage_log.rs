//! Outages, as one line when they begin and one when they end.

use std::error::Error as _;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::decision::Source;
use crate::error::{Error, ErrorKind};

/// How long a store must have answered for it to be back: of a store that fails now and then, not
/// each failure is news.
const QUIET: Duration = Duration::from_secs(1);

/// So many times as long for what is set up wrongly.
const QUIETER: u32 = 60;

/// What has been said already of something that may fail, for one handle of a limiter.
#[derive(Debug)]
pub(crate) struct OutageLog {
    what: &'static str,
    said: AtomicU8,
    /// When it last failed, in milliseconds from `begin`.
    last_failure: AtomicU64,
    begin: Instant,
    quiet: Duration,
}

/// What was said last: that it is fine, fails, or is set up wrongly.
const FINE: u8 = 0;
const FAILS: u8 = 1;
const MISCONFIGURED: u8 = 2;

impl OutageLog {
    /// For what is called so in the log.
    pub(crate) fn of(what: &'static str) -> Self {
        Self::new(what, QUIET)
    }

    /// For what may fail for some keys, while it does what it should for others.
    pub(crate) fn of_some_keys(what: &'static str) -> Self {
        Self::new(what, QUIET * QUIETER)
    }

    fn new(what: &'static str, quiet: Duration) -> Self {
        Self {
            what,
            said: AtomicU8::new(FINE),
            last_failure: AtomicU64::default(),
            begin: Instant::now(),
            quiet,
        }
    }

    /// It failed, and something becomes of that: said when it begins, and when it turns out to be set up
    /// wrongly.
    pub(crate) fn fails(&self, limiter: &str, then: &str, error: &Error) {
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
        if is_misconfigured {
            tracing::error!(target: "tollgate::outage", limiter, "{then} until this is mended: {}", Whole(error));
        } else {
            let what = self.what;
            tracing::warn!(target: "tollgate::outage", limiter, "{then} until {what} is back: {}", Whole(error));
        }
    }

    /// A check was decided: said when the store had failed, and it was the store that decided.
    #[inline]
    pub(crate) fn decided(&self, limiter: &str, by: Source) {
        if !matches!(by, Source::RefusalCache | Source::Block | Source::None) {
            self.back(limiter);
        }
    }

    /// It did what it should: said when it had failed.
    #[inline]
    pub(crate) fn back(&self, limiter: &str) {
        // Read first: writing would have all cores pass the line around, on each request.
        let said = self.said.load(Ordering::Relaxed);
        if said != FINE {
            self.back_from(limiter, said);
        }
    }

    #[cold]
    fn back_from(&self, limiter: &str, said: u8) {
        let failed = Duration::from_millis(self.last_failure.load(Ordering::Relaxed));
        // What is set up wrongly may be so for one key, while others are decided.
        let quiet = if said == MISCONFIGURED {
            self.quiet * QUIETER
        } else {
            self.quiet
        };
        let is_back = self.begin.elapsed().saturating_sub(failed) >= quiet;
        if is_back && self.said.swap(FINE, Ordering::Relaxed) != FINE {
            tracing::info!(target: "tollgate::outage", limiter, "{} answers again", self.what);
        }
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// An error with what is underneath, where its own text says nothing of that: what tells quotas is the
/// application's, and so is its log.
struct Whole<'a>(&'a Error);

impl fmt::Display for Whole<'_> {
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
    fn a_failing_store_is_a_line_when_it_begins_and_one_when_it_ends() {
        let error = Error::new(ErrorKind::Unavailable, "nobody is there");
        let log = log_of(|| {
            let outage = OutageLog::new("the store", Duration::ZERO);
            for _ in 0..2 {
                for _ in 0..100 {
                    outage.fails("search", "checks are not admitted", &error);
                }
                for _ in 0..100 {
                    outage.decided("search", Source::Redis);
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
        let log = log_of(|| {
            OutageLog::of("the store").fails("search", "checks are not admitted", &error)
        });
        assert!(log[0].contains("ERROR"), "{log:?}");
    }

    #[test]
    fn a_wrong_setup_is_said_though_the_store_had_failed_before() {
        let log = log_of(|| {
            let outage = OutageLog::of("the store");
            for kind in [ErrorKind::Unavailable, ErrorKind::Misconfigured] {
                for _ in 0..100 {
                    let error = Error::new(kind, "what it is");
                    outage.fails("search", "checks are not admitted", &error);
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
            let outage = OutageLog::new("the store", Duration::ZERO);
            outage.fails("search", "checks are not admitted", &error);
            outage.decided("search", Source::RefusalCache);
            outage.decided("search", Source::None);
        });
        assert_eq!(log.len(), 1, "{log:?}");
    }

    #[test]
    fn one_key_that_is_set_up_wrongly_is_not_news_each_time() {
        let error = Error::new(ErrorKind::Misconfigured, "WRONGTYPE");
        let log = log_of(|| {
            let outage = OutageLog::new("the store", Duration::from_millis(1));
            for _ in 0..5 {
                outage.fails("search", "checks are not admitted", &error);
                std::thread::sleep(Duration::from_millis(2));
                outage.decided("search", Source::Redis);
            }
        });
        assert_eq!(log.len(), 1, "{log:?}");
    }

    #[test]
    fn a_store_that_fails_now_and_then_is_not_news_each_time() {
        let error = Error::new(ErrorKind::Timeout, "too late");
        let log = log_of(|| {
            let outage = OutageLog::new("the store", Duration::from_secs(3_600));
            for _ in 0..100 {
                outage.fails("search", "checks are not admitted", &error);
                outage.decided("search", Source::Redis);
            }
        });
        assert_eq!(log.len(), 1, "{log:?}");
    }

    #[test]
    fn the_line_says_what_becomes_of_it_and_until_when() {
        let error = Error::new(ErrorKind::Unavailable, "nobody is there");
        let log = log_of(|| OutageLog::of("the store").fails("search", "all is admitted", &error));
        let text = "all is admitted until the store is back: nobody is there";
        assert!(
            log[0].contains(text) && log[0].contains("search"),
            "{log:?}"
        );
    }

    #[test]
    fn the_line_says_why_quotas_could_not_be_found() {
        let error = Error::new(ErrorKind::QuotasUnknown, "the quotas could not be found");
        let error = error.with_source(fmt::Error);
        let log = log_of(|| OutageLog::of("the plans").fails("search", "nothing is", &error));
        let text = format!("the quotas could not be found: {}", fmt::Error);
        assert!(log[0].contains(&text), "{log:?}");
    }
}
