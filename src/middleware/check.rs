//! A request whose turn is not decided at once.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep, sleep};

use super::config::{Judged, LayerConfig};
use super::plan_lookup::PlanFuture;
use crate::decision::Decision;
use crate::error::Error;
use crate::key::Key;
use crate::limiter::{CheckProgress, PendingCheck};
use crate::quota::Plan;
use crate::quota::Quotas;

/// Looks for the quotas of a key, asks the store, and waits for its turn, as far as there is need.
pub(crate) struct CheckFuture {
    gate: Arc<LayerConfig>,
    /// When patience began, where there is any.
    since: Option<Instant>,
    /// In place of the layer's own.
    quotas: Option<Quotas>,
    stage: Stage,
}

enum Stage {
    Planning {
        plan: PlanFuture,
        key: Key,
        cost: u32,
    },
    Checking(PendingCheck),
    Decided(Result<Decision, Error>),
    Napping {
        nap: Pin<Box<Sleep>>,
        key: Key,
        cost: u32,
    },
    Over,
}

impl CheckFuture {
    pub(super) fn planning(gate: &Arc<LayerConfig>, plan: PlanFuture, key: Key, cost: u32) -> Self {
        Self::begin(gate, Stage::Planning { plan, key, cost })
    }

    pub(super) fn checking(gate: &Arc<LayerConfig>, check: PendingCheck) -> Self {
        Self::begin(gate, Stage::Checking(check))
    }

    /// For what was refused and can wait.
    pub(super) fn decided(gate: &Arc<LayerConfig>, decided: Result<Decision, Error>) -> Self {
        Self::begin(gate, Stage::Decided(decided))
    }

    fn begin(gate: &Arc<LayerConfig>, stage: Stage) -> Self {
        Self {
            gate: Arc::clone(gate),
            since: (!gate.patience.is_zero()).then(Instant::now),
            quotas: None,
            stage,
        }
    }

    pub(crate) fn gate(&self) -> &Arc<LayerConfig> {
        &self.gate
    }

    fn planned(&mut self, plan: Result<Plan, Error>, key: Key, cost: u32) -> Next {
        let limiter = &self.gate.limiter;
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                let decided = limiter.check_without_quotas(key, cost, error);
                // The store is not to be asked about other quotas than the key's.
                self.since = None;
                return Next::Asked(CheckProgress::Done(decided));
            }
        };
        limiter.quotas_found();
        match plan {
            Plan::Exempt => return Next::Exempt,
            Plan::Default => {}
            Plan::Quotas(quotas) => self.quotas = Some(quotas),
        }
        Next::Asked(self.ask(key, cost))
    }

    fn ask(&self, key: Key, cost: u32) -> CheckProgress {
        let limiter = &self.gate.limiter;
        match &self.quotas {
            None => limiter.start_check(key, cost),
            Some(quotas) => limiter.start_check_with(quotas, key, cost),
        }
    }

    /// Judges, unless there is time to ask again.
    fn decide(&mut self, decided: Result<Decision, Error>) -> Option<Judged> {
        match self.nap(&decided) {
            None => Some(self.gate.judge(decided)),
            Some(nap) => {
                self.stage = nap;
                None
            }
        }
    }

    /// Waits before what was refused is asked for again.
    fn nap(&self, decided: &Result<Decision, Error>) -> Option<Stage> {
        let left = self.gate.patience.saturating_sub(self.since?.elapsed());
        let nap = self.gate.backoff_after(decided, left)?;
        let refused = decided.as_ref().ok()?;
        Some(Stage::Napping {
            nap: Box::pin(sleep(nap)),
            key: refused.charged_key()?.key.clone(),
            cost: refused.cost(),
        })
    }

    /// Goes on to the next stage when this one is over.
    fn poll_stage(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        match &mut self.stage {
            Stage::Planning { plan, .. } => {
                let plan = ready!(plan.as_mut().poll(cx));
                if let Stage::Planning { key, cost, .. } = self.stage.take() {
                    return Poll::Ready(self.planned(plan, key, cost));
                }
            }
            Stage::Checking(check) => {
                let decided = ready!(self.gate.limiter.poll_check(check, cx));
                self.stage = Stage::Over;
                return Poll::Ready(Next::Asked(CheckProgress::Done(decided)));
            }
            Stage::Napping { nap, .. } => {
                ready!(nap.as_mut().poll(cx));
                if let Stage::Napping { key, cost, .. } = self.stage.take() {
                    return Poll::Ready(Next::Asked(self.ask(key, cost)));
                }
            }
            Stage::Decided(_) | Stage::Over => {
                if let Stage::Decided(decided) = self.stage.take() {
                    return Poll::Ready(Next::Asked(CheckProgress::Done(decided)));
                }
            }
        }
        // Polled again after its end, there is nothing left to say.
        Poll::Pending
    }
}

/// What a stage came to.
enum Next {
    Exempt,
    Asked(CheckProgress),
}

impl Future for CheckFuture {
    type Output = Judged;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Judged> {
        let this = self.get_mut();
        loop {
            match ready!(this.poll_stage(cx)) {
                Next::Exempt => return Poll::Ready(this.gate.exempt()),
                Next::Asked(CheckProgress::Pending(check)) => {
                    this.stage = Stage::Checking(check);
                }
                Next::Asked(CheckProgress::Done(decided)) => {
                    if let Some(judged) = this.decide(decided) {
                        return Poll::Ready(judged);
                    }
                }
            }
        }
    }
}

impl Stage {
    fn take(&mut self) -> Self {
        mem::replace(self, Self::Over)
    }
}
