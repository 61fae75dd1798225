//! The check of a layer with several levels, which are decided together.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::request::Parts;
use smallvec::SmallVec;
use tokio::time::{Instant, Sleep, sleep};

use super::config::LayerConfig;
use super::level::Level;
use super::outcome::{Outcome, is_refused_for_free, leave_out};
use super::plan_lookup::PlanFuture;
use super::wait::backoff;
use crate::decision::{Decision, DecisionView};
use crate::error::{Error, polled_after_completion};
use crate::key::Key;
use crate::limiter::{LevelsError, LevelsProgress, PendingLevels, start_levels};
use crate::quota::{Plan, Quotas};

/// A started check of several levels.
pub(super) enum StartedLevels {
    Done(Outcome),
    Pending(Box<LevelsCheck>),
}

/// The check of a request at several levels, which may wait for plans, for the store, or for units.
pub(super) struct LevelsCheck {
    /// The time from which `max_wait` counts. `None` if the layer does not wait.
    started: Option<Instant>,
    /// The levels to check: those that are not left out.
    levels: SmallVec<[CheckedLevel; 4]>,
    stage: Stage,
}

/// The key, the cost and the quotas of a request at one level.
struct CheckedLevel {
    /// The index of the level in the layer.
    index: usize,
    key: Key,
    cost: u32,
    quotas: LevelQuotas,
}

/// The quotas that apply at a level.
enum LevelQuotas {
    /// Those of the limiter.
    Own,
    OfPlan(Quotas),
    LookingUp(PlanFuture),
    /// The plan leaves the level out.
    Exempt,
    Unknown(Error),
}

enum Stage {
    LookingUpPlans,
    Checking(PendingLevels),
    /// Answered at once. `None` after the check is done.
    Answered(Option<LevelsResult>),
    /// Backs off after a refusal.
    Waiting(Pin<Box<Sleep>>),
}

type LevelsResult = Result<Decision, LevelsError>;

impl From<LevelsProgress> for Stage {
    fn from(progress: LevelsProgress) -> Self {
        match progress {
            LevelsProgress::Pending(check) => Self::Checking(check),
            LevelsProgress::Done(result) => Self::Answered(Some(result)),
        }
    }
}

/// Reads the keys and the costs of a request, and starts the check of all levels.
pub(super) fn start(config: &LayerConfig, parts: &Parts) -> StartedLevels {
    let levels = match read(config, parts) {
        Ok(levels) => levels,
        Err(rejected) => return StartedLevels::Done(rejected),
    };
    if levels.is_empty() {
        return StartedLevels::Done(Outcome::Exempt);
    }
    let mut lookups = levels.iter().map(|level| &level.quotas);
    let looks_up = lookups.any(|quotas| matches!(quotas, LevelQuotas::LookingUp(_)));
    let mut check = LevelsCheck {
        started: (!config.max_wait.is_zero()).then(Instant::now),
        levels,
        stage: Stage::LookingUpPlans,
    };
    if !looks_up {
        match check.attempt(config) {
            LevelsProgress::Done(result) => {
                if let Some(outcome) = check.finish_attempt(config, result) {
                    return StartedLevels::Done(outcome);
                }
            }
            LevelsProgress::Pending(pending) => check.stage = Stage::Checking(pending),
        }
    }
    StartedLevels::Pending(Box::new(check))
}

/// Reads what a request asks of each level.
///
/// # Errors
///
/// Returns the outcome if the request is rejected because of a key.
fn read(config: &LayerConfig, parts: &Parts) -> Result<SmallVec<[CheckedLevel; 4]>, Outcome> {
    let mut layer_cost = None;
    let mut levels = SmallVec::new();
    for (index, level) in config.levels().enumerate() {
        let cost = || *layer_cost.get_or_insert_with(|| config.layer_cost(parts));
        match level.extract(parts) {
            Ok(key) => levels.push(CheckedLevel {
                index,
                cost: level.cost_of(parts, cost),
                quotas: level
                    .look_up_plan(&key, parts)
                    .map_or(LevelQuotas::Own, LevelQuotas::LookingUp),
                key,
            }),
            Err(error) => {
                if let Some(rejected) = Outcome::without_key(config, level, error) {
                    return Err(rejected);
                }
            }
        }
    }
    Ok(levels)
}

impl LevelsCheck {
    pub(super) fn poll(&mut self, config: &LayerConfig, cx: &mut Context<'_>) -> Poll<Outcome> {
        loop {
            let result = match &mut self.stage {
                Stage::LookingUpPlans => {
                    ready!(self.poll_plans(config, cx));
                    if self.levels.is_empty() {
                        return Poll::Ready(Outcome::Exempt);
                    }
                    self.stage = self.attempt(config).into();
                    continue;
                }
                Stage::Checking(check) => ready!(check.as_mut().poll(cx)),
                Stage::Answered(result) => match result.take() {
                    Some(result) => result,
                    None => polled_after_completion("LevelsCheck"),
                },
                Stage::Waiting(sleep) => {
                    ready!(sleep.as_mut().poll(cx));
                    self.stage = self.attempt(config).into();
                    continue;
                }
            };
            if let Some(outcome) = self.finish_attempt(config, result) {
                self.stage = Stage::Answered(None);
                return Poll::Ready(outcome);
            }
        }
    }

