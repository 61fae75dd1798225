//! The requests of callers to a table: for slots, and to give them back.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::held_key::{HeldKey, id_of};
use super::held_slots::{HeldSlots, Holder, Slots};
use super::message::{AllWanted, Caller, SlotCheck, Taken, WaitingCall, Wanted};
use super::state::State;
use super::table::PermitTable;
use crate::decision::Answers;
use crate::error::Error;
use crate::limiter::limiter::RateLimiter;
use crate::limiter::line::{Want, Wants, slots as lines};
use crate::store::{Check, ProtectedStore, StoreFuture, join_all};

/// Checks that want slots.
pub(super) struct SlotRequest<'a> {
    pub(super) store: &'a ProtectedStore,
    pub(super) checks: &'a [Check<'a>],
    pub(super) levels: Vec<LevelSlots<'a>>,
    pub(super) waiting: Option<WaitingCall>,
}

/// The limiter of a level, and the slots that it wants if it has quotas in flight.
pub(in crate::limiter) type LevelSlots<'a> = (&'a RateLimiter, u32);

impl SlotRequest<'_> {
    fn levels(&self) -> impl Iterator<Item = (&Check<'_>, &RateLimiter, u32)> {
        let levels = self.checks.iter().zip(&self.levels);
        levels.map(|(check, (limiter, slots))| (check, *limiter, *slots))
    }

    /// Returns what each level asks of its line.
    fn wants(&self) -> Wants {
        let wants = self.levels().map(|(check, limiter, slots)| {
            let asked = (check.cost, slots);
            Want::new(limiter, check.key, check.quotas, asked, check.share)
        });
        wants.collect()
    }

    /// Returns the slots that the levels with quotas in flight want, whose keys take in these quotas.
    fn wanted(&self, state: &mut State) -> AllWanted {
        let levels = self.levels().enumerate();
        let in_flight = levels.filter(|(_, (check, ..))| check.quotas.has_slots());
        let wanted = in_flight.map(|(level, (check, limiter, slots))| {
            let id = id_of(check.subject, check.quotas.share_of_slots(check.share));
            let new = || HeldKey::new(check.subject, self.store, limiter.permit_meter());
            state.keys.entry(id).or_insert_with(new).ask(check.quotas);
            Wanted { level, id, slots }
        });
        wanted.collect()
    }
}

impl PermitTable {
    /// Asks the store for slots, and for the units of the same checks.
    pub(super) fn ask(self: &Arc<Self>, request: &SlotRequest<'_>) -> oneshot::Receiver<Taken> {
        let (answer, taken) = oneshot::channel();
        self.change(|state, now| {
            let wanted = request.wanted(state);
            if request.waiting.is_none()
                && let Some(refused) = state.remembered(request.checks, &wanted, now)
            {
                state.outbox.answers.push((answer, Ok((refused, None))));
                return;
            }
            let (ticket, presence) = match request.waiting.clone() {
                Some((ticket, presence)) => (ticket, Some(presence)),
                None => (lines::ticket(), None),
            };
            state.each(&wanted, |key, _| {
                key.waiting.insert(ticket);
            });
            state.to_look.extend(wanted.iter().map(|wanted| wanted.id));
            let caller = Some(Caller {
                ticket,
                presence,
                wants: request.wants(),
                answer,
            });
            let question = SlotCheck {
                store: request.store.clone(),
                checks: request.checks.iter().map(Check::owned).collect(),
                wanted,
                caller,
            };
            state.questions.insert(ticket, question);
        });
        taken
    }

    /// Holds slots without the store, if `decide` admits them by what this process holds. The store learns it later.
    pub(super) fn hold(
        self: &Arc<Self>,
        request: &SlotRequest<'_>,
        decide: impl Fn(&[Check<'_>]) -> Option<Answers>,
    ) -> Option<(Answers, Option<HeldSlots>)> {
        let (checks, wants) = (request.checks, request.wants());
        // Under the lock, so that no two checks see the same slot free.
        let decided = self.change(|state, now| {
            let wanted = request.wanted(state);
            let decided = self.ask_here(state, checks.to_vec(), &wanted, decide, now);
            let decided = decided.map(|mut answers| {
                let quotas = |level: usize| checks.get(level).map(|check| check.quotas);
                state.prepare(&wanted, quotas, &mut answers);
                let is_admitted = answers.are_admitted();
                let slots = is_admitted.then(|| state.grant(&wanted, &wants, false, now));
                (answers, slots)
            });
            for wanted in &wanted {
                state.update_timer(wanted.id, now);
            }
            decided
        });
        let held = |slots| HeldSlots::new(Arc::<Self>::clone(self), slots);
        decided.map(|(answers, slots)| (answers, slots.map(held)))
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
                let told = self.change(|state, now| {
                    let untold = state.untold().into_iter();
                    let told = untold.filter_map(|id| state.flush(id, true, false, now));
                    told.collect()
                });
                outcome = Some(join_all(told).await.into_iter().collect());
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

impl Holder for PermitTable {
    fn give_back(self: Arc<Self>, slots: &Slots, is_awaited: bool) -> Vec<StoreFuture<()>> {
        let others = self.with(|state, now| state.give_back(slots, now));
        let is_shared = !self.answers_at_once;
        // A call that asks now tells the store what was given back.
        let mut is_asked = false;
        for of_key in &slots.of_keys {
            is_asked |= lines::returned(of_key.line, of_key.slots, is_shared).0;
        }
        let told = self.change(|state, now| {
            let ids = slots.of_keys.iter().map(|of_key| of_key.id);
            let told = ids.map(|id| state.flush(id, is_awaited, is_asked, now));
            told.collect::<Vec<_>>().into_iter().flatten().collect()
        });
        for other in others {
            drop(lines::returned(other.line, other.slots, false));
        }
        self.given_back.notify_waiters();
        told
    }

    fn lost_in(&self, slots: &Slots) -> Option<u64> {
        self.with(|state, now| {
            let ends = slots.of_keys.iter().filter_map(|of_key| {
                let key = state.keys.get_mut(&of_key.id)?;
                key.settle_end(now);
                if key.epoch != of_key.epoch {
                    return Some(0);
                }
                key.valid_until.map(|until| until.saturating_sub(now))
            });
            ends.min()
        })
    }
}
