//! The table and the meter that a limiter keeps for its slots in flight.

use std::sync::Arc;

use super::table::PermitTable;
use crate::telemetry::PermitMeter;

/// The permits of a limiter, for slots or for units.
pub(in crate::limiter) struct LimiterPermits {
    /// Those of the store in this process. The limiter keeps them, so that they are one holder for its time.
    pub(in crate::limiter) table: Arc<PermitTable>,
    pub(in crate::limiter) meter: PermitMeter,
}
