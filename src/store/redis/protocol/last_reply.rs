//! The reply to the last of the checks that were charged at one time, from which the answers to all of them follow.

use crate::algorithm::{QuotaCheck, State};
use crate::decision::{QuotaAnswer, Receipt, Wait};
use crate::quota::{Algorithm, Quota};

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
            Self::Numbers(numbers) if later_units == 0 => numbers.answer(),
            Self::Numbers(numbers) => numbers.before(later_units, quota, time).answer(),
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
    #[inline]
    fn answer(self) -> QuotaAnswer {
        QuotaAnswer::from_micros(self.used, Wait::Zero, self.reset).with_receipt(self.receipt)
    }

    fn before(self, later_units: u64, quota: &Quota, time: u64) -> Self {
        let Self {
            used,
            mut reset,
            mut receipt,
        } = self;
        let used = u64::from(used).saturating_sub(later_units);
        let window = quota.counted_micros();
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
        Self {
            used: u32::try_from(used).unwrap_or(u32::MAX),
            reset,
            receipt,
        }
    }
}
