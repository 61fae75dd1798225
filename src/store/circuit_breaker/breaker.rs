//! The breaker: a store that has failed is not asked for a while.
//!
//! As long as nothing fails, all it does is to read one atomic. Times are microseconds of a clock that
//! the caller reads.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, ErrorKind};

/// So many failures in a row open it: one is noise, and each costs a caller the whole deadline.
const FAILURES_IN_A_ROW: u32 = 5;

/// At least so many outcomes in a second are needed for half of them to say something.
const OUTCOMES_THAT_TELL: u32 = 20;

const SECOND: u64 = 1_000_000;

/// How long it is open at first, and at most: a store that is back must decide again within a second.
const FIRST_OPEN: u64 = 100_000;
const LONGEST_OPEN: u64 = 500_000;

/// A probe of which nothing is heard for so long after the deadline is lost.
const PROBE: u64 = SECOND;

/// Who waited for less than this part of the deadline cannot have been answered by every healthy store.
const PART_THAT_TELLS: u64 = 4;

/// Whether the store may be asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Permit {
    Ask,
    /// Somebody has to find out whether the store is back, and it is this one.
    Probe,
    Refuse,
}

/// It is open, or closed, and was not before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    Opened,
    Closed,
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
    /// When somebody last gave up, and for how long somebody has waited in vain until then.
    given_up_at: u64,
    unanswered: u64,
    /// When the second began that is counted.
    second_began: u64,
    outcomes: u32,
    failures: u32,
    /// How often it has opened without having been closed for a second.
    openings: u32,
    closed_at: Option<u64>,
    last: Option<Error>,
    /// What is answered while it is open.
    refusal: Option<Error>,
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
    /// Whether a check may ask, which waits for so long at most.
    #[inline]
    pub(super) fn enter(&self, deadline: u64, now: impl FnOnce() -> u64) -> Permit {
        if !self.is_open() {
            return Permit::Ask;
        }
        self.enter_open(deadline, now())
    }

    #[cold]
    fn enter_open(&self, deadline: u64, now: u64) -> Permit {
        let until = self.until.load(Ordering::Relaxed);
        let lost = PROBE.saturating_add(deadline);
        // Later than it can be is what a clock says that has stepped back.
        if now < until && until - now <= lost {
            return Permit::Refuse;
        }
        // Who moves the time is the one to ask.
        let next = now.saturating_add(lost);
        let moved = self
            .until
            .compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed);
        if moved.is_ok() {
            Permit::Probe
        } else {
            Permit::Refuse
        }
    }

    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.mode.load(Ordering::Relaxed) == OPEN
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
        if now.saturating_sub(record.second_began) < SECOND {
            record.outcomes += 1;
        } else if self.mode.load(Ordering::Relaxed) == WARY {
            self.mode.store(CALM, Ordering::Relaxed);
        }
    }

    /// The store has failed.
    pub(super) fn failed(&self, now: u64, error: &Error) -> Option<Transition> {
        let mut record = self.lock();
        if self.is_open() {
            // It was asked before.
            return None;
        }
        self.mode.store(WARY, Ordering::Relaxed);
        // One call may have carried many checks: what befell it befell it once.
        if record.last.as_ref().is_some_and(|last| last.is_same(error)) {
            return None;
        }
        record.last = Some(error.clone());
        record.count_failure(now).then(|| {
            self.open(&mut record, now);
            Transition::Opened
        })
    }

    /// Somebody who began then has not waited for the store to answer.
    ///
    /// One who leaves says nothing, and who leaves early neither. But where many leave, nobody is
    /// answered in between, and together they have waited for as long as the store may take, it
    /// hangs.
    pub(super) fn given_up(&self, began: u64, now: u64, deadline: u64) -> Option<Transition> {
        if now.saturating_sub(began) < deadline / PART_THAT_TELLS {
            return None;
        }
        let mut record = self.lock();
        if self.is_open() {
            return None;
        }
        if self.mode.swap(WARY, Ordering::Relaxed) == CALM {
            record.begin_second(now);
            record.in_a_row = 0;
            record.given_up_in_a_row = 0;
        }
        record.count_given_up(began, now);
        let hangs = record.given_up_in_a_row >= FAILURES_IN_A_ROW && record.unanswered >= deadline;
        hangs.then(|| {
            record.last = None;
            self.open(&mut record, now);
            Transition::Opened
        })
    }

    /// What the probe came to; `None` when nobody waited for it.
    pub(super) fn probed(
        &self,
        now: u64,
        outcome: Option<Result<(), &Error>>,
    ) -> Option<Transition> {
        let mut record = self.lock();
        if !self.is_open() {
            return None;
        }
        match outcome {
            Some(Ok(())) => {
                record.closed_at = Some(now);
                record.in_a_row = 0;
                record.given_up_in_a_row = 0;
                record.begin_second(now);
                self.mode.store(WARY, Ordering::Relaxed);
                return Some(Transition::Closed);
            }
            Some(Err(error)) => {
                record.last = Some(error.clone());
                self.open(&mut record, now);
            }
            // The next one tries.
            None => self.until.store(now, Ordering::Relaxed),
        }
        None
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
        record.refusal = Some(refusal(record.last.as_ref()));
        self.mode.store(OPEN, Ordering::Relaxed);
    }

    /// What is answered while it is open.
    pub(super) fn refusal(&self) -> Error {
        let made = self.lock().refusal.clone();
        made.unwrap_or_else(|| refusal(None))
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        // It is whole between any two of its steps.
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    fn begin_second(&mut self, now: u64) {
        self.second_began = now;
        self.outcomes = 0;
        self.failures = 0;
    }

    /// Counts a failure, and tells whether there have been too many.
    fn count_failure(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.second_began) >= SECOND {
            self.begin_second(now);
        }
        self.in_a_row += 1;
        self.outcomes += 1;
        self.failures += 1;
        let half = self.outcomes >= OUTCOMES_THAT_TELL && self.failures * 2 >= self.outcomes;
        self.in_a_row >= FAILURES_IN_A_ROW || half
    }

    fn count_given_up(&mut self, began: u64, now: u64) {
        if now.saturating_sub(self.given_up_at) >= SECOND {
            self.given_up_in_a_row = 0;
        }
        if self.given_up_in_a_row == 0 {
            self.unanswered = 0;
            self.given_up_at = began;
        }
        self.given_up_in_a_row += 1;
        // Of those who wait at the same time, the time counts once.
        self.unanswered += now.saturating_sub(began.max(self.given_up_at));
        self.given_up_at = now;
    }
}

fn refusal(last: Option<&Error>) -> Error {
    const TEXT: &str = "the store is not asked until it has answered a probe";
    match last {
        Some(last) => {
            let text = format!("{TEXT}: {last}");
            Error::new(ErrorKind::Unavailable, text).with_source(last.clone())
        }
        None => Error::new(
            ErrorKind::Unavailable,
            format!("{TEXT}: it answered nobody"),
        ),
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
