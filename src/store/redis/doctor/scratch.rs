//! Keys of the doctor's own, under the store's prefix.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use redis::Cmd;

use crate::key::Key;
use crate::quota::Quotas;
use crate::store::redis::protocol::KeyNames;
use crate::store::requests::Subject;
use crate::store::requests::{Check, Reset};

/// The limiter under whose name the doctor counts.
const LIMITER: &str = "doctor";

/// A subject that nobody else counts.
#[derive(Debug)]
pub(crate) struct Scratch {
    limiter: Key,
    key: Key,
    quotas: Quotas,
}

impl Scratch {
    pub(crate) fn new(quotas: impl Into<Quotas>) -> Self {
        // Random, by the only source that std has.
        let random = RandomState::new().build_hasher().finish();
        Self {
            limiter: Key::from(LIMITER),
            key: Key::from(format!("{random:x}")),
            quotas: quotas.into(),
        }
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        Subject {
            limiter: &self.limiter,
            key: &self.key,
            quotas: &self.quotas,
        }
    }

    pub(crate) fn check(&self, cost: u32) -> Check<'_> {
        let subject = self.subject();
        Check { subject, cost }
    }

    pub(crate) fn reset(&self) -> Reset<'_> {
        let subject = self.subject();
        Reset { subject }
    }

    /// A command on the stored keys of this subject.
    pub(crate) fn command(&self, names: &KeyNames, command: &str, arguments: &[&str]) -> Cmd {
        let mut packed = redis::cmd(command);
        names.write(self.subject(), &mut packed);
        packed.arg(arguments);
        packed
    }
}
