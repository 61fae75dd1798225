//! The check of a request: from its head to its [`Outcome`].

use std::future::{Future, ready};
use std::mem;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http::request::Parts;
use smallvec::SmallVec;

use super::config::LayerConfig;
use super::level::{Level, PlanFuture};
use super::outcome::{self, Outcome, Pass};
use super::reservation::Reservation;
use crate::error::Error;
use crate::limiter::{
    Alternatives, AskedLevel, AskedLevels, Checked, FailedCheck, OutageWait, PendingCheck, Place,
    StartedCheck,
};
use crate::quota::Plan;
use crate::store::join_all;

/// The check of a request that waits for plans, for the store, or for units.
pub(super) type PendingOutcome = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// The lookup of the plan of each level, if it has one.
type Lookups = SmallVec<[Option<PlanFuture>; 1]>;

/// A check after as much of it as is possible without waiting.
pub(super) enum StartedRequest {
    Decided(Outcome),
    Pending(PendingOutcome),
}

impl StartedRequest {
    fn exempt() -> Self {
        Self::Decided(Ok(Pass::default()))
    }
}

/// Checks a request, as far as that is possible without waiting. A store in memory decides it at once.
#[inline]
pub(super) fn start(config: &Arc<LayerConfig>, parts: &Parts) -> StartedRequest {
    if !config.enabled {
        return StartedRequest::exempt();
    }
    if config.skip.exempts(parts) {
        config.levels().for_each(Level::leave_out);
        return StartedRequest::exempt();
    }
    let asked = match read(config, parts) {
        ControlFlow::Continue(asked) => asked,
        ControlFlow::Break(rejected) => return StartedRequest::Decided(rejected),
    };
    if asked.levels.is_empty() {
        return StartedRequest::exempt();
    }
    if config.pool.is_some() {
        return poll_once(run_first(Arc::clone(config), asked));
    }
    let check = PendingCheck::new(asked.levels);
    if config.waits() || check.has_slots() || asked.lookups.iter().any(Option::is_some) {
        return poll_once(run(Arc::clone(config), check, asked.lookups));
    }
    match check.start() {
        StartedCheck::Ended(Some(checked)) => match take_in(config, &mut None, checked) {
            ControlFlow::Break(outcome) => StartedRequest::Decided(outcome),
            ControlFlow::Continue(again) => {
                poll_once(run(Arc::clone(config), again, Lookups::new()))
            }
        },
        started => StartedRequest::Pending(wait(Arc::clone(config), started)),
    }
}

fn poll_once(mut check: PendingOutcome) -> StartedRequest {
    match check.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => StartedRequest::Decided(outcome),
        Poll::Pending => StartedRequest::Pending(check),
    }
}

struct AskedRequest {
    levels: AskedLevels,
    /// For each of the levels.
    lookups: Lookups,
}

/// Reads what a request asks of each level. All closures of the application run here, before anything is charged. Breaks with
/// the outcome if the request is rejected because of a key.
#[inline]
fn read(config: &LayerConfig, parts: &Parts) -> ControlFlow<Outcome, AskedRequest> {
    let mut levels = AskedLevels::new();
    let mut lookups = Lookups::new();
    let mut layer_cost = None;
    for (place, level) in config.levels().enumerate() {
        if level.skip.exempts(parts) {
            level.leave_out();
            continue;
        }
        match level.extract(parts) {
            Ok(key) => {
                let lookup = level.plan_lookup.as_ref();
                lookups.push(lookup.map(|look_up| look_up(&key, parts)));
                let cost = level.request_cost(parts, || {
                    *layer_cost.get_or_insert_with(|| config.first.request_cost(parts, || 1))
                });
                let share = level.share.as_ref().and_then(|share| share(parts));
                let asked = AskedLevel::with(&level.limiter, key, cost, |record| {
                    record.slots = level.slots;
                    record.unclamped_cost = level.clamps_cost.then_some(cost);
                    record.share = share;
                    record.place = place;
                    record.is_hidden = level.is_hidden;
                });
                levels.push(asked);
            }
            Err(error) => {
                if let Some(rejected) = outcome::without_key(config, level, error) {
                    return ControlFlow::Break(rejected);
                }
            }
        }
    }
    ControlFlow::Continue(AskedRequest { levels, lookups })
}

fn run(config: Arc<LayerConfig>, mut check: PendingCheck, lookups: Lookups) -> PendingOutcome {
    Box::pin(async move {
        let mut waiting = config.waits().then(|| check.place(config.max_wait));
        if lookups.iter().any(Option::is_some) {
            let levels = mem::take(&mut check.levels);
            check.levels = look_up_plans(&config, levels, lookups).await;
        }
        if check.levels.is_empty() {
            return Ok(Pass::default());
        }
        // A key of an unknown plan may have other quotas than its limiter.
        waiting.take_if(|_| check.levels.iter().any(AskedLevel::is_unknown));
        if let Some(place) = &mut waiting
            && check.has_slots()
        {
            place.waits_for_slots(check.permit_meters());
        }
        attempt_until_decided(&config, check, waiting).await
    })
}

