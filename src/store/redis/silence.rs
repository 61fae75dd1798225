//! For how long a connection has not answered what it was sent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Nothing waits for an answer, as far as it is known.
const NOTHING: u64 = u64::MAX;

/// When the first command was sent that came after the last answer.
///
/// Commands are answered in their order. So one that nobody waits for any more still counts: if no
/// later one is answered either, the server is silent, however impatient the callers are.
#[derive(Debug)]
pub(super) struct Silence {
    begin: Instant,
    /// In microseconds from there.
    since: AtomicU64,
}

impl Silence {
    pub(super) fn new() -> Self {
        Self {
            begin: Instant::now(),
            since: AtomicU64::new(NOTHING),
        }
    }

    /// A command is sent now: when that is.
    pub(super) fn sending(&self) -> u64 {
        let now = self.now();
        // Those of one moment are as good as each other.
        if self.since.load(Ordering::Relaxed) == NOTHING {
            self.since.store(now, Ordering::Relaxed);
        }
        now
    }

    /// A command has been answered.
    pub(super) fn answered(&self) {
        self.since.store(NOTHING, Ordering::Relaxed);
    }

    /// For how long there has been no answer, where this command has none.
    pub(super) fn of(&self, sent: u64) -> Duration {
        let since = self.since.load(Ordering::Relaxed).min(sent);
        Duration::from_micros(self.now().saturating_sub(since))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_micros()).unwrap_or(NOTHING - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_are_given_up_do_not_hide_that_none_is_answered() {
        let silence = Silence::new();
        let first = silence.sending();
        std::thread::sleep(Duration::from_millis(20));
        let second = silence.sending();
        assert!(silence.of(second) >= Duration::from_millis(20));
        assert!(silence.of(second) >= silence.of(first) - Duration::from_millis(10));
        silence.answered();
        let third = silence.sending();
        assert!(silence.of(third) < Duration::from_millis(20));
        // Sent before that answer, and not answered by it.
        assert!(silence.of(second) < silence.of(first));
    }
}
