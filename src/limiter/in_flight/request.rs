//! The requests of callers to a table: for slots, and for the moment when all are given back.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::held_key::HeldKey;
use super::state::DecidedBy;
use super::table::{Caller, HeldSlots, PermitTable, SlotCheck, State, Taken};
use crate::decision::{Answers, Holding, holder_for};
use crate::error::Error;
use crate::limiter::limiter::RateLimiter;
use crate::limiter::line::{LINES, Presence, Ticket, Want, Wants};
use crate::store::{Check, ProtectedStore, SendMarks, join_all};

/// Checks that want slots.
pub(super) struct SlotRequest<'a> {
    pub(super) store: &'a ProtectedStore,
    pub(super) checks: &'a [Check<'a>],
    pub(super) levels: Vec<LevelSlots<'a>>,
    /// The place in line of a call that may wait, as long as it is there.
    pub(super) waiting: Option<(Ticket, Weak<Presence>)>,
}

/// The limiter of a level, and the slots that it wants if it has quotas in flight.
pub(in crate::limiter) type LevelSlots<'a> = (&'a RateLimiter, u32);

impl SlotRequest<'_> {
    /// Returns the remembered refusals of the checks, if there is one.
    fn remembered(&self) -> Option<Answers> {
        let wanted = |slots| Holding::new([0; 16], 0, 0, slots, Duration::ZERO);
        let wanted: Vec<_> = self.levels.iter().map(|level| wanted(level.1)).collect();
        let checks = self.checks.iter().zip(&wanted);
        let checks: Vec<_> = checks
            .map(|(check, wanted)| check.with_holding(wanted))
            .collect();
        self.store.repeat_refusals(&checks)
    }
}

impl State {
    /// Returns the question of a call, whose keys take in its quotas.
    fn question(&mut self, request: &SlotRequest<'_>) -> (SlotCheck, oneshot::Receiver<Taken>) {
        let mut wants = Wants::new();
        for (check, (limiter, slots)) in request.checks.iter().zip(&request.levels) {
            let asked = (check.cost, *slots);
            let want = Want::new(limiter, check.key, check.quotas, asked, check.share);
            wants.push(want);
            if let Some(id) = want.slots_of {
                let new =
                    || HeldKey::new(check.subject, request.store, limiter.permit_meter(), want);
                self.keys.entry(id).or_insert_with(new).ask(check.quotas);
                self.changed.push(id);
            }
        }
        let (answer, taken) = oneshot::channel();
        let (ticket, presence) = match request.waiting.clone() {
            Some((ticket, presence)) => (ticket, Some(presence)),
            None => (LINES.ticket(), None),
        };
        let caller = Caller {
            ticket,
            presence,
            answer,
        };
        let question = SlotCheck {
            store: request.store.clone(),
            checks: request.checks.iter().map(Check::owned).collect(),
            wants,
            sent: SendMarks::new(),
            caller: Some(caller),
        };
        (question, taken)
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
        for (level, id, slots) in question.in_flight().collect::<Vec<_>>() {
            let (Some(key), Some(check)) = (self.key(id), question.checks.get_mut(level)) else {
                continue;
            };
            let (held, others) = (key.holding(holder, sequence, now), key.other_shares());
            for (share, id) in others {
                let holding = Holding {
                    holder: holder_for(holder, share),
                    held: self.keys.get(&id).map_or(0, HeldKey::stated),
                    ..held
                };
                decide(&[check.check().subject.check(0).with_holding(&holding)]);
            }
            check.set_holding(held.wants(slots).stated());
        }
        decide(&question.checks())
    }
}

impl PermitTable {
    /// Asks the store for slots, and for the units of the same checks, unless a refusal is remembered.
    pub(super) fn ask(self: &Arc<Self>, request: &SlotRequest<'_>) -> oneshot::Receiver<Taken> {
        if request.waiting.is_none()
            && let Some(refused) = request.remembered()
        {
            let (answer, taken) = oneshot::channel();
            drop(answer.send(Ok((refused, None))));
            return taken;
        }
        self.change(|state, _| {
            let (question, taken) = state.question(request);
            state.ask(question);
            taken
        })
    }

    /// Holds slots without the store, if `decide` admits them by what this process holds. The store learns it later.
    pub(super) fn hold(
        self: &Arc<Self>,
        request: &SlotRequest<'_>,
        decide: impl Fn(&[Check<'_>]) -> Option<Answers>,
    ) -> Option<(Answers, Option<HeldSlots>)> {
        // Under the lock, so that no two checks see the same slot free.
        let mut taken = self.change(|state, now| {
            let (mut question, taken) = state.question(request);
            let answers = state.decide_here(self.holder, &mut question, decide, now)?;
            state.decided(self, question, answers, DecidedBy::Process, now);
            Some(taken)
        })?;
        taken.try_recv().ok()?.ok()
    }

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
                let may_wait = !self.answers_at_once && Handle::try_current().is_ok();
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
