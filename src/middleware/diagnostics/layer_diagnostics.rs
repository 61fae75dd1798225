//! The findings about one layer, each of which is logged once.

use http::request::Parts;

use super::dry_run::DryRunLog;
use super::misconfiguration::MisconfigurationChecks;
use super::once_flag::OnceFlag;
use crate::decision::DecisionView;
use crate::error::Error;
use crate::key::{Key, KeyError, KeyExtractor};
use crate::middleware::rejection::Rejection;
use crate::telemetry::OutageLog;

/// The diagnostics of one layer: flags and logs that limit the number of log lines.
#[derive(Debug)]
pub(in crate::middleware) struct Diagnostics {
    key_misconfigured: OnceFlag,
    cost_too_large: OnceFlag,
    charged_twice: OnceFlag,
    nothing_to_settle: OnceFlag,
    settlement: OutageLog,
    dry_run: DryRunLog,
    misconfiguration: MisconfigurationChecks,
}

impl Default for Diagnostics {
    fn default() -> Self {
        Self {
            key_misconfigured: OnceFlag::new(),
            cost_too_large: OnceFlag::new(),
            charged_twice: OnceFlag::new(),
            nothing_to_settle: OnceFlag::new(),
            settlement: OutageLog::new("the store"),
            dry_run: DryRunLog::default(),
            misconfiguration: MisconfigurationChecks::default(),
        }
    }
}

impl Diagnostics {
    /// Inspects a request for signs of a misconfiguration, if it is one of the first of the layer.
    #[inline]
    pub(in crate::middleware) fn observe_request(
        &self,
        limiter: &str,
        extractor: &dyn KeyExtractor,
        parts: &Parts,
        extracted: &Result<Key, KeyError>,
    ) {
        if self.misconfiguration.is_active() {
            self.misconfiguration
                .observe(limiter, extractor, parts, extracted);
        }
    }

    /// Logs that no key can be extracted because the server is misconfigured.
    pub(in crate::middleware) fn key_misconfigured(
        &self,
        limiter: &str,
        is_dry_run: bool,
        error: &KeyError,
    ) {
        if self.key_misconfigured.first_time() {
            let answering = answering_500(is_dry_run);
            tracing::error!(target: "tollgate::diagnostics",
                limiter,
                "failed to extract a rate limit key, {answering}: {error}"
            );
        }
    }

    /// Logs that a cost is above the maximum that a log algorithm can charge.
    pub(in crate::middleware) fn cost_too_large(
        &self,
        limiter: &str,
        is_dry_run: bool,
        error: &Error,
    ) {
        if self.cost_too_large.first_time() {
            let answering = answering_500(is_dry_run);
            tracing::error!(target: "tollgate::diagnostics",
                limiter,
                "failed to charge the cost of a request, {answering}: {error}"
            );
        }
    }

    /// Logs that two nested layers charged a request to the same count.
    pub(in crate::middleware) fn observe_nested(
        &self,
        limiter: &str,
        decision: &DecisionView,
        outer: &DecisionView,
    ) {
        let mut outers = std::iter::successors(Some(outer), |outer| outer.outer());
        if outers.any(|outer| outer.charges_same_count(decision)) && self.charged_twice.first_time()
        {
            tracing::warn!(target: "tollgate::diagnostics",
                limiter,
                "a request was charged twice: two of its layers share name, key and store; give each \
                 layer its own name, or remove one"
            );
        }
    }

    /// Logs that a request of cost 0 cannot be settled.
    pub(in crate::middleware) fn nothing_to_settle(&self, limiter: &str) {
        if self.nothing_to_settle.first_time() {
            tracing::warn!(target: "tollgate::diagnostics",
                limiter,
                "cannot settle a request of cost 0: nothing was charged, and no limit refuses it; charge at \
                 least 1 unit when the request arrives"
            );
        }
    }

    /// Logs when settlements begin to fail, and when they succeed again.
    pub(in crate::middleware) fn settled(&self, limiter: &str, result: &Result<(), Error>) {
        match result {
            Ok(()) => self.settlement.record_success(limiter),
            Err(error) => {
                let consequence = "charges stay as reserved";
                self.settlement.record_failure(limiter, consequence, error);
            }
        }
    }

    /// Counts a request that a dry run would have rejected.
    pub(in crate::middleware) fn would_reject(&self, rejection: &Rejection) {
        self.dry_run.count(rejection);
    }
}

/// Returns what happens to a request that cannot be checked.
fn answering_500(is_dry_run: bool) -> &'static str {
    if is_dry_run {
        "letting it pass in a dry run"
    } else {
        "answering 500"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::key::KeyErrorKind;
    use crate::telemetry::log_of;

    #[test]
    fn a_misconfigured_key_is_logged_once_with_the_remedy() {
        let error = KeyError::new(KeyErrorKind::Misconfigured, "call the_method()");
        let log = log_of(|| {
            let diagnostics = Diagnostics::default();
            for _ in 0..100 {
                diagnostics.key_misconfigured("search", false, &error);
            }
        });
        assert_eq!(log.len(), 1, "{log:?}");
        assert!(
            log[0].contains("ERROR") && log[0].contains("search"),
            "{log:?}"
        );
        let line = "failed to extract a rate limit key, answering 500: call the_method()";
        assert!(log[0].contains(line), "{log:?}");
    }

    #[test]
    fn a_dry_run_does_not_claim_to_answer_500() {
        let key_error = KeyError::new(KeyErrorKind::Misconfigured, "call the_method()");
        let error = Error::new(ErrorKind::CostTooLarge, "a cost of 100001");
        let log = log_of(|| {
            let diagnostics = Diagnostics::default();
            diagnostics.key_misconfigured("search", true, &key_error);
            diagnostics.cost_too_large("search", true, &error);
        });
        assert_eq!(log.len(), 2, "{log:?}");
        for line in log {
            assert!(
                line.contains("letting it pass in a dry run") && !line.contains("500"),
                "{line}"
            );
        }
    }

    #[test]
    fn a_cost_that_is_too_large_is_logged_once() {
        let error = Error::new(ErrorKind::CostTooLarge, "a cost of 100001");
        let log = log_of(|| {
            let diagnostics = Diagnostics::default();
            for _ in 0..100 {
                diagnostics.cost_too_large("search", false, &error);
            }
        });
        assert_eq!(log.len(), 1, "{log:?}");
        assert!(
            log[0].contains("500") && log[0].contains("a cost of 100001"),
            "{log:?}"
        );
    }
}
