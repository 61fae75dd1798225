//! The metrics of leases.
//!
//! Nothing is recorded while units are taken from a grant. The units that it used are known when it ends.

use std::sync::Arc;

use super::handles::{Counter, Family, GaugeShare, Unit};

const LEASE_UNITS: Family = Family {
    name: "tollgate_lease_units_total",
    unit: Unit::Count,
    description: "Units that were taken in advance, and what became of them.",
};
const LEASE_UNITS_HELD: Family = Family {
    name: "tollgate_lease_units_held",
    unit: Unit::Count,
    description: "Units of the grants that have not ended.",
};

/// An event in the life of units that were taken in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnitEvent {
    Granted,
    /// Used when their grant ended. They may be refunded later.
    Used,
    Returned,
    /// Not returned, because the store failed or the task of the return was dropped.
    Lost,
}

impl UnitEvent {
    /// All events, each at the index of its discriminant.
    const ALL: [Self; 4] = [Self::Granted, Self::Used, Self::Returned, Self::Lost];

    fn text(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Used => "used",
            Self::Returned => "returned",
            Self::Lost => "lost",
        }
    }
}

/// The metrics of the lease of one limiter. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct LeaseMeter(Arc<LeaseHandles>);

#[derive(Debug)]
struct LeaseHandles {
    limiter: Arc<str>,
    units: [Counter; UnitEvent::ALL.len()],
    held: GaugeShare,
}

impl LeaseMeter {
    pub(crate) fn new(limiter: &Arc<str>) -> Self {
        Self(Arc::new(LeaseHandles {
            limiter: Arc::clone(limiter),
            units: Default::default(),
            held: GaugeShare::default(),
        }))
    }

    /// Records a grant of these units.
    pub(crate) fn record_grant(&self, units: u32) {
        if self.add(UnitEvent::Granted, units) {
            // In Prometheus, `rate` ignores the first value of a counter.
            for event in UnitEvent::ALL {
                self.add(event, 0);
            }
        }
        self.hold(units.into());
    }

    /// Records the end of a grant of which some units are left.
    pub(crate) fn record_end(&self, units: u32, left: u32) {
        self.add(UnitEvent::Used, units.saturating_sub(left));
        self.hold(-i64::from(units));
    }

    /// Begins the return of units. They are lost, unless it [succeeds](UnitReturn::succeed).
    pub(crate) fn begin_return(&self, units: u32) -> UnitReturn {
        UnitReturn {
            meter: self.clone(),
            units,
            event: UnitEvent::Lost,
        }
    }

    fn hold(&self, difference: i64) {
        let labels = [("limiter", &*self.0.limiter)];
        self.0.held.add(&LEASE_UNITS_HELD, &labels, difference);
    }

    /// Counts units. Returns whether the recorder got its first value.
    fn add(&self, event: UnitEvent, units: u32) -> bool {
        let labels = [("limiter", &*self.0.limiter), ("event", event.text())];
        let count = self.0.units.get(event as usize);
        count.is_some_and(|count| count.add(&LEASE_UNITS, &labels, units.into()))
    }
}

/// The return of units. Records on drop whether they returned.
#[derive(Debug)]
pub(crate) struct UnitReturn {
    meter: LeaseMeter,
    units: u32,
    event: UnitEvent,
}

impl UnitReturn {
    /// Records that the store took the units back.
    pub(crate) fn succeed(mut self) {
        self.event = UnitEvent::Returned;
    }
}

impl Drop for UnitReturn {
    fn drop(&mut self) {
        self.meter.add(self.event, self.units);
    }
}
