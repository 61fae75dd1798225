//! Metrics through the facade of the `metrics` crate. The application chooses the recorder.
//!
//! Labels are names that the application chose, and words of this crate, never values from clients. So the
//! number of time series does not depend on the number of keys.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, Label, Unit};

use super::handles::{CachedHandle, Family, GaugeShare};
use crate::decision::Source;
use crate::error::ErrorKind;
use crate::telemetry::marked_keys::Mark;
use crate::telemetry::outcome_label::{OutcomeLabel, WaitOutcome};

const CHECKS: Family = Family {
    name: "tollgate_checks_total",
    unit: Unit::Count,
    description: "Checks by outcome and source.",
};
const BLOCKS: Family = Family {
    name: "tollgate_blocks_total",
    unit: Unit::Count,
    description: "Keys that were blocked because they were refused too often.",
};
const MARKS: Family = Family {
    name: "tollgate_marked_checks_total",
    unit: Unit::Count,
    description: "Admitted checks that a quota marked: a soft quota was exceeded, or a quota warned.",
};

const UPSTREAM_ANSWERS: Family = Family {
    name: "tollgate_upstream_answers_total",
    unit: Unit::Count,
    description: "Answers of upstreams that said when to send again, by whether it made sense.",
};
const STORE_DURATION: Family = Family {
    name: "tollgate_store_duration_seconds",
    unit: Unit::Seconds,
    description: "Time that checks waited for the store, by how the wait ended.",
};
const STORE_ERRORS: Family = Family {
    name: "tollgate_store_errors_total",
    unit: Unit::Count,
    description: "Failed calls of the store, by kind of error.",
};
const BREAKERS_OPEN: Family = Family {
    name: "tollgate_circuit_breakers_open",
    unit: Unit::Count,
    description: "Circuit breakers of the store that are open.",
};
const KEYS: Family = Family {
    name: "tollgate_keys",
    unit: Unit::Count,
    description: "Keys with counts or remembered refusals in this process.",
};
const BATCH_CHECKS: Family = Family {
    name: "tollgate_batch_checks",
    unit: Unit::Count,
    description: "Checks per call of the store.",
};
const CLOCK_ERROR: Family = Family {
    name: "tollgate_clock_error_seconds",
    unit: Unit::Seconds,
    description: "The most that the time which calls tell a server is wrong by. Only of servers that refuse TIME in scripts.",
};

/// The most shares of a limiter that get a label. Further ones, which only the plans of many lookups have, are counted as
/// checks without a share.
const MAX_SHARES: usize = 64;

/// Checks, indexed by outcome, then by source.
type Counts = Box<[[CachedHandle<Counter>; Source::ALL.len()]; OutcomeLabel::ALL.len()]>;

/// The checks of one share of a limiter, linked to those of the next share: most limiters have none, and a list that only
/// grows is read without a lock.
#[derive(Debug)]
struct ShareCounts {
    share: Box<str>,
    counts: Counts,
    next: OnceLock<Box<Self>>,
}

/// The checks of one limiter, counted by outcome, source and share, and its automatic blocks.
#[derive(Debug)]
pub(crate) struct CheckCounts {
    limiter: Arc<str>,
    store: Arc<str>,
    /// The checks without a share.
    counts: Counts,
    by_share: OnceLock<Box<ShareCounts>>,
    blocks: CachedHandle<Counter>,
    marks: [CachedHandle<Counter>; Mark::ALL.len()],
    /// Indexed by whether the answer made sense.
    upstream_answers: [CachedHandle<Counter>; 2],
}

impl CheckCounts {
    pub(crate) fn new(limiter: &Arc<str>, store: &Arc<str>) -> Self {
        Self {
            limiter: Arc::clone(limiter),
            store: Arc::clone(store),
            counts: Box::default(),
            by_share: OnceLock::new(),
            blocks: CachedHandle::default(),
            marks: Default::default(),
            upstream_answers: Default::default(),
        }
    }

    /// Counts a check of a share, or of none.
    #[inline]
    pub(crate) fn count(&self, outcome: OutcomeLabel, source: Source, share: Option<&str>) {
        let share = share.and_then(|share| self.counts_of(share));
        if self.add(outcome, source, share, 1) {
            self.initialize(source, share);
        }
    }

    /// Returns the counts of a share.
    // Apart from the code of checks without shares.
    #[inline(never)]
    fn counts_of(&self, share: &str) -> Option<&ShareCounts> {
        let mut place = &self.by_share;
        for _ in 0..MAX_SHARES {
            let own = place.get_or_init(|| {
                Box::new(ShareCounts {
                    share: share.into(),
                    counts: Box::default(),
                    next: OnceLock::new(),
                })
            });
            if &*own.share == share {
                return Some(own);
            }
            place = &own.next;
        }
        None
    }

