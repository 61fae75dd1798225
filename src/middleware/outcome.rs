//! The outcome of a check: the request passes or is rejected. Recorded by telemetry.

use super::config::LayerConfig;
use super::level::{Level, MissingKey};
use super::permit::HeldPermit;
use super::rejection::{Rejection, RejectionReason};
use crate::error::ErrorKind;
use crate::key::{KeyError, KeyErrorKind};
use crate::limiter::{DecidedCheck, Decision, FailedCheck};
use crate::telemetry::OutcomeLabel;

/// The outcome of a check, which telemetry has already recorded: the request passes, or is rejected. Both are of about the same
/// size, so that a rejection needs no box.
pub(super) type Outcome = Result<Pass, Rejection>;

/// The parts of a request that passes. It has none if it is exempt: skipped, or left out because of plans or missing
/// keys.
#[derive(Default)]
pub(super) struct Pass {
    /// The decision, with its charge. A request that passes only because of a dry run has no charge.
    pub(super) decision: Option<Decision>,
    /// `None` if the request holds no slots.
    pub(super) permit: Option<HeldPermit>,
    /// The rejection that the request would get outside of a dry run.
    pub(super) would_reject: Option<Box<Rejection>>,
}

/// `None` if the level is left out.
pub(super) fn without_key(config: &LayerConfig, level: &Level, error: KeyError) -> Option<Outcome> {
    match (error.kind(), level.on_missing_key) {
        (KeyErrorKind::Missing, MissingKey::Exempt) => {
            level.leave_out();
            return None;
        }
        (KeyErrorKind::Misconfigured, _) => {
            level.report_no_key(config.is_dry_run, &error);
        }
        (KeyErrorKind::Missing | KeyErrorKind::Ambiguous | KeyErrorKind::Invalid, _) => {}
    }
    Some(reject(config, level, RejectionReason::NoKey(error)))
}

#[inline]
pub(super) fn decided(config: &LayerConfig, mut decided: DecidedCheck) -> Outcome {
    let slots = decided.take_slots();
    let decision = decided.decision;
    if decision.is_allowed() {
        decision.record_admission();
        let permit = (!slots.is_empty()).then(|| HeldPermit::new(decision.view(), slots));
        return Ok(Pass {
            decision: Some(decision),
            permit,
            would_reject: None,
        });
    }
    let view = decision.into_view();
    let place = view.reported_level().map_or(0, |level| level.place());
    let refusing = config.level(place);
    refusing.diagnostics.observe_refusal(refusing.name(), &view);
    if !config.is_dry_run {
        view.count_refusals();
    }
    reject(config, refusing, RejectionReason::Refused(view))
}

#[cold]
pub(super) fn failed(config: &LayerConfig, failed: FailedCheck) -> Outcome {
    let is_dry_run = config.is_dry_run;
    let FailedCheck { error, failed, .. } = failed;
    let mut levels = failed.iter().map(|place| config.level(*place));
    let first = levels.next().unwrap_or(&config.first);
    if error.kind() == ErrorKind::CostTooLarge {
        let diagnostics = &first.diagnostics.cost_too_large;
        diagnostics.log(error.code(), first.name(), is_dry_run, &error);
    }
    if error.is_config_error() {
        let diagnostics = &config.diagnostics.limiters_misconfigured;
        diagnostics.log(error.code(), first.name(), is_dry_run, &error);
    }
    let reason = RejectionReason::Failed(error);
    for other in levels {
        record_rejection(config, other, &reason);
    }
    reject(config, first, reason)
}

fn reject(config: &LayerConfig, level: &Level, reason: RejectionReason) -> Outcome {
    record_rejection(config, level, &reason);
    let mut rejection = Rejection::new(level.name(), reason);
    rejection.refused_status = config.status;
    if !config.is_dry_run {
        return Err(rejection);
    }
    config.diagnostics.count_dry_run(&rejection);
    let decision = match rejection.reason() {
        RejectionReason::Refused(view) => Some(Decision::without_charge(view.clone())),
        _ => None,
    };
    Ok(Pass {
        decision,
        permit: None,
        would_reject: Some(Box::new(rejection)),
    })
}

fn record_rejection(config: &LayerConfig, level: &Level, reason: &RejectionReason) {
    let telemetry = &level.limiter.0.telemetry;
    match reason {
        RejectionReason::Refused(decision) => {
            let level = decision.reported_level();
            let quota = decision.reported();
            telemetry.record_refusal(label(config, OutcomeLabel::Refused), level, quota);
        }
        RejectionReason::NoKey(error) => {
            let label = label(config, OutcomeLabel::NoKey);
            telemetry.record_failure(label, error, error.kind().text());
        }
        RejectionReason::Failed(error) => {
            let label = label(config, OutcomeLabel::Failed);
            telemetry.record_failure(label, error, error.kind().text());
        }
    }
}

fn label(config: &LayerConfig, rejected: OutcomeLabel) -> OutcomeLabel {
    if config.is_dry_run {
        OutcomeLabel::WouldReject
    } else {
        rejected
    }
}
