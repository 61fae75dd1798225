//! How messages about slots are sent: by tasks of the table, not of a caller, so that a caller that goes away loses none.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::{Handle, Id};
use tokio::time::timeout;

use super::held_key::{HeldKey, id_of};
use super::message::{AllWanted, Caller, CallerWait, Message, Reply, SlotCheck, Wanted};
use super::permit::Ticket;
use super::state::State;
use super::table::PermitTable;
use crate::clock::micros;
use crate::decision::Answers;
use crate::error::{Error, ErrorKind};
use crate::key::Fingerprint;
use crate::quota::Quotas;
use crate::store::{Check, ProtectedStore, StoreFuture, join_all};
use crate::telemetry::{PermitMeter, PermitWait};

/// A check that wants slots.
pub(in crate::limiter) struct SlotRequest<'a> {
    pub(in crate::limiter) store: &'a ProtectedStore,
    pub(in crate::limiter) checks: &'a [Check<'a>],
    pub(in crate::limiter) levels: Vec<LevelSlots>,
    /// How long the check is repeated after a refusal. `None` if it is not.
    pub(in crate::limiter) max_wait: Option<Duration>,
    /// The most checks that wait for a key. Others are not repeated.
    pub(in crate::limiter) line: Option<usize>,
    /// The quotas of each level by which this process decides while the store fails. `None` if it does not.
    pub(in crate::limiter) shares: Option<Vec<Quotas>>,
}

/// The slots that a level wants if it has quotas in flight, at most those of its quotas.
#[derive(Clone)]
pub(in crate::limiter) struct LevelSlots {
    pub(in crate::limiter) slots: u32,
    pub(in crate::limiter) meter: PermitMeter,
}

impl SlotRequest<'_> {
    /// Returns the slots that the levels with quotas in flight want.
    fn wanted(&self) -> AllWanted {
        let levels = self.checks.iter().zip(&self.levels).enumerate();
        let in_flight = levels.filter(|(_, (check, _))| check.quotas.has_slots());
        let wanted = in_flight.map(|(level, (check, of_level))| Wanted {
            level,
            id: id_of(check.subject, check.quotas.share_of_slots(check.share)),
            slots: of_level.slots,
        });
        wanted.collect()
    }

    /// Makes the keys of these levels, which take in their quotas.
    fn add_keys(&self, state: &mut State, wanted: &[Wanted]) {
        for Wanted { level, id, .. } in wanted {
            if let (Some(check), Some(of_level)) =
                (self.checks.get(*level), self.levels.get(*level))
            {
                let new = || HeldKey::new(check.subject, self.store, &of_level.meter);
                state.keys.entry(*id).or_insert_with(new).ask(check.quotas);
            }
        }
    }
}

impl PermitTable {
    /// Asks the store for slots, and for the units of the same checks. The ticket is the permit if they are admitted.
    pub(in crate::limiter) fn check(
        self: &Arc<Self>,
        request: SlotRequest<'_>,
    ) -> (Option<Ticket>, StoreFuture) {
        let SlotRequest { store, checks, .. } = request;
        let wanted = request.wanted();
        let mut state = self.lock();
        let now = self.clock.now();
        let is_full = wanted.iter().any(|wanted| {
            let waiting = state
                .keys
                .get(&wanted.id)
                .map_or(0, |key| key.waiting.len());
            request.line.is_some_and(|line| waiting >= line)
        });
        let max_wait = request.max_wait.filter(|_| !is_full);
        if max_wait.is_none()
            && let Some(refused) = state.remembered(checks, &wanted, now)
        {
            return (None, StoreFuture::ready(Ok(refused)));
        }
        state.latest_ticket += 1;
        let ticket = state.latest_ticket;
        request.add_keys(&mut state, &wanted);
        state.each(&wanted, |key, _| {
            key.waiting.insert(ticket);
            key.ask_at(now);
        });
        let wait = max_wait.map(|max_wait| CallerWait {
            since: now,
            until: now.saturating_add(micros(max_wait)),
            not_before: 0,
            meter: PermitWait::begin(wanted.iter().filter_map(|wanted| {
                let level = request.levels.get(wanted.level)?;
                Some(level.meter.clone())
            })),
        });
        let ids: SmallVec<[_; 2]> = wanted.iter().map(|wanted| wanted.id).collect();
        let (answer, future) = StoreFuture::channel();
        let check = SlotCheck {
            store: store.clone(),
            checks: checks.iter().map(Check::owned).collect(),
            wanted,
            caller: Some(Caller {
                ticket,
                answer,
                wait,
                shares: request.shares,
            }),
        };
        state.line.insert(ticket, check);
        let message = self.next_message(&mut state, &ids, now);
        drop(state);
        let ticket = Ticket::new(Arc::clone(self), ticket);
        self.send(message);
        (Some(ticket), future)
    }

