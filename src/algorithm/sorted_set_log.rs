//! The sliding log in its usual form: in Redis, a sorted set of units by time, which other programs can read.
//!
//! The same rule in Redis: `lua/sorted_set_log.lua`. Each window has a log of its own. It admits as the
//! [log](super::log) does. But a refund and a credit renew the time to live, and a charge does if it drops units.

use super::algorithm_state::AlgorithmState;
use super::bytes::{Bytes, impl_bytes};
use super::log::Log;
use super::quota_check::{Changes, Charge, QuotaCheck, QuotaOutcome};

/// The most units that a charge adds.
const MAX_MEMBERS: u32 = 100_000;

/// The charged units, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct SortedSetLog(Log);

impl_bytes!(SortedSetLog { 0 });

impl SortedSetLog {
    /// Returns whether a charge renews the time to live: the first one, and one that drops units. The newest charge has
    /// renewed for those that had expired before it.
    fn renewed_by_charge(&self, check: &QuotaCheck<'_>) -> Changes {
        let expired = self.0.expired(check.window, check.now);
        let newest = self.0.newest_time();
        let begins = self.0.units_after(expired) == 0;
        let drops = expired
            .checked_sub(1)
            .and_then(|last| self.0.run_time(last))
            .is_some_and(|last| last + check.window > newest);
        Changes::RENEWED.only_if(begins || drops)
    }

    /// Drops the units that had expired at the newest charge: they do not count again when that charge is removed.
    fn drop_expired(&mut self, check: &QuotaCheck<'_>) {
        let newest = self.0.newest_time();
        self.0.drop_first(self.0.expired(check.window, newest));
    }
}

impl AlgorithmState for SortedSetLog {
    fn check(&mut self, check: &QuotaCheck<'_>, _: u64) -> QuotaOutcome {
        let rewound = self.0.rewind(check);
        let renewed = self.renewed_by_charge(check);
        // The log itself does not expire: the caller renews by the changes.
        let outcome = self.0.check(check, u64::MAX);
        let is_charged = outcome.changes.any(Changes::CHARGED);
        let changes = outcome.changes | rewound | renewed.only_if(is_charged);
        QuotaOutcome { changes, ..outcome }
    }

    fn evaluate(&mut self, check: &QuotaCheck<'_>) -> QuotaOutcome {
        self.0.evaluate(check)
    }

    fn charge(&mut self, check: &QuotaCheck<'_>, _: u64) -> Changes {
        // In Redis, each unit is a member. Those beyond the limit change neither what is admitted nor when.
        let cost = check.cost.min(check.limit).min(MAX_MEMBERS);
        if cost == 0 {
            return Changes::NONE;
        }
        let check = QuotaCheck { cost, ..*check };
        self.renewed_by_charge(&check) | self.0.charge(&check, u64::MAX)
    }

    fn refund(&mut self, check: &QuotaCheck<'_>, charge: Charge, units: u32) -> Changes {
        let rewound = self.0.rewind(check);
        let used = self.0.units_after(self.0.expired(check.window, check.now));
        if used == 0 || charge.time.saturating_add(check.window) <= check.now {
            return rewound;
        }
        self.drop_expired(check);
        if !self.0.take(charge.time, units, None) {
            rewound
        } else if self.0.is_empty() {
            Changes::EMPTIED
        } else {
            Changes::RENEWED
        }
    }

    fn credit(&mut self, check: &QuotaCheck<'_>, units: u32) -> Changes {
        let rewound = self.0.rewind(check);
        let used = self.0.units_after(self.0.expired(check.window, check.now));
        if units == 0 || used == 0 {
            return rewound;
        }
        if units >= used {
            return Changes::EMPTIED;
        }
        self.drop_expired(check);
        let _ = self.0.credit(check, units);
        Changes::RENEWED
    }

    fn is_idle(&self, check: &QuotaCheck<'_>) -> bool {
        self.0.is_idle(check)
    }
}
