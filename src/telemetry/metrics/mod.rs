//! The metrics of limiters, stores, leases and permits.

mod check_counts;
mod handles;
mod lease_meter;
mod permit_meter;
mod store_meter;

pub(super) use check_counts::CheckCounts;
pub(crate) use handles::HAS_METRICS;
pub(crate) use lease_meter::LeaseMeter;
pub(crate) use permit_meter::{PermitMeter, PermitWait};
pub(crate) use store_meter::StoreMeter;
