//! The reply to the last of the checks that were charged at one time, from which the answers to all of them follow.

use crate::algorithm::{QuotaCheck, State};
use crate::decision::{QuotaAnswer, Receipt, Wait};
use crate::quota::Quota;

/// The reply of a quota to the last check.
#[derive(Clone)]
pub(super) enum LastReply {
    Numbers(Numbers),
    /// The count as it is stored now.
    Counter(State),
}

/// The numbers that the script computed.
#[derive(Clone, Copy, Default)]
pub(super) struct Numbers {
    pub(super) used: u32,
    pub(super) reset: u64,
    pub(super) receipt: Receipt,
}

impl LastReply {
    /// Returns the answer to an earlier check, after which so many units were charged at the same time.
    #[inline]
    pub(super) fn before(&self, later_units: u64, quota: &Quota, time: u64) -> QuotaAnswer {
        match self {
            Self::Numbers(numbers) => numbers.before(later_units),
            Self::Counter(counter) => {
                let mut counter = counter.clone();
                if later_units > 0 {
                    counter.remove_latest(later_units);
                }
                counter.evaluate(QuotaCheck::new(quota, 0, time)).into()
            }
        }
    }
}

impl Numbers {
    /// All units of a call have the same time, so nothing else changes with earlier ones.
    #[inline]
    fn before(self, later_units: u64) -> QuotaAnswer {
        let used = u64::from(self.used).saturating_sub(later_units);
        let used = u32::try_from(used).unwrap_or(u32::MAX);
        QuotaAnswer::from_micros(used, Wait::Zero, self.reset).with_receipt(self.receipt)
    }
}
