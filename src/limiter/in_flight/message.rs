//! A message to the store about some keys, and what its replies say.

use smallvec::SmallVec;

use super::held_key::{GATHERED, Listener, jittered};
use crate::decision::{Answers, HoldingNote, QuotaAnswer, Wait};
use crate::error::{Error, ErrorKind};
use crate::key::Fingerprint;
use crate::quota::Quotas;
use crate::store::{Answerer, OwnedCheck, ProtectedStore};
use crate::telemetry::PermitWait;

/// The slots that one level of a check wants.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) level: usize,
    pub(super) id: Fingerprint,
    pub(super) slots: u32,
}

pub(super) type AllWanted = SmallVec<[Wanted; 1]>;

/// A check that wants slots, or that only states what is held.
pub(super) struct SlotCheck {
    pub(super) store: ProtectedStore,
    pub(super) checks: Vec<OwnedCheck>,
    pub(super) wanted: AllWanted,
    /// `None` if the check only states what is held.
    pub(super) caller: Option<Caller>,
}

/// The caller of a check.
pub(super) struct Caller {
    pub(super) ticket: u64,
    pub(super) answer: Answerer<Answers>,
    /// `None` if the check is not repeated after a refusal.
    pub(super) wait: Option<CallerWait>,
    /// The quotas of each level by which this process decides while the store fails. `None` if it does not.
    pub(super) shares: Option<Vec<Quotas>>,
}

/// The wait of a caller whose check is repeated.
pub(super) struct CallerWait {
    pub(super) since: u64,
    pub(super) until: u64,
    /// Before this time, a rate refuses the check.
    pub(super) not_before: u64,
    pub(super) meter: PermitWait,
}

/// A message about some keys: all that was waiting for them, and what is held of them.
pub(super) struct Message {
    pub(super) sent_at: u64,
    pub(super) parts: Vec<SlotCheck>,
    /// The keys, and those who wait until the store knows what was given back.
    pub(super) keys: Vec<(Fingerprint, Vec<Listener>)>,
}

/// The reply to one part of a message.
pub(super) type Reply = Result<Answers, Error>;

impl SlotCheck {
    /// Returns the quotas of a level.
    pub(super) fn quotas(&self, level: usize) -> Option<&Quotas> {
        self.checks.get(level).map(|check| check.check().quotas)
    }

    /// Returns whether the store has noted this about an entry of this process.
    pub(super) fn has_note(&self, answers: &Answers, note: HoldingNote) -> bool {
        self.wanted.iter().any(|wanted| {
            let quotas = self.quotas(wanted.level).into_iter().flat_map(Quotas::iter);
            let answer = answers.get(wanted.level).into_iter();
            let mut answers = quotas.zip(answer.flat_map(|answer| answer.quotas()));
            answers.any(|(quota, answer)| {
                quota.is_in_flight() && answer.receipt().generation == note.number()
            })
        })
    }

    /// Returns until when a refused check is repeated. `None` if it is not.
    pub(super) fn waits_until(&self) -> Option<u64> {
        let wait = self.caller.as_ref()?.wait.as_ref();
        wait.map(|wait| wait.until)
    }

    /// Returns when a check that waits asks: at `next`, or later because of a rate.
    pub(super) fn asks_at(&self, next: u64) -> u64 {
        let wait = self.caller.as_ref().and_then(|caller| caller.wait.as_ref());
        wait.map_or(next, |wait| next.max(wait.not_before).min(wait.until))
    }

    /// Takes in a refusal. Returns whether the check is repeated: not if that is too late, or never helps.
    pub(super) fn is_repeated(&mut self, answers: &Answers, now: u64) -> bool {
        let caller = self.caller.as_mut().and_then(|caller| caller.wait.as_mut());
        let Some(wait) = caller.filter(|wait| now < wait.until) else {
            return false;
        };
        wait.not_before = 0;
        for (check, answer) in self.checks.iter().zip(answers.iter()) {
            for (quota, answer) in check.check().quotas.iter().zip(answer.quotas()) {
                match answer.wait() {
                    Wait::Never => return false,
                    Wait::Micros(micros) if !quota.is_in_flight() => {
                        // The wait is exact, so all processes would ask together.
                        let passes_at = now.saturating_add(micros);
                        if passes_at > wait.until {
                            return false;
                        }
                        let jitter = jittered(GATHERED.min(micros));
                        wait.not_before = wait.not_before.max(passes_at.saturating_add(jitter));
                    }
                    _ => {}
                }
            }
        }
        true
    }
}

impl Message {
    /// Returns whether the store is the memory of this process, which answers at once.
    pub(super) fn is_in_process(&self) -> bool {
        self.parts.iter().all(|part| part.store.is_in_process())
    }
}

/// Returns the answer about slots that the caller gets: with a suggested wait, and without the note.
pub(super) fn answer_to_caller(answer: &QuotaAnswer, hint: impl FnOnce() -> u64) -> QuotaAnswer {
    let wait = match answer.wait() {
        Wait::Micros(_) => Wait::Micros(hint()),
        wait => wait,
    };
    QuotaAnswer::from_micros(answer.used(), wait, 0)
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