/// Charges the first key of the pool that has room.
fn run_first(config: Arc<LayerConfig>, asked: AskedRequest) -> PendingOutcome {
    Box::pin(async move {
        let AskedRequest { levels, lookups } = asked;
        let keys = config.pool.as_deref().unwrap_or_default();
        let unsupported = if config.waits() {
            Some("wait for room")
        } else if lookups.iter().any(Option::is_some) {
            Some("plans of keys")
        } else {
            None
        };
        loop {
            let alternatives = Alternatives::with_keys(&levels, keys);
            let checked = match unsupported {
                Some(what) => alternatives.refuse_unsupported(what),
                None => alternatives.check().await,
            };
            // If the upstream has paused the key meanwhile, the charge returns, and all are tried again.
            if let ControlFlow::Break(outcome) = take_in(&config, &mut None, checked) {
                return outcome;
            }
        }
    })
}

/// Waits for the end of an attempt that the store has not answered yet.
fn wait(config: Arc<LayerConfig>, started: StartedCheck) -> PendingOutcome {
    Box::pin(async move {
        let checked = started.await;
        match take_in(&config, &mut None, checked) {
            ControlFlow::Break(outcome) => outcome,
            ControlFlow::Continue(again) => run(config, again, Lookups::new()).await,
        }
    })
}

async fn attempt_until_decided(
    config: &Arc<LayerConfig>,
    mut check: PendingCheck,
    mut waiting: Option<Place>,
) -> Outcome {
    // Other layers than those around a client decide at once when the store fails.
    let observes = config.observer.is_some();
    let mut outage = observes.then(|| OutageWait::new(config.max_wait));
    loop {
        let takes_slots = check.has_slots();
        let mut checked = check.attempt_in_turn(&mut waiting, takes_slots).await;
        if let Err(failed) = checked {
            match wait_for_store(failed, outage.as_mut(), waiting.as_mut()).await {
                ControlFlow::Break(failed) => checked = Err(failed),
                ControlFlow::Continue(again) => {
                    check = again;
                    continue;
                }
            }
        }
        match take_in(config, &mut waiting, checked) {
            ControlFlow::Break(outcome) => return outcome,
            ControlFlow::Continue(again) => check = again,
        }
    }
}

/// Waits until the store works again, if a client of an upstream waits for it. Breaks with the failure otherwise.
async fn wait_for_store(
    failed: Box<FailedCheck>,
    outage: Option<&mut OutageWait>,
    waiting: Option<&mut Place>,
) -> ControlFlow<Box<FailedCheck>, PendingCheck> {
    let (Some(outage), Some(place)) = (outage, waiting) else {
        return ControlFlow::Break(failed);
    };
    let mut failed = match outage.wait_for_store(failed, place).await {
        ControlFlow::Continue(again) => return ControlFlow::Continue(again),
        ControlFlow::Break(failed) => failed,
    };
    failed.error = outage.explain(failed.error);
    ControlFlow::Break(failed)
}

/// Waits for all lookups at the same time. Leaves out the levels that their plans exempt.
async fn look_up_plans(config: &LayerConfig, levels: AskedLevels, lookups: Lookups) -> AskedLevels {
    let lookups = lookups
        .into_iter()
        .map(|lookup| lookup.unwrap_or_else(|| Box::pin(ready(Ok(Plan::Default)))))
        .collect();
    let plans = join_all(lookups).await;
    levels
        .into_iter()
        .zip(plans)
        .filter_map(|(level, plan)| apply_plan(config, level, plan))
        .collect()
}

/// `None` if the plan exempts the request from this level.
fn apply_plan(
    config: &LayerConfig,
    mut level: AskedLevel,
    plan: Result<Plan, Error>,
) -> Option<AskedLevel> {
    if plan.is_ok() {
        level.limiter().quotas_found();
    }
    match plan {
        Ok(Plan::Default) => {}
        Ok(Plan::Quotas(quotas)) => level.set_plan(quotas),
        Ok(Plan::Exempt) => {
            config.level(level.record().place).leave_out();
            return None;
        }
        Err(error) => level.set_unknown(error),
    }
    Some(level)
}

/// Takes in what an attempt has brought. Breaks with the outcome, unless another attempt follows.
#[inline]
fn take_in(
    config: &Arc<LayerConfig>,
    waiting: &mut Option<Place>,
    checked: Checked,
) -> ControlFlow<Outcome, PendingCheck> {
    let decided = match checked {
        Ok(decided) => decided,
        Err(failed) => return ControlFlow::Break(outcome::failed(config, *failed)),
    };
    let decision = &decided.decision;
    if !decision.is_allowed() {
        if let Some(place) = waiting
            && place.refused(decision.view()).is_ok()
        {
            return ControlFlow::Continue(decided.ask_again());
        }
    } else if config.observer.is_some() && !config.is_dry_run && decision.is_paused_meanwhile() {
        // The upstream has paused a key since the store was asked.
        let (decision, again) = decided.split();
        Reservation::new(config, decision, None).give_back();
        return ControlFlow::Continue(again);
    } else if let Some(place) = waiting {
        place.admitted(decision.view());
    }
    ControlFlow::Break(outcome::decided(config, decided))
}