    /// Polls all lookups that are not done, so that they run at the same time. Then removes the levels that
    /// their plans leave out.
    fn poll_plans(&mut self, config: &LayerConfig, cx: &mut Context<'_>) -> Poll<()> {
        let mut is_pending = false;
        for level in &mut self.levels {
            let LevelQuotas::LookingUp(plan) = &mut level.quotas else {
                continue;
            };
            match plan.as_mut().poll(cx) {
                Poll::Pending => is_pending = true,
                Poll::Ready(plan) => level.plan_found(config, plan),
            }
        }
        if is_pending {
            return Poll::Pending;
        }
        let is_checked = |level: &mut CheckedLevel| !matches!(level.quotas, LevelQuotas::Exempt);
        self.levels.retain(is_checked);
        Poll::Ready(())
    }

    /// Starts a check of the levels by their quotas.
    fn attempt(&self, config: &LayerConfig) -> LevelsProgress {
        let checks = self.levels.iter().filter_map(|checked| {
            let limiter = &checked.level(config)?.limiter;
            let check = limiter.on(&checked.key).cost(checked.cost);
            Some(match &checked.quotas {
                LevelQuotas::OfPlan(quotas) => check.quotas(quotas.clone()),
                LevelQuotas::Unknown(error) => check.without_quotas(error.clone()),
                LevelQuotas::Own | LevelQuotas::LookingUp(_) | LevelQuotas::Exempt => check,
            })
        });
        start_levels(checks)
    }

    /// Returns the outcome of an attempt, or `None` if there is another one.
    fn finish_attempt(&mut self, config: &LayerConfig, result: LevelsResult) -> Option<Outcome> {
        if let Ok(decision) = &result
            && self.leave_out_free(config, decision.view())
        {
            self.stage = self.attempt(config).into();
            return None;
        }
        if let Some(sleep) = self.wait_after(config, &result) {
            self.stage = Stage::Waiting(sleep);
            return None;
        }
        let indices = self.levels.iter().map(|level| level.index);
        let indices: SmallVec<[usize; 8]> = indices.collect();
        Some(Outcome::levels_checked(config, &indices, result))
    }

    /// Removes the levels that refuse a cost of 0. Returns whether the other levels have to be checked again.
    ///
    /// A cost of 0 passes even a limit that was lowered below the used units. But as the store has refused, it
    /// has not charged the other levels.
    fn leave_out_free(&mut self, config: &LayerConfig, decision: &DecisionView) -> bool {
        if decision.is_allowed() {
            return false;
        }
        let levels = decision.levels().enumerate();
        let free = levels.filter(|(_, level)| is_refused_for_free(*level));
        let free: SmallVec<[usize; 4]> = free.map(|(checked, _)| checked).collect();
        if free.is_empty() || free.len() == self.levels.len() {
            return false;
        }
        for checked in free.into_iter().rev() {
            if let Some(level) = self.levels.remove(checked).level(config) {
                leave_out(level);
            }
        }
        true
    }

    fn wait_after(&self, config: &LayerConfig, result: &LevelsResult) -> Option<Pin<Box<Sleep>>> {
        let left = config.max_wait.saturating_sub(self.started?.elapsed());
        // The quotas of a limiter may not be those of the key.
        let mut quotas = self.levels.iter().map(|level| &level.quotas);
        if quotas.any(|quotas| matches!(quotas, LevelQuotas::Unknown(_))) {
            return None;
        }
        let backoff = backoff(config, result, left)?;
        Some(Box::pin(sleep(backoff)))
    }
}

impl CheckedLevel {
    fn level<'a>(&self, config: &'a LayerConfig) -> Option<&'a Level> {
        config.level(self.index)
    }

    fn plan_found(&mut self, config: &LayerConfig, plan: Result<Plan, Error>) {
        let Some(level) = self.level(config) else {
            return;
        };
        if plan.is_ok() {
            level.limiter.quotas_found();
        }
        self.quotas = match plan {
            Err(error) => LevelQuotas::Unknown(error),
            Ok(Plan::Default) => LevelQuotas::Own,
            Ok(Plan::Quotas(quotas)) => LevelQuotas::OfPlan(quotas),
            Ok(Plan::Exempt) => {
                leave_out(level);
                LevelQuotas::Exempt
            }
        };
    }
}
