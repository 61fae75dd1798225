//! The check of a request: from its head to its [`Outcome`].

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::request::Parts;
use tokio::time::{Instant, Sleep, sleep};

use super::config::{LayerConfig, MissingKey};
use super::plan_lookup::PlanFuture;
use super::rejection::{Rejection, RejectionReason};
use crate::decision::{Decision, DecisionView, Source};
use crate::error::{Error, ErrorKind, polled_after_completion};
use crate::key::{Key, KeyError, KeyErrorKind};
use crate::limiter::{CheckProgress, PendingCheck, backoff_after};
use crate::quota::{Plan, Quotas};
use crate::telemetry::OutcomeLabel;

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

/// Extracts the key and the cost of a request, and starts the check of the limiter.
pub(super) fn start_check(config: &Arc<LayerConfig>, parts: &Parts) -> StartedCheck {
    if config.skip.as_ref().is_some_and(|skip| skip(parts)) {
        return StartedCheck::Done(Outcome::exempt(config));
    }
    let extracted = config.key.extract(parts);
    config
        .diagnostics
        .observe_request(&config.limiter.name, &*config.key, parts, &extracted);
    let key = match extracted {
        Ok(key) => key,
        Err(error) => return StartedCheck::Done(Outcome::without_key(config, error)),
    };
    let cost = config.cost.as_ref().map_or(1, |cost| cost(parts));
    if let Some(look_up_plan) = &config.plan_lookup {
        let plan = look_up_plan(&key, parts);
        let stage = Stage::LookingUpPlan { plan, key, cost };
        return StartedCheck::Pending(CheckFuture::new(config, stage));
    }
    match config.limiter.start_check(key, cost) {
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
        let limiter = &self.config.limiter;
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
            Plan::Exempt => return Some(Outcome::exempt(&self.config)),
            Plan::Default => {}
            Plan::Quotas(quotas) => self.plan_quotas = Some(quotas),
        }
        self.start_attempt(key, cost);
        None
    }

    fn start_attempt(&mut self, key: Key, cost: u32) {
        let limiter = &self.config.limiter;
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
                    let result = ready!(this.config.limiter.poll_check(check, cx));
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
            };
            if let Some(outcome) = outcome {
                this.stage = Stage::Answered(None);
                return Poll::Ready(outcome);
            }
        }
    }
}

/// Returns the wait before a refused check is tried again, or `None` if the request does not wait.
fn backoff(
    config: &LayerConfig,
    result: &Result<Decision, Error>,
    left: Duration,
) -> Option<Duration> {
    // A dry run delays no request.
    if config.max_wait.is_zero() || config.dry_run.is_some() {
        return None;
    }
    backoff_after(result.as_ref().ok()?.view(), left)
}

/// The outcome of a check, which telemetry has already recorded.
pub(super) enum Outcome {
    /// Passes without being counted: it is skipped, or exempt because of its plan or a missing key.
    Exempt,
    Admitted(Decision),
    /// Passes only because the layer is a dry run.
    DryRun(Rejection),
    Rejected(Rejection),
}

impl Outcome {
    fn exempt(config: &LayerConfig) -> Self {
        config.limiter.telemetry.record_exempt();
        Self::Exempt
    }

    /// Returns the outcome of a request whose key cannot be extracted.
    fn without_key(config: &LayerConfig, error: KeyError) -> Self {
        match (error.kind(), config.on_missing_key) {
            (KeyErrorKind::Missing, MissingKey::Exempt) => return Self::exempt(config),
            (KeyErrorKind::Misconfigured, _) => {
                config.diagnostics.key_misconfigured(
                    &config.limiter.name,
                    config.dry_run.is_some(),
                    &error,
                );
            }
            (KeyErrorKind::Missing | KeyErrorKind::Ambiguous, _) => {}
        }
        Self::reject(config, RejectionReason::NoKey(error))
    }

    /// Returns the outcome of a request that the limiter has checked.
    fn checked(config: &LayerConfig, result: Result<Decision, Error>) -> Self {
        match result {
            // Cost 0 passes even a limit that was lowered below the used units.
            Ok(decision) if decision.is_allowed() || is_free(decision.view()) => {
                config
                    .limiter
                    .telemetry
                    .record_decision(OutcomeLabel::Admitted, decision.view());
                Self::Admitted(decision)
            }
            Ok(decision) => Self::reject(config, RejectionReason::Refused(decision.into_view())),
            Err(error) => {
                if error.kind() == ErrorKind::CostTooLarge {
                    config.diagnostics.cost_too_large(
                        &config.limiter.name,
                        config.dry_run.is_some(),
                        &error,
                    );
                }
                Self::reject(config, RejectionReason::Failed(error))
            }
        }
    }

    fn reject(config: &LayerConfig, reason: RejectionReason) -> Self {
        record_rejection(config, &reason);
        let rejection = Rejection::new(&config.limiter.name, reason).with_status(config.status);
        if config.dry_run.is_some() {
            config.diagnostics.would_reject(&rejection);
            Self::DryRun(rejection)
        } else {
            Self::Rejected(rejection)
        }
    }
}

/// Returns whether a request costs nothing and its key is not blocked.
fn is_free(decision: &DecisionView) -> bool {
    decision.cost() == 0 && decision.source() != Source::Block
}

fn record_rejection(config: &LayerConfig, reason: &RejectionReason) {
    let telemetry = &config.limiter.telemetry;
    let label = |rejected| match config.dry_run {
        None => rejected,
        Some(_) => OutcomeLabel::WouldReject,
    };
    match reason {
        RejectionReason::Refused(decision) => {
            telemetry.record_decision(label(OutcomeLabel::Refused), decision);
        }
        RejectionReason::NoKey(error) => {
            telemetry.record_failure(label(OutcomeLabel::NoKey), error, error.kind().text());
        }
        RejectionReason::Failed(error) => {
            telemetry.record_failure(label(OutcomeLabel::Failed), error, error.kind().text());
        }
    }
}
