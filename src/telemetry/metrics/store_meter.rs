//! The metrics of one store.

use std::sync::Arc;
use std::time::Duration;

use super::handles::{Counter, Family, Gauge, GaugeShare, HAS_METRICS, Histogram, Unit};
use crate::error::ErrorKind;
use crate::telemetry::outcome_label::WaitOutcome;

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

/// The metrics of one store. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct StoreMeter(Arc<StoreHandles>);

#[derive(Debug)]
struct StoreHandles {
    store: String,
    durations: Durations,
    errors: [Counter; ErrorKind::ALL.len()],
    breakers_open: GaugeShare,
    keys_with_counts: GaugeShare,
    keys_with_refusals: GaugeShare,
    batch: Histogram,
    clock_error: Gauge,
}

/// The durations of waits, by how they ended.
#[derive(Debug, Default)]
struct Durations {
    answered: Histogram,
    failed: [Histogram; ErrorKind::ALL.len()],
    abandoned: Histogram,
}

impl Durations {
    fn of(&self, outcome: WaitOutcome) -> Option<&Histogram> {
        match outcome {
            WaitOutcome::Answered => Some(&self.answered),
            WaitOutcome::Failed(kind) => self.failed.get(kind as usize),
            WaitOutcome::Abandoned => Some(&self.abandoned),
        }
    }
}

impl StoreMeter {
    pub(crate) fn new(store: &str) -> Self {
        Self(Arc::new(StoreHandles {
            store: store.to_owned(),
            durations: Durations::default(),
            errors: Default::default(),
            breakers_open: GaugeShare::default(),
            keys_with_counts: GaugeShare::default(),
            keys_with_refusals: GaugeShare::default(),
            batch: Histogram::default(),
            clock_error: Gauge::default(),
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

    /// Records how long a check waited for the store, and how the wait ended. A failure may be much faster than
    /// an answer, so their durations are apart.
    pub(crate) fn record_duration(&self, waited: Duration, outcome: WaitOutcome) {
        let labels = [("store", &*self.0.store), ("outcome", outcome.text())];
        let duration = self.0.durations.of(outcome);
        let is_first = duration.is_some_and(|duration| {
            duration.record(&STORE_DURATION, &labels, waited.as_secs_f64())
        });
        if is_first {
            self.initialize();
        }
    }

    /// Records zero for rare errors, as the counts of checks do.
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
        self.add_open_breakers(0);
    }

    /// Records a failure of the store.
    pub(crate) fn record_error(&self, kind: ErrorKind) {
        if self.add_errors(kind, 1) {
            self.initialize();
        }
    }

    /// Counts errors. Returns whether the recorder got its first value.
    fn add_errors(&self, kind: ErrorKind, count: u64) -> bool {
        let labels = [("store", &*self.0.store), ("error_type", kind.text())];
        let errors = self.0.errors.get(kind as usize);
        errors.is_some_and(|errors| errors.add(&STORE_ERRORS, &labels, count))
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
        let labels = [("store", &*self.0.store)];
        let open = &self.0.breakers_open;
        open.add(&BREAKERS_OPEN, &labels, difference);
    }

    /// Records a change in the number of keys with counts in this process.
    pub(crate) fn record_keys(&self, before: usize, now: usize) {
        let labels = [("store", &*self.0.store), ("holds", "counts")];
        let difference = as_i64(now) - as_i64(before);
        self.0.keys_with_counts.add(&KEYS, &labels, difference);
    }

    /// Records the number of keys with remembered refusals.
    pub(crate) fn record_refusals(&self, count: impl FnOnce() -> usize) {
        if HAS_METRICS {
            let labels = [("store", &*self.0.store), ("holds", "refusals")];
            self.0
                .keys_with_refusals
                .set(&KEYS, &labels, as_i64(count()));
        }
    }

    /// Records the number of checks in a call of the store.
    #[cfg_attr(
        not(feature = "redis"),
        expect(dead_code, reason = "only the Redis store sends batches")
    )]
    pub(crate) fn record_batch(&self, checks: u32) {
        let labels = [("store", &*self.0.store)];
        self.0.batch.record(&BATCH_CHECKS, &labels, checks.into());
    }

    /// Records how far the time that a call tells the server may be wrong.
    #[cfg_attr(
        not(feature = "redis"),
        expect(dead_code, reason = "only the Redis store tells the time")
    )]
    pub(crate) fn record_clock_error(&self, error: Duration) {
        let labels = [("store", &*self.0.store)];
        let error = error.as_secs_f64();
        self.0.clock_error.set(&CLOCK_ERROR, &labels, error);
    }
}

fn as_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
