//! The reply to the last of several checks, from which the answers to the earlier ones follow.

use smallvec::SmallVec;

use crate::algorithm::{QuotaCheck, State};
use crate::decision::{QuotaAnswer, Receipt, Wait};
use crate::quota::{Algorithm, Quota};

/// The replies of the quotas of a level to the last check.
pub(super) type LastReplies = SmallVec<[LastReply; 2]>;

/// The reply of a quota to the last check.
#[derive(Clone)]
pub(super) enum LastReply {
    Numbers(Numbers),
    /// The count as it is stored now.
    Counter(State),
}

#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub(super) used: u32,
    pub(super) reset: u64,
    pub(super) receipt: Receipt,
}

impl LastReply {
    /// Returns the answer to an earlier check, after which so many units were charged at the same time.
    pub(super) fn before(&self, later_units: u64, quota: &Quota, time: u64) -> QuotaAnswer {
        match self {
            Self::Numbers(numbers) => numbers.before(later_units, quota, time),
            Self::Counter(counter) => {
                let mut counter = counter.clone();
                counter.remove_latest(later_units);
                counter.evaluate(QuotaCheck::new(quota, 0, time)).into()
            }
        }
    }
}

impl Numbers {
    fn before(self, later_units: u64, quota: &Quota, time: u64) -> QuotaAnswer {
        let Self {
            used,
            mut reset,
            mut receipt,
        } = self;
        if later_units == 0 {
            return QuotaAnswer::from_micros(used, Wait::Zero, reset).with_receipt(receipt);
        }
        let used = u64::from(used).saturating_sub(later_units);
        let window = quota.window_micros();
        match quota.counted_by() {
            Algorithm::Gcra => receipt.position = receipt.position.saturating_sub(later_units),
            // Nothing of the previous window counts, so that this one has to slide out. The product is below
            // 2^53, else the script decides one by one.
            Algorithm::SlidingCounter if reset > window - time % window => {
                let units = used.max(1);
                reset = 2 * window - time % window - (units - 1) * window / units;
            }
            _ => {}
        }
        let used = u32::try_from(used).unwrap_or(u32::MAX);
        QuotaAnswer::from_micros(used, Wait::Zero, reset).with_receipt(receipt)
    }
}
