//! One event for each check, for whoever listens at that level.
//!
//! Names of fields are those of OpenTelemetry where it has one (`error.type`), times are seconds as
//! there. A key is never told: an alias is, which is the same for one key as long as this process
//! lives, and from which nobody finds the key.

use std::error::Error as StdError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing::{Level, debug, enabled, info};

use super::checks::OutcomeLabel;
use crate::clock::Clock;
use crate::decision::DecisionView;

/// So many refusals a second are told at info, for each limiter: enough to see who and why, and not
/// for a client to fill a disk with. All others are told at debug.
const TOLD_A_SECOND: u64 = 10;

/// A refusal, at either level.
macro_rules! refusal {
    ($level:ident, $limiter:ident, $outcome:ident, $decision:ident $(, $left_out:ident)?) => {
        $level!(
            target: "tollgate::check",
            limiter = $limiter,
            outcome = $outcome.text(),
            source = $decision.source().text(),
            cost = $decision.cost(),
            limit = $decision.limit(),
            retry_after = seconds($decision.retry_after()),
            key_alias = alias($decision),
            $($left_out,)?
            "a check was refused"
        )
    };
}

/// What is told of the checks of one limiter.
#[derive(Debug)]
pub(super) struct Events {
    clock: Clock,
    /// The second in which refusals were told last, times 16, and how many were.
    told: AtomicU64,
    left_out: AtomicU64,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            clock: Clock::monotonic(),
            told: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }
}

impl Events {
    #[inline]
    pub(super) fn admitted(&self, limiter: &str, decision: &DecisionView) {
        debug!(
            target: "tollgate::check",
            limiter,
            outcome = OutcomeLabel::Admitted.text(),
            source = decision.source().text(),
            cost = decision.cost(),
            limit = decision.limit(),
            remaining = decision.remaining(),
            key_alias = alias(decision),
            "a check was admitted"
        );
    }

    pub(super) fn refused(&self, limiter: &str, outcome: OutcomeLabel, decision: &DecisionView) {
        match self.turn_of(outcome) {
            Some(left_out) => refusal!(info, limiter, outcome, decision, left_out),
            None => refusal!(debug, limiter, outcome, decision),
        }
    }

    pub(super) fn exempt(&self, limiter: &str) {
        debug!(
            target: "tollgate::check",
            limiter,
            outcome = OutcomeLabel::Exempt.text(),
            "a request was not counted"
        );
    }

    pub(super) fn undecided(
        &self,
        limiter: &str,
        outcome: OutcomeLabel,
        error: &(dyn StdError + 'static),
        kind: &str,
    ) {
        if let Some(left_out) = self.turn_of(outcome) {
            info!(
                target: "tollgate::check",
                limiter,
                outcome = outcome.text(),
                error.type = kind,
                error,
                left_out,
                "a check was refused"
            );
            return;
        }
        debug!(
            target: "tollgate::check",
            limiter,
            outcome = outcome.text(),
            error.type = kind,
            error,
            "a check was not decided"
        );
    }

    /// Whether what came of a check is told at info, and how many like it were not.
    fn turn_of(&self, outcome: OutcomeLabel) -> Option<u64> {
        // Of a dry run there is a line that says how many.
        let is_told =
            outcome == OutcomeLabel::Refused && enabled!(target: "tollgate::check", Level::INFO);
        if is_told {
            self.turn(self.clock.now() / 1_000_000)
        } else {
            None
        }
    }

    /// Whether a refusal in this second is told, and how many were not since the last one that was.
    fn turn(&self, second: u64) -> Option<u64> {
        let step = |told: u64| match (told / 16, told % 16) {
            (last, count) if last == second && count >= TOLD_A_SECOND => None,
            (last, count) if last == second => Some(last * 16 + count + 1),
            _ => Some(second * 16 + 1),
        };
        let is_told = self
            .told
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
        if is_told.is_ok() {
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

fn alias(decision: &DecisionView) -> Option<tracing::field::DisplayValue<String>> {
    let charged_to = decision.charged_key()?;
    let alias = charged_to.key.fingerprint().alias();
    Some(tracing::field::display(format!("{alias:016x}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_refusals_are_told_in_each_second_and_then_how_many_were_not() {
        let events = Events::default();
        for second in [7, 8, 30] {
            for place in 0..TOLD_A_SECOND {
                let left_out = if place == 0 && second > 7 { 90 } else { 0 };
                assert_eq!(events.turn(second), Some(left_out), "{second}");
            }
            for _ in 0..90 {
                assert_eq!(events.turn(second), None);
            }
        }
    }
}
