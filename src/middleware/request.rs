//! The check of a request: from its head to its [`Outcome`].

use std::future::Future;
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
use crate::decision::{Decision, DecisionView};
use crate::error::Error;
use crate::key::Key;
use crate::limiter::{Checked, LimiterLevel, PendingCheck, Place, SlotsOfCheck, TooLate, Want};
use crate::quota::{Plan, Quotas, ShareId};
use crate::store::join_all;
use crate::telemetry::PermitMeter;

/// The check of a request that waits for plans, for the store, or for units.
pub(super) type PendingOutcome = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// The levels of a request that are not left out.
type AskedLevels = SmallVec<[AskedLevel; 1]>;

/// One level of a request: its key, and the units that it asks of it.
struct AskedLevel {
    /// The index of the level in the layer.
    place: usize,
    key: Key,
    cost: u32,
    share: Option<ShareId>,
    /// The quotas in place of the limiter's own, or why they are unknown.
    plan: Option<Result<Quotas, Error>>,
}

/// The levels of a request, each with the lookup of its plan.
type Readings = SmallVec<[(AskedLevel, Option<PlanFuture>); 1]>;

/// The step after an attempt that has not decided the request.
enum Next {
    Attempt,
    /// The request stands in line, and waits for its turn.
    Turn,
}

/// Checks a request, as far as that is possible without waiting. A store in memory decides it at once.
///
/// # Errors
///
/// Returns the rest of the check if it has to wait.
#[inline]
pub(super) fn start(config: &Arc<LayerConfig>, parts: &Parts) -> Result<Outcome, PendingOutcome> {
    if !config.enabled {
        return Ok(Ok(Pass::default()));
    }
    if config.skip.as_ref().is_some_and(|skip| skip(parts)) {
        config.levels().for_each(Level::leave_out);
        return Ok(Ok(Pass::default()));
    }
    let readings = match read(config, parts) {
        Ok(readings) => readings,
        Err(rejected) => return Ok(rejected),
    };
    let mut check: PendingOutcome = Box::pin(check(Arc::clone(config), readings));
    match check.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Ok(outcome),
        Poll::Pending => Err(check),
    }
}

/// Reads what a request asks of each level. All closures of the application run here, before anything is charged.
///
/// # Errors
///
/// Returns the outcome if the request is rejected because of a key.
#[inline]
fn read(config: &LayerConfig, parts: &Parts) -> Result<Readings, Outcome> {
    let (mut readings, mut layer_cost) = (Readings::new(), None);
    for (place, level) in config.levels().enumerate() {
        let cost = || *layer_cost.get_or_insert_with(|| config.layer_cost(parts));
        match level.extract(parts) {
            Ok(key) => {
                let lookup = level.look_up_plan(&key, parts);
                let asked = AskedLevel {
                    place,
                    cost: level.cost_of(parts, cost),
                    share: level.share_of(parts),
                    plan: None,
                    key,
                };
                readings.push((asked, lookup));
            }
            Err(error) => {
                if let Some(rejected) = outcome::without_key(config, level, error) {
                    return Err(rejected);
                }
            }
        }
    }
    Ok(readings)
}

/// Checks a request until it is decided.
async fn check(config: Arc<LayerConfig>, readings: Readings) -> Outcome {
    // A dry run delays no request.
    let waits = !config.max_wait.is_zero() && !config.is_dry_run;
    let mut waiting = waits.then(|| {
        let levels = readings.iter().map(|(level, _)| level);
        Place::new(config.max_wait, max_calls(&config, levels))
    });
    let looks_up = readings.iter().any(|(_, lookup)| lookup.is_some());
    let mut levels = match looks_up {
        true => look_up_plans(&config, readings).await,
        false => readings.into_iter().map(|(level, _)| level).collect(),
    };
    // A key of an unknown plan may have other quotas than its limiter.
    let is_unknown = |level: &AskedLevel| matches!(level.plan, Some(Err(_)));
    waiting.take_if(|_| levels.iter().any(is_unknown));
    let mut too_late = None;
    if let Some(place) = &mut waiting {
        if takes_slots(&config, &levels) {
            place.waits_for_slots(permit_meters(&config, &levels));
        }
        too_late = match place.enter(wants(&config, &levels)) {
            Ok(()) => place.turn().await.err(),
            Err(too_late) => Some(too_late),
        };
    }
    loop {
        if levels.is_empty() {
            return Ok(Pass::default());
        }
        if too_late.is_some() {
            waiting = None;
        }
        let takes_slots = takes_slots(&config, &levels);
        let slots = takes_slots.then(|| SlotsOfCheck::new(waiting.as_ref()));
        let mut check = check_of(&config, &levels, slots, too_late.take());
        let checked = check.run().await;
        match take_in(&config, &mut levels, &mut waiting, (check, checked)) {
            ControlFlow::Break(outcome) => return outcome,
            ControlFlow::Continue(Next::Attempt) => {}
            ControlFlow::Continue(Next::Turn) => {
                if let Some(place) = &mut waiting {
                    too_late = place.turn().await.err();
                }
            }
        }
    }
}

