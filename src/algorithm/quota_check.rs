//! What an algorithm is asked about one quota, and what it says.

use crate::decision::{Answer, QuotaAnswer, Receipt, Wait};
use crate::quota::Quota;

/// One quota's part of a check: what fits into which window, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuotaCheck {
    pub(crate) limit: u32,
    pub(crate) window: u64,
    /// Into how many parts the window is divided, where it is.
    pub(crate) parts: u64,
    pub(crate) cost: u32,
    pub(crate) now: u64,
}

impl QuotaCheck {
    #[inline(always)]
    pub(crate) fn new(quota: &Quota, cost: u32, now: u64) -> Self {
        Self {
            limit: quota.limit(),
            window: quota.window_micros(),
            parts: quota.counted_by().parts(),
            cost,
            now,
        }
    }
}

/// What a charge left behind, by which it is found again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charge {
    pub(crate) time: u64,
    pub(crate) receipt: Receipt,
    /// How many units it was.
    pub(crate) cost: u32,
    /// Whether more of them may be given back later.
    pub(crate) is_open: bool,
}

/// What a quota says of a check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    pub(crate) used: u32,
    pub(crate) wait: Wait,
    pub(crate) reset: u64,
    /// Whether the step changed the state in a way that renews its time to live.
    pub(crate) renewed: bool,
    /// By what a charge that was made just now is found again.
    pub(crate) receipt: Receipt,
}

/// What of an answer is noted with its count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked {
    pub(crate) used: u32,
    pub(crate) admitted: bool,
    pub(crate) renewed: bool,
}

impl Verdict {
    /// Puts what is answered into its place, and says what is noted.
    #[inline(always)]
    pub(crate) fn put(self, answer: &mut Answer) -> Checked {
        answer.push(self.into());
        Checked {
            used: self.used,
            admitted: self.wait == Wait::Zero,
            renewed: self.renewed,
        }
    }
}

impl From<Verdict> for QuotaAnswer {
    #[inline(always)]
    fn from(asked: Verdict) -> Self {
        Self::from_micros(asked.used, asked.wait, asked.reset).with_receipt(asked.receipt)
    }
}
