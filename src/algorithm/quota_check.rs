//! The part of a check that concerns one quota, and its outcome.

use std::ops::BitOr;

use super::arithmetic::{aligned, saturate};
use crate::decision::{QuotaAnswer, Receipt, Wait};
use crate::quota::{AlignedWindow, Quota, ShareId, Shares};

/// The part of a check that concerns one quota. Times are microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuotaCheck<'a> {
    pub(crate) limit: u32,
    pub(crate) window: u64,
    /// The length of a bucket; 0 for algorithms without buckets.
    pub(crate) bucket: u64,
    pub(crate) cost: u32,
    pub(crate) now: u64,
    /// The window that `now` is in, if windows follow a calendar.
    pub(crate) calendar: Option<AlignedWindow>,
    pub(crate) shares: &'a Shares,
    /// The share that asks, if a quota of the stored count has it: each charge of the count is one of this share.
    pub(crate) share: Option<ShareId>,
}

impl<'a> QuotaCheck<'a> {
    #[inline]
    pub(crate) fn new(
        quota: &'a Quota,
        share: Option<ShareId>,
        lease: u64,
        cost: u32,
        now: u64,
    ) -> Self {
        Self {
            limit: quota.limit(),
            window: quota.counted_micros(lease),
            bucket: quota.bucket_micros(lease),
            cost,
            now,
            calendar: quota.calendar().map(|calendar| calendar.window_at(now)),
            shares: quota.share_list(),
            share,
        }
    }

    /// Returns the time at which a log charges units now: in buckets, the last moment of the current one.
    #[inline]
    pub(super) fn charge_time(&self) -> u64 {
        if self.bucket == 0 {
            self.now
        } else {
            self.now - self.now % self.bucket + self.bucket - 1
        }
    }

    /// Returns how long a unit that is charged now may count in a fixed window: until the end of the last one that its
    /// count may be of. With a calendar, that is longer than the time to live, so that each charge renews it.
    #[inline]
    pub(crate) fn fixed_window_needs(&self) -> u64 {
        let window = self.fixed_window();
        window.left_from(window.last_index())
    }

    #[inline]
    pub(super) fn fixed_window(&self) -> AlignedWindow {
        self.calendar.unwrap_or_else(|| {
            let place = aligned(self.now, self.window);
            AlignedWindow {
                index: place.index,
                left: place.left,
                next_length: self.window,
                after_next_length: None,
            }
        })
    }
}

/// An earlier charge that a refund takes units from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charge {
    pub(crate) time: u64,
    pub(crate) receipt: Receipt,
    /// The units that were charged.
    pub(crate) cost: u32,
    /// Whether a later refund may take more units of this charge.
    pub(crate) is_open: bool,
}

/// The result of a check against one quota.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuotaOutcome {
    pub(crate) used: u32,
    pub(crate) wait: Wait,
    pub(crate) reset: u64,
    pub(crate) changes: Changes,
    /// The receipt of the charge, if the check was charged.
    pub(crate) receipt: Receipt,
}

impl QuotaOutcome {
    /// Compares a cost with the units that may be charged now, and with the `most` that may be charged when all units have
    /// returned. `has_room_in` returns the time until so many units may be charged, which are at most these.
    ///
    /// A cost of 0 needs no room: it is admitted also where more units count than the limit. A quota that never admits a unit
    /// refuses it, too.
    #[inline]
    pub(super) fn new(
        check: &QuotaCheck<'_>,
        room: i64,
        most: i64,
        receipt: Receipt,
        has_room_in: impl Fn(i64) -> u64,
    ) -> Self {
        let cost = i64::from(check.cost);
        // Units beyond the room have to return first.
        let more = room.max(0) + 1;
        Self {
            used: saturate(i64::from(check.limit).abs_diff(room)),
            wait: if cost.max(1) > most {
                Wait::Never
            } else if cost <= room.max(0) {
                Wait::Zero
            } else {
                Wait::Micros(has_room_in(cost))
            },
            reset: if more <= most { has_room_in(more) } else { 0 },
            changes: Changes::NONE,
            receipt,
        }
    }

    /// Makes this the outcome of a count to which time returns no units.
    #[inline]
    pub(super) fn without_return(self) -> Self {
        let wait = match self.wait {
            Wait::Micros(_) => Wait::Never,
            wait => wait,
        };
        Self {
            wait,
            reset: 0,
            ..self
        }
    }
}

/// The changes of a request to a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes(u8);

impl Changes {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const CHARGED: Self = Self(1);
    /// The state gets its full time to live.
    pub(crate) const RENEWED: Self = Self(2);
    /// No unit is left, so the state is not needed any more.
    pub(crate) const EMPTIED: Self = Self(4);

    #[inline]
    pub(crate) const fn only_if(self, happened: bool) -> Self {
        if happened { self } else { Self::NONE }
    }

    #[inline]
    pub(crate) const fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }
}

impl BitOr for Changes {
    type Output = Self;

    #[inline]
    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

impl From<QuotaOutcome> for QuotaAnswer {
    #[inline]
    fn from(outcome: QuotaOutcome) -> Self {
        Self::from_micros(outcome.used, outcome.wait, outcome.reset).with_receipt(outcome.receipt)
    }
}
