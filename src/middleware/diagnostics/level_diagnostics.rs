//! The findings about one level of a layer, each of which is logged once.

use std::sync::atomic::{AtomicU32, Ordering};

use http::request::Parts;

use super::consequence::answering_500;
use super::misconfiguration::MisconfigurationChecks;
use super::once_flag::OnceFlag;
use crate::decision::DecisionView;
use crate::error::Error;
use crate::key::{Key, KeyError, KeyExtractor};
use crate::telemetry::OutageLog;

/// The number of requests that can never be admitted before a line is logged.
const FEW: u32 = 10;

/// The diagnostics of one level: its key, its cost and its settlements.
#[derive(Debug)]
pub(in crate::middleware) struct LevelDiagnostics {
    key_misconfigured: OnceFlag,
    cost_too_large: OnceFlag,
    never_admitted: AtomicU32,
    nothing_to_settle: OnceFlag,
    settlement: OutageLog,
    misconfiguration: MisconfigurationChecks,
}

impl Default for LevelDiagnostics {
    fn default() -> Self {
        Self {
            key_misconfigured: OnceFlag::new(),
            cost_too_large: OnceFlag::new(),
            never_admitted: AtomicU32::new(0),
            nothing_to_settle: OnceFlag::new(),
            settlement: OutageLog::new("the store"),
            misconfiguration: MisconfigurationChecks::default(),
        }
    }
}

impl LevelDiagnostics {
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

    /// Logs that requests cost more than their limit, after a few of them. A limit of 0 is meant to refuse all.
    #[inline]
    pub(in crate::middleware) fn observe_refusal(&self, limiter: &str, decision: &DecisionView) {
        if decision.retry_after().is_none() && decision.limit() > 0 {
            self.count_never_admitted(limiter, decision);
        }
    }

    #[cold]
    fn count_never_admitted(&self, limiter: &str, decision: &DecisionView) {
        if self.never_admitted.load(Ordering::Relaxed) >= FEW {
            return;
        }
        if self.never_admitted.fetch_add(1, Ordering::Relaxed) + 1 == FEW {
            let (cost, limit) = (decision.cost(), decision.limit());
            tracing::warn!(target: "tollgate::diagnostics",
                limiter,
                "{FEW} requests cost more than their limit, the last one {cost} of {limit}: they are never \
                 admitted; raise the limit or lower the cost"
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
            let diagnostics = LevelDiagnostics::default();
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
            let diagnostics = LevelDiagnostics::default();
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
            let diagnostics = LevelDiagnostics::default();
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
