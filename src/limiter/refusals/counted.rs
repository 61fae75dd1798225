//! The refusals that count towards a block.

use std::time::Duration;

use crate::decision::{DecisionView, LevelDecision, Source};
use crate::limiter::pending_check::Limiters;

/// Counts a refused check at the limiter of each level that refused it.
pub(crate) fn count_refusals(limiters: &impl Limiters, decision: &DecisionView) {
    for (index, level) in decision.levels().enumerate() {
        if let Some(limiter) = limiters.limiter(index)
            && let (Some(counter), Some(key)) = (&limiter.refusals, level.key())
            && let Some(wait) = counted_wait(level)
        {
            counter.count(key, wait);
        }
    }
}

/// Returns the wait that a refusal tells, if a quota has refused the level and a wait would help.
fn counted_wait(level: LevelDecision<'_>) -> Option<Duration> {
    let is_by_store = match level.source() {
        Source::Redis | Source::Memory | Source::RefusalCache | Source::Other => true,
        // The counts of a process may have a part of the limit only.
        Source::Fallback => false,
        Source::Block | Source::Lease | Source::None => false,
    };
    if !is_by_store || !level.is_asked() || level.is_allowed() || level.cost() == 0 {
        return None;
    }
    let refusing = level.quotas().filter(|quota| !quota.is_allowed());
    refusing
        .map(|quota| quota.retry_after())
        .try_fold(Duration::ZERO, |longest, wait| {
            wait.map(|wait| longest.max(wait))
        })
}
