//! A message to the store about some keys, and what its replies say.

use std::sync::Weak;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::held_slots::HeldSlots;
use crate::decision::{Answer, Answers, HoldingNote, QuotaAnswer, Source, Wait};
use crate::error::{Error, ErrorKind};
use crate::key::Fingerprint;
use crate::limiter::line::{Presence, Room, Ticket, Want, Wants};
use crate::quota::{Quota, Quotas};
use crate::store::{Answerer, OwnedCheck, ProtectedStore, StoreFuture};

/// Waits until the store knows what was given back.
pub(super) type Listener = Answerer<()>;

/// The slots that one level of a check wants.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) level: usize,
    pub(super) id: Fingerprint,
    pub(super) slots: u32,
}

pub(super) type AllWanted = SmallVec<[Wanted; 1]>;

/// A wait that is replaced by a better one.
const HINT: Duration = Duration::from_secs(1);

/// A check that wants slots, or that only states what is held.
pub(super) struct SlotCheck {
    pub(super) store: ProtectedStore,
    pub(super) checks: Vec<OwnedCheck>,
    pub(super) wanted: AllWanted,
    /// `None` if the check only states what is held.
    pub(super) caller: Option<Caller>,
}

/// The place in line of a call that waits after a refusal, as long as it is there.
pub(super) type WaitingCall = (Ticket, Weak<Presence>);

/// The caller of a check.
pub(super) struct Caller {
    pub(super) ticket: Ticket,
    /// `None` if the call does not wait after a refusal.
    pub(super) presence: Option<Weak<Presence>>,
    /// The units and slots that it asks of each level.
    pub(super) wants: Wants,
    pub(super) answer: oneshot::Sender<Taken>,
}

/// The answers that a caller takes, and its slots if it is admitted.
pub(super) type Taken = Result<(Answers, Option<HeldSlots>), Error>;

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

    /// Returns the answers to a check of slots that an earlier call waits for.
    pub(super) fn refused_in_line(&self) -> Answers {
        let mut answers = Answers::empty(self.checks.len());
        for wanted in &self.wanted {
            let quotas = self.quotas(wanted.level).into_iter().flat_map(Quotas::iter);
            let refused = quotas.map(|quota| match quota.is_in_flight() {
                true => QuotaAnswer::refused(quota.limit(), Some(HINT), HINT),
                false => QuotaAnswer::admitted(0, Duration::ZERO),
            });
            if let Some(answer) = answers.get_mut(wanted.level) {
                *answer = Answer::new(Source::RefusalCache, refused);
            }
        }
        answers
    }

    /// Returns what answers have left of each level, and which of them have refused it. `returned` has the slots that were given
    /// back after the message.
    pub(super) fn room_left<'a>(
        &'a self,
        wants: &'a Wants,
        answers: &'a Answers,
        returned: impl Fn(usize) -> u32 + 'a,
    ) -> impl Iterator<Item = (Want, Room, bool)> + 'a {
        let levels = wants.iter().zip(answers.iter()).enumerate();
        levels.filter_map(move |(level, (want, answer))| {
            let quotas = self.quotas(level)?.iter().zip(answer.quotas());
            let left = quotas.map(|(quota, answer)| {
                let left = quota.limit().saturating_sub(answer.used());
                match quota.is_in_flight() {
                    true => (true, left.saturating_add(returned(level))),
                    false => (false, left),
                }
            });
            let is_answered = !answer.quotas().is_empty();
            is_answered.then(|| (*want, Room::least_of(left), !answer.is_admitted()))
        })
    }
}

/// Returns the quotas in flight of a level, with their answers.
pub(super) fn slot_answers<'a>(
    quotas: &'a Quotas,
    answer: &'a mut Answer,
) -> impl Iterator<Item = (&'a Quota, &'a mut QuotaAnswer)> {
    let answers = quotas.iter().zip(answer.quotas_mut());
    answers.filter(|(quota, _)| quota.is_in_flight())
}

impl Message {
    /// Asks the store about each part.
    pub(super) fn ask(&self) -> Vec<StoreFuture> {
        let ask = |part: &SlotCheck| {
            let checks: Vec<_> = part.checks.iter().map(|check| check.check()).collect();
            part.store.ask_uncached(&checks)
        };
        self.parts.iter().map(ask).collect()
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
    let text = "the message about slots was dropped (the store panicked?): slots may be held until the next one";
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
