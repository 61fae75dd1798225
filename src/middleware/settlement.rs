//! The charge of an admitted request, and its settlements in the background.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Waker};

use http::response;
use http_body::SizeHint;
use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::config::LayerConfig;
use super::level::Level;
use crate::decision::{Decision, DecisionView, LevelDecision, TakenLevel};
use crate::error::{Error, ErrorKind};
use crate::limiter::{RateLimiter, settle_together};

/// The actual cost of each level of a decision; `None` for a level that is not settled now.
pub(super) type ActualCosts = SmallVec<[Option<u32>; 4]>;

type Settlements = SmallVec<[TakenLevel; 2]>;

/// Settles levels of a decision in the background, except for those that were settled before.
pub(super) fn settle(config: &Arc<LayerConfig>, decision: &mut Decision, costs: &[Option<u32>]) {
    let mut settlements = Settlements::new();
    for (index, used) in costs.iter().enumerate() {
        let taken = used.and_then(|used| decision.take_all(index, used));
        let taken = taken.filter(|taken| taken.held != taken.used);
        let (Some(taken), Some(level)) = (taken, decision.view().level(index)) else {
            continue;
        };
        if level.cost() > 0 {
            settlements.push(taken);
        } else {
            let Level {
                limiter,
                diagnostics,
                ..
            } = config.level(level.place());
            diagnostics.nothing_to_settle(&limiter.name);
        }
    }
    if !settlements.is_empty() {
        settle_in_background(config, decision.view().clone(), settlements);
    }
}

/// Gives all units of an admitted check back in the background.
pub(super) fn give_back(config: &Arc<LayerConfig>, decision: &mut Decision) {
    let costs: ActualCosts = decision.levels().map(|_| Some(0)).collect();
    settle(config, decision, &costs);
}

/// Returns the costs for a settlement of the levels that share the cost of the layer.
pub(super) fn shared_costs(
    config: &LayerConfig,
    decision: &DecisionView,
    used: u32,
) -> ActualCosts {
    let shares_cost = |level: LevelDecision<'_>| config.shares_cost(level.place());
    let levels = decision.levels();
    levels
        .map(|level| shares_cost(level).then_some(used))
        .collect()
}

/// Returns the costs for a settlement of the levels of this limiter.
pub(super) fn costs_of(
    config: &LayerConfig,
    decision: &DecisionView,
    limiter: &RateLimiter,
    used: u32,
) -> ActualCosts {
    let is_own =
        |level: LevelDecision<'_>| config.level(level.place()).limiter.name == limiter.name;
    let levels = decision.levels();
    levels.map(|level| is_own(level).then_some(used)).collect()
}

/// Returns the costs that the closures of the layer compute from a response.
pub(super) fn response_costs(
    config: &LayerConfig,
    decision: &DecisionView,
    parts: &response::Parts,
    size: SizeHint,
) -> ActualCosts {
    let mut shared = None;
    let costs = decision.levels().enumerate().map(|(index, level)| {
        let place = level.place();
        match (&config.level(place).settle, &config.first.settle) {
            (Some(settle), _) if place > 0 => Some(settle(&decision.of_level(index), parts, size)),
            (_, Some(settle)) if config.shares_cost(place) => {
                let cost = || settle(&decision.of_level(index), parts, size);
                Some(*shared.get_or_insert_with(cost))
            }
            _ => None,
        }
    });
    costs.collect()
}

fn settle_in_background(
    config: &Arc<LayerConfig>,
    decision: DecisionView,
    settlements: Settlements,
) {
    let (config, unsettled) = (Arc::clone(config), (decision.clone(), settlements.clone()));
    let mut task = Box::pin({
        let config = Arc::clone(&config);
        async move {
            let levels = levels_of(&config, &decision, &settlements);
            let limiters = levels.iter().map(|level| &level.limiter);
            let outcomes = settle_together(&decision, limiters.zip(settlements)).await;
            for (level, outcome) in levels.iter().zip(&outcomes) {
                level.diagnostics.settled(&level.limiter.name, outcome);
            }
        }
    });
    // A store in memory is done after one poll, so it needs no task.
    let mut cx = Context::from_waker(Waker::noop());
    if task.as_mut().poll(&mut cx).is_ready() {
        return;
    }
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(task)),
        Err(_) => {
            let (decision, settlements) = unsettled;
            for level in levels_of(&config, &decision, &settlements) {
                let result = Err(no_runtime());
                level.diagnostics.settled(&level.limiter.name, &result);
            }
        }
    }
}

/// Returns the levels that are settled.
fn levels_of<'a>(
    config: &'a LayerConfig,
    decision: &DecisionView,
    settlements: &[TakenLevel],
) -> SmallVec<[&'a Level; 2]> {
    let levels = settlements
        .iter()
        .filter_map(|taken| decision.level(taken.index));
    levels.map(|level| config.level(level.place())).collect()
}

fn no_runtime() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "cannot settle in the background: not called in a tokio runtime",
    )
}
