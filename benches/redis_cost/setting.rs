//! The settings of a measurement.

use std::time::Duration;

use crate::support::load::Load;

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// How long a contestant runs before it is measured, so that its connection is warm.
pub(crate) const WARM_UP: Duration = Duration::from_millis(20);

#[derive(Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) tasks: usize,
    pub(crate) keys: usize,
    pub(crate) limit: u32,
    pub(crate) window: Duration,
    /// The number of quotas of a check. The second has twice the window and limit of the first, and so on.
    pub(crate) quotas: u32,
    /// The units that each check charges.
    pub(crate) cost: u32,
    /// Units that every key has used before it is measured.
    pub(crate) used: u32,
    /// Whether every check is expected to be admitted, or refused.
    pub(crate) admits: bool,
    /// Whether to sum [`used`](tollgate::DecisionView::used).
    pub(crate) sums_used: bool,
}

impl Setting {
    /// 10 000 keys, all known and far from their limit; no unit expires.
    pub(crate) const MANY_KEYS: Self = Self {
        tasks: 64,
        keys: 10_000,
        limit: 1_000_000,
        window: HOUR,
        quotas: 1,
        cost: 1,
        used: 1,
        admits: true,
        sums_used: false,
    };

    pub(crate) const HOT_KEY: Self = Self {
        keys: 1,
        ..Self::MANY_KEYS
    };

    /// One key at its limit.
    pub(crate) const REFUSED: Self = Self {
        keys: 1,
        limit: 10,
        used: 10,
        admits: false,
        ..Self::MANY_KEYS
    };

    pub(crate) fn load(&self, span: Duration) -> Load {
        Load {
            tasks: self.tasks,
            keys: self.keys,
            span,
        }
    }

    /// How long a contestant runs before it is measured: for a short window, until units expire as fast as
    /// others are charged.
    pub(crate) fn warm_up(&self) -> Duration {
        if self.window <= Duration::from_secs(1) {
            self.window + WARM_UP
        } else {
            WARM_UP
        }
    }
}
