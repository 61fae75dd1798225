//! The counts of checks of one limiter.

#![allow(
    clippy::indexing_slicing,
    reason = "an array has an entry for each label, at the index of its discriminant"
)]

use std::sync::{Arc, OnceLock};

use super::handles::{Counter, HAS_METRICS};
use crate::decision::Source;
use crate::telemetry::marked_keys::Mark;
use crate::telemetry::outcome_label::OutcomeLabel;

/// The most shares of a limiter that get a label. Further ones, which only the plans of many lookups have, are counted as
/// checks without a share.
const MAX_SHARES: usize = 64;

/// Checks, indexed by outcome, then by source.
type Counts = Box<[[OnceLock<Counter>; Source::ALL.len()]; OutcomeLabel::ALL.len()]>;

/// The checks of one share of a limiter, or of none, linked to those of the next share: most limiters have none, and a list
/// that only grows is read without a lock.
#[derive(Debug, Default)]
struct ShareCounts {
    /// Empty for checks without a share.
    share: Box<str>,
    counts: Counts,
    next: OnceLock<Box<Self>>,
}

/// The checks of one limiter, counted by outcome, source and share, and its automatic blocks.
#[derive(Debug)]
pub(crate) struct CheckCounts {
    limiter: Arc<str>,
    store: Arc<str>,
    without_share: ShareCounts,
    blocks: Counter,
    marks: [Counter; Mark::ALL.len()],
    paused: Counter,
    ignored: Counter,
}

impl CheckCounts {
    pub(crate) fn new(limiter: &Arc<str>, store: &Arc<str>) -> Self {
        Self {
            limiter: Arc::clone(limiter),
            store: Arc::clone(store),
            without_share: ShareCounts::default(),
            blocks: Counter::new(
                "tollgate_blocks_total",
                "Keys that were blocked because they were refused too often.",
                &[("limiter", limiter)],
            ),
            marks: Mark::ALL.map(|mark| mark_counter(limiter, mark)),
            paused: upstream_counter(limiter, "paused"),
            ignored: upstream_counter(limiter, "ignored"),
        }
    }

    #[inline]
    pub(crate) fn count(&self, outcome: OutcomeLabel, source: Source, share: Option<&str>) {
        if !HAS_METRICS {
            return;
        }
        let counts = share
            .and_then(|share| self.share_counts(share))
            .unwrap_or(&self.without_share);
        if self.add(outcome, source, counts, 1) {
            self.initialize(source, counts);
        }
    }

    /// `None` if there are as many shares as may have a label.
    // Apart from the code of checks without shares.
    #[inline(never)]
    fn share_counts(&self, share: &str) -> Option<&ShareCounts> {
        let mut place = &self.without_share.next;
        for _ in 0..MAX_SHARES {
            let own = place.get_or_init(|| {
                Box::new(ShareCounts {
                    share: share.into(),
                    ..ShareCounts::default()
                })
            });
            if &*own.share == share {
                return Some(own);
            }
            place = &own.next;
        }
        None
    }

    /// Counts keys that were blocked automatically. Zero shows that there may be some.
    pub(crate) fn count_blocks(&self, blocks: u64) {
        self.blocks.record(blocks);
    }

    /// Counts checks with a mark. Zero shows that there may be some.
    pub(crate) fn count_mark(&self, mark: Mark, checks: u64) {
        self.marks[mark as usize].record(checks);
    }

    pub(crate) fn count_upstream_answer(&self, makes_sense: bool) {
        self.paused.record(makes_sense.into());
        self.ignored.record((!makes_sense).into());
    }

    /// Records zero for rare outcomes. In Prometheus, `rate` ignores the first value of a counter. It would miss
    /// all of an outage that is shorter than the time between two scrapes.
    #[cold]
    fn initialize(&self, source: Source, counts: &ShareCounts) {
        if source != Source::None {
            self.add(OutcomeLabel::Admitted, source, counts, 0);
            self.add(OutcomeLabel::Refused, source, counts, 0);
        }
        // The outcomes of a check that its store did not decide, for every failure policy.
        self.add(OutcomeLabel::Admitted, Source::Fallback, counts, 0);
        self.add(OutcomeLabel::Refused, Source::Fallback, counts, 0);
        self.add(OutcomeLabel::Admitted, Source::None, counts, 0);
        // A check without a decision is counted without a share.
        self.add(OutcomeLabel::Failed, Source::None, &self.without_share, 0);
    }

    /// Counts checks. Returns whether the recorder got its first value.
    #[inline]
    fn add(
        &self,
        outcome: OutcomeLabel,
        source: Source,
        counts: &ShareCounts,
        checks: u64,
    ) -> bool {
        counts.counts[outcome as usize][source as usize]
            .get_or_init(|| self.counter(outcome, source, &counts.share))
            .record(checks)
    }

    #[cold]
    fn counter(&self, outcome: OutcomeLabel, source: Source, share: &str) -> Counter {
        let labels = [
            ("limiter", &*self.limiter),
            ("outcome", outcome.text()),
            ("source", source.text(&self.store)),
            ("share", share),
        ];
        // The last label is for shares only.
        let labels = if share.is_empty() {
            &labels[..3]
        } else {
            &labels
        };
        Counter::new(
            "tollgate_checks_total",
            "Checks by outcome and source.",
            labels,
        )
    }
}

fn mark_counter(limiter: &str, mark: Mark) -> Counter {
    Counter::new(
        "tollgate_marked_checks_total",
        "Admitted checks that a quota marked: a soft quota was exceeded, or a quota warned.",
        &[("limiter", limiter), ("mark", mark.text())],
    )
}

fn upstream_counter(limiter: &str, outcome: &str) -> Counter {
    Counter::new(
        "tollgate_upstream_answers_total",
        "Answers of upstreams that said when to send again, by whether it made sense.",
        &[("limiter", limiter), ("outcome", outcome)],
    )
}
