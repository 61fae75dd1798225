//! The check of a request: from its head to its [`Outcome`].

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use http::request::Parts;
use smallvec::SmallVec;

use super::checked_levels::{AppliedQuotas, CheckedLevel, CheckedLevels};
use super::config::LayerConfig;
use super::level::Level;
use super::outcome::{self, Outcome, Pass};
use super::reservation::Reservation;
use crate::decision::{Decision, DecisionView};
use crate::error::polled_after_completion;
use crate::limiter::{
    Checked, LimiterLevel, PendingCheck, Place, RateLimiter, SlotsOfCheck, TooLate, Want,
};
use crate::telemetry::PermitMeter;

/// A started check.
pub(super) enum StartedCheck {
    /// Decided at once, for example by a store in memory.
    Done(Outcome),
    Pending(CheckFuture),
}

/// The future of a check that waits for plans, for the store, or for units.
pub(super) struct CheckFuture {
    pub(super) config: Arc<LayerConfig>,
    /// `None` if the request does not wait.
    waiting: Option<Place>,
    levels: CheckedLevels,
    stage: Stage,
}

enum Stage {
    LookingUpPlans,
    /// The next attempt is due.
    Starting,
    Checking(RunningCheck),
    /// Waits for its turn.
    InLine,
    Done,
}

/// A check, which is returned when it is decided.
type RunningCheck = Pin<Box<dyn Future<Output = (Checked, PendingCheck)> + Send>>;

/// Reads the keys and the costs of a request, and starts the check of its levels.
pub(super) fn start_check(config: &Arc<LayerConfig>, parts: &Parts) -> StartedCheck {
    if !config.enabled {
        return StartedCheck::Done(Ok(Pass::default()));
    }
    if config.skip.as_ref().is_some_and(|skip| skip(parts)) {
        config.levels().for_each(Level::leave_out);
        return StartedCheck::Done(Ok(Pass::default()));
    }
    let mut levels = CheckedLevels::new();
    if let Err(rejected) = read(config, parts, &mut levels) {
        return StartedCheck::Done(rejected);
    }
    // A dry run delays no request.
    let waits = !config.max_wait.is_zero() && !config.is_dry_run;
    let mut waiting = waits.then(|| Place::new(config.max_wait, max_calls(config, &levels)));
    let stage = if levels.iter().any(CheckedLevel::is_looking_up) {
        Stage::LookingUpPlans
    } else {
        match begin(config, &mut levels, &mut waiting) {
            ControlFlow::Break(outcome) => return StartedCheck::Done(outcome),
            ControlFlow::Continue(stage) => stage,
        }
    };
    StartedCheck::Pending(CheckFuture {
        config: Arc::clone(config),
        waiting,
        levels,
        stage,
    })
}

/// Reads what a request asks of each level.
///
/// # Errors
///
/// Returns the outcome if the request is rejected because of a key.
#[inline]
fn read(config: &LayerConfig, parts: &Parts, levels: &mut CheckedLevels) -> Result<(), Outcome> {
    let mut layer_cost = None;
    for (place, level) in config.levels().enumerate() {
        let cost = || *layer_cost.get_or_insert_with(|| config.layer_cost(parts));
        match level.extract(parts) {
            Ok(key) => levels.push(CheckedLevel {
                place,
                cost: level.cost_of(parts, cost),
                share: level.share_of(parts),
                quotas: level
                    .look_up_plan(&key, parts)
                    .map_or(AppliedQuotas::Own, AppliedQuotas::LookingUp),
                key,
            }),
            Err(error) => {
                if let Some(rejected) = outcome::without_key(config, level, error) {
                    return Err(rejected);
                }
            }
        }
    }
    Ok(())
}

/// Stands in line if others wait for a key of the levels, or else checks them.
#[inline]
fn begin(
    config: &Arc<LayerConfig>,
    levels: &mut CheckedLevels,
    waiting: &mut Option<Place>,
) -> ControlFlow<Outcome, Stage> {
    // A key of an unknown plan may have other quotas than its limiter.
    let is_unknown = |level: &CheckedLevel| matches!(level.quotas, AppliedQuotas::Unknown(_));
    waiting.take_if(|_| levels.iter().any(is_unknown));
    if let Some(place) = waiting {
        if takes_slots(config, levels) {
            place.waits_for_slots(permit_meters(config, levels));
        }
        match place.enter(wants(config, levels)) {
            Ok(()) if place.is_in_line() => return ControlFlow::Continue(Stage::InLine),
            Ok(()) => {}
            Err(too_late) => return attempt(config, levels, waiting, Some(too_late)),
        }
    }
    attempt(config, levels, waiting, None)
}

/// Returns whether the request takes slots in flight.
fn takes_slots(config: &LayerConfig, levels: &CheckedLevels) -> bool {
    levels.iter().any(|level| level.is_in_flight(config))
}

/// Returns how many requests may wait for a key.
fn max_calls(config: &LayerConfig, levels: &CheckedLevels) -> Option<usize> {
    let limiters = levels
        .iter()
        .map(|level| &config.level(level.place).limiter);
    limiters.filter_map(RateLimiter::line).min()
}

/// Returns what a request asks of each of its keys.
fn wants(config: &LayerConfig, levels: &CheckedLevels) -> impl Iterator<Item = Want> {
    levels.iter().map(|level| {
        let limiter = &config.level(level.place).limiter;
        let quotas = level.quotas(config);
        let asked = (level.cost, config.level(level.place).slots);
        Want::new(limiter, &level.key, quotas, asked, level.share)
    })
}

