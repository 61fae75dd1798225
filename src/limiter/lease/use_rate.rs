//! How many units of a key are used in a period.

/// The units of a key that were used in the last period, estimated from two periods.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UseRate {
    /// The start of the current period.
    started_at: u64,
    current: Uses,
    previous: Uses,
}

/// Uses in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Uses {
    pub(super) checks: u64,
    pub(super) units: u64,
}

impl Uses {
    fn scaled(self, part: u64, period: u64) -> Self {
        Self {
            checks: self.checks.saturating_mul(part) / period.max(1),
            units: self.units.saturating_mul(part) / period.max(1),
        }
    }
}

impl UseRate {
    pub(super) fn starting_at(now: u64) -> Self {
        Self {
            started_at: now,
            ..Self::default()
        }
    }

    #[inline]
    pub(super) fn record(&mut self, units: u32, now: u64, period: u64) {
        let elapsed = now.saturating_sub(self.started_at);
        if elapsed >= period {
            self.begin_period(now, elapsed, period);
        }
        self.current.checks += 1;
        self.current.units += u64::from(units);
    }

    fn begin_period(&mut self, now: u64, elapsed: u64, period: u64) {
        if elapsed < 2 * period {
            self.previous = self.current;
            self.started_at += period;
        } else {
            self.previous = Uses::default();
            self.started_at = now;
        }
        self.current = Uses::default();
    }

    /// Returns the uses in the last period, if they were spread evenly over the one before.
    pub(super) fn uses(&self, now: u64, period: u64) -> Uses {
        let elapsed = now.saturating_sub(self.started_at);
        // The part of the period before that lies within the last `period` microseconds.
        let left = period - elapsed % period.max(1);
        match elapsed / period.max(1) {
            0 => {
                let before = self.previous.scaled(left, period);
                Uses {
                    checks: self.current.checks + before.checks,
                    units: self.current.units + before.units,
                }
            }
            1 => self.current.scaled(left, period),
            _ => Uses::default(),
        }
    }

    pub(super) fn is_idle(&self, now: u64, period: u64) -> bool {
        now.saturating_sub(self.started_at) >= 2 * period
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 1_000;

    fn uses(checks: u64, units: u64) -> Uses {
        Uses { checks, units }
    }

    #[test]
    fn an_even_pace_is_found_after_one_period() {
        let mut use_rate = UseRate::starting_at(0);
        for now in (0..5_000).step_by(10) {
            use_rate.record(3, now, PERIOD);
            if now >= PERIOD {
                let Uses { checks, units } = use_rate.uses(now, PERIOD);
                assert!((99..=101).contains(&checks), "{checks} at {now}");
                assert!((297..=303).contains(&units), "{units} at {now}");
            }
        }
    }

    #[test]
    fn uses_are_forgotten_within_two_periods() {
        let mut use_rate = UseRate::starting_at(0);
        for now in 0..100 {
            use_rate.record(1, now, PERIOD);
        }
        assert_eq!(use_rate.uses(999, PERIOD), uses(100, 100));
        assert_eq!(use_rate.uses(1_500, PERIOD), uses(50, 50));
        assert_eq!(use_rate.uses(2_000, PERIOD), uses(0, 0));
        assert!(!use_rate.is_idle(1_999, PERIOD) && use_rate.is_idle(2_000, PERIOD));
        use_rate.record(1, 7_000, PERIOD);
        assert_eq!(use_rate.uses(7_000, PERIOD), uses(1, 1));
    }
}
