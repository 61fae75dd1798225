//! How long a request to the store takes.

use std::sync::atomic::{AtomicU64, Ordering};

/// The weight of the last measurement in the average, as for the retransmission timer of TCP (RFC 6298, section 2).
const GAIN: u64 = 8;

/// An average of the last round trips to the store, in microseconds. 0 before the first one.
#[derive(Debug, Default)]
pub(super) struct RoundTrip(AtomicU64);

impl RoundTrip {
    #[inline]
    pub(super) fn micros(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Records the wait of a check. Many checks may wait for one slow reply, which requests for units count once: so a check is the
    /// first measurement, or a shorter one.
    pub(super) fn record_check(&self, micros: u64) {
        let average = self.micros();
        if average == 0 || micros < average {
            self.record(micros);
        }
    }

    pub(super) fn record(&self, micros: u64) {
        let micros = micros.max(1);
        let average = match self.micros() {
            0 => micros,
            average => (average * (GAIN - 1) + micros) / GAIN,
        };
        // Of two records at the same time, one may be lost.
        self.0.store(average.max(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_that_wait_together_for_a_slow_reply_leave_the_average() {
        let round_trip = RoundTrip::default();
        round_trip.record_check(200);
        for _ in 0..64 {
            round_trip.record_check(20_000);
        }
        assert_eq!(round_trip.micros(), 200);
        round_trip.record(1_000);
        round_trip.record_check(200);
        assert_eq!(round_trip.micros(), 287);
    }

    #[test]
    fn the_first_round_trip_counts_in_full_and_later_ones_by_an_eighth() {
        let round_trip = RoundTrip::default();
        assert_eq!(round_trip.micros(), 0);
        let mut averages = Vec::new();
        for micros in [80_000, 160_000, 90_000] {
            round_trip.record(micros);
            averages.push(round_trip.micros());
        }
        assert_eq!(averages, [80_000, 90_000, 90_000]);
        for _ in 0..100 {
            round_trip.record(0);
        }
        assert_eq!(round_trip.micros(), 1);
    }
}
