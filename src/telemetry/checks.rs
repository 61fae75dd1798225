//! What an operator sees of checks and stores: metrics, events, and who is refused most.
//!
//! Nothing here decides, and nothing here holds a check up: what is not listened to costs a load.

use std::error::Error as StdError;
use std::num::NonZeroUsize;
use std::sync::Arc;

use super::busiest_refused::Busiest;
use super::busiest_refused::RefusedKey;
use super::events::Events;
use super::metrics::CheckCounts;

use crate::decision::{Decision, DecisionView, Source};
use crate::error::{Error, ErrorKind};

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutcomeLabel {
    Admitted,
    Refused,
    /// Refused, in a dry run: it went on.
    WouldReject,
    /// Not counted: skipped, of an exempt tenant, or without a key where that may be.
    Exempt,
    /// Without a key, or of one that is not known how to read: answered without a check.
    NoKey,
    /// Nobody decided, and the policy is not to admit.
    Failed,
}

impl OutcomeLabel {
    /// All of them, each at its own place.
    #[cfg(any(feature = "metrics", test))]
    pub(crate) const ALL: [Self; 6] = [
        Self::Admitted,
        Self::Refused,
        Self::WouldReject,
        Self::Exempt,
        Self::NoKey,
        Self::Failed,
    ];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Refused => "refused",
            Self::WouldReject => "would_reject",
            Self::Exempt => "exempt",
            Self::NoKey => "no_key",
            Self::Failed => "failed",
        }
    }
}

/// What is told of the checks of one limiter; its clones tell together.
#[derive(Debug)]
pub(crate) struct Telemetry {
    limiter: Arc<str>,
    counts: CheckCounts,
    events: Events,
    busiest: Option<Busiest>,
}

impl Telemetry {
    pub(crate) fn new(limiter: &Arc<str>, busiest: Option<NonZeroUsize>) -> Self {
        Self {
            limiter: Arc::clone(limiter),
            counts: CheckCounts::new(limiter),
            events: Events::default(),
            busiest: busiest.map(Busiest::new),
        }
    }

    /// How many keys are kept to know the busiest.
    pub(crate) fn keeps_busiest(&self) -> Option<NonZeroUsize> {
        self.busiest.as_ref().map(Busiest::capacity)
    }

    /// The keys that were refused most, the busiest first.
    pub(crate) fn busiest(&self, most: usize) -> Vec<RefusedKey> {
        let busiest = self.busiest.as_ref();
        busiest.map_or_else(Vec::new, |busiest| busiest.first(most))
    }

    /// A check was decided, and something came of that.
    #[inline]
    pub(crate) fn decided(&self, outcome: OutcomeLabel, decision: &DecisionView) {
        self.counts.count(outcome, decision.source());
        if outcome == OutcomeLabel::Admitted {
            self.events.admitted(&self.limiter, decision);
        } else {
            self.refused(outcome, decision);
        }
    }

    fn refused(&self, outcome: OutcomeLabel, decision: &DecisionView) {
        self.events.refused(&self.limiter, outcome, decision);
        if let (Some(busiest), Some(whose)) = (&self.busiest, decision.charged_key()) {
            busiest.refused(&whose.key);
        }
    }

    /// A request was not counted.
    pub(crate) fn exempt(&self) {
        self.counts.count(OutcomeLabel::Exempt, Source::None);
        self.events.exempt(&self.limiter);
    }

    /// Nobody decided.
    #[cold]
    pub(crate) fn undecided(
        &self,
        outcome: OutcomeLabel,
        error: &(dyn StdError + 'static),
        kind: &str,
    ) {
        self.counts.count(outcome, Source::None);
        self.events.undecided(&self.limiter, outcome, error, kind);
    }

    /// What came of a check without HTTP.
    #[inline]
    pub(crate) fn checked(&self, checked: &Result<Decision, Error>) {
        match checked {
            Ok(decision) if decision.is_allowed() => self.decided(OutcomeLabel::Admitted, decision),
            Ok(decision) => self.decided(OutcomeLabel::Refused, decision),
            Err(error) => {
                // No wait would help: that is a refusal.
                let outcome = match error.kind() {
                    ErrorKind::CostExceedsLimit => OutcomeLabel::Refused,
                    _ => OutcomeLabel::Failed,
                };
                self.undecided(outcome, error, error.kind().text());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_label_of_a_metric_is_at_its_own_place() {
        let outcomes = OutcomeLabel::ALL.map(|outcome| (outcome as usize, outcome.text()));
        let sources = Source::ALL.map(|source| (source as usize, source.text()));
        let kinds = ErrorKind::ALL.map(|kind| (kind as usize, kind.text()));
        for labels in [&outcomes[..], &sources, &kinds] {
            let places = labels.iter().map(|(place, _)| *place);
            assert!(places.eq(0..labels.len()), "{labels:?}");
            let texts: std::collections::BTreeSet<_> = labels.iter().map(|label| label.1).collect();
            assert_eq!(texts.len(), labels.len());
        }
    }
}
