//! The state machine of one circuit breaker: closed, open, or half-open while one probe is in flight.
//!
//! While the store works, a check costs one atomic load. Times are microseconds of a clock that the caller
//! reads.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::error::{Code, Error};
use crate::lock::Mutex;
use crate::random::random_bits;

/// The consecutive failures that open the breaker. One may be an accident, and each may cost a caller the whole
/// deadline.
const CONSECUTIVE_FAILURES: u32 = 5;

/// The fewest outcomes in a second for which a failure rate of one half opens the breaker.
const MIN_OUTCOMES: u32 = 20;

const SECOND: u64 = 1_000_000;

/// How long the breaker stays open at first, and at most. Limiters use a recovered store again within a second.
const MIN_OPEN: u64 = 100_000;
const MAX_OPEN: u64 = 500_000;

/// The time after the deadline from which a probe without an outcome counts as lost.
const PROBE_TIMEOUT: u64 = SECOND;

/// The time from which a probe that no check has triggered is overdue. Checks of busy processes come earlier.
const IDLE: u64 = 100_000;

/// A caller that gives up earlier than 1/4 of the deadline is ignored, because a healthy store might not have
/// replied yet.
const MIN_WAIT_FRACTION: u64 = 4;

/// Whether a caller may send a request to the store.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::store) enum Admission {
    Ask,
    /// The caller sends the one request that tests whether the store has recovered.
    Probe,
    Refuse,
}

/// A change between open and closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    Opened,
    Closed,
}

/// The circuit breaker of one server: of a store, or of a node of a cluster. Closed at first.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    state: AtomicU8,
    /// The time at which the next probe is due, while the breaker is open.
    probe_at: AtomicU64,
    history: Mutex<History>,
}

/// No recent failure: successes are not counted.
const CLOSED: u8 = 0;
/// Closed, with a failure in the current second: successes are counted too.
const COUNTING: u8 = 1;
const OPEN: u8 = 2;

#[derive(Debug, Default)]
struct History {
    consecutive_failures: u32,
    consecutive_abandoned: u32,
    /// The time at which the last caller gave up.
    abandoned_at: u64,
    /// How long callers that gave up have waited. Overlapping waits count once.
    unanswered: u64,
    /// The start of the second in which outcomes are counted.
    second_began: u64,
    outcomes: u32,
    failures: u32,
    /// How often the breaker has opened since it was last closed for a second.
    openings: u32,
    closed_at: Option<u64>,
    last_error: Option<Error>,
    /// The error that callers get while the breaker is open.
    open_error: Option<Error>,
}

impl Breaker {
    #[inline]
    pub(super) fn admit(&self, deadline: u64, now: impl FnOnce() -> u64) -> Admission {
        if !self.is_open() {
            return Admission::Ask;
        }
        self.admit_when_open(deadline, now())
    }

