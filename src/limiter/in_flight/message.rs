//! A message to the store about some keys, and what its replies say.

use std::time::Duration;

use smallvec::smallvec;
use tokio::sync::oneshot;

use super::held_key::{HeldKey, Listener};
use super::table::{Caller, SlotCheck, SlotLevel};
use crate::decision::{Answer, Answers, Holding, HoldingNote, QuotaAnswer, Source};
use crate::error::{Code, Error, ErrorKind};
use crate::key::Fingerprint;
use crate::limiter::line::{Room, Want};
use crate::quota::{Quota, Quotas};
use crate::store::{Check, SendMarks, StoreFuture};

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

    /// The answers about what holders have: of quotas in flight, and of held units.
    pub(super) fn holder_answers<'a>(
        &'a self,
        answer: &'a mut Answer,
    ) -> impl Iterator<Item = (&'a Quota, &'a mut QuotaAnswer)> {
        let held = self.quotas().held();
        self.quotas()
            .iter()
            .chain(held)
            .zip(answer.quotas_mut())
            .filter(move |(quota, _)| quota.is_in_flight() || Some(*quota) == held)
    }

    pub(super) fn bounding_answers<'a>(
        &'a self,
        answer: &'a mut Answer,
    ) -> impl Iterator<Item = (&'a Quota, &'a mut QuotaAnswer)> {
        let has_held = self.quotas().has_held();
        self.quotas()
            .iter()
            .zip(answer.quotas_mut())
            .filter(move |(quota, _)| has_held || quota.is_in_flight())
    }
}

impl SlotCheck {
    /// Returns a check that states what is held of a key, and wants nothing.
    pub(super) fn statement(key: &HeldKey, mut holding: Holding) -> Self {
        key.meter.record_renewal();
        if key.store.ends_with_process() && holding.held == 0 {
            // No earlier message can come late there, so that the entry can go.
            holding.lease = Duration::from_millis(1);
        }
        let check = key.subject().check(0);
        Self {
            store: key.store.clone(),
            levels: smallvec![SlotLevel {
                check: check.with_holding(&holding).owned(),
                want: key.statement,
            }],
            sent: SendMarks::new(),
            // Nobody takes the answer.
            caller: Caller {
                ticket: 0,
                wait: None,
                answer: oneshot::channel().0,
            },
        }
    }

    pub(super) fn checks(&self) -> Vec<Check<'_>> {
        self.levels
            .iter()
            .map(|level| level.check.check())
            .collect()
    }

    pub(super) fn wants(&self) -> impl Iterator<Item = Want> + Clone {
        self.levels.iter().map(|level| level.want)
    }

    pub(super) fn in_flight(&self) -> impl Iterator<Item = (Fingerprint, u32)> {
        self.wants()
            .filter_map(|want| Some((want.slots_of?, want.needs.slots)))
    }

    pub(super) fn has_note(&self, answers: &mut Answers, note: HoldingNote) -> bool {
        self.levels
            .iter()
            .zip(answers.iter_mut())
            .flat_map(|(level, answer)| level.holder_answers(answer))
            .any(|(_, answer)| answer.receipt().generation == note.number())
    }

    /// The answers to a check of slots that an earlier call waits for.
    pub(super) fn refused_in_line(&self) -> Answers {
        let mut answers = Answers::empty(self.levels.len());
        let hint = Duration::from_micros(*HINTS.start());
        for (level, answer) in self.levels.iter().zip(answers.iter_mut()) {
            if level.want.slots_of.is_none() {
                continue;
            }
            let has_held = level.quotas().has_held();
            let bounding = level.quotas().iter().chain(level.quotas().held());
            let refused = bounding.map(|quota| {
                if quota.is_in_flight() || has_held {
                    QuotaAnswer::refused(quota.limit(), Some(hint), hint)
                } else {
                    QuotaAnswer::admitted(0, Duration::ZERO)
                }
            });
            *answer = Answer::new(Source::RefusalCache, refused);
        }
        answers
    }

    /// The room that the answers have left of each level. A level that was refused has a wait, too.
    pub(super) fn room_left(
        &self,
        answers: &Answers,
    ) -> impl Iterator<Item = (Want, Room, Option<Duration>)> {
        self.levels
            .iter()
            .zip(answers.iter())
            .filter(|(_, answer)| !answer.quotas().is_empty())
            .map(|(level, answer)| {
                let left = level
                    .quotas()
                    .iter()
                    .zip(answer.quotas())
                    .map(|(quota, answer)| {
                        let left = quota.limit().saturating_sub(answer.used());
                        (quota.is_in_flight(), left)
                    });
                let refused = (!answer.is_admitted()).then(|| longest_wait(answer));
                (
                    level.want,
                    Room::from_quotas(left, level.quotas().has_held()),
                    refused,
                )
            })
    }
}

/// Zero if no wait helps.
fn longest_wait(answer: &Answer) -> Duration {
    answer
        .quotas()
        .iter()
        .filter_map(QuotaAnswer::retry_after)
        .max()
        .unwrap_or_default()
}

impl Message {
    pub(super) fn ask(&mut self) -> Vec<StoreFuture> {
        self.parts
            .iter_mut()
            .map(|part| {
                part.sent = part.store.before_send(&part.checks());
                part.store.ask_uncached(&part.checks())
            })
            .collect()
    }
}

pub(super) fn no_reply() -> Error {
    let text = "the message about slots was dropped (did the store panic, or wait although it `ends_with_process`?): slots may be held until the next one";
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
