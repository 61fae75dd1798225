//! Keys of the doctor's own, under the store's prefix.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use redis::Cmd;

use super::super::names::Names;
use crate::store::check::Subject;
use crate::store::{Check, Reset};
use crate::{Key, Quotas};

/// The limiter under whose name the doctor counts.
const LIMITER: &str = "doctor";

/// A subject that nobody else counts.
#[derive(Debug)]
pub(super) struct Scratch {
    limiter: Key,
    key: Key,
    quotas: Quotas,
}

impl Scratch {
    pub(super) fn new(quotas: impl Into<Quotas>) -> Self {
        // Random, by the only source that std has.
        let random = RandomState::new().build_hasher().finish();
        Self {
            limiter: Key::from(LIMITER),
            key: Key::from(format!("{random:x}")),
            quotas: quotas.into(),
        }
    }

    pub(super) fn subject(&self) -> Subject<'_> {
        Subject {
            limiter: &self.limiter,
            key: &self.key,
            quotas: &self.quotas,
        }
    }

    pub(super) fn check(&self, cost: u32) -> Check<'_> {
        let subject = self.subject();
        Check { subject, cost }
    }

    pub(super) fn reset(&self) -> Reset<'_> {
        let subject = self.subject();
        Reset { subject }
    }

    /// A command on the stored keys of this subject.
    pub(super) fn command(&self, names: &Names, command: &str, arguments: &[&str]) -> Cmd {
        let mut packed = redis::cmd(command);
        names.write(self.subject(), &mut packed);
        packed.arg(arguments);
        packed
    }
}