    /// Counts keys that were blocked automatically.
    pub(crate) fn count_blocks(&self, blocks: u64) {
        let label = || Label::new("limiter", self.limiter.to_string());
        let key = || Key::from_parts(BLOCKS.name, vec![label()]);
        self.blocks
            .record(&BLOCKS, key, |counter| counter.increment(blocks));
    }

    /// Counts checks with a mark. Zero shows that there may be some.
    pub(crate) fn count_mark(&self, mark: Mark, checks: u64) {
        let labels = || {
            vec![
                Label::new("limiter", self.limiter.to_string()),
                Label::from_static_parts("mark", mark.text()),
            ]
        };
        if let Some(count) = self.marks.get(mark as usize) {
            let key = || Key::from_parts(MARKS.name, labels());
            count.record(&MARKS, key, |count| count.increment(checks));
        }
    }

    /// Counts an answer of an upstream that said when to send again.
    pub(crate) fn count_upstream_answer(&self, makes_sense: bool) {
        for (index, answers) in self.upstream_answers.iter().enumerate() {
            let is_counted = index == usize::from(makes_sense);
            let outcome = if index == 1 { "held_back" } else { "ignored" };
            let key = || {
                let limiter = Label::new("limiter", self.limiter.to_string());
                let outcome = Label::from_static_parts("outcome", outcome);
                Key::from_parts(UPSTREAM_ANSWERS.name, vec![limiter, outcome])
            };
            answers.record(&UPSTREAM_ANSWERS, key, |answers| {
                answers.increment(u64::from(is_counted));
            });
        }
    }

    /// Records zero for rare outcomes. In Prometheus, `rate` ignores the first value of a counter. It would miss
    /// all of an outage that is shorter than the time between two scrapes.
    #[cold]
    fn initialize(&self, source: Source, share: Option<&ShareCounts>) {
        if source != Source::None {
            self.add(OutcomeLabel::Admitted, source, share, 0);
            self.add(OutcomeLabel::Refused, source, share, 0);
        }
        // The outcomes of a check that its store did not decide, for every failure policy.
        self.add(OutcomeLabel::Admitted, Source::Fallback, share, 0);
        self.add(OutcomeLabel::Refused, Source::Fallback, share, 0);
        self.add(OutcomeLabel::Admitted, Source::None, share, 0);
        // A check without a decision is counted without a share.
        self.add(OutcomeLabel::Failed, Source::None, None, 0);
    }

    /// Counts checks. Returns whether the recorder got its first value.
    #[inline]
    fn add(
        &self,
        outcome: OutcomeLabel,
        source: Source,
        share: Option<&ShareCounts>,
        checks: u64,
    ) -> bool {
        let counts = share.map_or(&self.counts, |share| &share.counts);
        let by_outcome = counts.get(outcome as usize);
        let count = by_outcome.and_then(|counts| counts.get(source as usize));
        count.is_some_and(|count| {
            let key = || self.key(outcome, source, share);
            count.record(&CHECKS, key, |count| count.increment(checks))
        })
    }

    fn key(&self, outcome: OutcomeLabel, source: Source, share: Option<&ShareCounts>) -> Key {
        let mut labels = vec![
            Label::new("limiter", self.limiter.to_string()),
            Label::from_static_parts("outcome", outcome.text()),
            Label::new("source", source.text(&self.store).to_owned()),
        ];
        labels.extend(share.map(|share| Label::new("share", share.share.to_string())));
        Key::from_parts(CHECKS.name, labels)
    }
}

/// The metrics of one store. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct StoreMeter(Arc<StoreHandles>);

#[derive(Debug)]
struct StoreHandles {
    store: String,
    durations: Durations,
    errors: [CachedHandle<Counter>; ErrorKind::ALL.len()],
    breakers_open: GaugeShare,
    keys_with_counts: GaugeShare,
    keys_with_refusals: GaugeShare,
    batch: CachedHandle<Histogram>,
    clock_error: CachedHandle<Gauge>,
}

/// The durations of waits, by how they ended.
#[derive(Debug, Default)]
struct Durations {
    answered: CachedHandle<Histogram>,
    failed: [CachedHandle<Histogram>; ErrorKind::ALL.len()],
    abandoned: CachedHandle<Histogram>,
}

impl Durations {
    fn of(&self, outcome: WaitOutcome) -> Option<&CachedHandle<Histogram>> {
        match outcome {
            WaitOutcome::Answered => Some(&self.answered),
            WaitOutcome::Failed(kind) => self.failed.get(kind as usize),
            WaitOutcome::Abandoned => Some(&self.abandoned),
        }
    }
}

impl StoreMeter {
    /// Whether metrics are compiled in. If not, callers skip values that are expensive to compute.
    pub(crate) const IS_ENABLED: bool = true;

