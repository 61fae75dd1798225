//! The requests of callers to a table: for slots, and for the moment when all are given back.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::held_key::HeldKey;
use super::message::{late, no_reply};
use super::state::DecidedBy;
use super::table::{Caller, HeldSlots, PermitTable, SlotCheck, SlotLevel, State, Taken};
use crate::decision::{Answers, Holding, holder_for};
use crate::error::Error;
use crate::limiter::asked_level::AskedLevel;
use crate::limiter::limiter::RateLimiter;
use crate::limiter::line::{LINES, Place, SlotWait, Ticket};
#[cfg(tollgate_simulation)]
use crate::planted::is_planted;
use crate::runtime::is_in_runtime;
use crate::store::{Check, ProtectedStore, SendMarks, join_all};

/// The slots that an attempt takes.
pub(in crate::limiter) struct SlotsOfCheck {
    ticket: Ticket,
    /// `None` if the call does not wait after a refusal.
    wait: Option<SlotWait>,
    pub(in crate::limiter) held: Vec<HeldSlots>,
}

impl SlotsOfCheck {
    /// The call waits at this place if it is refused.
    pub(in crate::limiter) fn new(place: Option<&Place>) -> Self {
        Self {
            ticket: place.map_or_else(|| LINES.ticket(), |place| place.ticket),
            wait: place.and_then(Place::slot_wait),
            held: Vec::new(),
        }
    }

    /// Fails if slots are lost that were granted before others.
    pub(in crate::limiter) fn verify_held(&self) -> Result<(), Error> {
        if self.held.iter().any(|held| held.lost_in() == Some(0)) {
            return Err(late());
        }
        Ok(())
    }

