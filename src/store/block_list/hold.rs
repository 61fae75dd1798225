//! The knowledge of one process about a key that an upstream holds back, beside the shared list.

/// How much later than in the shared list a hold may end before the others learn of it: each answer of a burst has
/// another end.
const SLACK: u64 = 10_000;

/// The hold of a key that an upstream asked of this process. Times are in microseconds of the list's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hold {
    /// The end that an upstream gave this process. 0 if it gave one to others only.
    pub(super) until: u64,
    /// The time from which the others may be informed again.
    next_try_at: u64,
}

impl Hold {
    /// Returns whether the others would end the hold earlier.
    pub(super) fn is_later_than(&self, listed_until: u64) -> bool {
        self.until > listed_until.saturating_add(SLACK)
    }

    /// Returns whether the others may be informed now. Then the next try is due after `interval`.
    pub(super) fn take_try(&mut self, now: u64, interval: u64) -> bool {
        let is_due = now >= self.next_try_at;
        if is_due {
            self.next_try_at = now.saturating_add(interval);
        }
        is_due
    }
}