/// Waits for all lookups at the same time. Leaves out the levels that their plans exempt.
#[cold]
async fn look_up_plans(config: &LayerConfig, readings: Readings) -> AskedLevels {
    let (levels, lookups): (AskedLevels, Vec<_>) = readings.into_iter().unzip();
    let own = || Box::pin(std::future::ready(Ok(Plan::Default))) as PlanFuture;
    let lookups = lookups.into_iter().map(|lookup| lookup.unwrap_or_else(own));
    let plans = join_all(lookups.collect()).await;
    let planned = levels.into_iter().zip(plans);
    let planned = planned.filter_map(|(mut level, plan)| {
        let of_layer = config.level(level.place);
        if plan.is_ok() {
            of_layer.limiter.quotas_found();
        }
        level.plan = match plan {
            Ok(Plan::Default) => None,
            Ok(Plan::Quotas(quotas)) => Some(Ok(quotas)),
            Ok(Plan::Exempt) => {
                of_layer.leave_out();
                return None;
            }
            Err(error) => Some(Err(error)),
        };
        Some(level)
    });
    planned.collect()
}

impl AskedLevel {
    #[inline]
    fn quotas<'a>(&'a self, config: &'a LayerConfig) -> &'a Quotas {
        match &self.plan {
            Some(Ok(quotas)) => quotas,
            _ => config.level(self.place).limiter.quotas(),
        }
    }
}

/// Returns whether the request takes slots in flight.
#[inline]
fn takes_slots(config: &LayerConfig, levels: &AskedLevels) -> bool {
    let mut levels = levels.iter();
    levels.any(|level| level.quotas(config).has_slots())
}

/// Returns how many requests may wait for a key.
fn max_calls<'a>(
    config: &LayerConfig,
    levels: impl Iterator<Item = &'a AskedLevel>,
) -> Option<usize> {
    let limiters = levels.map(|level| &config.level(level.place).limiter);
    limiters.filter_map(|limiter| limiter.line()).min()
}

/// Returns what a request asks of each of its keys.
fn wants(config: &LayerConfig, levels: &AskedLevels) -> impl Iterator<Item = Want> {
    levels.iter().map(|level| {
        let limiter = &config.level(level.place).limiter;
        let quotas = level.quotas(config);
        let asked = (level.cost, config.level(level.place).slots);
        Want::new(limiter, &level.key, quotas, asked, level.share)
    })
}

/// Returns the meters of the levels with slots.
#[cold]
fn permit_meters(config: &LayerConfig, levels: &AskedLevels) -> impl Iterator<Item = PermitMeter> {
    let in_flight = levels
        .iter()
        .filter(|level| level.quotas(config).has_slots());
    in_flight.map(|level| config.level(level.place).limiter.permit_meter())
}

/// Returns the check of an attempt. A request whose turn would come too late is refused without asking the store.
#[inline]
fn check_of(
    config: &LayerConfig,
    levels: &AskedLevels,
    slots: Option<SlotsOfCheck>,
    too_late: Option<TooLate>,
) -> PendingCheck {
    let mut check = PendingCheck::new();
    if let Some(slots) = slots {
        check.take_slots(slots);
    }
    for asked in levels {
        let Level { limiter, slots, .. } = config.level(asked.place);
        let level = LimiterLevel::new(limiter, asked.place).slots(*slots);
        let plan = asked.plan.as_ref().map(Result::as_ref);
        check.add(level.plan(plan), &asked.key, asked.cost, asked.share);
    }
    if let Some(too_late) = too_late {
        check.refuse_too_late(too_late);
    }
    check
}

/// Takes in what an attempt has brought: the outcome, or what follows.
#[inline]
fn take_in(
    config: &Arc<LayerConfig>,
    levels: &mut AskedLevels,
    waiting: &mut Option<Place>,
    (check, checked): (PendingCheck, Checked),
) -> ControlFlow<Outcome, Next> {
    let checked = match checked {
        Ok(decision) if config.observes && is_held_back(config, &check, &decision) => {
            Reservation::new(config, decision).give_back();
            return ControlFlow::Continue(Next::Attempt);
        }
        checked => checked,
    };
    if let Ok(decision) = &checked {
        if decision.is_allowed() {
            if let Some(place) = waiting {
                place.admitted(wants(config, levels), decision.view());
            }
        } else if leave_out_free(config, levels, decision.view()) {
            return ControlFlow::Continue(Next::Attempt);
        } else if let Some(place) = waiting
            && place.refused(wants(config, levels), decision.view())
        {
            return ControlFlow::Continue(Next::Turn);
        }
    }
    ControlFlow::Break(outcome::checked(config, check, checked))
}

/// Returns whether the upstream has held a key of an admission back since the store was asked.
#[cold]
fn is_held_back(config: &LayerConfig, check: &PendingCheck, decision: &Decision) -> bool {
    !config.is_dry_run && decision.is_allowed() && check.is_held_meanwhile(decision.view())
}

/// Leaves out the rates of levels that refuse a cost of 0. Returns whether the rest has to be checked again.
///
/// A cost of 0 passes even a limit that was lowered below the used units. But as the store has refused, it
/// has not charged the other levels, and has given no slots.
fn leave_out_free(config: &LayerConfig, levels: &mut AskedLevels, decision: &DecisionView) -> bool {
    let is_free: SmallVec<[bool; 4]> = decision
        .levels()
        .map(outcome::is_refused_for_free)
        .collect();
    let is_all = is_free.iter().all(|is_free| *is_free);
    if !is_free.contains(&true) || is_all && !takes_slots(config, levels) {
        return false;
    }
    let mut is_free = is_free.into_iter();
    levels.retain(|level| {
        let is_left_out = is_free.next() == Some(true);
        if !is_left_out {
            return true;
        }
        let quotas = level.quotas(config);
        if quotas.has_slots() {
            let slots = quotas.iter().filter(|quota| quota.is_in_flight());
            level.plan = Some(Ok(slots.cloned().collect()));
            return true;
        }
        config.level(level.place).leave_out();
        false
    });
    true
}
