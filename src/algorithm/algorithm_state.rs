//! The rule of one algorithm over what it stores.

use super::bytes::Bytes;
use super::quota_check::{Changes, Charge, QuotaCheck, QuotaOutcome};

/// A stored count with the rule of its algorithm: a log, a counter, or the slots in flight.
pub(crate) trait AlgorithmState: Bytes {
    /// Evaluates the check without charging it. Moves units in the future to now.
    fn evaluate(&mut self, check: &QuotaCheck<'_>) -> QuotaOutcome;

    /// Moves the units of a log that are in the future to now. The other states do so with each check.
    #[must_use]
    fn rewind(&mut self, _check: &QuotaCheck<'_>) -> Changes {
        Changes::NONE
    }

    /// Evaluates the check, and charges it if it fits. `expires` is the end of the time to live, in microseconds.
    /// Call [`rewind`](Self::rewind) before.
    ///
    /// Only for checks with one quota. With several, call [`evaluate`](Self::evaluate) on each. If all admit,
    /// call [`charge`](Self::charge) on each count, and evaluate each quota again with a cost of 0.
    fn check(&mut self, check: &QuotaCheck<'_>, expires: u64) -> QuotaOutcome;

    /// Charges a cost, also beyond the limit: as much of it as the count can hold. Of the quotas of a log, the check has the
    /// longest window, with the largest limit asked with it.
    #[must_use]
    fn charge(&mut self, check: &QuotaCheck<'_>, expires: u64) -> Changes;

    /// Removes up to `units` units of a charge, if they still count.
    #[must_use]
    fn refund(&mut self, check: &QuotaCheck<'_>, charge: Charge, units: u32) -> Changes;

    /// Removes up to `units` units of any charges. The other units return when they would have returned anyway.
    #[must_use]
    fn credit(&mut self, check: &QuotaCheck<'_>, units: u32) -> Changes;

    /// Returns whether all units have returned, from any window that charged.
    fn is_idle(&self, check: &QuotaCheck<'_>) -> bool;

    /// Returns the number of windows within which a charged unit returns: one, unless a counter was charged beyond its limit.
    fn windows(&self) -> u64 {
        1
    }

    /// `None` for counters.
    fn longest_window(&self) -> Option<u64> {
        None
    }

    /// Sets the numbers of a counter, in the order of the script. `None` for other states, and if numbers are missing or too
    /// large.
    #[cfg(feature = "redis")]
    fn set_numbers(&mut self, _generation: u64, _numbers: &[u64]) -> Option<()> {
        None
    }

    /// Removes units that were charged to a counter at the time of its last charge. Other states keep them.
    #[cfg(feature = "redis")]
    fn remove_latest(&mut self, _units: u64) {}
}
