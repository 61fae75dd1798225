//! The settings of a measurement.

use std::time::Duration;

use crate::support::load::Load;

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) tasks: usize,
    pub(crate) keys: usize,
    pub(crate) limit: u32,
    pub(crate) window: Duration,
    /// How many quotas judge a check: of this window, of twice this window, and so on.
    pub(crate) quotas: u32,
    /// Units that every key has used before it is measured.
    pub(crate) used: u32,
    /// What is expected of every check.
    pub(crate) admits: bool,
}

impl Setting {
    /// 10 000 keys, all known and far from their limit; nothing leaves its window.
    pub(crate) const MANY_KEYS: Self = Self {
        tasks: 64,
        keys: 10_000,
        limit: 1_000_000,
        window: HOUR,
        quotas: 1,
        used: 1,
        admits: true,
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

    /// How long a contestant runs before it is measured: until units leave the window as fast as
    /// others come, where that is soon; else until its connection is warm.
    pub(crate) fn warm_up(&self) -> Duration {
        let short = Duration::from_millis(20);
        if self.window <= Duration::from_secs(1) {
            self.window + short
        } else {
            short
        }
    }
}
