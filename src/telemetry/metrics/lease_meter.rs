//! The metrics of leases.
//!
//! Nothing is recorded while units are taken from a grant. The units that it used are known when it ends.

use std::sync::Arc;

use super::handles::{Counter, GaugeShare};

/// The metrics of the lease of one limiter. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct LeaseMeter(Arc<LeaseMetrics>);

#[derive(Debug)]
struct LeaseMetrics {
    granted: Counter,
    /// Units that were used when their grant ended. They may be refunded later.
    used: Counter,
    returned: Counter,
    /// Units that were not returned, because the store failed or the task of the return was dropped.
    lost: Counter,
    held: GaugeShare,
}

impl LeaseMeter {
    pub(crate) fn new(limiter: &str) -> Self {
        Self(Arc::new(LeaseMetrics {
            granted: unit_counter(limiter, "granted"),
            used: unit_counter(limiter, "used"),
            returned: unit_counter(limiter, "returned"),
            lost: unit_counter(limiter, "lost"),
            held: GaugeShare::new(
                "tollgate_lease_units_held",
                "Units of the grants that have not ended.",
                &[("limiter", limiter)],
            ),
        }))
    }

    pub(crate) fn record_grant(&self, units: u32) {
        if self.0.granted.record(units.into()) {
            // In Prometheus, `rate` ignores the first value of a counter.
            for count in [&self.0.used, &self.0.returned, &self.0.lost] {
                count.record(0);
            }
        }
        self.0.held.add(units.into());
    }

    pub(crate) fn record_end(&self, units: u32, left: u32) {
        self.0.used.record(units.saturating_sub(left).into());
        self.0.held.add(-i64::from(units));
    }

    /// Begins the return of units. They are lost, unless it [succeeds](UnitReturn::succeed).
    pub(crate) fn begin_return(&self, units: u32) -> UnitReturn {
        UnitReturn {
            meter: self.clone(),
            units,
            is_returned: false,
        }
    }
}

fn unit_counter(limiter: &str, event: &str) -> Counter {
    Counter::new(
        "tollgate_lease_units_total",
        "Units that were taken in advance, and what became of them.",
        &[("limiter", limiter), ("event", event)],
    )
}

/// The return of units. Records on drop whether they returned.
#[derive(Debug)]
pub(crate) struct UnitReturn {
    meter: LeaseMeter,
    units: u32,
    is_returned: bool,
}

impl UnitReturn {
    pub(crate) fn succeed(mut self) {
        self.is_returned = true;
    }
}

impl Drop for UnitReturn {
    fn drop(&mut self) {
        let LeaseMetrics { returned, lost, .. } = &*self.meter.0;
        let count = if self.is_returned { returned } else { lost };
        count.record(self.units.into());
    }
}
