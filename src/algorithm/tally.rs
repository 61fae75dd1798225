//! What the algorithms have in common that keep a few numbers rather than each unit. Twin of
//! `lua/tally.lua`.
//!
//! A tally is stored as it was last charged; what time has made of it since is worked out when it
//! is asked. So a refusal writes nothing.

use super::{Asked, Question};
use crate::decision::Wait;

/// A few numbers that stand for the units charged.
pub(super) trait Tally: Clone + Default {
    /// Whether it was charged after now, by a clock that has stepped back since.
    fn is_after(&self, question: &Question) -> bool;

    /// What time has made of it: as if charged now, if it was charged after now.
    #[must_use]
    fn at(&self, question: &Question) -> Self;

    /// The units that count, of a tally as it is now.
    fn used(&self, question: &Question) -> u64;

    /// How long until at most `target` units count, which is less than now.
    fn until(&self, question: &Question, target: u64) -> u64;

    /// Charges units to a tally as it is now.
    fn add(&mut self, question: &Question, cost: u64);
}

/// Asks a tally: all algorithms of this kind judge alike.
pub(super) fn ask<T: Tally>(stored: &mut T, question: Question) -> Asked {
    let now = stored.at(&question);
    let renewed = question.cost > 0 && stored.is_after(&question);
    if renewed {
        *stored = now.clone();
    }
    let (limit, cost) = (u64::from(question.limit), u64::from(question.cost));
    let used = now.used(&question);
    let wait = if cost > limit {
        Wait::Never
    } else if used + cost <= limit {
        Wait::Zero
    } else {
        Wait::Micros(now.until(&question, limit - cost))
    };
    // One unit more is left when one fewer counts, or one fewer than the limit where it was lowered.
    let fewer = used.min(limit).checked_sub(1);
    Asked {
        used: super::saturate(used),
        wait,
        reset: fewer.map_or(0, |target| now.until(&question, target)),
        renewed,
    }
}

/// Charges a tally, which renews its time to live.
pub(super) fn charge<T: Tally>(stored: &mut T, question: Question) -> bool {
    let mut now = stored.at(&question);
    now.add(&question, question.cost.into());
    *stored = now;
    true
}
