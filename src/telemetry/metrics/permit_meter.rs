//! The metrics of slots in flight.
//!
//! The labels are names of limiters, never keys.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::handles::{Counter, Family, GaugeShare, Histogram, Labels, Unit};

const PERMITS_HELD: Family = Family {
    name: "tollgate_permits_held",
    unit: Unit::Count,
    description: "Slots of permits that were not dropped yet, lost ones included.",
};
const PERMIT_TIME: Family = Family {
    name: "tollgate_permit_seconds",
    unit: Unit::Seconds,
    description: "Time for which permits were held.",
};
const PERMITS_LOST: Family = Family {
    name: "tollgate_permits_lost_total",
    unit: Unit::Count,
    description: "Slots whose lease ran out before their permit was dropped.",
};
const PERMITS_WAITING: Family = Family {
    name: "tollgate_permits_waiting",
    unit: Unit::Count,
    description: "Calls that wait for a permit.",
};
const PERMIT_WAIT: Family = Family {
    name: "tollgate_permit_wait_seconds",
    unit: Unit::Seconds,
    description: "Time from a call that may wait to its permit.",
};
const PERMIT_RENEWALS: Family = Family {
    name: "tollgate_permit_renewals_total",
    unit: Unit::Count,
    description: "Messages that only state the slots that this process holds of a key.",
};

/// The metrics of the permits of one limiter. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct PermitMeter(Arc<PermitHandles>);

#[derive(Debug)]
struct PermitHandles {
    limiter: Arc<str>,
    held: GaugeShare,
    times: Histogram,
    lost: Counter,
    waiting: GaugeShare,
    waits: Histogram,
    renewals: Counter,
}

impl PermitMeter {
    pub(crate) fn new(limiter: &Arc<str>) -> Self {
        Self(Arc::new(PermitHandles {
            limiter: Arc::clone(limiter),
            held: GaugeShare::default(),
            times: Histogram::default(),
            lost: Counter::default(),
            waiting: GaugeShare::default(),
            waits: Histogram::default(),
            renewals: Counter::default(),
        }))
    }

    /// Records slots of a new permit.
    pub(crate) fn record_grant(&self, slots: u32) {
        if self.hold(slots.into()) {
            // In Prometheus, `rate` ignores the first value of a counter.
            self.record_lost(0);
            self.add_renewals(0);
        }
    }

    /// Records the end of a permit that held slots for this time.
    pub(crate) fn record_release(&self, slots: u32, held_for: Duration) {
        self.hold(-i64::from(slots));
        let seconds = held_for.as_secs_f64();
        self.record(|handles, labels| handles.times.record(&PERMIT_TIME, labels, seconds));
    }

    /// Records that the lease of slots ran out.
    pub(crate) fn record_lost(&self, slots: u32) {
        self.record(|handles, labels| handles.lost.add(&PERMITS_LOST, labels, slots.into()));
    }

    /// Records a message that only states what is held of a key.
    pub(crate) fn record_renewal(&self) {
        self.add_renewals(1);
    }

    fn add_renewals(&self, renewals: u64) {
        self.record(|handles, labels| handles.renewals.add(&PERMIT_RENEWALS, labels, renewals));
    }

    /// Adds to the held slots. Returns whether the recorder got its first value.
    fn hold(&self, difference: i64) -> bool {
        self.record(|handles, labels| handles.held.add(&PERMITS_HELD, labels, difference))
    }

    fn add_waiting(&self, difference: i64) {
        self.record(|handles, labels| handles.waiting.add(&PERMITS_WAITING, labels, difference));
    }

    fn record_wait(&self, waited: Duration) {
        let seconds = waited.as_secs_f64();
        self.record(|handles, labels| handles.waits.record(&PERMIT_WAIT, labels, seconds));
    }

    fn record(&self, record: impl FnOnce(&PermitHandles, Labels<'_>) -> bool) -> bool {
        record(&self.0, &[("limiter", &self.0.limiter)])
    }
}

/// A call that waits for a permit of these limiters, until this is dropped.
#[derive(Debug)]
pub(crate) struct PermitWait(SmallVec<[PermitMeter; 1]>);

impl PermitWait {
    pub(crate) fn begin(limiters: impl IntoIterator<Item = PermitMeter>) -> Self {
        let limiters: SmallVec<[PermitMeter; 1]> = limiters.into_iter().collect();
        for meter in &limiters {
            meter.add_waiting(1);
        }
        Self(limiters)
    }

    /// Records that the call got its permit after this time.
    pub(crate) fn succeed(&self, waited: Duration) {
        for meter in &self.0 {
            meter.record_wait(waited);
        }
    }
}

impl Drop for PermitWait {
    fn drop(&mut self) {
        for meter in &self.0 {
            meter.add_waiting(-1);
        }
    }
}
