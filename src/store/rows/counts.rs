//! The rows of counts, and the operations on them.

use super::call::Operation;
use super::requests::{RowValue, ToWrite};
use super::row_name::RowName;
use crate::decision::{Answers, Holding, Source};
use crate::error::Error;
use crate::store::counters::Counters;
use crate::store::requests::{Adjust, Check, OwnedAdjust, OwnedCheck, Subject};

impl RowValue for Counters {
    fn read(bytes: &[u8]) -> Result<Self, Error> {
        Self::from_bytes(bytes)
    }

    fn write(&self) -> Option<(Vec<u8>, u64)> {
        let expires_at = self.expires_at()?;
        Some((self.to_bytes(), expires_at))
    }
}

fn row_name(subject: Subject<'_>) -> RowName {
    RowName::counts(subject.limiter, subject.key)
}

/// Decides checks together.
pub(super) struct DecideChecks {
    names: Vec<RowName>,
    checks: Vec<OwnedCheck>,
}

impl DecideChecks {
    pub(super) fn new(checks: &[Check<'_>]) -> Self {
        Self {
            names: checks.iter().map(|check| row_name(check.subject)).collect(),
            checks: checks.iter().map(Check::owned).collect(),
        }
    }
}

impl Operation for DecideChecks {
    type Value = Counters;
    type Answer = Answers;

    fn names(&self) -> Vec<RowName> {
        self.names.clone()
    }

    fn run(&mut self, values: &mut [Counters], now: u64) -> (Result<Answers, Error>, ToWrite) {
        let checks: Vec<_> = self.checks.iter().map(OwnedCheck::check).collect();
        let decided = Counters::check_all(values, &checks, Source::Other, now);
        let to_write = if decided.is_changed {
            ToWrite::All
        } else {
            ToWrite::Nothing
        };
        (Ok(decided.answers), to_write)
    }
}

/// Changes the units of a key.
pub(super) struct AdjustUnits {
    name: RowName,
    adjust: OwnedAdjust,
}

impl AdjustUnits {
    pub(super) fn new(adjust: Adjust<'_>) -> Self {
        Self {
            name: row_name(adjust.subject),
            adjust: adjust.owned(),
        }
    }
}

impl Operation for AdjustUnits {
    type Value = Counters;
    type Answer = ();

    fn names(&self) -> Vec<RowName> {
        vec![self.name.clone()]
    }

    fn run(&mut self, values: &mut [Counters], now: u64) -> (Result<(), Error>, ToWrite) {
        for counters in values {
            counters.adjust(self.adjust.adjust(), now);
        }
        (Ok(()), ToWrite::All)
    }
}

/// Reads the holders of slots of a key.
pub(super) struct ReadHolders {
    name: RowName,
}

impl ReadHolders {
    pub(super) fn new(subject: Subject<'_>) -> Self {
        Self {
            name: row_name(subject),
        }
    }
}

impl Operation for ReadHolders {
    type Value = Counters;
    type Answer = Vec<Holding>;

    fn names(&self) -> Vec<RowName> {
        vec![self.name.clone()]
    }

    fn run(&mut self, values: &mut [Counters], now: u64) -> (Result<Vec<Holding>, Error>, ToWrite) {
        let holders = values.iter_mut().flat_map(|counters| counters.holders(now));
        (Ok(holders.collect()), ToWrite::Nothing)
    }
}

/// Asks whether the database answers.
pub(super) struct Ping;

impl Operation for Ping {
    type Value = Counters;
    type Answer = ();

    fn names(&self) -> Vec<RowName> {
        vec![RowName::ping()]
    }

    fn run(&mut self, _: &mut [Counters], _: u64) -> (Result<(), Error>, ToWrite) {
        (Ok(()), ToWrite::Nothing)
    }
}
