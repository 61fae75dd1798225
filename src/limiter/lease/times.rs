//! When units are worth asking for, by the lease and the round trip.

use crate::clock::certain_part;

/// The most checks that a grant has to serve: at a short round trip, asking in advance for fewer saves too few calls.
const MOST_SERVED: u64 = 12;

/// The fewest checks that a grant has to serve. It takes up to two calls: to ask for it, and to return what is left.
const FEWEST_SERVED: u64 = 3;

/// How long the checks that a grant serves would wait for the store together, in microseconds. At a round trip of 5 ms these
/// are the most checks, and from 20 ms on the fewest.
const SAVED_WAIT: u64 = 60_000;

/// Units are asked for earlier than a round trip ahead: by these round trips or by the time until the next check, at most by this part
/// of a lease.
const MARGIN_PART: u64 = 8;
const MARGIN_ROUND_TRIPS: u64 = 2;

/// The lengths of time by which units are taken, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// The lease.
    pub(super) period: u64,
    /// The time of a request.
    pub(super) round_trip: u64,
}

impl Times {
    /// Returns how many of the checks or units of a lease come while the units of a grant may be used.
    pub(super) fn served(self, uses: u64) -> u64 {
        let usable = certain_part(self.period).saturating_sub(self.round_trip);
        uses.saturating_mul(usable) / self.period.max(1)
    }

    /// Returns whether a key with so many checks in a lease is busy enough for a grant.
    pub(super) fn is_worth_a_grant(self, checks: u64) -> bool {
        let needed = SAVED_WAIT / self.round_trip.max(1);
        self.served(checks) >= needed.clamp(FEWEST_SERVED, MOST_SERVED)
    }

    /// Returns how long the units at hand have to last, or more are asked for. The next check comes after such a gap.
    pub(super) fn ahead(self, gap: u64) -> u64 {
        let margin = (MARGIN_ROUND_TRIPS * self.round_trip).max(gap);
        let margin = margin.min(self.period / MARGIN_PART);
        self.round_trip + margin
    }

    /// Returns how many of the uses of a lease come in a part of it.
    pub(super) fn uses_within(self, part: u64, uses: u64) -> u64 {
        uses.saturating_mul(part) / self.period.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the fewest checks in a lease for which units are taken.
    fn fewest(period_millis: u64, round_trip: u64) -> Option<u64> {
        let times = Times {
            period: period_millis * 1_000,
            round_trip,
        };
        (0..10_000).find(|checks| times.is_worth_a_grant(*checks))
    }

    #[test]
    fn the_longer_the_round_trip_the_fewer_checks_are_worth_a_grant_until_it_would_come_too_late() {
        assert_eq!(fewest(50, 200), Some(16));
        assert_eq!(fewest(3_000, 1_000), Some(16));
        assert_eq!(fewest(3_000, 10_000), Some(8));
        assert_eq!(fewest(3_000, 80_000), Some(4));
        assert_eq!(fewest(3_000, 250_000), Some(5));
        assert_eq!(fewest(1_000, 250_000), Some(6));
        assert_eq!(fewest(1_000, 700_000), Some(30));
        assert_eq!(fewest(1_000, 800_000), None);
        assert_eq!(fewest(1_000, 5_000_000), None);
    }

    #[test]
    fn units_are_asked_for_a_round_trip_ahead_and_by_two_or_a_gap_or_an_eighth_of_a_lease_earlier()
    {
        let ahead = |period, round_trip, gap| Times { period, round_trip }.ahead(gap);
        assert_eq!(ahead(50_000, 200, 0), 600);
        assert_eq!(ahead(50_000, 200, 5_000), 5_200);
        assert_eq!(ahead(50_000, 200, 50_000), 6_450);
        assert_eq!(ahead(3_000_000, 80_000, 33_000), 240_000);
        assert_eq!(ahead(1_000_000, 250_000, 33_000), 375_000);
    }
}
