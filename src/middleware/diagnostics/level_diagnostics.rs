//! The findings about one level of a layer, each of which is logged once.

use std::fmt;
use std::sync::Arc;

use super::misconfiguration::MisconfigurationChecks;
use crate::error::{Code, Error, warning};
use crate::key::Key;
use crate::limiter::{DecisionView, RateLimiter};
use crate::telemetry::{OnceFlag, OutageLog};

/// The diagnostics of one level: its key, its cost and its settlements.
#[derive(Debug)]
pub(in crate::middleware) struct LevelDiagnostics {
    /// No key can be extracted because the server is misconfigured. Logged when the layer is added to a service, or at
    /// the first request if only a request shows it.
    pub(in crate::middleware) key_misconfigured: FailedChecks,
    /// A cost is above the maximum that a log algorithm can charge.
    pub(in crate::middleware) cost_too_large: FailedChecks,
    cost_above_limit: OnceFlag,
    limit_of_zero: OnceFlag,
    nothing_to_settle: OnceFlag,
    nothing_is_held: OnceFlag,
    settlement: Arc<OutageLog>,
    pub(in crate::middleware) misconfiguration: MisconfigurationChecks,
}

impl Default for LevelDiagnostics {
    fn default() -> Self {
        Self {
            key_misconfigured: FailedChecks::new("cannot extract a rate limit key"),
            cost_too_large: FailedChecks::new("failed to charge the cost of a request"),
            cost_above_limit: OnceFlag::new(),
            limit_of_zero: OnceFlag::new(),
            nothing_to_settle: OnceFlag::new(),
            nothing_is_held: OnceFlag::new(),
            settlement: Arc::new(OutageLog::new("the store")),
            misconfiguration: MisconfigurationChecks::default(),
        }
    }
}

/// Requests that cannot be checked for one cause, which is logged once.
#[derive(Debug)]
pub(in crate::middleware) struct FailedChecks {
    failed: &'static str,
    is_logged: OnceFlag,
}

impl FailedChecks {
    pub(super) fn new(failed: &'static str) -> Self {
        let is_logged = OnceFlag::new();
        Self { failed, is_logged }
    }

    pub(in crate::middleware) fn log(
        &self,
        code: &'static str,
        limiter: &str,
        is_dry_run: bool,
        error: &dyn fmt::Display,
    ) {
        if self.is_logged.first_time() {
            let failed = self.failed;
            let answering = if is_dry_run {
                "letting it pass in a dry run"
            } else {
                "answering 500"
            };
            tracing::error!(target: "tollgate::diagnostics", code, limiter, "{failed}, {answering}: {error}");
        }
    }
}

impl LevelDiagnostics {
    /// Logs that a request can never be admitted: its cost is above the limit, or the limit is 0. A total that is used up is
    /// meant to refuse.
    #[inline]
    pub(in crate::middleware) fn observe_refusal(&self, limiter: &str, decision: &DecisionView) {
        let is_used_up = || decision.reported().is_some_and(|quota| quota.is_used_up());
        if decision.retry_after().is_none() && !is_used_up() {
            self.never_admitted(limiter, decision);
        }
    }

    #[cold]
    fn never_admitted(&self, limiter: &str, decision: &DecisionView) {
        let cost = decision.cost();
        let limit = decision.limit();
        if limit > 0 && self.cost_above_limit.first_time() {
            let quota = decision.reported();
            let bound = quota.map_or_else(String::new, |quota| quota.bound());
            tracing::warn!(target: "tollgate::diagnostics",
                code = Code::COST_EXCEEDS_LIMIT.text,
                limiter,
                "a request costs {cost}, more than its {bound}, and is never admitted: change the quota or lower \
                 the cost"
            );
        }
        // A limit of 0 may be meant, as for a plan that has ended.
        if limit == 0 && self.limit_of_zero.first_time() {
            tracing::info!(target: "tollgate::diagnostics",
                code = warning::LIMIT_OF_ZERO,
                limiter,
                "a quota has the limit 0, which refuses every request of cost {cost}: raise the limit, unless this \
                 is meant"
            );
        }
    }

    pub(in crate::middleware) fn nothing_to_settle(&self, limiter: &str) {
        if self.nothing_to_settle.first_time() {
            tracing::warn!(target: "tollgate::diagnostics",
                code = warning::NOTHING_TO_SETTLE,
                limiter,
                "cannot settle a request of cost 0: nothing was charged, whatever is used already; charge at \
                 least 1 unit when the request arrives"
            );
        }
    }

    pub(in crate::middleware) fn nothing_is_held(&self, limiter: &str) {
        if self.nothing_is_held.first_time() {
            tracing::warn!(target: "tollgate::diagnostics",
                code = warning::NOTHING_IS_HELD,
                limiter,
                "cannot add units to a reservation: the limiter has charged them, and holds none; set `reserve_lease`, or \
                 settle the reservation"
            );
        }
    }

    /// Logs when settlements begin to fail, and when they succeed again. This one is of a key.
    pub(in crate::middleware) fn settled(
        &self,
        limiter: &RateLimiter,
        key: &Key,
        result: &Result<(), Error>,
    ) {
        let name = &limiter.0.facts.name;
        match result {
            Ok(()) => self.settlement.record_success(name),
            Err(error) => {
                let consequence = "charges stay as reserved";
                if self.settlement.record_failure(name, consequence, error) {
                    limiter.watch_outage(key, &self.settlement);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::key::{KeyError, KeyErrorKind};
    use crate::telemetry::capture_log;

    #[test]
    fn a_misconfigured_key_is_logged_once_with_the_remedy() {
        let error = KeyError::new(KeyErrorKind::Misconfigured, "call the_method()");
        let log = capture_log(|| {
            let diagnostics = LevelDiagnostics::default();
            for _ in 0..100 {
                let flag = &diagnostics.key_misconfigured;
                flag.log(warning::NO_KEY, "search", false, &error);
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
    fn a_dry_run_does_not_claim_to_answer_500() {
        let key_error = KeyError::new(KeyErrorKind::Misconfigured, "call the_method()");
        let error = Error::new(ErrorKind::CostTooLarge, "a cost of 100001");
        let log = capture_log(|| {
            let diagnostics = LevelDiagnostics::default();
            let flag = &diagnostics.key_misconfigured;
            flag.log(warning::NO_KEY, "search", true, &key_error);
            let flag = &diagnostics.cost_too_large;
            flag.log(error.code(), "search", true, &error);
        });
        assert_eq!(log.len(), 2, "{log:?}");
        for line in log {
            assert!(
                line.contains("letting it pass in a dry run") && !line.contains("answering 500"),
                "{line}"
            );
        }
    }

    #[test]
    fn a_cost_that_is_too_large_is_logged_once() {
        let error = Error::new(ErrorKind::CostTooLarge, "a cost of 100001");
        let log = capture_log(|| {
            let diagnostics = LevelDiagnostics::default();
            for _ in 0..100 {
                let flag = &diagnostics.cost_too_large;
                flag.log(error.code(), "search", false, &error);
            }
        });
        assert_eq!(log.len(), 1, "{log:?}");
        assert!(
            log[0].contains("500") && log[0].contains("a cost of 100001"),
            "{log:?}"
        );
    }
}