    /// Holds slots without the store, if `decide` admits them by what this process holds. The store learns it later.
    pub(in crate::limiter) fn hold(
        self: &Arc<Self>,
        request: &SlotRequest<'_>,
        decide: impl Fn(&[Check<'_>]) -> Option<Answers>,
    ) -> Option<(Option<Ticket>, Answers)> {
        let (checks, wanted) = (request.checks, request.wanted());
        let mut state = self.lock();
        let now = self.clock.now();
        request.add_keys(&mut state, &wanted);
        // Under the lock, so that no two checks see the same slot free.
        let decided = self.ask_here(&mut state, checks.to_vec(), &wanted, decide, now);
        let decided = decided.map(|mut answers| {
            let quotas = |level: usize| checks.get(level).map(|check| check.quotas);
            state.prepare(&wanted, quotas, &mut answers);
            let ticket = answers.are_admitted().then(|| {
                state.latest_ticket += 1;
                let ticket = state.latest_ticket;
                state.grant(ticket, &wanted, false, now);
                Ticket::new(Arc::clone(self), ticket)
            });
            (ticket, answers)
        });
        for wanted in &wanted {
            state.update_timer(wanted.id, now);
        }
        drop(state);
        self.wait_for_timers(None);
        decided
    }

    /// Gives the slots of a permit back, or gives a check up. Returns what waits until the store knows, if it `is_awaited`.
    pub(super) fn end(self: &Arc<Self>, ticket: u64, is_awaited: bool) -> Vec<StoreFuture<()>> {
        let told = self.change(|state, now| state.end(ticket, now), is_awaited);
        self.given_back.notify_waiters();
        told
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
                let told = join_all(self.change(|state, _| state.untold(), true)).await;
                outcome = Some(told.into_iter().collect());
                let may_wait = !store.is_in_process() && Handle::try_current().is_ok();
                if !may_wait || self.lock().permits.is_empty() {
                    return Ok(());
                }
                given_back.await;
            }
        };
        let in_time = store.within_deadline(release).await;
        outcome.unwrap_or(in_time)
    }

    /// Changes keys, and sends what they have to say. Returns what waits until the store knows, if it `is_awaited`.
    fn change(
        self: &Arc<Self>,
        change: impl FnOnce(&mut State, u64) -> SmallVec<[Fingerprint; 1]>,
        is_awaited: bool,
    ) -> Vec<StoreFuture<()>> {
        let (mut state, mut told) = (self.lock(), Vec::new());
        let now = self.clock.now();
        let ids = change(&mut state, now);
        for id in ids.iter().filter(|_| is_awaited) {
            told.extend(state.keys.get_mut(id).map(|key| key.tell(now)));
        }
        let message = self.next_message(&mut state, &ids, now);
        drop(state);
        if !ids.is_empty() {
            self.send(message);
        }
        told
    }

    /// Sends a message, and has a task wait for the timers.
    fn send(self: &Arc<Self>, message: Option<Message>) {
        if let Some(message) = message {
            if message.is_in_process() {
                Run::new(self, message, None).now();
            } else {
                let runtime = self.lock().runtime(None);
                let run = Run::new(self, message, runtime.as_ref().map(Handle::id));
                if let Some(runtime) = runtime {
                    runtime.spawn(run.in_task());
                }
            }
        }
        self.wait_for_timers(None);
    }

