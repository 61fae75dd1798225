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
use crate::decision::{Decision, DecisionView, TakenLevel};
use crate::error::{Error, ErrorKind};
use crate::limiter::{RateLimiter, settle_together};

/// The levels of a layer that were left out of one check, by their indices in ascending order.
///
/// A level is left out if the request has no key or its plan exempts it. Mostly, none is.
#[derive(Debug, Default)]
pub(super) struct LeftOut(Box<[usize]>);

impl LeftOut {
    pub(super) fn new(indices: impl IntoIterator<Item = usize>) -> Self {
        Self(indices.into_iter().collect())
    }

    /// Returns the checked levels of the layer, in the order of the decision.
    fn checked<'a>(&'a self, config: &'a LayerConfig) -> impl Iterator<Item = (usize, &'a Level)> {
        let levels = config.levels().enumerate();
        levels.filter(|(index, _)| !self.0.contains(index))
    }
}

/// The actual cost of each checked level; `None` for a level that is not settled now.
pub(super) type ActualCosts = SmallVec<[Option<u32>; 4]>;

/// The levels to settle, each with its index in the layer.
type Settlements = SmallVec<[(usize, TakenLevel); 2]>;

/// Settles levels of a decision in the background, except for those that were settled before.
pub(super) fn settle(
    config: &Arc<LayerConfig>,
    decision: &mut Decision,
    left_out: &LeftOut,
    costs: &[Option<u32>],
) {
    let mut settlements = Settlements::new();
    let levels = left_out.checked(config).zip(costs).enumerate();
    for (checked, ((index, level), used)) in levels {
        let Some(used) = *used else {
            continue;
        };
        let charged = decision.levels().nth(checked).map(|level| level.cost());
        let taken = decision.take_all(checked, used);
        let (Some(cost), Some(taken)) = (charged, taken.filter(|taken| taken.held != used)) else {
            continue;
        };
        if cost == 0 {
            level.diagnostics.nothing_to_settle(&level.limiter.name);
            continue;
        }
        settlements.push((index, taken));
    }
    if !settlements.is_empty() {
        settle_in_background(config, decision.view().clone(), settlements);
    }
}

/// Gives all units of an admitted check back in the background.
pub(super) fn give_back(config: &Arc<LayerConfig>, decision: &mut Decision, left_out: &LeftOut) {
    let costs: ActualCosts = decision
        .levels()
        .map(|level| (level.cost() > 0).then_some(0))
        .collect();
    settle(config, decision, left_out, &costs);
}

/// Returns the costs for a settlement of the levels that share the cost of the layer.
pub(super) fn shared_costs(config: &LayerConfig, left_out: &LeftOut, used: u32) -> ActualCosts {
    let levels = left_out.checked(config);
    levels
        .map(|(index, level)| shares_cost(index, level).then_some(used))
        .collect()
}

/// Returns the costs for a settlement of the levels of this limiter.
pub(super) fn costs_of(
    config: &LayerConfig,
    left_out: &LeftOut,
    limiter: &RateLimiter,
    used: u32,
) -> ActualCosts {
    let levels = left_out.checked(config);
    levels
        .map(|(_, level)| (level.limiter.name == limiter.name).then_some(used))
        .collect()
}

/// Returns the costs that the closures of the layer compute from a response.
pub(super) fn response_costs(
    config: &LayerConfig,
    left_out: &LeftOut,
    decision: &DecisionView,
    parts: &response::Parts,
    size: SizeHint,
) -> ActualCosts {
    let mut shared = None;
    let levels = left_out.checked(config).enumerate();
    let costs = levels.map(|(checked, (index, level))| {
        let own_settle = level.settle.as_deref().filter(|_| index > 0);
        match (own_settle, &config.first.settle) {
            (Some(settle), _) => Some(settle(&decision.of_level(checked), parts, size)),
            (None, Some(settle)) if shares_cost(index, level) => {
                let cost = || settle(&decision.of_level(checked), parts, size);
                Some(*shared.get_or_insert_with(cost))
            }
            (None, _) => None,
        }
    });
    costs.collect()
}

/// Returns whether a level costs what the layer costs.
fn shares_cost(index: usize, level: &Level) -> bool {
    index == 0 || level.cost.is_none()
}

fn settle_in_background(
    config: &Arc<LayerConfig>,
    decision: DecisionView,
    settlements: Settlements,
) {
    let levels: SmallVec<[usize; 4]> = settlements.iter().map(|(level, _)| *level).collect();
    let task_config = Arc::clone(config);
    let mut task = Box::pin(async move {
        let settlements = settlements.iter();
        let levels =
            settlements.filter_map(|(level, taken)| Some((task_config.level(*level)?, *taken)));
        let settling = levels.clone().map(|(level, taken)| (&level.limiter, taken));
        let outcomes = settle_together(&decision, settling).await;
        for ((level, _), outcome) in levels.zip(&outcomes) {
            level.diagnostics.settled(&level.limiter.name, outcome);
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
            for level in levels.into_iter().filter_map(|level| config.level(level)) {
                let result = Err(no_runtime());
                level.diagnostics.settled(&level.limiter.name, &result);
            }
        }
    }
}

fn no_runtime() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "cannot settle in the background: not called in a tokio runtime",
    )
}
