//! Metrics through the facade of the `metrics` crate. Without the feature `metrics`, the methods do nothing.

#[cfg(not(feature = "metrics"))]
mod disabled;
#[cfg(feature = "metrics")]
mod handles;
#[cfg(feature = "metrics")]
mod lease_meter;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "metrics")]
mod permit_meter;

#[cfg(not(feature = "metrics"))]
pub(super) use disabled::CheckCounts;
#[cfg(not(feature = "metrics"))]
pub(crate) use disabled::{LeaseMeter, PermitMeter, PermitWait, StoreMeter};
#[cfg(feature = "metrics")]
pub(crate) use lease_meter::LeaseMeter;
#[cfg(feature = "metrics")]
pub(super) use metrics::CheckCounts;
#[cfg(feature = "metrics")]
pub(crate) use metrics::StoreMeter;
#[cfg(feature = "metrics")]
pub(crate) use permit_meter::{PermitMeter, PermitWait};