    /// Asks the store about levels, unless a refusal is remembered. They are asked when this returns.
    pub(in crate::limiter) fn ask<'a>(
        &'a mut self,
        limiter: &RateLimiter,
        levels: &[&AskedLevel],
    ) -> impl Future<Output = Result<Answers, Error>> + Send + use<'a> {
        let (caller, taken) = self.caller();
        let refused = match self.wait {
            None => remembered(limiter, levels),
            Some(_) => None,
        };
        match refused {
            Some(refused) => drop(caller.answer.send(Ok((refused, None)))),
            None => limiter.permits().table.change(|state, _| {
                let question = state.question(limiter, levels, caller);
                state.ask(question);
            }),
        }
        async move {
            let (answers, held) = taken.await.unwrap_or_else(|_| Err(no_reply()))?;
            self.held.extend(held);
            Ok(answers)
        }
    }

    /// Holds the slots of levels without the store, if `decide` admits them by what this process holds, and if no earlier call
    /// waits for them or was told to ask. The store learns it later.
    pub(in crate::limiter) fn hold_in_turn(
        &mut self,
        limiter: &RateLimiter,
        levels: &[&AskedLevel],
        decide: impl Fn(&[Check<'_>]) -> Option<Answers>,
    ) -> Option<Answers> {
        let table = &limiter.permits().table;
        let (caller, taken) = self.caller();
        // Under the lock, so that no two checks see the same slot free.
        table.change(|state, now| {
            let mut question = state.question(limiter, levels, caller);
            if LINES.is_behind(question.caller.ticket, question.wants()) {
                let refused = question.refused_in_line();
                return state.answer(question, refused, None, None);
            }
            let answers = state.decide_here(table.holder, &mut question, decide, now);
            if let Some(answers) = answers {
                if answers.are_admitted() {
                    LINES.ask(question.caller.ticket, question.wants());
                }
                state.decided(table, question, answers, DecidedBy::Process, now);
            }
        });
        self.take(taken)
    }

    /// Holds the slots of levels that are admitted whatever is held. The store learns it later.
    pub(in crate::limiter) fn hold_any(&mut self, limiter: &RateLimiter, levels: &[&AskedLevel]) {
        let table = &limiter.permits().table;
        let (caller, taken) = self.caller();
        table.change(|state, now| {
            let mut question = state.question(limiter, levels, caller);
            let answers = state.decide_here(
                table.holder,
                &mut question,
                |checks| Some(Answers::empty(checks.len())),
                now,
            );
            if let Some(answers) = answers {
                state.decided(table, question, answers, DecidedBy::Process, now);
            }
        });
        self.take(taken);
    }

    fn take(&mut self, mut taken: oneshot::Receiver<Taken>) -> Option<Answers> {
        let (answers, held) = taken.try_recv().ok()?.ok()?;
        self.held.extend(held);
        Some(answers)
    }

    fn caller(&self) -> (Caller, oneshot::Receiver<Taken>) {
        let (answer, taken) = oneshot::channel();
        let caller = Caller {
            ticket: self.ticket,
            wait: self.wait.clone(),
            answer,
        };
        (caller, taken)
    }
}

/// `None` if no refusal of a level is remembered.
fn remembered(limiter: &RateLimiter, levels: &[&AskedLevel]) -> Option<Answers> {
    let holdings: Vec<_> = levels
        .iter()
        .map(|level| Holding::new([0; 16], 0, 0, level.record().slots, Duration::ZERO))
        .collect();
    let checks: Vec<_> = levels
        .iter()
        .zip(&holdings)
        .map(|(level, holding)| level.check().with_holding(holding))
        .collect();
    limiter.0.store.repeat_refusals(&checks)
}

impl State {
    fn question(
        &mut self,
        limiter: &RateLimiter,
        levels: &[&AskedLevel],
        caller: Caller,
    ) -> SlotCheck {
        SlotCheck {
            store: limiter.0.store.clone(),
            levels: levels.iter().map(|level| self.slot_level(level)).collect(),
            sent: SendMarks::new(),
            caller,
        }
    }

    fn slot_level(&mut self, level: &AskedLevel) -> SlotLevel {
        let want = level.want();
        if let Some(id) = want.slots_of {
            let spent_before = self.spent_before;
            #[cfg(tollgate_simulation)]
            let spent_before = if is_planted("SumRestarts") {
                0
            } else {
                spent_before
            };
            let key = self.keys.entry(id).or_insert_with(|| {
                let meter = &level.limiter().permits().meter;
                let store = &level.limiter().0.store;
                HeldKey::new(level.subject(), store, meter, want, spent_before)
            });
            key.ask(level.asked_quotas());
            self.changed.push(id);
        }
        let check = level.check().owned();
        SlotLevel { check, want }
    }

    /// Decides a question by counts of this process, with what it holds: also for other shares, which are holders of their own.
    fn decide_here(
        &mut self,
        holder: [u8; 16],
        question: &mut SlotCheck,
        decide: impl Fn(&[Check<'_>]) -> Option<Answers>,
        now: u64,
    ) -> Option<Answers> {
        self.sequence += 1;
        let sequence = self.sequence;
        for SlotLevel { check, want } in &mut question.levels {
            let Some(key) = want.slots_of.and_then(|id| self.key(id)) else {
                continue;
            };
            let held = key.holding(holder, sequence, now);
            for (share, id) in key.other_shares() {
                let holding = Holding {
                    holder: holder_for(holder, share),
                    held: self.keys.get(&id).map_or(0, HeldKey::stated),
                    ..held
                };
                decide(&[check.check().subject.check(0).with_holding(&holding)]);
            }
            check.set_holding(held.wants(want.needs.slots).stated());
        }
        decide(&question.checks())
    }

    fn holds_any(&self) -> bool {
        self.keys.values().any(|key| key.stated() > 0)
    }
}

impl PermitTable {
    /// Waits until the store knows what was given back: also, for at most the deadline, of permits that are dropped meanwhile.
    pub(in crate::limiter) async fn release(
        self: &Arc<Self>,
        store: &ProtectedStore,
    ) -> Result<(), Error> {
        let mut outcome = None;
        let release = async {
            loop {
                // Before the look, so that no permit that is dropped after it is missed.
                let given_back = self.given_back.notified();
                outcome = None;
                let acknowledged = self.change(|state, now| state.tell(now));
                outcome = Some(join_all(acknowledged).await.into_iter().collect());
                let may_wait = !self.ends_with_process && is_in_runtime();
                if !may_wait || !self.with(|state, _| state.holds_any()) {
                    return Ok(());
                }
                given_back.await;
            }
        };
        let in_time = store.within_deadline(release).await;
        outcome.unwrap_or(in_time)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::quota::Quota;
    use crate::store::MemoryStore;

    #[tokio::test]
    async fn the_counts_of_this_process_leave_a_slot_to_the_call_that_was_told_to_ask() {
        let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1));
        let held = limiter.acquire("ada").await.unwrap();
        let other = limiter.clone();
        let waiting = tokio::spawn(async move { other.acquire("ada").await });
        while LINES.are_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        sleep(Duration::from_millis(20)).await;
        // From here to its next poll, it was told to ask.
        drop(held);
        let level = AskedLevel::new(&limiter, "ada", 1);
        let mut slots = SlotsOfCheck::new(None);
        let answers = slots
            .hold_in_turn(&limiter, &[&level], |checks| {
                Some(Answers::empty(checks.len()))
            })
            .unwrap();
        assert!(!answers.are_admitted() && slots.held.is_empty());
        drop(waiting.await.unwrap().unwrap());
    }
}
