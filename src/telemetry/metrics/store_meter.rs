//! The metrics of one store.

#![allow(
    clippy::indexing_slicing,
    reason = "an array has an entry for each kind of error, at the index of its discriminant"
)]

use std::sync::Arc;
use std::time::Duration;

use super::handles::{Counter, Gauge, GaugeShare, HAS_METRICS, Histogram};
use crate::error::ErrorKind;
use crate::telemetry::outcome_label::WaitOutcome;

/// The metrics of one store. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct StoreMeter(Arc<StoreMetrics>);

#[derive(Debug)]
struct StoreMetrics {
    store: String,
    answered: Histogram,
    failed: [Histogram; ErrorKind::ALL.len()],
    abandoned: Histogram,
    errors: [Counter; ErrorKind::ALL.len()],
    breakers_open: GaugeShare,
    keys_with_counts: GaugeShare,
    keys_with_refusals: GaugeShare,
    batch: Histogram,
    retries: Counter,
    clock_error: Gauge,
}

impl StoreMeter {
    pub(crate) fn new(store: &str) -> Self {
        let labels = &[("store", store)];
        Self(Arc::new(StoreMetrics {
            store: store.to_owned(),
            answered: duration_histogram(store, WaitOutcome::Answered),
            failed: ErrorKind::ALL.map(|kind| duration_histogram(store, WaitOutcome::Failed(kind))),
            abandoned: duration_histogram(store, WaitOutcome::Abandoned),
            errors: ErrorKind::ALL.map(|kind| error_counter(store, kind)),
            breakers_open: GaugeShare::new(
                "tollgate_circuit_breakers_open",
                "Circuit breakers of the store that are open.",
                labels,
            ),
            keys_with_counts: key_gauge(store, "counts"),
            keys_with_refusals: key_gauge(store, "refusals"),
            batch: Histogram::new(
                "tollgate_batch_checks",
                "Requests per call of the store.",
                labels,
            ),
            retries: Counter::new(
                "tollgate_batch_retries_total",
                "Calls of the store that were repeated: another process had changed the rows, or the connection was cut.",
                labels,
            ),
            clock_error: Gauge::new(
                "tollgate_clock_error_seconds",
                "The most that the time which calls tell a server is wrong by. Only of servers that refuse TIME in scripts.",
                labels,
            ),
        }))
    }

    pub(crate) fn unnamed() -> Self {
        Self::new("other")
    }

    pub(crate) fn same_name(&self) -> Self {
        Self::new(&self.0.store)
    }

    /// Records how long a check waited for the store, and how the wait ended. A failure may be much faster than
    /// an answer, so their durations are apart.
    pub(crate) fn record_duration(&self, waited: Duration, outcome: WaitOutcome) {
        let duration = match outcome {
            WaitOutcome::Answered => &self.0.answered,
            WaitOutcome::Failed(kind) => &self.0.failed[kind as usize],
            WaitOutcome::Abandoned => &self.0.abandoned,
        };
        if duration.record(waited.as_secs_f64()) {
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
        self.0.breakers_open.add(0);
    }

    pub(crate) fn record_error(&self, kind: ErrorKind) {
        if self.add_errors(kind, 1) {
            self.initialize();
        }
    }

    /// Counts errors. Returns whether the recorder got its first value.
    fn add_errors(&self, kind: ErrorKind, count: u64) -> bool {
        self.0.errors[kind as usize].record(count)
    }

    pub(crate) fn record_breaker_opened(&self) {
        self.0.breakers_open.add(1);
    }

    pub(crate) fn record_breaker_closed(&self) {
        self.0.breakers_open.add(-1);
    }

    pub(crate) fn record_keys(&self, before: usize, now: usize) {
        self.0.keys_with_counts.add(as_i64(now) - as_i64(before));
    }

    pub(crate) fn record_refusals(&self, count: impl FnOnce() -> usize) {
        if HAS_METRICS {
            self.0.keys_with_refusals.set(as_i64(count()));
        }
    }

    /// Records the number of requests in a call of the store.
    pub(crate) fn record_batch(&self, checks: u32) {
        self.0.batch.record(checks.into());
    }

    /// Records how often a call of the store was repeated. Also 0, so that the counter is there before the first time.
    pub(crate) fn record_retries(&self, retries: u32) {
        self.0.retries.record(retries.into());
    }

    /// Records how far the time that a call tells the server may be wrong.
    #[cfg_attr(
        not(feature = "redis"),
        expect(dead_code, reason = "only the Redis store tells the time")
    )]
    pub(crate) fn record_clock_error(&self, error: Duration) {
        self.0.clock_error.record(error.as_secs_f64());
    }
}

fn duration_histogram(store: &str, outcome: WaitOutcome) -> Histogram {
    Histogram::new(
        "tollgate_store_duration_seconds",
        "Time that checks waited for the store, by how the wait ended.",
        &[("store", store), ("outcome", outcome.text())],
    )
}

fn error_counter(store: &str, kind: ErrorKind) -> Counter {
    Counter::new(
        "tollgate_store_errors_total",
        "Failed calls of the store, by kind of error.",
        &[("store", store), ("error_type", kind.text())],
    )
}

fn key_gauge(store: &str, holds: &str) -> GaugeShare {
    GaugeShare::new(
        "tollgate_keys",
        "Keys with counts or remembered refusals in this process.",
        &[("store", store), ("holds", holds)],
    )
}

fn as_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
