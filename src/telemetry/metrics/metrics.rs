//! Metrics, through the facade of the crate `metrics`: the application says where they go.
//!
//! Labels are names that the application gave and words of this crate, never what a client sent: their
//! number is bounded however many keys there are.

use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Histogram, Key, Label, Unit};

use super::handles::{CachedHandle, Family, GaugeShare};
use crate::decision::Source;
use crate::error::ErrorKind;
use crate::telemetry::checks::OutcomeLabel;

const CHECKS: Family = Family {
    name: "tollgate_checks_total",
    unit: Unit::Count,
    about: "Checks by what came of them and who decided.",
};
const STORE_DURATION: Family = Family {
    name: "tollgate_store_duration_seconds",
    unit: Unit::Seconds,
    about: "How long checks waited for the store.",
};
const STORE_ERRORS: Family = Family {
    name: "tollgate_store_errors_total",
    unit: Unit::Count,
    about: "What the store failed to do, by the kind of error.",
};
const BREAKERS_OPEN: Family = Family {
    name: "tollgate_circuit_breakers_open",
    unit: Unit::Count,
    about: "Parts of the store that are not asked at present.",
};
const KEYS: Family = Family {
    name: "tollgate_keys",
    unit: Unit::Count,
    about: "Keys that this process holds counts or refusals of.",
};
const BATCH_CHECKS: Family = Family {
    name: "tollgate_batch_checks",
    unit: Unit::Count,
    about: "Checks that one call carried.",
};

/// How often each came of a check of one limiter.
#[derive(Debug)]
pub(crate) struct CheckCounts {
    limiter: Arc<str>,
    /// By outcome and source.
    counts: Box<[[CachedHandle<Counter>; Source::ALL.len()]; OutcomeLabel::ALL.len()]>,
}

impl CheckCounts {
    pub(crate) fn new(limiter: &Arc<str>) -> Self {
        Self {
            limiter: Arc::clone(limiter),
            counts: Box::default(),
        }
    }

    #[inline]
    pub(crate) fn count(&self, outcome: OutcomeLabel, source: Source) {
        if self.add(outcome, source, 1) {
            self.begin(source);
        }
    }

    /// Has what may be rare begin at zero: the first of it would else be no growth to whoever looks at
    /// rates.
    #[cold]
    fn begin(&self, source: Source) {
        if source != Source::None {
            self.add(OutcomeLabel::Admitted, source, 0);
            self.add(OutcomeLabel::Refused, source, 0);
        }
        self.add(OutcomeLabel::Failed, Source::None, 0);
    }

    /// Whether this was the first of them that a recorder was told.
    #[inline]
    fn add(&self, outcome: OutcomeLabel, source: Source, checks: u64) -> bool {
        let by_outcome = self.counts.get(outcome as usize);
        let count = by_outcome.and_then(|counts| counts.get(source as usize));
        count.is_some_and(|count| {
            let key = || self.key(outcome, source);
            count.tell(&CHECKS, key, |count| count.increment(checks))
        })
    }

    fn key(&self, outcome: OutcomeLabel, source: Source) -> Key {
        let labels = vec![
            Label::new("limiter", self.limiter.to_string()),
            Label::from_static_parts("outcome", outcome.text()),
            Label::from_static_parts("source", source.text()),
        ];
        Key::from_parts(CHECKS.name, labels)
    }
}

/// What is told of one store; clones tell together.
#[derive(Clone, Debug)]
pub(crate) struct StoreMeter(Arc<OfStore>);

#[derive(Debug)]
struct OfStore {
    store: String,
    duration: CachedHandle<Histogram>,
    errors: [CachedHandle<Counter>; ErrorKind::ALL.len()],
    breakers_open: GaugeShare,
    counts_held: GaugeShare,
    refusals_held: GaugeShare,
    batch: CachedHandle<Histogram>,
}

impl StoreMeter {
    /// Whether anybody may want to know: what takes time to find out is not found out else.
    pub(crate) const LISTENS: bool = true;

    pub(crate) fn new(store: &str) -> Self {
        Self(Arc::new(OfStore {
            store: store.to_owned(),
            duration: CachedHandle::default(),
            errors: Default::default(),
            breakers_open: GaugeShare::default(),
            counts_held: GaugeShare::default(),
            refusals_held: GaugeShare::default(),
            batch: CachedHandle::default(),
        }))
    }

    /// One that tells of another store, or another form of it, under the same name.
    pub(crate) fn anew(&self) -> Self {
        Self::new(&self.0.store)
    }

    fn key(&self, family: &Family, also: Option<Label>) -> Key {
        let store = Label::new("store", self.0.store.clone());
        let labels: Vec<_> = [store].into_iter().chain(also).collect();
        Key::from_parts(family.name, labels)
    }

    /// A check was answered, or was not, after so long.
    pub(crate) fn answered(&self, after: Duration) {
        let key = || self.key(&STORE_DURATION, None);
        let seconds = after.as_secs_f64();
        let duration = &self.0.duration;
        if duration.tell(&STORE_DURATION, key, |duration| duration.record(seconds)) {
            self.begin();
        }
    }

    /// Has what may be rare begin at zero, as for checks.
    #[cold]
    fn begin(&self) {
        for kind in [
            ErrorKind::Timeout,
            ErrorKind::Unavailable,
            ErrorKind::Misconfigured,
            ErrorKind::Full,
            ErrorKind::InvalidReply,
        ] {
            self.add_failed(kind, 0);
        }
        let key = || self.key(&BREAKERS_OPEN, None);
        self.0.breakers_open.add(&BREAKERS_OPEN, key, 0);
    }

    /// The store failed a check.
    pub(crate) fn failed(&self, kind: ErrorKind) {
        if self.add_failed(kind, 1) {
            self.begin();
        }
    }

    /// Whether this was the first that a recorder was told of it.
    fn add_failed(&self, kind: ErrorKind, checks: u64) -> bool {
        let label = Label::from_static_parts("kind", kind.text());
        let key = || self.key(&STORE_ERRORS, Some(label));
        let errors = self.0.errors.get(kind as usize);
        errors.is_some_and(|errors| {
            errors.tell(&STORE_ERRORS, key, |errors| errors.increment(checks))
        })
    }

    /// One of its parts is not asked any more.
    pub(crate) fn breaker_opened(&self) {
        self.breakers_open(1);
    }

    /// One of its parts is asked again.
    pub(crate) fn breaker_closed(&self) {
        self.breakers_open(-1);
    }

    fn breakers_open(&self, more: i64) {
        let key = || self.key(&BREAKERS_OPEN, None);
        self.0.breakers_open.add(&BREAKERS_OPEN, key, more);
    }

    /// A part of it has counts of so many keys in this process, and had of so many before.
    pub(crate) fn keys_held(&self, before: usize, now: usize) {
        let label = Label::from_static_parts("holds", "counts");
        let key = || self.key(&KEYS, Some(label));
        let more = as_i64(now) - as_i64(before);
        self.0.counts_held.add(&KEYS, key, more);
    }

    /// So many keys have refusals that are remembered.
    pub(crate) fn refusals(&self, count: impl FnOnce() -> usize) {
        let label = Label::from_static_parts("holds", "refusals");
        let key = || self.key(&KEYS, Some(label));
        self.0.refusals_held.set(&KEYS, key, as_i64(count()));
    }

    /// A call carried so many checks.
    pub(crate) fn called(&self, checks: u32) {
        let key = || self.key(&BATCH_CHECKS, None);
        let batch = &self.0.batch;
        batch.tell(&BATCH_CHECKS, key, |batch| batch.record(f64::from(checks)));
    }
}

fn as_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
