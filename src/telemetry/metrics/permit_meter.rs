//! The metrics of slots in flight, and of units that are held.
//!
//! The labels are names of limiters, never keys.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::handles::{Counter, GaugeShare, Histogram};

/// The metrics of the permits of one limiter. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct PermitMeter(Arc<PermitMetrics>);

#[derive(Debug)]
struct PermitMetrics {
    held: GaugeShare,
    times: Histogram,
    lost: Counter,
    waiting: GaugeShare,
    waits: Histogram,
    renewals: Counter,
}

impl PermitMeter {
    pub(crate) fn new(limiter: &str, holds_units: bool) -> Self {
        let labels = &[("limiter", limiter)];
        let held = if holds_units {
            GaugeShare::new(
                "tollgate_units_held",
                "Reserved units that were neither used nor returned yet, lost ones included.",
                labels,
            )
        } else {
            GaugeShare::new(
                "tollgate_permits_held",
                "Slots of permits that were not dropped yet, lost ones included.",
                labels,
            )
        };
        Self(Arc::new(PermitMetrics {
            held,
            times: Histogram::new(
                "tollgate_permit_seconds",
                "Time for which permits were held.",
                labels,
            ),
            lost: Counter::new(
                "tollgate_permits_lost_total",
                "Slots, or reserved units, whose lease ran out before their permit was dropped.",
                labels,
            ),
            waiting: GaugeShare::new(
                "tollgate_permits_waiting",
                "Calls that wait for a permit.",
                labels,
            ),
            waits: Histogram::new(
                "tollgate_permit_wait_seconds",
                "Time from a call that may wait to its permit.",
                labels,
            ),
            renewals: Counter::new(
                "tollgate_permit_renewals_total",
                "Messages that only state what this process holds of a key.",
                labels,
            ),
        }))
    }

    pub(crate) fn record_grant(&self, slots: u32) {
        if self.0.held.add(slots.into()) {
            // In Prometheus, `rate` ignores the first value of a counter.
            self.0.lost.record(0);
            self.0.renewals.record(0);
        }
    }

    pub(crate) fn record_release(&self, slots: u32, held_for: Duration) {
        self.0.held.add(-i64::from(slots));
        self.0.times.record(held_for.as_secs_f64());
    }

    /// Records units of a permit that were used, or that return before it is dropped.
    pub(crate) fn record_spent(&self, units: u32) {
        self.0.held.add(-i64::from(units));
    }

    pub(crate) fn record_lost(&self, slots: u32) {
        self.0.lost.record(slots.into());
    }

    /// Records a message that only states what is held of a key.
    pub(crate) fn record_renewal(&self) {
        self.0.renewals.record(1);
    }
}

/// A call that waits for a permit of these limiters, until this is dropped.
#[derive(Debug)]
pub(crate) struct PermitWait(SmallVec<[PermitMeter; 1]>);

impl PermitWait {
    pub(crate) fn begin(limiters: impl IntoIterator<Item = PermitMeter>) -> Self {
        let limiters: SmallVec<[PermitMeter; 1]> = limiters.into_iter().collect();
        for meter in &limiters {
            meter.0.waiting.add(1);
        }
        Self(limiters)
    }

    pub(crate) fn succeed(&self, waited: Duration) {
        for meter in &self.0 {
            meter.0.waits.record(waited.as_secs_f64());
        }
    }
}

impl Drop for PermitWait {
    fn drop(&mut self) {
        for meter in &self.0 {
            meter.0.waiting.add(-1);
        }
    }
}
