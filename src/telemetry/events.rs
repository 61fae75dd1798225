//! One event for each check.
//!
//! Fields have the names of OpenTelemetry where it defines one (`error.type`), and times are in seconds. An
//! event never contains a key. It contains an alias, which is the same for all events of a key while this
//! process runs, or in all processes with one secret, and does not reveal the key.

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing::field::{DisplayValue, display};
use tracing::{Level, debug, enabled, info};

use super::marked_keys::{Mark, MarkedKeys};
use super::outcome_label::OutcomeLabel;
use super::spans::record_in_current_span;
use crate::clock::Clock;
use crate::decision::{LevelDecision, QuotaDecision, Source};
use crate::key::{Key, KeyAliases};

/// The most refusals per second and limiter that are logged at level info, the most automatic blocks, and the most keys
/// that are paused; the others are logged at debug. This shows which keys are refused and why, and a client cannot fill a disk.
const MAX_INFO_PER_SECOND: u64 = 10;

/// Logs an event at info if it has a turn, which is the number of events that were left out since the last one at info,
/// and else at debug.
macro_rules! info_or_debug {
    ($turn:expr, $target:literal, { $($fields:tt)+ }, $message:literal) => {
        match $turn {
            Some(left_out) => info!(target: $target, $($fields)+, left_out, $message),
            None => debug!(target: $target, $($fields)+, $message),
        }
    };
}

/// The events of one limiter.
#[derive(Debug)]
pub(crate) struct Events {
    limiter: Arc<str>,
    /// The name of the store.
    store: Arc<str>,
    aliases: KeyAliases,
    clock: Clock,
    marked_keys: MarkedKeys,
    refusals: Turns,
    blocks: Turns,
    marks: Turns,
    pauses: Turns,
}

/// The events of one kind that are logged at info.
#[derive(Debug, Default)]
struct Turns {
    /// The last second with an event at info, times 16, plus the number of such events in that second.
    logged: AtomicU64,
    /// The events since the last one at info.
    left_out: AtomicU64,
}

impl Events {
    pub(super) fn new(limiter: &Arc<str>, store: &Arc<str>, aliases: KeyAliases) -> Self {
        Self {
            limiter: Arc::clone(limiter),
            store: Arc::clone(store),
            aliases,
            clock: Clock::monotonic(),
            marked_keys: MarkedKeys::default(),
            refusals: Turns::default(),
            blocks: Turns::default(),
            marks: Turns::default(),
            pauses: Turns::default(),
        }
    }

    #[inline]
    pub(super) fn log_admitted(&self, level: LevelDecision<'_>) {
        self.record_in_span(OutcomeLabel::Admitted, Some(level));
        debug!(
            target: "tollgate::check",
            limiter = &*self.limiter,
            outcome = OutcomeLabel::Admitted.text(),
            source = level.source().text(&self.store),
            cost = level.cost(),
            limit = level.limit(),
            remaining = level.remaining(),
            key_alias = self.key_alias(level.key()),
            "check admitted"
        );
    }

    pub(super) fn log_refused(
        &self,
        outcome: OutcomeLabel,
        level: Option<LevelDecision<'_>>,
        quota: Option<QuotaDecision<'_>>,
    ) {
        self.record_in_span(outcome, level);
        let source = level.map_or(Source::None, |level| level.source());
        info_or_debug!(
            self.refusal_turn(outcome),
            "tollgate::check",
            {
                limiter = &*self.limiter,
                outcome = outcome.text(),
                source = source.text(&self.store),
                cost = level.map_or(0, |level| level.cost()),
                limit = quota.map_or(u32::MAX, |quota| quota.limit()),
                retry_after = quota.and_then(|quota| quota.retry_after()).map(|wait| wait.as_secs_f64()),
                key_alias = level.map(|level| self.key_alias(level.key()))
            },
            "check refused"
        );
    }

    pub(crate) fn log_block(&self, key: &Key, duration: Duration, blocks: u32) {
        let is_info = enabled!(target: "tollgate::block", Level::INFO);
        info_or_debug!(
            self.turn(&self.blocks, is_info),
            "tollgate::block",
            {
                limiter = &*self.limiter,
                key_alias = self.key_alias(key),
                duration = duration.as_secs_f64(),
                blocks
            },
            "key blocked: it was refused too often"
        );
    }

