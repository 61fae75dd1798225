//! One event for each check.
//!
//! Fields have the names of OpenTelemetry where it defines one (`error.type`), and times are in seconds. An
//! event never contains a key. It contains an alias, which is the same for all events of a key while this
//! process runs, and does not reveal the key.

use std::error::Error as StdError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing::field::{DisplayValue, display};
use tracing::{Level, debug, enabled, info};

use super::marked_keys::{Mark, MarkedKeys};
use super::outcome_label::OutcomeLabel;
use crate::clock::Clock;
use crate::decision::{DecisionView, LevelDecision, QuotaDecision};
use crate::key::Key;

/// The most refusals per second and limiter that are logged at level info, the most automatic blocks, and the most keys
/// that are held back; the others are logged at debug. This shows which keys are refused and why, and a client cannot fill a disk.
const MAX_INFO_PER_SECOND: u64 = 10;

/// Logs a refusal at a level.
macro_rules! refusal {
    ($level:ident, $limiter:ident, $store:ident, $outcome:ident, $decision:ident $(, $left_out:ident)?) => {
        $level!(
            target: "tollgate::check",
            limiter = $limiter,
            outcome = $outcome.text(),
            source = $decision.source().text($store),
            cost = $decision.cost(),
            limit = $decision.limit(),
            retry_after = seconds($decision.retry_after()),
            key_alias = alias($decision),
            $($left_out,)?
            "check refused"
        )
    };
}

/// Logs an automatic block at a level.
macro_rules! block {
    ($level:ident, $limiter:ident, $key:ident, $duration:ident, $blocks:ident $(, $left_out:ident)?) => {
        $level!(
            target: "tollgate::block",
            limiter = $limiter,
            key_alias = key_alias($key),
            duration = $duration.as_secs_f64(),
            blocks = $blocks,
            $($left_out,)?
            "key blocked: it was refused too often"
        )
    };
}

/// Logs at a level that a key is held back.
macro_rules! hold {
    ($level:ident, $limiter:ident, $key:ident, $duration:ident $(, $left_out:ident)?) => {
        $level!(
            target: "tollgate::block",
            limiter = $limiter,
            key_alias = key_alias($key),
            duration = $duration.as_secs_f64(),
            $($left_out,)?
            "key held back: the upstream says when to send again"
        )
    };
}

/// The events of one limiter.
#[derive(Debug)]
pub(super) struct Events {
    clock: Clock,
    refusals: Turns,
    blocks: Turns,
    marks: Turns,
    holds: Turns,
}

/// The events of one kind that are logged at info.
#[derive(Debug, Default)]
struct Turns {
    /// The last second with an event at info, times 16, plus the number of such events in that second.
    logged: AtomicU64,
    /// The events since the last one at info.
    left_out: AtomicU64,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            clock: Clock::monotonic(),
            refusals: Turns::default(),
            blocks: Turns::default(),
            marks: Turns::default(),
            holds: Turns::default(),
        }
    }
}

impl Events {
    /// Logs an admission at one level of a check.
    #[inline]
    pub(super) fn log_admitted(&self, limiter: &str, store: &str, level: LevelDecision<'_>) {
        debug!(
            target: "tollgate::check",
            limiter,
            outcome = OutcomeLabel::Admitted.text(),
            source = level.source().text(store),
            cost = level.cost(),
            limit = level.limit(),
            remaining = level.remaining(),
            key_alias = level.key().map(key_alias),
            "check admitted"
        );
    }

    pub(super) fn log_refused(
        &self,
        limiter: &str,
        store: &str,
        outcome: OutcomeLabel,
        decision: &DecisionView,
    ) {
        match self.take_info_turn(outcome) {
            Some(left_out) => refusal!(info, limiter, store, outcome, decision, left_out),
            None => refusal!(debug, limiter, store, outcome, decision),
        }
    }

    pub(super) fn log_block(&self, limiter: &str, key: &Key, duration: Duration, blocks: u32) {
        let is_info = enabled!(target: "tollgate::block", Level::INFO);
        match is_info.then(|| self.blocks.take(self.second())).flatten() {
            Some(left_out) => block!(info, limiter, key, duration, blocks, left_out),
            None => block!(debug, limiter, key, duration, blocks),
        }
    }

