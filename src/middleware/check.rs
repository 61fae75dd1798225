//! The check of a request: from its head to its [`Outcome`].

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::request::Parts;
use tokio::time::{Instant, Sleep, sleep};

use super::check_levels::{self, LevelsCheck, StartedLevels};
use super::config::LayerConfig;
use super::outcome::{Outcome, leave_out};
use super::plan_lookup::PlanFuture;
use super::wait::backoff;
use crate::decision::Decision;
use crate::error::{Error, polled_after_completion};
use crate::key::Key;
use crate::limiter::{CheckProgress, PendingCheck};
use crate::quota::{Plan, Quotas};

/// A started check.
#[expect(
    clippy::large_enum_variant,
    reason = "a box would allocate for each request that waits"
)]
pub(super) enum StartedCheck {
    /// Decided at once, for example by a store in memory.
    Done(Outcome),
    Pending(CheckFuture),
}

/// Reads the keys and the costs of a request, and starts the check of its levels.
pub(super) fn start_check(config: &Arc<LayerConfig>, parts: &Parts) -> StartedCheck {
    if !config.enabled {
        return StartedCheck::Done(Outcome::Exempt);
    }
    if config.skip.as_ref().is_some_and(|skip| skip(parts)) {
        return StartedCheck::Done(Outcome::skipped(config));
    }
    if !config.others.is_empty() {
        return match check_levels::start(config, parts) {
            StartedLevels::Done(outcome) => StartedCheck::Done(outcome),
            StartedLevels::Pending(check) => {
                StartedCheck::Pending(CheckFuture::new(config, Stage::Levels(check)))
            }
        };
    }
    let level = &config.first;
    let key = match level.extract(parts) {
        Ok(key) => key,
        Err(error) => {
            let rejected = Outcome::without_key(config, level, error);
            return StartedCheck::Done(rejected.unwrap_or(Outcome::Exempt));
        }
    };
    let cost = level.cost_of(parts, || 1);
    if let Some(plan) = level.look_up_plan(&key, parts) {
        let stage = Stage::LookingUpPlan { plan, key, cost };
        return StartedCheck::Pending(CheckFuture::new(config, stage));
    }
    match level.limiter.start_check(key, cost) {
        CheckProgress::Done(result) if backoff(config, &result, config.max_wait).is_none() => {
            StartedCheck::Done(Outcome::checked(config, result))
        }
        progress => StartedCheck::Pending(CheckFuture::new(config, progress.into())),
    }
}

/// The future of a check that waits for a plan, for the store, or for units.
pub(super) struct CheckFuture {
    pub(super) config: Arc<LayerConfig>,
    /// The time from which `max_wait` counts. `None` if the layer does not wait.
    started: Option<Instant>,
    /// The quotas of the key's plan, which replace those of the layer.
    plan_quotas: Option<Quotas>,
    stage: Stage,
}

enum Stage {
    LookingUpPlan {
        plan: PlanFuture,
        key: Key,
        cost: u32,
    },
    Checking(PendingCheck),
    /// Answered at once. `None` after the check is done.
    Answered(Option<Result<Decision, Error>>),
    /// Backs off after a refusal.
    Waiting {
        sleep: Pin<Box<Sleep>>,
        key: Key,
        cost: u32,
    },
    /// The check of a layer with several levels, which waits on its own.
    Levels(Box<LevelsCheck>),
}

impl From<CheckProgress> for Stage {
    fn from(progress: CheckProgress) -> Self {
        match progress {
            CheckProgress::Pending(check) => Self::Checking(check),
            CheckProgress::Done(result) => Self::Answered(Some(result)),
        }
    }
}

impl CheckFuture {
    fn new(config: &Arc<LayerConfig>, stage: Stage) -> Self {
        Self {
            config: Arc::clone(config),
            started: (!config.max_wait.is_zero()).then(Instant::now),
            plan_quotas: None,
            stage,
        }
    }

    /// Starts the check with the quotas of the plan. Returns an outcome if the plan or its error decides.
    fn plan_found(&mut self, plan: Result<Plan, Error>, key: Key, cost: u32) -> Option<Outcome> {
        let limiter = &self.config.first.limiter;
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                let result = limiter.check_without_quotas(key, cost, error);
                // Does not wait for units: the quotas of the layer may not be those of the key.
                return Some(Outcome::checked(&self.config, result));
            }
        };
        limiter.quotas_found();
        match plan {
            Plan::Exempt => {
                leave_out(&self.config.first);
                return Some(Outcome::Exempt);
            }
            Plan::Default => {}
            Plan::Quotas(quotas) => self.plan_quotas = Some(quotas),
        }
        self.start_attempt(key, cost);
        None
    }

    fn start_attempt(&mut self, key: Key, cost: u32) {
        let limiter = &self.config.first.limiter;
        let progress = match &self.plan_quotas {
            None => limiter.start_check(key, cost),
            Some(quotas) => limiter.start_check_with(quotas, key, cost),
        };
        self.stage = progress.into();
    }

    /// Returns the outcome of an attempt, or `None` if the request waits for the next attempt.
    fn finish_attempt(&mut self, result: Result<Decision, Error>) -> Option<Outcome> {
        if let Some(waiting) = self.wait_after(&result) {
            self.stage = waiting;
            return None;
        }
        Some(Outcome::checked(&self.config, result))
    }

    fn wait_after(&self, result: &Result<Decision, Error>) -> Option<Stage> {
        let left = self.config.max_wait.saturating_sub(self.started?.elapsed());
        let backoff = backoff(&self.config, result, left)?;
        let refused = result.as_ref().ok()?;
        Some(Stage::Waiting {
            sleep: Box::pin(sleep(backoff)),
            key: refused.view().charged_key()?.key.clone(),
            cost: refused.cost(),
        })
    }
}

impl Future for CheckFuture {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let this = self.get_mut();
        loop {
            let outcome = match &mut this.stage {
                Stage::LookingUpPlan { plan, key, cost } => {
                    let plan = ready!(plan.as_mut().poll(cx));
                    let (key, cost) = (key.clone(), *cost);
                    this.plan_found(plan, key, cost)
                }
                Stage::Checking(check) => {
                    let limiter = &this.config.first.limiter;
                    let result = ready!(limiter.poll_check(check, cx));
                    this.finish_attempt(result)
                }
                Stage::Answered(result) => match result.take() {
                    Some(result) => this.finish_attempt(result),
                    None => polled_after_completion("CheckFuture"),
                },
                Stage::Waiting { sleep, key, cost } => {
                    ready!(sleep.as_mut().poll(cx));
                    let (key, cost) = (key.clone(), *cost);
                    this.start_attempt(key, cost);
                    None
                }
                Stage::Levels(check) => Some(ready!(check.poll(&this.config, cx))),
            };
            if let Some(outcome) = outcome {
                this.stage = Stage::Answered(None);
                return Poll::Ready(outcome);
            }
        }
    }
}
