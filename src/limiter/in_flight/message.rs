//! A message to the store about some keys, and what its replies say.

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::held_key::{Listener, POLL, jittered};
use crate::decision::{Answers, HoldingNote, QuotaAnswer, Wait};
use crate::error::{Error, ErrorKind};
use crate::key::Fingerprint;
use crate::store::{OwnedChecks, ProtectedStore};
use crate::telemetry::PermitWait;

/// The slots that a check wants: the index of its level, the key, and the number.
pub(super) type Slots = SmallVec<[(usize, Fingerprint, u32); 1]>;

/// A message about some keys: all that was waiting for them, and what is held of them.
pub(super) struct Message {
    pub(super) sent_at: u64,
    pub(super) parts: Vec<Part>,
    pub(super) keys: Vec<KeyOfMessage>,
}

/// A key of a message, and those who wait until the store knows what was given back of it.
type KeyOfMessage = (Fingerprint, Vec<Listener>);

/// A check of a message, with the holdings of its levels.
pub(super) struct Part {
    pub(super) store: ProtectedStore,
    pub(super) checks: OwnedChecks,
    pub(super) slots: Slots,
    /// `None` if the part only states what is held.
    pub(super) waiter: Option<WaiterOfPart>,
}

/// The ticket of a check, until when it is repeated, where its answers go, and since when it waits.
pub(super) type WaiterOfPart = (
    u64,
    Option<u64>,
    oneshot::Sender<Reply>,
    Option<(PermitWait, u64)>,
);

/// The reply to one part of a message.
pub(super) type Reply = Result<Answers, Error>;
impl Part {
    /// Returns what the store has noted about the entries of this process.
    pub(super) fn notes(&self, answers: &Answers) -> SmallVec<[HoldingNote; 2]> {
        let mut notes = SmallVec::new();
        for (level, _, _) in &self.slots {
            let (Some(check), Some(answer)) = (self.checks.get(*level), answers.get(*level)) else {
                continue;
            };
            let quotas = check.check().quotas.iter().zip(answer.quotas());
            let in_flight = quotas.filter(|(quota, _)| quota.is_in_flight());
            notes.extend(
                in_flight.map(|(_, answer)| HoldingNote::from_number(answer.receipt().generation)),
            );
        }
        notes
    }
}

/// Returns the answer about slots that the caller gets: with a suggested wait, and without the note.
pub(super) fn told_to_caller(answer: &QuotaAnswer, hint: u64) -> QuotaAnswer {
    let wait = match answer.wait() {
        Wait::Micros(_) => Wait::Micros(hint),
        wait => wait,
    };
    QuotaAnswer::from_micros(answer.used(), wait, 0)
}

/// Returns when a refused check is repeated. `None` if that is too late, or never helps.
pub(super) fn next_attempt(part: &Part, answers: &Answers, now: u64, until: u64) -> Option<u64> {
    let mut wait = 0;
    for (check, answer) in part.checks.iter().zip(answers.iter()) {
        for (quota, answer) in check.check().quotas.iter().zip(answer.quotas()) {
            wait = wait.max(match (answer.wait(), quota.is_in_flight()) {
                (Wait::Never, _) => return None,
                (Wait::Micros(_), true) => jittered(POLL),
                (Wait::Micros(micros), false) if now + micros > until => return None,
                // Units may be given back before.
                (Wait::Micros(micros), false) => micros.min(1_000_000),
                (Wait::Zero, _) => 0,
            });
        }
    }
    let next = (now + wait).min(until.max(now + 1));
    (now < until).then_some(next)
}

pub(super) fn no_reply() -> Error {
    let text = "the message about slots was dropped (runtime shut down?): slots may be held until the next one";
    Error::new(ErrorKind::Unavailable, text)
}

pub(super) fn late() -> Error {
    let text = "the reply about slots came after their lease had ended: check again";
    Error::new(ErrorKind::Timeout, text)
}

pub(super) fn superseded() -> Error {
    let text = "a later message of this process about its slots was decided first: check again";
    Error::new(ErrorKind::Unavailable, text)
}