/// Checks the levels by their quotas. Returns the outcome, or else the next stage. A request whose turn would come too late
/// is refused without asking the store.
#[inline]
fn attempt(
    config: &Arc<LayerConfig>,
    levels: &mut CheckedLevels,
    waiting: &mut Option<Place>,
    too_late: Option<TooLate>,
) -> ControlFlow<Outcome, Stage> {
    if levels.is_empty() {
        return ControlFlow::Break(Ok(Pass::default()));
    }
    let mut check = PendingCheck::new();
    if takes_slots(config, levels) {
        check.take_slots(SlotsOfCheck::new(waiting.as_ref()));
    }
    add_levels(&mut check, config, levels);
    if let Some(too_late) = too_late {
        *waiting = None;
        check.refuse_too_late(too_late);
    }
    let mut running: RunningCheck = Box::pin(async move {
        let checked = check.run().await;
        (checked, check)
    });
    // A store in memory is done after one poll.
    match running
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(ended) => finish_attempt(config, levels, waiting, ended),
        Poll::Pending => ControlFlow::Continue(Stage::Checking(running)),
    }
}

/// Adds the levels of a request to its check.
fn add_levels(check: &mut PendingCheck, config: &LayerConfig, levels: &CheckedLevels) {
    for level in levels {
        let plan = match &level.quotas {
            AppliedQuotas::OfPlan(quotas) => Some(Ok(quotas)),
            AppliedQuotas::Unknown(error) => Some(Err(error)),
            _ => None,
        };
        let Level { limiter, slots, .. } = config.level(level.place);
        let asked = LimiterLevel::new(limiter, level.place).slots(*slots);
        check.add(asked.plan(plan), &level.key, level.cost, level.share);
    }
}

/// Returns the meters of the levels with slots.
#[cold]
fn permit_meters(
    config: &LayerConfig,
    levels: &CheckedLevels,
) -> impl Iterator<Item = PermitMeter> {
    let in_flight = levels.iter().filter(|level| level.is_in_flight(config));
    in_flight.map(|level| config.level(level.place).limiter.permit_meter())
}

/// Returns the outcome of an attempt, or else the stage before the next one.
#[inline(always)]
fn finish_attempt(
    config: &Arc<LayerConfig>,
    levels: &mut CheckedLevels,
    waiting: &mut Option<Place>,
    (checked, check): (Checked, PendingCheck),
) -> ControlFlow<Outcome, Stage> {
    let checked = match checked {
        Ok(decision) if config.observes && is_held_back(config, &check, &decision) => {
            Reservation::new(config, decision).give_back();
            return ControlFlow::Continue(Stage::Starting);
        }
        checked => checked,
    };
    if let Ok(decision) = &checked {
        if decision.is_allowed() {
            if let Some(place) = waiting {
                place.admitted(wants(config, levels), decision.view());
            }
        } else if leave_out_free(config, levels, decision.view()) {
            return ControlFlow::Continue(Stage::Starting);
        } else if let Some(place) = waiting
            && place.refused(wants(config, levels), decision.view())
        {
            return ControlFlow::Continue(Stage::InLine);
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
fn leave_out_free(
    config: &LayerConfig,
    levels: &mut CheckedLevels,
    decision: &DecisionView,
) -> bool {
    let refused = decision.levels().enumerate();
    let free = refused.filter(|(_, level)| outcome::is_refused_for_free(*level));
    let free: SmallVec<[usize; 4]> = free.map(|(checked, _)| checked).collect();
    let is_all = free.len() == levels.len();
    if free.is_empty() || is_all && !levels.iter().any(|level| level.is_in_flight(config)) {
        return false;
    }
    for checked in free.into_iter().rev() {
        let Some(level) = levels.get_mut(checked) else {
            continue;
        };
        if let Some(slots) = level.slots_only(config) {
            level.quotas = AppliedQuotas::OfPlan(slots);
        } else {
            config.level(levels.remove(checked).place).leave_out();
        }
    }
    true
}

impl CheckFuture {
    /// Polls all lookups that are not done, so that they run at the same time. Then removes the levels that
    /// their plans leave out.
    fn poll_plans(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut is_pending = false;
        for level in &mut self.levels {
            let AppliedQuotas::LookingUp(plan) = &mut level.quotas else {
                continue;
            };
            match plan.as_mut().poll(cx) {
                Poll::Pending => is_pending = true,
                Poll::Ready(plan) => {
                    let of_layer = self.config.level(level.place);
                    level.quotas = AppliedQuotas::found(of_layer, plan);
                }
            }
        }
        if is_pending {
            return Poll::Pending;
        }
        let is_checked = |level: &mut CheckedLevel| !matches!(level.quotas, AppliedQuotas::Exempt);
        self.levels.retain(is_checked);
        Poll::Ready(())
    }
}

impl Future for CheckFuture {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        loop {
            if matches!(self.stage, Stage::LookingUpPlans) {
                ready!(self.poll_plans(cx));
            }
            let Self {
                config,
                waiting,
                levels,
                stage,
            } = &mut *self;
            let next = match stage {
                Stage::LookingUpPlans => begin(config, levels, waiting),
                Stage::Starting => attempt(config, levels, waiting, None),
                Stage::Checking(check) => {
                    let ended = ready!(check.as_mut().poll(cx));
                    finish_attempt(config, levels, waiting, ended)
                }
                Stage::InLine => {
                    let turn = waiting.as_mut().map(|place| place.poll_turn(cx));
                    let turn = ready!(turn.unwrap_or(Poll::Ready(Ok(()))));
                    attempt(config, levels, waiting, turn.err())
                }
                Stage::Done => polled_after_completion("CheckFuture"),
            };
            match next {
                ControlFlow::Continue(next) => self.stage = next,
                ControlFlow::Break(outcome) => {
                    self.stage = Stage::Done;
                    return Poll::Ready(outcome);
                }
            }
        }
    }
}
