//! What a process knows of a key that an upstream holds back, beside the shared list.

use std::time::Duration;

/// How much later than in the shared list a hold may end before the others are told: each answer of a burst has
/// another end.
const SLACK: u64 = 10_000;

/// What this process was told of a key, and the turns of its calls that wait for the key. Times are in microseconds of
/// the list's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hold {
    /// The end that an upstream has told this process. 0 if it has told others only.
    pub(super) until: u64,
    /// The time from which the others may be told again.
    next_try_at: u64,
    /// The next turn. `None` while no call waits.
    next_turn: Option<Duration>,
}

impl Hold {
    /// Returns whether the others would end the hold earlier.
    pub(super) fn is_later_than(&self, listed_until: u64) -> bool {
        self.until > listed_until.saturating_add(SLACK)
    }

    /// Returns whether the others may be told now. Then the next try is due after `interval`.
    pub(super) fn take_try(&mut self, now: u64, interval: u64) -> bool {
        let is_due = now >= self.next_try_at;
        if is_due {
            self.next_try_at = now.saturating_add(interval);
        }
        is_due
    }

    /// Takes the next turn, and leaves the one after it.
    pub(super) fn take_turn(&mut self, step: Duration, phase: Duration) -> Duration {
        let turn = self.next_turn.unwrap_or(phase);
        self.next_turn = Some(turn.saturating_add(step));
        turn
    }
}