    pub(crate) fn new(store: &str) -> Self {
        Self(Arc::new(StoreHandles {
            store: store.to_owned(),
            durations: Durations::default(),
            errors: Default::default(),
            breakers_open: GaugeShare::default(),
            keys_with_counts: GaugeShare::default(),
            keys_with_refusals: GaugeShare::default(),
            batch: CachedHandle::default(),
            clock_error: CachedHandle::default(),
        }))
    }

    /// Creates the metrics of a store without a name.
    pub(crate) fn unnamed() -> Self {
        Self::new("other")
    }

    /// Creates the metrics of another store with the same name.
    pub(crate) fn same_name(&self) -> Self {
        Self::new(&self.0.store)
    }

    fn key(&self, family: &Family, label: Option<Label>) -> Key {
        let store = Label::new("store", self.0.store.clone());
        let labels: Vec<_> = [store].into_iter().chain(label).collect();
        Key::from_parts(family.name, labels)
    }

    /// Records how long a check waited for the store, and how the wait ended. A failure may be much faster than
    /// an answer, so their durations are apart.
    pub(crate) fn record_duration(&self, waited: Duration, outcome: WaitOutcome) {
        let label = Label::from_static_parts("outcome", outcome.text());
        let key = || self.key(&STORE_DURATION, Some(label));
        let seconds = waited.as_secs_f64();
        let is_first = self.0.durations.of(outcome).is_some_and(|duration| {
            duration.record(&STORE_DURATION, key, |duration| duration.record(seconds))
        });
        if is_first {
            self.initialize();
        }
    }

    /// Records zero for rare errors, as [`CheckCounts::initialize`] does.
    #[cold]
    fn initialize(&self) {
        for kind in [
            ErrorKind::Timeout,
            ErrorKind::QueueTimeout,
            ErrorKind::Unavailable,
            ErrorKind::Misconfigured,
            ErrorKind::Full,
            ErrorKind::InvalidReply,
        ] {
            self.add_errors(kind, 0);
        }
        let key = || self.key(&BREAKERS_OPEN, None);
        self.0.breakers_open.add(&BREAKERS_OPEN, key, 0);
    }

    /// Records a failure of the store.
    pub(crate) fn record_error(&self, kind: ErrorKind) {
        if self.add_errors(kind, 1) {
            self.initialize();
        }
    }

    /// Counts errors. Returns whether the recorder got its first value.
    fn add_errors(&self, kind: ErrorKind, count: u64) -> bool {
        let label = Label::from_static_parts("error_type", kind.text());
        let key = || self.key(&STORE_ERRORS, Some(label));
        let errors = self.0.errors.get(kind as usize);
        errors.is_some_and(|errors| {
            errors.record(&STORE_ERRORS, key, |errors| errors.increment(count))
        })
    }

    /// Records that a circuit breaker of the store opened.
    pub(crate) fn record_breaker_opened(&self) {
        self.add_open_breakers(1);
    }

    /// Records that a circuit breaker of the store closed.
    pub(crate) fn record_breaker_closed(&self) {
        self.add_open_breakers(-1);
    }

    fn add_open_breakers(&self, difference: i64) {
        let key = || self.key(&BREAKERS_OPEN, None);
        self.0.breakers_open.add(&BREAKERS_OPEN, key, difference);
    }

    /// Records a change in the number of keys with counts in this process.
    pub(crate) fn record_keys(&self, before: usize, now: usize) {
        let label = Label::from_static_parts("holds", "counts");
        let key = || self.key(&KEYS, Some(label));
        let difference = as_i64(now) - as_i64(before);
        self.0.keys_with_counts.add(&KEYS, key, difference);
    }

    /// Records the number of keys with remembered refusals.
    pub(crate) fn record_refusals(&self, count: impl FnOnce() -> usize) {
        let label = Label::from_static_parts("holds", "refusals");
        let key = || self.key(&KEYS, Some(label));
        self.0.keys_with_refusals.set(&KEYS, key, as_i64(count()));
    }

    /// Records the number of checks in a call of the store.
    #[cfg_attr(
        not(feature = "redis"),
        expect(dead_code, reason = "only the Redis store sends batches")
    )]
    pub(crate) fn record_batch(&self, checks: u32) {
        let key = || self.key(&BATCH_CHECKS, None);
        let batch = &self.0.batch;
        batch.record(&BATCH_CHECKS, key, |batch| batch.record(f64::from(checks)));
    }

    /// Records how far the time that a call tells the server may be wrong.
    #[cfg_attr(
        not(feature = "redis"),
        expect(dead_code, reason = "only the Redis store tells the time")
    )]
    pub(crate) fn record_clock_error(&self, error: Duration) {
        let key = || self.key(&CLOCK_ERROR, None);
        let gauge = &self.0.clock_error;
        gauge.record(&CLOCK_ERROR, key, |gauge| gauge.set(error.as_secs_f64()));
    }
}

fn as_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
