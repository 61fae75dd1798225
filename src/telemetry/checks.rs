//! Records the outcome of each check: metrics, events and the top rejected keys.

use std::error::Error as StdError;
use std::num::NonZeroUsize;
use std::sync::Arc;

use super::events::Events;
use super::line_limits::OnceFlag;
use super::marked_keys::Mark;
use super::metrics::CheckCounts;
use super::outcome_label::OutcomeLabel;
use super::top_rejected_keys::{RejectedKey, TopRejectedKeys};
use crate::decision::{LevelDecision, QuotaDecision, Source};
use crate::key::KeyAliases;

/// The metrics, events and top rejected keys of one limiter. Clones of the limiter share them.
#[derive(Debug)]
pub(crate) struct Telemetry {
    pub(crate) counts: CheckCounts,
    pub(crate) events: Events,
    top_rejected_keys: Option<TopRejectedKeys>,
    /// For the warning about a store that charges nothing beyond a limit.
    pub(crate) charged_to_limit: OnceFlag,
    /// For the warning about a total that is reserved as a charge.
    pub(crate) total_reserved: OnceFlag,
}

impl Telemetry {
    pub(crate) fn new(
        limiter: &Arc<str>,
        store: &Arc<str>,
        tracked: Option<NonZeroUsize>,
        aliases: KeyAliases,
    ) -> Self {
        Self {
            counts: CheckCounts::new(limiter, store),
            events: Events::new(limiter, store, aliases),
            top_rejected_keys: tracked.map(TopRejectedKeys::new),
            charged_to_limit: OnceFlag::default(),
            total_reserved: OnceFlag::default(),
        }
    }

    pub(crate) fn tracked_keys(&self) -> Option<NonZeroUsize> {
        self.top_rejected_keys
            .as_ref()
            .map(TopRejectedKeys::capacity)
    }

    pub(crate) fn top_rejected_keys(&self, max: usize) -> Vec<RejectedKey> {
        match &self.top_rejected_keys {
            Some(keys) => keys.top(max),
            None => Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn record_admission(&self, level: LevelDecision<'_>) {
        // Without quotas there is nothing to decide. What no source decided otherwise, an open policy admitted.
        if level.source() == Source::None && level.quotas().len() == 0 {
            self.record_exempt();
            return;
        }
        self.counts
            .count(OutcomeLabel::Admitted, level.source(), level.share());
        self.events.log_admitted(level);
        if level.may_be_marked() {
            self.record_marks(level);
        }
    }

    /// Records the marks of an admitted level: counts it once for each mark, or zero, and logs each mark once per key and
    /// window.
    // Apart from the code of an admission without marks.
    #[inline(never)]
    fn record_marks(&self, level: LevelDecision<'_>) {
        for mark in Mark::ALL {
            let mut marked = level
                .quotas()
                .enumerate()
                .filter(|(_, quota)| mark.marks(quota))
                .peekable();
            self.counts.count_mark(mark, marked.peek().is_some().into());
            for (index, quota) in marked {
                self.events.log_mark(mark, index, quota);
            }
        }
    }

    pub(crate) fn record_refusal(
        &self,
        outcome: OutcomeLabel,
        level: Option<LevelDecision<'_>>,
        quota: Option<QuotaDecision<'_>>,
    ) {
        let share = level.and_then(|level| level.share());
        let source = level.map_or(Source::None, |level| level.source());
        self.counts.count(outcome, source, share);
        self.events.log_refused(outcome, level, quota);
        if let (Some(keys), Some(level)) = (&self.top_rejected_keys, level) {
            keys.record(level.key());
        }
    }

    pub(crate) fn record_upstream_answer(&self, makes_sense: bool) {
        self.counts.count_upstream_answer(makes_sense);
    }

    /// Records a request that is exempt from limits.
    // Apart from the code of an admission.
    #[inline(never)]
    pub(crate) fn record_exempt(&self) {
        self.counts.count(OutcomeLabel::Exempt, Source::None, None);
        self.events.log_exempt();
    }

    #[cold]
    pub(crate) fn record_failure(
        &self,
        outcome: OutcomeLabel,
        error: &(dyn StdError + 'static),
        kind: &str,
    ) {
        self.counts.count(outcome, Source::None, None);
        self.events.log_failure(outcome, error, kind);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn each_label_is_at_the_index_of_its_discriminant() {
        let outcomes = OutcomeLabel::ALL.map(|outcome| (outcome as usize, outcome.text()));
        let sources = Source::ALL.map(|source| (source as usize, source.text("other")));
        let kinds = ErrorKind::ALL.map(|kind| (kind as usize, kind.text()));
        for labels in [&outcomes[..], &sources, &kinds] {
            let indices: Vec<_> = labels.iter().map(|(index, _)| *index).collect();
            assert!(indices.into_iter().eq(0..labels.len()), "{labels:?}");
            let texts: BTreeSet<_> = labels.iter().map(|(_, text)| *text).collect();
            assert_eq!(texts.len(), labels.len());
        }
    }
}
