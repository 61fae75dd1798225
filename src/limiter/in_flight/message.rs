//! A message to the store about some keys, and what its replies say.

use std::time::Duration;

use super::table::{Listener, SlotCheck};
use crate::decision::{Answer, Answers, HoldingNote, QuotaAnswer, Source, Wait};
use crate::error::{Code, Error, ErrorKind};
use crate::key::Fingerprint;
use crate::limiter::line::{Room, Want};
use crate::quota::{Quota, Quotas};
use crate::store::{Check, OwnedCheck, StoreFuture};

/// The bounds of the wait that a refusal by slots suggests, in microseconds.
pub(super) const HINTS: std::ops::RangeInclusive<u64> = 1_000_000..=60_000_000;

/// The longest time for which a refusal is repeated: other processes may give slots back.
const REPEATED: Duration = Duration::from_millis(20);

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
    pub(super) fn checks(&self) -> Vec<Check<'_>> {
        self.checks.iter().map(OwnedCheck::check).collect()
    }

    /// Returns the levels with quotas in flight: the index, the key of the table, and the slots that are wanted.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = (usize, Fingerprint, u32)> {
        let wants = self.wants.iter().enumerate();
        wants.filter_map(|(level, want)| Some((level, want.slots_of?, want.needs.slots)))
    }

    /// Returns the answers to the quotas in flight of a level.
    pub(super) fn slot_answers<'a>(
        &'a self,
        level: usize,
        answers: &'a mut Answers,
    ) -> impl Iterator<Item = (&'a Quota, &'a mut QuotaAnswer)> {
        let quotas = self.quotas(level).into_iter().flat_map(Quotas::iter);
        let answer = answers.get_mut(level).into_iter();
        let answers = quotas.zip(answer.flat_map(Answer::quotas_mut));
        answers.filter(|(quota, _)| quota.is_in_flight())
    }

    /// Returns whether the store has noted this about an entry of this process.
    pub(super) fn has_note(&self, answers: &mut Answers, note: HoldingNote) -> bool {
        self.in_flight().any(|(level, ..)| {
            let mut answers = self.slot_answers(level, answers);
            answers.any(|(_, answer)| answer.receipt().generation == note.number())
        })
    }

    /// Returns the answers to a check of slots that an earlier call waits for.
    pub(super) fn refused_in_line(&self) -> Answers {
        let mut answers = Answers::empty(self.checks.len());
        let hint = Duration::from_micros(*HINTS.start());
        for (level, ..) in self.in_flight() {
            let quotas = self.quotas(level).into_iter().flat_map(Quotas::iter);
            let refused = quotas.map(|quota| match quota.is_in_flight() {
                true => QuotaAnswer::refused(quota.limit(), Some(hint), hint),
                false => QuotaAnswer::admitted(0, Duration::ZERO),
            });
            if let Some(answer) = answers.get_mut(level) {
                *answer = Answer::new(Source::RefusalCache, refused);
            }
        }
        answers
    }

    /// Remembers a refusal by the store.
    pub(super) fn remember(&self, answers: &Answers) {
        let (store, checks) = (&self.store, self.checks());
        store.remember(&checks, &self.sent, answers, REPEATED);
    }

    /// Returns what answers have left of each level, and which of them have refused it. `returned` has the slots that were given
    /// back after the message.
    pub(super) fn room_left<'a>(
        &'a self,
        answers: &'a Answers,
        returned: impl Fn(&Want) -> u32 + 'a,
    ) -> impl Iterator<Item = (Want, Room, bool)> + 'a {
        let levels = self.wants.iter().zip(answers.iter()).enumerate();
        levels.filter_map(move |(level, (want, answer))| {
            let quotas = self.quotas(level)?.iter().zip(answer.quotas());
            let left = quotas.map(|(quota, answer)| {
                let left = quota.limit().saturating_sub(answer.used());
                match quota.is_in_flight() {
                    true => (true, left.saturating_add(returned(want))),
                    false => (false, left),
                }
            });
            let is_answered = !answer.quotas().is_empty();
            is_answered.then(|| (*want, Room::least_of(left), !answer.is_admitted()))
        })
    }

    fn quotas(&self, level: usize) -> Option<&Quotas> {
        self.checks.get(level).map(|check| check.check().quotas)
    }
}

impl Message {
    /// Asks the store about each part.
    pub(super) fn ask(&mut self) -> Vec<StoreFuture> {
        let ask = |part: &mut SlotCheck| {
            part.sent = part.store.before_send(&part.checks());
            part.store.ask_uncached(&part.checks())
        };
        self.parts.iter_mut().map(ask).collect()
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
    let text = "the message about slots was dropped (did the store panic, or not answer at once although it `answers_at_once`?): slots may be held until the next one";
    Error::coded(Code::TASK_DROPPED, text)
}

pub(super) fn late() -> Error {
    let text = "the reply about slots came after their lease had ended: check again";
    Error::new(ErrorKind::Timeout, text)
}

pub(super) fn superseded() -> Error {
    let text = "a later message of this process about its slots was decided first: check again";
    Error::new(ErrorKind::Unavailable, text)
}
