//! A request whose turn is not decided at once.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep, sleep};

use super::{Gate, Judged, Pass};
use crate::decision::Draft;
use crate::limiter::Begun;
use crate::plan::{Plan, PlanFuture};
use crate::store::Guarded;
use crate::{Decision, Error, Key, Quotas};

/// Looks for the quotas of a key, asks the store, and waits for its turn, as far as there is need.
pub(crate) struct Inquiry {
    gate: Arc<Gate>,
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
    Checking {
        draft: Draft,
        answer: Guarded,
    },
    Decided(Result<Decision, Error>),
    Napping {
        nap: Pin<Box<Sleep>>,
        refused: Decision,
    },
    Over,
}

impl Inquiry {
    pub(super) fn planning(gate: &Arc<Gate>, plan: PlanFuture, key: Key, cost: u32) -> Self {
        Self::begin(gate, Stage::Planning { plan, key, cost })
    }

    pub(super) fn checking(gate: &Arc<Gate>, draft: Draft, answer: Guarded) -> Self {
        Self::begin(gate, Stage::Checking { draft, answer })
    }

    /// For what was refused and can wait.
    pub(super) fn decided(gate: &Arc<Gate>, decided: Result<Decision, Error>) -> Self {
        Self::begin(gate, Stage::Decided(decided))
    }

    fn begin(gate: &Arc<Gate>, stage: Stage) -> Self {
        Self {
            gate: Arc::clone(gate),
            since: (!gate.patience.is_zero()).then(Instant::now),
            quotas: None,
            stage,
        }
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    fn planned(&mut self, plan: Result<Plan, Error>, key: Key, cost: u32) -> Option<Begun> {
        let limiter = &self.gate.limiter;
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => return Some(Begun::Decided(limiter.without_quotas(key, cost, error))),
        };
        limiter.quotas_found();
        match plan {
            Plan::Exempt => return None,
            Plan::Default => {}
            Plan::Quotas(quotas) => self.quotas = Some(quotas),
        }
        Some(self.ask(key, cost))
    }

    fn ask(&self, key: Key, cost: u32) -> Begun {
        let limiter = &self.gate.limiter;
        match &self.quotas {
            None => limiter.begin(key, cost),
            Some(quotas) => limiter.begin_by(quotas, key, cost),
        }
    }

    /// Asks again for what was refused.
    fn ask_again(&self, refused: &Decision) -> Option<Begun> {
        let key = refused.where_charged()?.key.clone();
        Some(self.ask(key, refused.cost()))
    }

    /// Judges, unless there is time to ask again.
    fn decide(&mut self, decided: Result<Decision, Error>) -> Option<Judged> {
        let patience = self.gate.patience;
        let left = self
            .since
            .map(|since| patience.saturating_sub(since.elapsed()));
        let nap = left.and_then(|left| self.gate.nap_after(&decided, left));
        match (nap, decided) {
            (Some(nap), Ok(refused)) => {
                let nap = Box::pin(sleep(nap));
                self.stage = Stage::Napping { nap, refused };
                None
            }
            (_, decided) => Some(self.gate.judge(decided)),
        }
    }
}

impl Future for Inquiry {
    type Output = Judged;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Judged> {
        let this = self.get_mut();
        loop {
            let begun = match &mut this.stage {
                Stage::Planning { plan, .. } => {
                    let plan = ready!(plan.as_mut().poll(cx));
                    let Stage::Planning { key, cost, .. } = this.stage.take() else {
                        return Poll::Pending;
                    };
                    this.planned(plan, key, cost)
                }
                Stage::Checking { answer, .. } => {
                    let answer = ready!(Pin::new(answer).poll(cx));
                    let Stage::Checking { draft, .. } = this.stage.take() else {
                        return Poll::Pending;
                    };
                    Some(Begun::Decided(this.gate.limiter.finish(draft, answer)))
                }
                Stage::Decided(_) => {
                    let Stage::Decided(decided) = this.stage.take() else {
                        return Poll::Pending;
                    };
                    Some(Begun::Decided(decided))
                }
                Stage::Napping { nap, .. } => {
                    ready!(nap.as_mut().poll(cx));
                    let Stage::Napping { refused, .. } = this.stage.take() else {
                        return Poll::Pending;
                    };
                    this.ask_again(&refused)
                }
                // Polled again after its end, there is nothing left to say.
                Stage::Over => return Poll::Pending,
            };
            match begun {
                None => return Poll::Ready(Judged::Passes(Pass::Exempt)),
                Some(Begun::Waiting { draft, answer }) => {
                    this.stage = Stage::Checking { draft, answer };
                }
                Some(Begun::Decided(decided)) => {
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
