//! The part of what is left of a limit that this process asks for.

use super::use_rate::UseRate;
use crate::clock::micros;
use crate::quota::{Quota, Quotas};

/// How many eighths of what is left a process gets when it asks for units: twice the part of the limit that the store charged
/// to it in the last window.
///
/// Processes ask at different times, so that their parts may be more than one together. By once the part, five equal processes at
/// their limit split what is left into grants of a few units, and half of their checks wait for the store. It is looked at once in a
/// lease: a sudden burst would else take what other processes burst for, too.
#[derive(Debug)]
pub(super) struct LimitPart {
    charges: UseRate,
    eighths: u32,
    looks_at: u64,
}

impl LimitPart {
    pub(super) fn starting_at(now: u64) -> Self {
        Self {
            charges: UseRate::starting_at(now),
            eighths: 1,
            looks_at: 0,
        }
    }

    /// Records units that the store charged.
    pub(super) fn record(&mut self, units: u32, quotas: &Quotas, lease: u64, now: u64) {
        if let Some(quota) = sustained(quotas) {
            self.charges
                .record(units, now, counted_micros(quota, lease));
        }
    }

    /// Returns the part, from 1 to 8.
    pub(super) fn eighths(&mut self, quotas: &Quotas, lease: u64, now: u64) -> u32 {
        if let Some(quota) = sustained(quotas).filter(|_| now >= self.looks_at) {
            let charged = self.charges.uses(now, counted_micros(quota, lease)).units;
            let limit = u64::from(quota.limit().max(1));
            let eighths = (2 * 8 * charged + limit / 2) / limit;
            self.eighths = u32::try_from(eighths).map_or(8, |eighths| eighths.clamp(1, 8));
            self.looks_at = now.saturating_add(lease);
        }
        self.eighths
    }
}

/// Returns the quota that a client is at who stays at its limit: the one with the longest window.
fn sustained(quotas: &Quotas) -> Option<&Quota> {
    quotas.iter().max_by_key(|quota| quota.window())
}

fn counted_micros(quota: &Quota, lease: u64) -> u64 {
    micros(quota.window()).saturating_add(lease)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: u64 = 3_000_000;
    const SECOND: u64 = 1_000_000;

    fn quotas() -> Quotas {
        [Quota::per_second(1_000), Quota::per_minute(600)].into()
    }

    #[test]
    fn the_part_follows_what_was_charged_in_the_longest_window() {
        let mut part = LimitPart::starting_at(0);
        let mut eighths = Vec::new();
        for second in 1..=60 {
            part.record(6, &quotas(), LEASE, second * SECOND);
            if second % 10 == 0 {
                eighths.push(part.eighths(&quotas(), LEASE, second * SECOND));
            }
        }
        // 60, 120, 180, 240, 300 and 360 of 600.
        assert_eq!(eighths, [2, 3, 5, 6, 8, 8]);
        let later = 300 * SECOND;
        assert_eq!(part.eighths(&quotas(), LEASE, later), 1);
    }

    #[test]
    fn a_burst_changes_the_part_only_after_a_lease() {
        let mut part = LimitPart::starting_at(0);
        let burst = 100 * SECOND;
        assert_eq!(part.eighths(&quotas(), LEASE, burst), 1);
        part.record(900, &quotas(), LEASE, burst);
        assert_eq!(part.eighths(&quotas(), LEASE, burst + LEASE - 1), 1);
        assert_eq!(part.eighths(&quotas(), LEASE, burst + LEASE), 8);
    }
}
