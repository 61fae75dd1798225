//! The reply to the last of the checks that were charged at one time, from which the answers to all of them follow.

use super::counts::Count;
use crate::algorithm::CountState;
use crate::decision::{QuotaAnswer, Receipt, Wait};
use crate::quota::Quota;

/// The reply of a quota to the last check.
#[derive(Clone, Debug)]
pub(super) enum LastReply {
    /// The numbers that the script computed.
    Numbers {
        used: u32,
        reset: u64,
        receipt: Receipt,
    },
    /// The count as it is stored now.
    Counter(CountState),
}

impl LastReply {
    /// Returns the answer to an earlier check, after which so many units were charged at the same time.
    #[inline]
    pub(super) fn before(
        &self,
        later_units: u64,
        count: &Count<'_>,
        quota: &Quota,
        time: u64,
    ) -> QuotaAnswer {
        match self {
            // All units of a call have the same time, so nothing else changes with earlier ones.
            Self::Numbers {
                used,
                reset,
                receipt,
            } => {
                let later_units = u32::try_from(later_units).unwrap_or(u32::MAX);
                QuotaAnswer::from_micros(used.saturating_sub(later_units), Wait::Zero, *reset)
                    .with_receipt(*receipt)
            }
            Self::Counter(counter) => {
                let mut earlier = counter.clone();
                if later_units > 0 {
                    earlier.remove_latest(later_units);
                }
                earlier.evaluate(&count.quota_check(quota, 0, time)).into()
            }
        }
    }
}
