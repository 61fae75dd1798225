//! The start of a check of several keys.

use std::future::poll_fn;

use super::level_check::{LevelCheck, LevelChecks};
use super::tree::{LevelsError, LevelsProgress, Tree};
use crate::decision::Decision;
use crate::error::Error;
use crate::limiter::check::CheckProgress;
use crate::limiter::limiter::RateLimiter;

/// Starts a check, unless a cost is above a limit.
pub(super) fn start_within_limits(levels: LevelChecks<'_>) -> LevelsProgress {
    if let Err(failure) = verify(&levels) {
        return LevelsProgress::Done(Err(failure));
    }
    for (index, level) in levels.iter().enumerate() {
        if let Some(limit) = level.exceeded_limit() {
            let error = Error::cost_exceeds_limit(level.cost, limit);
            return LevelsProgress::Done(Err(LevelsError::at(index, error)));
        }
    }
    start_verified(levels)
}

/// Starts a check of several keys. Answers at once if the store does.
///
/// It sends a cost above a limit to the store, so that the refusal has the current numbers.
pub(crate) fn start_levels<'a>(levels: impl IntoIterator<Item = LevelCheck<'a>>) -> LevelsProgress {
    let levels: LevelChecks<'a> = levels.into_iter().collect();
    match verify(&levels) {
        Ok(()) => start_verified(levels),
        Err(failure) => LevelsProgress::Done(Err(failure)),
    }
}

/// Fails if the store cannot decide the levels together.
fn verify(levels: &[LevelCheck<'_>]) -> Result<(), LevelsError> {
    let [first, others @ ..] = levels else {
        return Ok(());
    };
    for level in others {
        if level.limiter.id.store != first.limiter.id.store {
            let error = different_stores(first.limiter, level.limiter);
            return Err(LevelsError::at(0, error));
        }
    }
    for (index, level) in others.iter().enumerate() {
        let earlier = levels.iter().take(index + 1);
        let is_same = |other: &&LevelCheck<'_>| {
            other.limiter.id.name == level.limiter.id.name && other.key == level.key
        };
        if let Some(other) = earlier.into_iter().find(is_same) {
            return Err(LevelsError::at(0, same_count(other.limiter, level.limiter)));
        }
    }
    Ok(())
}

fn different_stores(one: &RateLimiter, other: &RateLimiter) -> Error {
    Error::levels(
        &one.name,
        &other.name,
        "their stores differ",
        "create both limiters with clones of one store",
    )
}

fn same_count(one: &RateLimiter, other: &RateLimiter) -> Error {
    Error::levels(
        &one.name,
        &other.name,
        "they count the same key under the same name",
        "give each limiter its own name, or check the key once with the sum of the costs",
    )
}

fn start_verified(levels: LevelChecks<'_>) -> LevelsProgress {
    if levels.len() > 1 {
        return Tree::new(levels).start();
    }
    match levels.into_iter().next() {
        None => LevelsProgress::Done(Ok(Decision::unlimited())),
        Some(level) => start_one(level),
    }
}

fn start_one(level: LevelCheck<'_>) -> LevelsProgress {
    let LevelCheck {
        limiter,
        key,
        cost,
        quotas,
        error,
    } = level;
    let failed = |error| LevelsError::at(0, error);
    if let Some(error) = error {
        let checked = limiter.check_without_quotas(key, cost, error);
        return LevelsProgress::Done(checked.map_err(failed));
    }
    let quotas = quotas.as_ref().unwrap_or(&limiter.quotas);
    match limiter.start_check_with(quotas, key, cost) {
        CheckProgress::Done(checked) => LevelsProgress::Done(checked.map_err(failed)),
        CheckProgress::Pending(mut check) => {
            let limiter = limiter.clone();
            LevelsProgress::Pending(Box::pin(async move {
                let checked = poll_fn(|cx| limiter.poll_check(&mut check, cx)).await;
                checked.map_err(failed)
            }))
        }
    }
}
