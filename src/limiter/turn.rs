//! The wait of a refused call before it is checked again, and its turn among those that wait for a key that is held back.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::pending_check::Limiters;
use crate::decision::{DecisionView, Source};

/// The maximum wait before a refused check is repeated. Meanwhile, other callers may refund units, a failed store may
/// recover, or an operator may unblock the key.
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// The longest time between two turns. The rate of a daily limit says little about the next minute.
const MAX_STEP: Duration = Duration::from_secs(1);

/// The turn of a waiting call: how long after the end of a hold it is checked.
///
/// When a hold ends, all calls that wait for the key would be sent at once, by all processes. Turns send those of one
/// process in the order in which they began to wait, at the rate of the limit. The turns of each process begin at
/// another phase.
#[derive(Debug, Default)]
pub(crate) struct Turn(Option<Duration>);

impl Turn {
    /// Returns the wait before a refused check is repeated. `None` if it was admitted, or if it needs a longer wait
    /// than `time_left`.
    pub(crate) fn backoff(
        &mut self,
        limiters: &impl Limiters,
        decision: &DecisionView,
        time_left: Duration,
    ) -> Option<Duration> {
        let wait = decision.retry_after().filter(|wait| *wait <= time_left)?;
        if decision.source() != Source::HeldBack {
            self.0 = None;
            return Some(wait.min(MAX_BACKOFF));
        }
        let turn = *self.0.get_or_insert_with(|| take_turn(limiters, decision));
        Some(if wait > MAX_BACKOFF {
            MAX_BACKOFF
        } else {
            wait.saturating_add(turn).min(time_left)
        })
    }
}

fn take_turn(limiters: &impl Limiters, decision: &DecisionView) -> Duration {
    let limiter = limiters.limiter(decision.reported_index());
    let level = decision.reported_level();
    let (Some(limiter), Some(level)) = (limiter, level) else {
        return Duration::ZERO;
    };
    // Of several rates, the fastest one: the slower ones still allow a burst.
    let rates = level.quotas().filter(|quota| !quota.quota().is_in_flight());
    let times = rates.filter_map(|quota| {
        let window = quota.quota().window().checked_div(quota.limit())?;
        Some(window.saturating_mul(level.cost()))
    });
    let step = times.min().unwrap_or_default().min(MAX_STEP);
    let phase = step.saturating_mul(random()) / u32::MAX;
    let turn = level.key().map(|key| {
        let list = limiter.store.block_list();
        list.take_turn(&limiter.holds.name, key, step, phase)
    });
    turn.unwrap_or_default()
}

/// Returns a random number, so that processes and workers that wait for the same do not check again together.
pub(super) fn random() -> u32 {
    // The upper bits: a shift by 32 leaves 32 of them.
    let hash = RandomState::new().hash_one(0);
    u32::try_from(hash >> 32).unwrap_or(u32::MAX)
}
