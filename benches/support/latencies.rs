//! Latency percentiles.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Durations to two digits, from 1 ns to a minute.
#[derive(Clone)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Self {
        let minute = 60 * 1_000_000_000;
        Self(Histogram::new_with_max(minute, 2).expect("bounds in order"))
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        self.0
            .saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn add(&mut self, others: &Self) {
        self.0.add(&others.0).expect("equal bounds");
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    /// p50, p99 and p99.9 in microseconds.
    pub(crate) fn tail(&self) -> [f64; 3] {
        [0.5, 0.99, 0.999].map(|part| self.0.value_at_quantile(part) as f64 / 1_000.0)
    }
}