    /// Logs a mark of a quota once per key and window, and at most ten per second. The limiter remembers the keys.
    pub(super) fn log_mark(
        &self,
        limiter: &str,
        logged: &MarkedKeys,
        mark: Mark,
        index: usize,
        quota: QuotaDecision<'_>,
    ) {
        let is_info = enabled!(target: "tollgate::quota", Level::INFO);
        let Some(key) = quota.key().filter(|_| is_info) else {
            return;
        };
        let (id, window) = (
            (key.fingerprint(), index, mark),
            quota.quota().window_micros(),
        );
        let now = self.clock.now();
        let turn = || self.marks.take(now / 1_000_000);
        if let Some(left_out) = logged.add(id, now, window, turn) {
            info!(
                target: "tollgate::quota",
                limiter,
                mark = mark.text(),
                quota = %quota.quota(),
                used = quota.used(),
                cost = quota.cost(),
                key_alias = key_alias(key),
                left_out,
                "quota {}", mark.text()
            );
        }
    }

    pub(super) fn log_hold(&self, limiter: &str, key: &Key, duration: Duration) {
        let is_info = enabled!(target: "tollgate::block", Level::INFO);
        match is_info.then(|| self.holds.take(self.second())).flatten() {
            Some(left_out) => hold!(info, limiter, key, duration, left_out),
            None => hold!(debug, limiter, key, duration),
        }
    }

    pub(super) fn log_exempt(&self, limiter: &str) {
        debug!(
            target: "tollgate::check",
            limiter,
            outcome = OutcomeLabel::Exempt.text(),
            "request not counted"
        );
    }

    pub(super) fn log_failure(
        &self,
        limiter: &str,
        outcome: OutcomeLabel,
        error: &(dyn StdError + 'static),
        kind: &str,
    ) {
        if let Some(left_out) = self.take_info_turn(outcome) {
            info!(
                target: "tollgate::check",
                limiter,
                outcome = outcome.text(),
                error.type = kind,
                error,
                left_out,
                "check refused"
            );
            return;
        }
        debug!(
            target: "tollgate::check",
            limiter,
            outcome = outcome.text(),
            error.type = kind,
            error,
            "check failed"
        );
    }

    /// Returns `Some` if the outcome is to be logged at info, with the number of refusals that were left out
    /// since the last one at info.
    fn take_info_turn(&self, outcome: OutcomeLabel) -> Option<u64> {
        // A dry run has its own log line, with the number of refusals.
        let is_info =
            outcome == OutcomeLabel::Refused && enabled!(target: "tollgate::check", Level::INFO);
        is_info.then(|| self.refusals.take(self.second())).flatten()
    }

    fn second(&self) -> u64 {
        self.clock.now() / 1_000_000
    }
}

impl Turns {
    /// Returns `Some` if an event of this second is to be logged at info, with the number of events that were left
    /// out since the last one at info.
    fn take(&self, second: u64) -> Option<u64> {
        let step = |logged: u64| match (logged / 16, logged % 16) {
            (last, count) if last == second && count >= MAX_INFO_PER_SECOND => None,
            (last, count) if last == second => Some(last * 16 + count + 1),
            _ => Some(second * 16 + 1),
        };
        let logged = self
            .logged
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
        if logged.is_ok() {
            Some(self.left_out.swap(0, Ordering::Relaxed))
        } else {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

fn seconds(wait: Option<Duration>) -> Option<f64> {
    wait.map(|wait| wait.as_secs_f64())
}

fn alias(decision: &DecisionView) -> Option<DisplayValue<String>> {
    let level = decision.reported_level();
    level.map(|level| key_alias(&level.record().key))
}

fn key_alias(key: &Key) -> DisplayValue<String> {
    let alias = key.fingerprint().alias();
    display(format!("{alias:016x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_events_per_second_are_logged_at_info_and_the_next_counts_the_others() {
        let turns = Turns::default();
        for second in [7, 8, 30] {
            for index in 0..MAX_INFO_PER_SECOND {
                let left_out = if index == 0 && second > 7 { 90 } else { 0 };
                assert_eq!(turns.take(second), Some(left_out), "{second}");
            }
            for _ in 0..90 {
                assert_eq!(turns.take(second), None);
            }
        }
    }
}