    #[cold]
    fn admit_when_open(&self, deadline: u64, now: u64) -> Admission {
        let probe_at = self.probe_at.load(Ordering::Relaxed);
        let max_wait = PROBE_TIMEOUT.saturating_add(deadline);
        // If the probe is due later than this, the clock has stepped back.
        if now < probe_at && probe_at - now <= max_wait {
            return Admission::Refuse;
        }
        // Only the caller that changes the time sends the probe.
        let next = now.saturating_add(max_wait);
        let moved =
            self.probe_at
                .compare_exchange(probe_at, next, Ordering::Relaxed, Ordering::Relaxed);
        if moved.is_ok() {
            Admission::Probe
        } else {
            Admission::Refuse
        }
    }

    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.state.load(Ordering::Relaxed) == OPEN
    }

    /// Returns whether nothing has failed since an answer a second ago.
    #[cfg(feature = "redis")]
    pub(super) fn is_calm(&self) -> bool {
        self.state.load(Ordering::Relaxed) == CLOSED
    }

    /// Returns the time until a probe is overdue that no check has triggered. `None` while the breaker is closed.
    pub(super) fn until_overdue(&self, now: u64) -> Option<u64> {
        let overdue_at = self.probe_at.load(Ordering::Relaxed).saturating_add(IDLE);
        self.is_open().then(|| overdue_at.saturating_sub(now))
    }

    #[inline]
    pub(super) fn record_success(&self, now: impl FnOnce() -> u64) {
        if self.state.load(Ordering::Relaxed) == COUNTING {
            self.count_success(now());
        }
    }

    #[cold]
    fn count_success(&self, now: u64) {
        let mut history = self.history.lock();
        history.end_streaks();
        if now.saturating_sub(history.second_began) < SECOND {
            history.outcomes += 1;
        } else if self.state.load(Ordering::Relaxed) == COUNTING {
            self.state.store(CLOSED, Ordering::Relaxed);
        }
    }

    pub(super) fn record_failure(&self, now: u64, error: &Error) -> Option<Transition> {
        let mut history = self.history.lock();
        if self.is_open() {
            // The request was sent before the breaker opened.
            return None;
        }
        self.state.store(COUNTING, Ordering::Relaxed);
        // One call may carry many checks. Its error is the same for all of them, and counts once.
        let last = history.last_error.as_ref();
        if last.is_some_and(|last| last.is_same(error)) {
            return None;
        }
        history.last_error = Some(error.clone());
        let is_failing = history.count_failure(now);
        is_failing.then(|| self.open(&mut history, now))
    }

    /// Records a caller that started at `started_at` and gave up before the store answered.
    ///
    /// The store counts as hanging if several callers in a row give up, none is answered in between, and
    /// together they have waited for a whole deadline. A caller that gives up early is ignored.
    pub(super) fn record_abandoned(
        &self,
        started_at: u64,
        now: u64,
        deadline: u64,
    ) -> Option<Transition> {
        if now.saturating_sub(started_at) < deadline / MIN_WAIT_FRACTION {
            return None;
        }
        let mut history = self.history.lock();
        if self.is_open() {
            return None;
        }
        if self.state.swap(COUNTING, Ordering::Relaxed) == CLOSED {
            history.begin_second(now);
            history.end_streaks();
        }
        history.count_abandoned(started_at, now);
        let hangs =
            history.consecutive_abandoned >= CONSECUTIVE_FAILURES && history.unanswered >= deadline;
        hangs.then(|| {
            history.last_error = None;
            self.open(&mut history, now)
        })
    }

    /// Records the outcome of a probe: `None` if its caller gave up.
    pub(super) fn record_probe(
        &self,
        now: u64,
        outcome: Option<Result<(), &Error>>,
    ) -> Option<Transition> {
        let mut history = self.history.lock();
        if !self.is_open() {
            return None;
        }
        match outcome {
            Some(Ok(())) => {
                history.closed_at = Some(now);
                history.end_streaks();
                history.begin_second(now);
                self.state.store(COUNTING, Ordering::Relaxed);
                return Some(Transition::Closed);
            }
            Some(Err(error)) => {
                history.last_error = Some(error.clone());
                self.open(&mut history, now);
            }
            // The next caller sends another probe.
            None => self.probe_at.store(now, Ordering::Relaxed),
        }
        None
    }

    fn open(&self, history: &mut History, now: u64) -> Transition {
        let closed_at = history.closed_at.take();
        if closed_at.is_some_and(|closed_at| now.saturating_sub(closed_at) >= SECOND) {
            history.openings = 0;
        }
        let probe_at = now + open_duration(history.openings);
        self.probe_at.store(probe_at, Ordering::Relaxed);
        history.openings = history.openings.saturating_add(1);
        history.open_error = Some(open_error(history.last_error.as_ref()));
        self.state.store(OPEN, Ordering::Relaxed);
        Transition::Opened
    }

    pub(super) fn open_error(&self) -> Error {
        let stored = self.history.lock().open_error.clone();
        stored.unwrap_or_else(|| open_error(None))
    }
}

impl History {
    fn begin_second(&mut self, now: u64) {
        self.second_began = now;
        self.outcomes = 0;
        self.failures = 0;
    }

    fn end_streaks(&mut self) {
        self.consecutive_failures = 0;
        self.consecutive_abandoned = 0;
    }

    /// Counts a failure. Returns whether there have been enough to open the breaker.
    fn count_failure(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.second_began) >= SECOND {
            self.begin_second(now);
        }
        self.consecutive_failures += 1;
        self.outcomes += 1;
        self.failures += 1;
        let is_half_failed = self.outcomes >= MIN_OUTCOMES && self.failures * 2 >= self.outcomes;
        self.consecutive_failures >= CONSECUTIVE_FAILURES || is_half_failed
    }

    fn count_abandoned(&mut self, started_at: u64, now: u64) {
        if now.saturating_sub(self.abandoned_at) >= SECOND {
            self.consecutive_abandoned = 0;
        }
        if self.consecutive_abandoned == 0 {
            self.unanswered = 0;
            self.abandoned_at = started_at;
        }
        self.consecutive_abandoned += 1;
        self.unanswered += now.saturating_sub(started_at.max(self.abandoned_at));
        self.abandoned_at = now;
    }
}

fn open_error(last: Option<&Error>) -> Error {
    const TEXT: &str = "the circuit breaker is open: the store is not asked until a probe succeeds";
    match last {
        Some(last) => Error::coded(Code::BREAKER_OPEN, format!("{TEXT}; last error: {last}"))
            .with_source(last.clone()),
        None => {
            let text = format!("{TEXT}; the last calls were not answered");
            Error::coded(Code::BREAKER_OPEN, text)
        }
    }
}

/// Returns how long the breaker stays open: a random time up to 200 ms at first, then up to 400 and 500 ms.
///
/// The lower bound is half of that. Without jitter, all processes that saw the same failure would probe at the
/// same time.
fn open_duration(openings: u32) -> u64 {
    let doubled = MIN_OPEN.saturating_mul(2_u64.saturating_pow(openings.saturating_add(1)));
    let longest = doubled.min(MAX_OPEN);
    let shortest = (longest / 2).max(MIN_OPEN);
    shortest + random_bits() % (longest - shortest + 1)
}

#[cfg(test)]
mod tests;
