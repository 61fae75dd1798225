//! The breaker: a store that has failed is not asked for a while.
//!
//! As long as nothing fails, all it does is to read one atomic. Times are microseconds of a clock that
//! the caller reads.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Error;

/// So many failures in a row open it: one is noise, and each costs a caller the whole deadline.
const FAILURES_IN_A_ROW: u32 = 5;

/// At least so many outcomes in a second are needed for half of them to say something.
const OUTCOMES_THAT_TELL: u32 = 20;

const SECOND: u64 = 1_000_000;

/// How long it is open at first, and at most: a store that is back must decide again within a second.
const FIRST_OPEN: u64 = 100_000;
const LONGEST_OPEN: u64 = 500_000;

/// A probe of which nothing is heard in this time is lost.
const PROBE: u64 = SECOND;

/// Whether the store may be asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Ask,
    /// Somebody has to find out whether the store is back, and it is this one.
    Probe,
    Refuse,
}

#[derive(Debug)]
pub(super) struct Breaker {
    mode: AtomicU8,
    /// While it is open: when somebody may ask again.
    until: AtomicU64,
    record: Mutex<Record>,
}

/// Nothing has failed lately: successes are not counted.
const CALM: u8 = 0;
/// Something has failed in this second.
const WARY: u8 = 1;
const OPEN: u8 = 2;

#[derive(Debug, Default)]
struct Record {
    in_a_row: u32,
    given_up_in_a_row: u32,
    given_up_since: u64,
    /// The second that is counted.
    second: u64,
    outcomes: u32,
    failures: u32,
    /// How often it has opened without having been closed for a second.
    openings: u32,
    closed_at: Option<u64>,
    last: Option<Error>,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            mode: AtomicU8::new(CALM),
            until: AtomicU64::new(0),
            record: Mutex::default(),
        }
    }
}

impl Breaker {
    #[inline]
    pub(super) fn enter(&self, now: impl FnOnce() -> u64) -> Entry {
        if self.mode.load(Ordering::Relaxed) != OPEN {
            return Entry::Ask;
        }
        self.enter_open(now())
    }

    #[cold]
    fn enter_open(&self, now: u64) -> Entry {
        let until = self.until.load(Ordering::Relaxed);
        if now < until {
            return Entry::Refuse;
        }
        // Who moves the time is the one to ask.
        let moved =
            self.until
                .compare_exchange(until, now + PROBE, Ordering::Relaxed, Ordering::Relaxed);
        if moved.is_ok() {
            Entry::Probe
        } else {
            Entry::Refuse
        }
    }

    /// The store has answered.
    #[inline]
    pub(super) fn succeeded(&self, now: impl FnOnce() -> u64) {
        if self.mode.load(Ordering::Relaxed) == WARY {
            self.succeeded_again(now());
        }
    }

    #[cold]
    fn succeeded_again(&self, now: u64) {
        let mut record = self.lock();
        record.in_a_row = 0;
        record.given_up_in_a_row = 0;
        if now.saturating_sub(record.second) < SECOND {
            record.outcomes += 1;
        } else if self.mode.load(Ordering::Relaxed) == WARY {
            self.mode.store(CALM, Ordering::Relaxed);
        }
    }

    /// The store has failed.
    pub(super) fn failed(&self, now: u64, error: &Error) {
        let mut record = self.lock();
        if self.mode.load(Ordering::Relaxed) == OPEN {
            // It was asked before.
            return;
        }
        self.mode.store(WARY, Ordering::Relaxed);
        record.last = Some(error.clone());
        if record.fails_too_often(now) {
            self.open(&mut record, now);
        }
    }

    /// Nobody waited for the store to answer. One who leaves says nothing; but where many leave,
    /// nobody is answered in between, and that for as long as the store may take, the store hangs.
    pub(super) fn given_up(&self, now: u64, deadline: u64) {
        let mut record = self.lock();
        if self.mode.load(Ordering::Relaxed) == OPEN {
            return;
        }
        if self.mode.swap(WARY, Ordering::Relaxed) == CALM {
            record.begin_second(now);
            record.in_a_row = 0;
            record.given_up_in_a_row = 0;
        }
        if record.given_up_in_a_row == 0 {
            record.given_up_since = now;
        }
        record.given_up_in_a_row += 1;
        let hangs = record.given_up_in_a_row >= FAILURES_IN_A_ROW
            && now.saturating_sub(record.given_up_since) >= deadline;
        if hangs {
            record.last = None;
            self.open(&mut record, now);
        }
    }

    /// What the probe came to; `None` when nobody waited for it.
    pub(super) fn probed(&self, now: u64, outcome: Option<Result<(), &Error>>) {
        let mut record = self.lock();
        if self.mode.load(Ordering::Relaxed) != OPEN {
            return;
        }
        match outcome {
            Some(Ok(())) => {
                record.closed_at = Some(now);
                record.in_a_row = 0;
                record.given_up_in_a_row = 0;
                record.begin_second(now);
                self.mode.store(WARY, Ordering::Relaxed);
            }
            Some(Err(error)) => {
                record.last = Some(error.clone());
                self.open(&mut record, now);
            }
            // The next one tries.
            None => self.until.store(now, Ordering::Relaxed),
        }
    }

    fn open(&self, record: &mut Record, now: u64) {
        if record
            .closed_at
            .take()
            .is_some_and(|closed_at| now.saturating_sub(closed_at) >= SECOND)
        {
            record.openings = 0;
        }
        self.until
            .store(now + open_for(record.openings), Ordering::Relaxed);
        record.openings = record.openings.saturating_add(1);
        self.mode.store(OPEN, Ordering::Relaxed);
    }

    /// The failure that opened it, unless it opened because nobody was answered.
    pub(super) fn last_failure(&self) -> Option<Error> {
        self.lock().last.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        // It is whole between any two of its steps.
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    fn begin_second(&mut self, now: u64) {
        self.second = now;
        self.outcomes = 0;
        self.failures = 0;
    }

    fn fails_too_often(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.second) >= SECOND {
            self.begin_second(now);
        }
        self.in_a_row += 1;
        self.outcomes += 1;
        self.failures += 1;
        let half = self.outcomes >= OUTCOMES_THAT_TELL && self.failures * 2 >= self.outcomes;
        self.in_a_row >= FAILURES_IN_A_ROW || half
    }
}

/// Twice as long each time, and any time in the upper half of that, so that processes which saw the
/// same failure do not come back together.
fn open_for(openings: u32) -> u64 {
    let doubled = FIRST_OPEN.saturating_mul(2_u64.saturating_pow(openings.saturating_add(1)));
    let longest = doubled.min(LONGEST_OPEN);
    let least = (longest / 2).max(FIRST_OPEN);
    let random = RandomState::new().hash_one(openings);
    least + random % (longest - least + 1)
}

#[cfg(test)]
mod tests;