    /// Spawns the task that waits for the timers, unless there is one or there are no timers.
    fn wait_for_timers(self: &Arc<Self>, ended: Option<Id>) {
        let mut state = self.lock();
        let Some(next) = state.next_timer() else {
            return;
        };
        match state.waits_for {
            Some(waits_for) if waits_for <= next => {}
            Some(_) => {
                state.waits_for = Some(next);
                drop(state);
                self.timers_changed.notify_one();
            }
            None => {
                let Some(runtime) = state.runtime(ended) else {
                    return;
                };
                state.waits_for = Some(next);
                drop(state);
                let (table, id) = (Arc::clone(self), runtime.id());
                runtime.spawn(Timers { table, runtime: id }.run());
            }
        }
    }
}

/// A task that sends what is due by a timer. If its runtime ends, another one takes over.
struct Timers {
    table: Arc<PermitTable>,
    runtime: Id,
}

impl Timers {
    async fn run(self) {
        loop {
            for message in self.due() {
                self.table.send(Some(message));
            }
            let Some(next) = self.next() else { return };
            // Whichever comes first.
            let _ = timeout(next, self.table.timers_changed.notified()).await;
        }
    }

    /// Returns the messages that are due.
    fn due(&self) -> Vec<Message> {
        let mut state = self.table.lock();
        let now = self.table.clock.now();
        let due = state.due(now).into_iter();
        due.filter_map(|id| self.table.next_message(&mut state, &[id], now))
            .collect()
    }

    /// Returns the time until the next timer. Without one, the task ends.
    fn next(&self) -> Option<Duration> {
        let mut state = self.table.lock();
        let next = state.next_timer();
        state.waits_for = next;
        let left = next?.saturating_sub(self.table.clock.now());
        Some(Duration::from_micros(left))
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        let has_ended = self.table.lock().waits_for.take().is_some();
        if has_ended {
            self.table.wait_for_timers(Some(self.runtime));
        }
    }
}

const NOT_READY: &str = "a store in this process has to answer at once";

/// The message that is under way. Without a reply, its keys may hold slots in the store that nobody has.
struct Run {
    table: Arc<PermitTable>,
    message: Option<Message>,
    runtime: Option<Id>,
}

impl Run {
    fn new(table: &Arc<PermitTable>, message: Message, runtime: Option<Id>) -> Self {
        Self {
            table: Arc::clone(table),
            message: Some(message),
            runtime,
        }
    }

    /// Sends the message, and those that follow it, to a store that answers at once.
    fn now(mut self) {
        while let Some(message) = &self.message {
            let replies = message.ask().into_iter().map(|reply| {
                let not_ready = |_| Err(Error::new(ErrorKind::Unsupported, NOT_READY));
                reply.try_ready().unwrap_or_else(not_ready)
            });
            let replies = replies.collect();
            self.complete(replies);
        }
    }

    /// Sends the message, and those that follow it.
    async fn in_task(mut self) {
        while let Some(message) = &self.message {
            let replies = join_all(message.ask()).await;
            self.complete(replies);
            self.table.wait_for_timers(None);
        }
    }

    /// Takes in the replies. The next message about the same keys follows.
    fn complete(&mut self, replies: Vec<Reply>) {
        if let Some(message) = self.message.take() {
            let mut state = self.table.lock();
            let now = self.table.clock.now();
            let ids = self.table.complete(&mut state, message, replies, now);
            self.message = self.table.next_message(&mut state, &ids, now);
        }
    }
}

impl Drop for Run {
    /// Gives the message up if the runtime ends.
    fn drop(&mut self) {
        if let Some(message) = self.message.take() {
            let mut state = self.table.lock();
            let now = self.table.clock.now();
            self.table.complete(&mut state, message, Vec::new(), now);
            drop(state);
            self.table.wait_for_timers(self.runtime);
        }
    }
}

impl Message {
    /// Asks the store about each part.
    fn ask(&self) -> Vec<StoreFuture> {
        let ask = |part: &SlotCheck| {
            let checks: Vec<_> = part.checks.iter().map(|check| check.check()).collect();
            part.store.ask_uncached(&checks)
        };
        self.parts.iter().map(ask).collect()
    }
}
