//! The time of a server that refuses TIME in scripts, as this process estimates it.
//!
//! Such a server still answers TIME outside of scripts. The process reads it once a second, adds the time that has passed
//! since by its own monotonic clock, and tells it to each script: `lua/clock_argument.lua`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::clock::micros;
use crate::lock::Mutex;

/// How often the server's clock is read.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The age from which on a reading is too old for a call, as after a pause: the call waits for another one.
const MAX_AGE: Duration = Duration::from_secs(10);

/// Two clocks that NTP disciplines drift apart by at most one part in this many: each by 500 parts in a million.
const DRIFT: u32 = 1_000;

/// The estimate of a server's time.
#[derive(Debug, Default)]
pub(super) struct ArgumentClock {
    is_used: AtomicBool,
    readings: Mutex<Readings>,
}

#[derive(Debug, Default)]
struct Readings {
    /// When the server was asked last.
    asked_at: Option<Instant>,
    best: Option<Reading>,
}

/// A reading of the server's clock, or what follows from it for a later instant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// The server's time, in microseconds since 1970.
    pub(super) time: u64,
    /// When the server had this time, by the clock of this process.
    at: Instant,
    /// The most that `at` is wrong by.
    pub(super) error: Duration,
}

impl Reading {
    fn at(&self, now: Instant) -> Self {
        let passed = now.saturating_duration_since(self.at);
        Self {
            time: self.time.saturating_add(micros(passed)),
            at: now,
            error: self.error.saturating_add(passed / DRIFT),
        }
    }
}

impl ArgumentClock {
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Makes calls tell the time from now on. Returns whether they did not before.
    pub(super) fn start(&self) -> bool {
        !self.is_used.swap(true, Ordering::Relaxed)
    }

    /// Returns the time of the server at an instant, unless the last reading is too old.
    pub(super) fn estimate(&self, now: Instant) -> Option<Reading> {
        let best = self.readings.lock().best?;
        let is_recent = now.saturating_duration_since(best.at) <= MAX_AGE;
        is_recent.then(|| best.at(now))
    }

    /// Claims the next reading of the server's clock. Returns whether the caller has to take it: once a second.
    pub(super) fn claim_reading(&self, now: Instant) -> bool {
        let mut readings = self.readings.lock();
        let asked_at = readings.asked_at;
        let is_due = asked_at.is_none_or(|at| now.saturating_duration_since(at) >= READ_EVERY);
        if is_due {
            readings.asked_at = Some(now);
        }
        is_due
    }

    /// Learns that the server had a time, in microseconds since 1970, between two instants.
    ///
    /// The reading that tells the time best is kept: the round trip adds to its error, and so does its age. A reading that
    /// contradicts it replaces it, because the clock of the server has stepped; so does one behind a long pause.
    pub(super) fn learn(&self, time: u64, sent: Instant, replied: Instant) {
        let half = replied.saturating_duration_since(sent) / 2;
        // The server leaves out parts of a microsecond.
        let error = half + Duration::from_micros(1);
        let at = sent + half;
        let reading = Reading { time, at, error };
        let mut readings = self.readings.lock();
        let is_better = readings.best.is_none_or(|best| {
            let old = best.at(replied);
            let new = reading.at(replied);
            let difference = Duration::from_micros(old.time.abs_diff(new.time));
            let is_old = replied.saturating_duration_since(best.at) > MAX_AGE;
            is_old || new.error <= old.error || difference > old.error + new.error
        });
        if is_better {
            readings.best = Some(reading);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn error_at(clock: &ArgumentClock, now: Instant) -> Duration {
        clock.estimate(now).unwrap().error
    }

    #[test]
    fn the_time_passes_and_its_error_grows_with_the_age_of_the_reading() {
        let (clock, sent) = (ArgumentClock::default(), Instant::now());
        assert!(clock.estimate(sent).is_none());
        // The server had this time between 0 and 10 ms, so at 5 ms.
        clock.learn(1_000_000, sent, sent + 10 * MS);
        let estimate = clock.estimate(sent + 1_005 * MS).unwrap();
        assert_eq!(estimate.time, 2_000_000);
        assert_eq!(estimate.error, 6 * MS + Duration::from_micros(1));
        // Too old.
        assert!(clock.estimate(sent + 10_005 * MS).is_some());
        assert!(clock.estimate(sent + 10_006 * MS).is_none());
    }

    #[test]
    fn the_reading_that_tells_the_time_best_is_kept() {
        let (clock, start) = (ArgumentClock::default(), Instant::now());
        clock.learn(0, start, start + 2 * MS);
        // A slow round trip, in agreement with the first.
        let later = start + 1_000 * MS;
        clock.learn(1_003_000, later, later + 8 * MS);
        assert_eq!(clock.estimate(later + MS).unwrap().time, 1_000_000);
        // Three seconds later, the same round trip is better than the age.
        let later = start + 4_000 * MS;
        clock.learn(4_003_500, later, later + 8 * MS);
        assert_eq!(clock.estimate(later + 4 * MS).unwrap().time, 4_003_500);
        assert!(error_at(&clock, later + 4 * MS) < 5 * MS);
    }

    #[test]
    fn a_step_of_the_servers_clock_is_learned_at_once() {
        let (clock, start) = (ArgumentClock::default(), Instant::now());
        clock.learn(900_000_000, start, start + 2 * MS);
        let later = start + 1_000 * MS;
        // An hour back, and a slow round trip.
        clock.learn(3_000_000, later, later + 60 * MS);
        assert_eq!(clock.estimate(later + 30 * MS).unwrap().time, 3_000_000);
    }

    #[test]
    fn a_slow_reading_after_a_pause_replaces_one_that_is_too_old() {
        let (clock, start) = (ArgumentClock::default(), Instant::now());
        clock.learn(0, start, start);
        let later = start + 11_000 * MS;
        clock.learn(11_050_000, later, later + 100 * MS);
        assert_eq!(clock.estimate(later + 50 * MS).unwrap().time, 11_050_000);
    }

    #[test]
    fn the_servers_clock_is_read_once_a_second() {
        let (clock, start) = (ArgumentClock::default(), Instant::now());
        assert!(clock.claim_reading(start));
        assert!(!clock.claim_reading(start + 999 * MS));
        assert!(clock.claim_reading(start + 1_000 * MS));
        assert!(!clock.claim_reading(start + 1_001 * MS));
    }
}