    /// Logs a mark of a quota once per key and window, and at most ten per second. The limiter remembers the keys.
    pub(super) fn log_mark(&self, mark: Mark, index: usize, quota: QuotaDecision<'_>) {
        if !enabled!(target: "tollgate::quota", Level::INFO) {
            return;
        }
        let key = quota.key();
        let now = self.clock.now();
        let id = (key.fingerprint(), index, mark);
        let window = quota.quota().window_micros();
        let left_out = self
            .marked_keys
            .add(id, now, window, || self.marks.take(now / 1_000_000));
        if let Some(left_out) = left_out {
            info!(
                target: "tollgate::quota",
                limiter = &*self.limiter,
                mark = mark.text(),
                quota = %quota.quota(),
                used = quota.used(),
                cost = quota.cost(),
                key_alias = self.key_alias(key),
                left_out,
                "quota {}", mark.text()
            );
        }
    }

    pub(crate) fn log_pause(&self, key: &Key, duration: Duration, source: Source) {
        let is_info = enabled!(target: "tollgate::block", Level::INFO);
        info_or_debug!(
            self.turn(&self.pauses, is_info),
            "tollgate::block",
            {
                limiter = &*self.limiter,
                source = source.text(&self.store),
                key_alias = self.key_alias(key),
                duration = duration.as_secs_f64()
            },
            "key paused: the upstream says when to send again"
        );
    }

    pub(super) fn log_exempt(&self) {
        self.record_in_span(OutcomeLabel::Exempt, None);
        debug!(
            target: "tollgate::check",
            limiter = &*self.limiter,
            outcome = OutcomeLabel::Exempt.text(),
            "request not counted"
        );
    }

    pub(super) fn log_failure(
        &self,
        outcome: OutcomeLabel,
        error: &(dyn StdError + 'static),
        kind: &str,
    ) {
        self.record_in_span(outcome, None);
        if let Some(left_out) = self.refusal_turn(outcome) {
            info!(
                target: "tollgate::check",
                limiter = &*self.limiter,
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
            limiter = &*self.limiter,
            outcome = outcome.text(),
            error.type = kind,
            error,
            "check failed"
        );
    }

    #[inline]
    fn record_in_span(&self, outcome: OutcomeLabel, level: Option<LevelDecision<'_>>) {
        let source = level.map_or(Source::None, |level| level.source());
        record_in_current_span(&self.limiter, outcome, source.text(&self.store), || {
            level.map(|level| self.aliases.alias(level.key()))
        });
    }

    fn key_alias(&self, key: &Key) -> DisplayValue<String> {
        display(self.aliases.alias(key))
    }

    fn refusal_turn(&self, outcome: OutcomeLabel) -> Option<u64> {
        // A dry run has its own log line, with the number of refusals.
        let is_refusal = outcome == OutcomeLabel::Refused;
        let is_info = is_refusal && enabled!(target: "tollgate::check", Level::INFO);
        self.turn(&self.refusals, is_info)
    }

    fn turn(&self, turns: &Turns, is_info: bool) -> Option<u64> {
        is_info
            .then(|| turns.take(self.clock.now() / 1_000_000))
            .flatten()
    }
}

impl Turns {
    /// Returns `Some` if an event of this second is to be logged at info, with the number of events that were left
    /// out since the last one at info.
    fn take(&self, second: u64) -> Option<u64> {
        let logged = self
            .logged
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |logged| {
                count_at_info(logged, second)
            });
        if logged.is_ok() {
            Some(self.left_out.swap(0, Ordering::Relaxed))
        } else {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

/// Adds an event to [`Turns::logged`]. `None` if this second has had as many as it may.
fn count_at_info(logged: u64, second: u64) -> Option<u64> {
    let last = logged / 16;
    let count = logged % 16;
    if last != second {
        Some(second * 16 + 1)
    } else if count < MAX_INFO_PER_SECOND {
        Some(logged + 1)
    } else {
        None
    }
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
