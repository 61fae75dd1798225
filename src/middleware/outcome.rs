//! The outcome of a request: the one type that leads from its check to its response.

use super::config::{LayerConfig, MissingKey};
use super::rejection::{Rejection, RejectionReason};
use crate::decision::{Decision, DecisionView, Source};
use crate::error::{Error, ErrorKind};
use crate::key::{KeyError, KeyErrorKind};
use crate::telemetry::OutcomeLabel;

/// The decision about a request, already recorded by telemetry.
pub(super) enum Outcome {
    /// Passes uncounted: skipped, exempt by its plan, or without a key where the layer allows that.
    Exempt,
    Admitted(Decision),
    /// Passes only because the layer is a dry run.
    DryRun(Rejection),
    Rejected(Rejection),
}

impl Outcome {
    /// Exempts a request.
    pub(super) fn exempt(config: &LayerConfig) -> Self {
        config.limiter.telemetry().record_exempt();
        Self::Exempt
    }

    /// Decides about a request whose key cannot be extracted.
    pub(super) fn without_key(config: &LayerConfig, error: KeyError) -> Self {
        match (error.kind(), config.on_missing_key) {
            (KeyErrorKind::Missing, MissingKey::Exempt) => return Self::exempt(config),
            (KeyErrorKind::Misconfigured, _) => {
                config.diagnostics.key_misconfigured(config.label(), &error);
            }
            (KeyErrorKind::Missing | KeyErrorKind::Ambiguous, _) => {}
        }
        Self::reject(config, RejectionReason::NoKey(error))
    }

    /// Decides about a request that the limiter checked.
    pub(super) fn checked(config: &LayerConfig, result: Result<Decision, Error>) -> Self {
        match result {
            // Cost 0 passes any limit, even one that was lowered below the units used.
            Ok(decision) if decision.is_allowed() || is_free(&decision) => {
                config
                    .limiter
                    .telemetry()
                    .record_decision(OutcomeLabel::Admitted, &decision);
                Self::Admitted(decision)
            }
            Ok(decision) => Self::reject(config, RejectionReason::Refused(decision.into_view())),
            Err(error) => {
                if error.kind() == ErrorKind::CostTooLarge {
                    config.diagnostics.cost_too_large(config.label(), &error);
                }
                Self::reject(config, RejectionReason::Failed(error))
            }
        }
    }

    fn reject(config: &LayerConfig, reason: RejectionReason) -> Self {
        record_rejection(config, &reason);
        let rejection = Rejection::new(config.label(), reason).with_status(config.status);
        if config.dry_run.is_some() {
            config.diagnostics.would_reject(&rejection);
            Self::DryRun(rejection)
        } else {
            Self::Rejected(rejection)
        }
    }
}

/// Whether a request costs nothing and no operator blocks its key.
fn is_free(decision: &DecisionView) -> bool {
    decision.cost() == 0 && decision.source() != Source::Block
}

fn record_rejection(config: &LayerConfig, reason: &RejectionReason) {
    let telemetry = config.limiter.telemetry();
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
