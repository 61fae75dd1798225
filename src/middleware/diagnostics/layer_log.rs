//! What an operator has to know: one line in the log for each change, never one for each request.

use std::sync::atomic::{AtomicBool, Ordering};

use http::request::Parts;

use super::dry_run::DryRunLog;
use super::misconfiguration::MisconfigurationChecks;
use crate::decision::DecisionView;
use crate::error::Error;
use crate::key::Key;
use crate::key::{KeyError, KeyExtractor};
use crate::middleware::rejection::Rejection;
use crate::telemetry::OutageLog;

/// What has been said already of requests, for one layer.
#[derive(Debug)]
pub(crate) struct Diagnostics {
    key_unknown: Once,
    cost_too_large: Once,
    charged_twice: Once,
    nothing_to_settle: Once,
    settling: OutageLog,
    spared: DryRunLog,
    suspicions: MisconfigurationChecks,
}

impl Default for Diagnostics {
    fn default() -> Self {
        Self {
            key_unknown: Once::new(),
            cost_too_large: Once::new(),
            charged_twice: Once::new(),
            nothing_to_settle: Once::new(),
            settling: OutageLog::of("the store"),
            spared: DryRunLog::default(),
            suspicions: MisconfigurationChecks::default(),
        }
    }
}

/// What is said once.
#[derive(Debug, Default)]
pub(crate) struct Once(AtomicBool);

impl Once {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Whether this is the first time.
    pub(crate) fn is_first(&self) -> bool {
        // Read first: writing would have all cores pass the line around.
        !self.0.load(Ordering::Relaxed) && !self.0.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn was_said(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Diagnostics {
    /// The server cannot know keys as it is set up: said once, it will not pass.
    pub(crate) fn key_unknown(&self, limiter: &str, error: &KeyError) {
        if self.key_unknown.is_first() {
            tracing::error!(target: "tollgate::diagnostics",
                limiter,
                "cannot extract a rate limit key, answering 500: {error}"
            );
        }
    }

    /// A cost that no log takes: said once.
    pub(crate) fn cost_too_large(&self, limiter: &str, error: &Error) {
        if self.cost_too_large.is_first() {
            tracing::error!(target: "tollgate::diagnostics",
                limiter,
                "requests cost too much to be counted (500): {error}"
            );
        }
    }

    /// A charge was settled, or was not.
    pub(crate) fn settled(&self, limiter: &str, outcome: &Result<(), Error>) {
        match outcome {
            Ok(()) => self.settling.back(limiter),
            Err(error) => {
                let then = "charges stay as they were reserved";
                self.settling.fails(limiter, then, error);
            }
        }
    }

    /// A request that was let in for nothing has cost something: said once, since it is so for all.
    pub(crate) fn nothing_to_settle(&self, limiter: &str) {
        if self.nothing_to_settle.is_first() {
            tracing::warn!(target: "tollgate::diagnostics",
                limiter,
                "a request of cost 0 is to be settled, and is not: nothing was charged for it, so it \
                 passes any limit; let it cost a unit before"
            );
        }
    }

    /// A request that a dry run let through.
    pub(crate) fn would_reject(&self, rejection: &Rejection) {
        self.spared.note(rejection);
    }

    /// Looks at the first requests for signs that the layer is not set up well.
    #[inline]
    pub(crate) fn look_at(
        &self,
        limiter: &str,
        extractor: &dyn KeyExtractor,
        parts: &Parts,
        found: &Result<Key, KeyError>,
    ) {
        if self.suspicions.are_looked_for() {
            self.suspicions.look_at(limiter, extractor, parts, found);
        }
    }

    /// Looks whether a layer outside has charged the same request to the same count.
    pub(crate) fn look_at_outer(
        &self,
        limiter: &str,
        decision: &DecisionView,
        outer: &DecisionView,
    ) {
        let is_same = |outer: &DecisionView| outer.charges_same_count(decision);
        let mut outers = std::iter::successors(Some(outer), |outer| outer.outer());
        if outers.any(is_same) && self.charged_twice.is_first() {
            tracing::warn!(target: "tollgate::diagnostics",
                limiter,
                "a request was charged twice: two of the layers that it passes have one name, key and \
                 store; give each a name, or leave one out"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::key::KeyErrorKind;
    use crate::telemetry::log_of;

    #[test]
    fn unknown_keys_are_one_line_that_says_what_to_do() {
        let error = KeyError::new(KeyErrorKind::Misconfigured, "call the_method()");
        let log = log_of(|| {
            let notices = Diagnostics::default();
            for _ in 0..100 {
                notices.key_unknown("search", &error);
            }
        });
        assert_eq!(log.len(), 1, "{log:?}");
        assert!(
            log[0].contains("ERROR") && log[0].contains("search"),
            "{log:?}"
        );
        let line = "cannot extract a rate limit key, answering 500: call the_method()";
        assert!(log[0].contains(line), "{log:?}");
    }

    #[test]
    fn a_cost_that_is_too_large_is_one_line() {
        let error = Error::new(ErrorKind::CostTooLarge, "a cost of 100001");
        let log = log_of(|| {
            let notices = Diagnostics::default();
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
