//! Grants: units that the store has charged and this process has not used yet.

use crate::decision::{Answer, GrantUse};

/// One charge of the store, whose units this process may use until it ends.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    /// Identifies the grant among all grants of the process. Never 0.
    pub(super) number: u64,
    /// The answer of the store, with the receipt of the charge.
    pub(super) answer: Answer,
    /// The units that were charged.
    pub(super) units: u32,
    /// The units that have not been used.
    pub(super) left: u32,
    pub(super) answered_at: u64,
    /// The end of the time in which units may be used.
    pub(super) ends_at: u64,
}

impl Grant {
    pub(super) fn is_live(&self, now: u64) -> bool {
        now < self.ends_at
    }

    /// Takes units, and writes the answer of the check.
    ///
    /// The units that this grant has left count in its answer, although they are unused. Units of later grants
    /// do not count there, and earlier grants have none left.
    #[inline]
    pub(super) fn take(&mut self, units: u32, now: u64, answer: &mut Answer) {
        self.left -= units;
        let grant_use = GrantUse {
            number: self.number,
            extra: self.units - units,
            held: self.left,
            age: now.saturating_sub(self.answered_at),
        };
        self.answer.write_use(grant_use, answer);
    }
}
