//! Random keys under the store's prefix, on which the doctor tries things.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use redis::Cmd;

use crate::key::Key;
use crate::quota::Quotas;
use crate::store::redis::protocol::{Count, KeyNames, Value, ValueName};
use crate::store::requests::{Adjust, Change, Check, Subject};

/// The name of the doctor's limiter.
const LIMITER: &str = "doctor";

/// A random key with quotas, which no other program counts.
#[derive(Debug)]
pub(super) struct ScratchKey {
    limiter: Key,
    key: Key,
    quotas: Quotas,
}

impl ScratchKey {
    pub(super) fn new(quotas: impl Into<Quotas>) -> Self {
        // The only source of random numbers in std.
        let random = RandomState::new().build_hasher().finish();
        Self {
            limiter: Key::from(LIMITER),
            key: Key::from(format!("{random:x}")),
            quotas: quotas.into(),
        }
    }

    pub(super) fn subject(&self) -> Subject<'_> {
        Subject::new(&self.limiter, &self.key, &self.quotas)
    }

    pub(super) fn check(&self, cost: u32) -> Check<'_> {
        self.subject().check(cost)
    }

    pub(super) fn reset(&self) -> Adjust<'_> {
        self.subject().adjust(Change::Reset)
    }

    /// Builds a command for each key that the counts may have, with arguments behind it.
    pub(super) fn commands(
        &self,
        names: &KeyNames,
        command: &str,
        arguments: &[&str],
    ) -> impl Iterator<Item = Cmd> {
        let counts = Count::all(&self.quotas).into_iter();
        counts.map(move |count| self.on(count.name, names, command, arguments))
    }

    /// Builds a command on the key of the row, with arguments behind it.
    pub(super) fn command(&self, names: &KeyNames, command: &str, arguments: &[&str]) -> Cmd {
        self.on(Value::Row.into(), names, command, arguments)
    }

    fn on(&self, value: ValueName, names: &KeyNames, command: &str, arguments: &[&str]) -> Cmd {
        let mut built = redis::cmd(command);
        built.arg(names.value(self.subject(), value)).arg(arguments);
        built
    }
}
