//! A message to the store about some keys, and what its replies say.

use std::time::Duration;

use super::table::{Listener, SlotCheck, SlotLevel};
use crate::decision::{Answer, Answers, HoldingNote, QuotaAnswer, Source};
use crate::error::{Code, Error, ErrorKind};
use crate::key::Fingerprint;
use crate::limiter::line::{Room, Want};
use crate::quota::{Quota, Quotas};
use crate::store::{Check, StoreFuture};

/// The bounds of the wait that a refusal by slots suggests, in microseconds.
pub(super) const HINTS: std::ops::RangeInclusive<u64> = 1_000_000..=60_000_000;

/// A message about some keys: all that was waiting for them, and what is held of them.
#[derive(Default)]
pub(super) struct Message {
    pub(super) sent_at: u64,
    pub(super) parts: Vec<SlotCheck>,
    /// The keys, and those who wait until the store knows what was given back.
    pub(super) keys: Vec<(Fingerprint, Vec<Listener>)>,
}

/// The reply to one part of a message.
pub(super) type Reply = Result<Answers, Error>;

impl SlotLevel {
    fn quotas(&self) -> &Quotas {
        self.check.check().quotas
    }

    /// Returns the answers to the quotas in flight.
    pub(super) fn slot_answers<'a>(
        &'a self,
        answer: &'a mut Answer,
    ) -> impl Iterator<Item = (&'a Quota, &'a mut QuotaAnswer)> {
        let answers = self.quotas().iter().zip(answer.quotas_mut());
        answers.filter(|(quota, _)| quota.is_in_flight())
    }
}

impl SlotCheck {
    pub(super) fn checks(&self) -> Vec<Check<'_>> {
        let levels = self.levels.iter();
        levels.map(|level| level.check.check()).collect()
    }

    /// Returns what is asked of each key.
    pub(super) fn wants(&self) -> impl Iterator<Item = Want> + Clone {
        self.levels.iter().map(|level| level.want)
    }

    /// Returns the keys of the levels with quotas in flight, and the slots that are wanted.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = (Fingerprint, u32)> {
        self.wants()
            .filter_map(|want| Some((want.slots_of?, want.needs.slots)))
    }

    /// Returns whether the store has noted this about an entry of this process.
    pub(super) fn has_note(&self, answers: &mut Answers, note: HoldingNote) -> bool {
        let mut levels = self.levels.iter().zip(answers.iter_mut());
        levels.any(|(level, answer)| {
            let mut answers = level.slot_answers(answer);
            answers.any(|(_, answer)| answer.receipt().generation == note.number())
        })
    }

    /// Returns the answers to a check of slots that an earlier call waits for.
    pub(super) fn refused_in_line(&self) -> Answers {
        let mut answers = Answers::empty(self.levels.len());
        let hint = Duration::from_micros(*HINTS.start());
        let levels = self.levels.iter().zip(answers.iter_mut());
        for (level, answer) in levels.filter(|(level, _)| level.want.slots_of.is_some()) {
            let quotas = level.quotas().iter();
            let refused = quotas.map(|quota| match quota.is_in_flight() {
                true => QuotaAnswer::refused(quota.limit(), Some(hint), hint),
                false => QuotaAnswer::admitted(0, Duration::ZERO),
            });
            *answer = Answer::new(Source::RefusalCache, refused);
        }
        answers
    }

    /// Returns what answers have left of each level, and the waits of those that have refused it.
    pub(super) fn room_left(
        &self,
        answers: &Answers,
    ) -> impl Iterator<Item = (Want, Room, Option<Duration>)> {
        let levels = self.levels.iter().zip(answers.iter());
        let answered = levels.filter(|(_, answer)| !answer.quotas().is_empty());
        answered.map(|(level, answer)| {
            let quotas = level.quotas().iter().zip(answer.quotas());
            let left = quotas.map(|(quota, answer)| {
                let left = quota.limit().saturating_sub(answer.used());
                (quota.is_in_flight(), left)
            });
            let wait = answer.quotas().iter().filter_map(QuotaAnswer::retry_after);
            let refused = (!answer.is_admitted()).then(|| wait.max().unwrap_or_default());
            (level.want, Room::least_of(left), refused)
        })
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
