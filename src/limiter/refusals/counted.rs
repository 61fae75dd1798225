//! The refusals that count towards a block.

use crate::decision::{DecisionView, LevelDecision, Source};
use crate::limiter::limiter::RateLimiter;

/// Counts a refused check at the limiter of each level that refused it.
pub(crate) fn count_refusals<'a>(
    limiters: impl IntoIterator<Item = &'a RateLimiter>,
    decision: &DecisionView,
) {
    for (limiter, level) in limiters.into_iter().zip(decision.levels()) {
        if let (Some(counter), Some(key)) = (&limiter.refusals, level.key())
            && is_counted(level)
        {
            counter.count(key);
        }
    }
}

/// Returns whether a quota has refused a level, and a wait would help.
fn is_counted(level: LevelDecision<'_>) -> bool {
    let is_by_store = match level.source() {
        Source::Redis | Source::Memory | Source::RefusalCache | Source::Other => true,
        // The counts of a process may have a part of the limit only.
        Source::Fallback => false,
        Source::Block | Source::Lease | Source::None => false,
    };
    let waits_help = |level: LevelDecision<'_>| {
        let mut refusing = level.quotas().filter(|quota| !quota.is_allowed());
        refusing.all(|quota| quota.retry_after().is_some())
    };
    is_by_store && level.is_asked() && !level.is_allowed() && level.cost() > 0 && waits_help(level)
}
