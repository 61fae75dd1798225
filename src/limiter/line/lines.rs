//! The lines of this process: which of the calls that wait for units or slots may ask the store now.
//!
//! A call stands in the lines of the keys that have refused it, and in those that it found when it came. The first of a line
//! asks the store, and with it those that fit into what the last answer left. The others sleep. All changes are made under
//! one lock; nothing here asks, spawns, or has a timer.
//!
//! The answers about slots are taken in by those who took the message in, not by the call: so it stands in its line before
//! the next message is made, and no later call gets its slots.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime;
use tokio::time::Instant;

use crate::decision::LimiterId;
use crate::key::Fingerprint;
use crate::limiter::wait::jittered;
use crate::quota::ShareId;
use crate::telemetry::PermitWait;

/// The longest wait before a refused call asks again: others may give units back, or an operator may unblock the key.
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// The longest time between two calls after a hold. The rate of a daily limit says little about the next minute.
pub(super) const MAX_STEP: Duration = Duration::from_secs(1);

/// The time after which a call that could ask, and does not move, lets others pass: its thread or its runtime is blocked.
const IDLE: Duration = Duration::from_secs(1);

/// The mean time between two looks whether other processes have given slots back. Each is between half of it and half more.
const POLL: Duration = Duration::from_millis(25);

/// The mean time between two looks of a process, over all of its lines. With more than a hundred lines, each looks less often
/// than every 25 ms.
const POLL_OF_ANY: Duration = Duration::from_micros(250);

/// How long a process whose calls wait takes each slot again that it gives back. Then other processes may get one, until its
/// next look. So it is without its slots for about 2.5 % of the time.
const KEPT: Duration = Duration::from_secs(1);

/// The lines of all stores. A line exists only while calls wait in it.
pub(in crate::limiter) static LINES: LazyLock<Lines> = LazyLock::new(Lines::default);

#[derive(Default)]
pub(in crate::limiter) struct Lines {
    state: Mutex<State>,
    latest_ticket: AtomicU64,
    /// The calls in lines. While there are none, nothing is locked.
    waiting: AtomicUsize,
}

/// The number of a call, in the order of arrival.
pub(in crate::limiter) type Ticket = u64;

/// The key of a line. Each share of a key has its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::limiter) struct LineKey {
    pub(in crate::limiter) limiter: LimiterId,
    pub(in crate::limiter) key: Fingerprint,
    pub(in crate::limiter) share: Option<ShareId>,
}

/// The units and slots that a call asks of a key.
#[derive(Clone, Copy)]
pub(crate) struct Want {
    pub(in crate::limiter) line: LineKey,
    pub(in crate::limiter) needs: Room,
    /// Its key in the table of permits, if it has quotas in flight.
    pub(in crate::limiter) slots_of: Option<Fingerprint>,
}

/// The units and slots that a call needs, or that are left. A key without rates has any number of units.
#[derive(Clone, Copy, Default)]
pub(in crate::limiter) struct Room {
    pub(in crate::limiter) units: u32,
    pub(in crate::limiter) slots: u32,
}

/// The units and slots that a call asks of each of its keys.
pub(in crate::limiter) type Wants = SmallVec<[Want; 2]>;

/// Why a call waits no longer: this key has no room for it in time.
#[derive(Clone, Copy)]
pub(crate) struct TooLate {
    pub(in crate::limiter) line: LineKey,
    /// The time before which the call is certainly not admitted. If that is unknown, the one that the last refusal suggests.
    pub(in crate::limiter) wait: Duration,
    pub(in crate::limiter) why: WhyTooLate,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::limiter) enum WhyTooLate {
    /// As many calls wait for the key as may.
    QueueFull,
    /// The turn of the call certainly comes after the end of its wait.
    TurnTooLate,
    /// Its wait is over.
    WaitOver,
}

/// What a call in line does next.
pub(super) enum Turn {
    /// It asks the store.
    Ask,
    /// It looks again at this time.
    Wait(Instant),
    TooLate(TooLate),
}

/// The last refusal of a line.
#[derive(Clone, Copy)]
pub(super) struct Refusal {
    /// The call that was refused, and when it will fit.
    pub(super) ticket: Ticket,
    pub(super) fits_at: Option<Instant>,
    /// The limit and the window of the quota that refused, unless the key is blocked.
    pub(super) rate: Option<(u32, Duration)>,
    /// The time between two units after the end of the hold, if an upstream holds the key back.
    pub(super) step: Option<Duration>,
}

#[derive(Default)]
pub(super) struct State {
    lines: HashMap<LineKey, Line>,
    calls: HashMap<Ticket, Call>,
    /// The lines whose first call may ask now.
    to_advance: Vec<LineKey>,
    /// Woken when the lock is free: a waker may drop a task, and with it a place in a line.
    wakers: Vec<Waker>,
}

#[derive(Default)]
struct Line {
    /// The calls that stand here, and their units. Those that ask just now are not among them.
    standing: BTreeMap<Ticket, u32>,
    asking: Vec<Asking>,
    /// The rest that the last answer left, less the requests since, and with the slots that were given back.
    room: Room,
    /// The least that was left in the answers since the last pause: they arrive in any order.
    least: Option<Room>,
    /// When a call asks for slots although none is known to be free: other processes may have given them back.
    polls_at: Option<Instant>,
    /// Until when no call asks for slots, so that other processes may get one that was given back.
    yields_until: Option<Instant>,
    refusal: Option<Refusal>,
    /// The wait for slots that the last refusal has suggested.
    suggested_wait: Duration,
    after_hold: Option<AfterHold>,
}

/// The rate of the calls that have waited for the end of a hold: at once, they would provoke the next one.
struct AfterHold {
    /// The time between two units.
    step: Duration,
    /// When the next call asks.
    next_at: Instant,
    /// The last call that has waited for the end of the hold. `None` until the end.
    last: Option<Ticket>,
}

/// A call that asks the store.
struct Asking {
    ticket: Ticket,
    /// Whether there may be too little room for it. Until its answer, all that is left is for this call.
    is_trial: bool,
}

struct Call {
    wants: Wants,
    phase: Phase,
    waker: Option<Waker>,
    runtime: Option<runtime::Id>,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    /// Asks as soon as it is first.
    Ready,
    /// Asks at this time, if it is first.
    Asleep(Instant),
    /// It is first. It asks at this time, or as soon as slots are free.
    Next(Instant),
    /// Asks since then. Or it was refused then, and its task has not taken that in.
    Asking(Instant),
    /// Others go before it until it is polled.
    Aside,
}

impl Lines {
    /// Returns a number that is later than all others.
    pub(in crate::limiter) fn ticket(&self) -> Ticket {
        self.latest_ticket.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns whether no call waits.
    pub(super) fn are_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Returns whether an earlier call waits for any of these keys. A call that does not wait is also behind one that asks
    /// and may be refused: in one message with it, it might be admitted before it.
    pub(in crate::limiter) fn is_behind(
        &self,
        ticket: Ticket,
        lines: impl Iterator<Item = LineKey>,
        may_wait: bool,
    ) -> bool {
        let is_behind = |state: &mut State| {
            let mut lines = lines.filter_map(|line| state.lines.get(&line));
            lines.any(|line| {
                let mut asking = line.asking.iter();
                let is_earlier = |asking: &Asking| asking.is_trial && asking.ticket < ticket;
                line.has_earlier(ticket) || !may_wait && asking.any(is_earlier)
            })
        };
        !self.are_empty() && self.with(is_behind)
    }

    /// Takes in the answer to a call: what it left of each key, and the waits that those suggest that have refused it. A refused
    /// call that waits stands in their lines, so that no later one asks before it. It waits as long as `wait` is there: a task
    /// that asks for several groups may outlive its caller.
    pub(in crate::limiter) fn take_in(
        &self,
        ticket: Ticket,
        answers: &[(Want, Option<Room>, Option<Duration>)],
        wait: Option<&Weak<PermitWait>>,
        woken: &mut Woken,
    ) {
        let is_refused = answers.iter().any(|(.., refused)| refused.is_some());
        if self.are_empty() && !(is_refused && wait.is_some()) {
            return;
        }
        let now = Instant::now();
        self.change(woken, |state| {
            let waits = is_refused && wait.is_some_and(|wait| wait.strong_count() > 0);
            match waits {
                true => {
                    state.take_out(ticket);
                    let wants = || answers.iter().map(|(want, ..)| *want).collect();
                    let call = state.calls.entry(ticket);
                    let call = call.or_insert_with(|| Call::new(wants(), Phase::Ready));
                    call.phase = Phase::Asking(now);
                }
                false => state.remove(ticket),
            }
            let lines = u32::try_from(state.lines.len()).unwrap_or(u32::MAX);
            let poll = POLL.max(POLL_OF_ANY.saturating_mul(lines));
            for (want, left, refused) in answers {
                if waits && refused.is_some() {
                    let line = state.lines.entry(want.line).or_default();
                    line.standing.insert(ticket, want.needs.units);
                }
                let Some(line) = state.lines.get_mut(&want.line) else {
                    continue;
                };
                if let Some(suggested) = refused {
                    line.suggested_wait = *suggested;
                }
                if let Some(left) = left {
                    line.take_in(*left);
                    line.polls_at = Some(now + jittered(poll));
                    state.to_advance.push(want.line);
                }
            }
            state.advance(now);
        });
    }

    /// Takes in that slots of a key were given back. Returns whether a call of this process asks for them now. If other
    /// processes share the slots, they get one from time to time.
    pub(in crate::limiter) fn returned_slots(
        &self,
        key: LineKey,
        slots: u32,
        is_shared: bool,
        woken: &mut Woken,
    ) -> bool {
        if self.are_empty() {
            return false;
        }
        let now = Instant::now();
        self.change(woken, |state| {
            let Some(line) = state.lines.get_mut(&key) else {
                return false;
            };
            line.room.slots = line.room.slots.saturating_add(slots);
            if is_shared && !line.standing.is_empty() && line.yields(now) {
                return false;
            }
            state.to_advance.push(key);
            state.advance(now);
            let line = state.lines.get(&key);
            line.is_some_and(|line| !line.asking.is_empty())
        })
    }

    /// Changes the state, and then wakes those that may ask now.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        self.change(&mut Woken::default(), change)
    }

    /// Changes the state. Adds those that may ask now: to wake one may drop a permit.
    fn change<T>(&self, woken: &mut Woken, change: impl FnOnce(&mut State) -> T) -> T {
        // Consistent after a panic: no step of a change panics.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = change(&mut state);
        self.waiting.store(state.calls.len(), Ordering::Relaxed);
        woken.0.append(&mut state.wakers);
        outcome
    }
}

/// Calls that may ask now. They are woken when this is dropped.
#[derive(Default)]
pub(in crate::limiter) struct Woken(Vec<Waker>);

impl Drop for Woken {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}

impl Room {
    fn holds(self, needs: Self) -> bool {
        self.units >= needs.units && self.slots >= needs.slots
    }

    fn without(self, needs: Self) -> Self {
        Self {
            units: self.units.saturating_sub(needs.units),
            slots: self.slots.saturating_sub(needs.slots),
        }
    }

    fn least(self, other: Self) -> Self {
        Self {
            units: self.units.min(other.units),
            slots: self.slots.min(other.slots),
        }
    }
}

impl Line {
    /// Returns whether as many calls wait before this one.
    fn is_full(&self, ticket: Ticket, max_calls: usize) -> bool {
        let asking = self.asking.iter().filter(|asking| asking.ticket < ticket);
        let standing = self.standing.range(..ticket);
        asking.count() + standing.take(max_calls).count() >= max_calls
    }

    fn has_earlier(&self, ticket: Ticket) -> bool {
        let first = self.standing.keys().next();
        first.is_some_and(|first| *first < ticket)
    }

    fn has_room(&self, needs: Room) -> bool {
        let has_trial = || self.asking.iter().any(|asking| asking.is_trial);
        let fits = || self.room.holds(needs) && !has_trial();
        self.after_hold.is_some() || self.asking.is_empty() || fits()
    }

    /// Returns the time before which no call asks for this.
    fn asked_at(&self, needs: Room) -> Option<Instant> {
        let polls_at = self.polls_at.filter(|_| self.room.slots < needs.slots);
        let slots_at = polls_at.max(self.yields_until);
        let after_hold = self.after_hold.as_ref();
        let next_at = after_hold.map(|after| after.next_at);
        next_at.max(slots_at.filter(|_| needs.slots > 0))
    }

    /// Returns whether this key keeps a call waiting.
    fn lacks_room(&self, ticket: Ticket, needs: Room, now: Instant) -> bool {
        self.has_earlier(ticket) || !self.room.holds(needs) || self.asked_at(needs) > Some(now)
    }

    /// Returns whether a slot that was given back now is for other processes.
    fn yields(&mut self, now: Instant) -> bool {
        let since = *self.yields_until.get_or_insert(now);
        let yields = now >= since + KEPT;
        if yields {
            self.yields_until = Some(now + jittered(POLL));
        }
        yields
    }

    /// Takes in what an answer has left. It counts when all answers have come.
    fn take_in(&mut self, left: Room) {
        let least = self.least.map_or(left, |least| least.least(left));
        self.least = Some(least);
        if self.asking.is_empty() {
            self.room = least;
            self.least = None;
        }
    }

    /// Returns the time before which a call is certainly not admitted: within a window, no more than the limit is, and a
    /// burst of as much may come first.
    fn earliest(&self, ticket: Ticket, units: u32, now: Instant) -> Option<Instant> {
        let refusal = self.refusal?;
        let first = self.standing.keys().next();
        let first_fits_at = refusal.fits_at.filter(|_| first == Some(&refusal.ticket));
        let ahead = self.standing.range(..ticket);
        let ahead: u64 = ahead.map(|(_, units)| u64::from(*units)).sum();
        let by_rate = refusal.rate.and_then(|(limit, window)| {
            let units = (ahead + u64::from(units)).saturating_sub(1);
            let windows = units.checked_div(limit.into())?.saturating_sub(1);
            now.checked_add(window.checked_mul(u32::try_from(windows).ok()?)?)
        });
        first_fits_at.max(by_rate)
    }

    /// Returns the time before which a call is certainly not admitted, or else the wait that the last refusal suggests.
    fn wait(&self, ticket: Ticket, units: u32, now: Instant) -> Duration {
        let earliest = self.earliest(ticket, units, now);
        earliest.map_or(self.suggested_wait, |earliest| {
            earliest.saturating_duration_since(now)
        })
    }
}

impl Call {
    fn new(wants: Wants, phase: Phase) -> Self {
        Self {
            wants,
            phase,
            waker: None,
            runtime: None,
        }
    }
}

impl State {
    /// Returns whether there is a line for any of these keys.
    pub(super) fn has_line(&self, wants: &Wants) -> bool {
        wants.iter().any(|want| self.lines.contains_key(&want.line))
    }

    /// Returns whether a call may have to wait for a key. One that asks nothing of it waits only in the time after a hold.
    pub(super) fn may_wait_for(&self, want: &Want) -> bool {
        let line = self.lines.get(&want.line);
        want.needs.is_any() || line.is_some_and(|line| line.after_hold.is_some())
    }

    /// Returns the key for which as many calls wait as may. If this one stands in line, they stand before it.
    pub(super) fn full_line<'a>(
        &self,
        ticket: Ticket,
        wants: &'a Wants,
        max_calls: Option<usize>,
    ) -> Option<&'a Want> {
        let max_calls = max_calls?;
        let is_known = self.calls.contains_key(&ticket);
        let ticket = if is_known { ticket } else { Ticket::MAX };
        wants.iter().find(|want| {
            let line = self.lines.get(&want.line);
            line.is_some_and(|line| line.is_full(ticket, max_calls))
        })
    }

    /// Returns the end of the wait of a call that comes, if a line is full, or if its turn would certainly come too late.
    pub(super) fn turned_away(
        &self,
        ticket: Ticket,
        wants: &Wants,
        max_calls: Option<usize>,
        until: Instant,
        now: Instant,
    ) -> Option<TooLate> {
        if let Some(full) = self.full_line(ticket, wants, max_calls) {
            return self.too_late(ticket, full, WhyTooLate::QueueFull, now);
        }
        let late = wants.iter().find(|want| {
            let line = self.lines.get(&want.line);
            let earliest = line.and_then(|line| line.earliest(ticket, want.needs.units, now));
            earliest.is_some_and(|earliest| until < earliest)
        });
        self.too_late(ticket, late?, WhyTooLate::TurnTooLate, now)
    }

    /// Returns the end of the wait of a call because of this key.
    fn too_late(
        &self,
        ticket: Ticket,
        want: &Want,
        why: WhyTooLate,
        now: Instant,
    ) -> Option<TooLate> {
        let line = self.lines.get(&want.line)?;
        let wait = line.wait(ticket, want.needs.units, now);
        Some(TooLate {
            line: want.line,
            wait,
            why,
        })
    }

    /// Returns the end of the wait of a call whose time is over, because of the key that it lacks, or else of the one with the
    /// longest wait. `None` if it stands in no line.
    fn wait_over(&self, ticket: Ticket, now: Instant) -> Option<TooLate> {
        let call = self.calls.get(&ticket)?;
        let wants = call.wants.iter().filter_map(|want| {
            let line = self.lines.get(&want.line)?;
            let wait = line.wait(ticket, want.needs.units, now);
            Some((line.lacks_room(ticket, want.needs, now), wait, want))
        });
        let (.., want) = wants.max_by_key(|(lacks_room, wait, _)| (*lacks_room, *wait))?;
        self.too_late(ticket, want, WhyTooLate::WaitOver, now)
    }

    /// Lets a call that has not asked yet stand in the lines of its keys.
    pub(super) fn join(&mut self, ticket: Ticket, wants: Wants) {
        self.calls.insert(ticket, Call::new(wants, Phase::Ready));
        self.stand(ticket);
    }

    /// Lets a refused call stand in the lines of the keys that have refused it, until `fits_at`, but for at most a second.
    /// `None` if it lacks slots: then it also stands in the other lines of its keys.
    pub(super) fn stand_refused(
        &mut self,
        ticket: Ticket,
        wants: Wants,
        refusals: &[(Want, Refusal)],
        fits_at: Option<Instant>,
        now: Instant,
    ) {
        self.remove(ticket);
        for (want, refusal) in refusals {
            let line = self.lines.entry(want.line).or_default();
            line.standing.insert(ticket, want.needs.units);
            self.to_advance.push(want.line);
            if fits_at.is_some() {
                line.take_in(Room::default());
                line.room = Room::default();
            }
            line.refusal = Some(*refusal);
            if let Some(step) = refusal.step {
                let next_at = line.after_hold.as_ref().map_or(now, |after| after.next_at);
                line.after_hold = Some(AfterHold {
                    step,
                    next_at,
                    last: None,
                });
            }
        }
        match fits_at {
            Some(fits_at) => {
                let phase = Phase::Asleep(fits_at.min(now + MAX_BACKOFF));
                self.calls.insert(ticket, Call::new(wants, phase));
            }
            None => self.join(ticket, wants),
        }
        self.advance(now);
    }

    /// Takes in that units of a key were given back in this process: the first call asks whether that is enough for it.
    pub(super) fn returned(&mut self, key: LineKey, now: Instant) {
        // A hold does not end because units are left.
        let waits_for_units = |line: &&mut Line| line.after_hold.is_none();
        let Some(line) = self.lines.get_mut(&key).filter(waits_for_units) else {
            return;
        };
        if let Some(refusal) = &mut line.refusal {
            refusal.fits_at = None;
        }
        let first = line.standing.keys().next();
        if let Some(call) = first.and_then(|first| self.calls.get_mut(first)) {
            call.phase = Phase::Ready;
        }
        self.to_advance.push(key);
        self.advance(now);
    }

    /// Forgets the units that the last answers left of a key.
    pub(super) fn forget_room(&mut self, key: LineKey) {
        if let Some(line) = self.lines.get_mut(&key) {
            line.room.units = 0;
            if let Some(least) = &mut line.least {
                least.units = 0;
            }
        }
    }

    /// Removes a call. Those that are first now ask.
    pub(super) fn leave(&mut self, ticket: Ticket, now: Instant) {
        self.remove(ticket);
        self.advance(now);
    }

    fn remove(&mut self, ticket: Ticket) {
        self.take_out(ticket);
        let call = self.calls.remove(&ticket);
        self.wakers.extend(call.and_then(|call| call.waker));
    }

    /// Notes the task of a call, and lets the call ask if it is first in all lines and there may be room for it. A call that stood
    /// aside stands in its lines again.
    pub(super) fn poll(
        &mut self,
        ticket: Ticket,
        until: Instant,
        waker: &Waker,
        runtime: Option<runtime::Id>,
        now: Instant,
    ) -> Turn {
        let Some(call) = self.calls.get_mut(&ticket) else {
            return Turn::Ask;
        };
        let is_known = |known: &Waker| known.will_wake(waker);
        if !call.waker.as_ref().is_some_and(is_known) {
            self.wakers.extend(call.waker.replace(waker.clone()));
        }
        call.runtime = runtime;
        if call.phase == Phase::Aside {
            call.phase = Phase::Ready;
            self.stand(ticket);
        }
        self.try_start(ticket, now);
        self.advance(now);
        self.pass_idle(ticket, now);
        let looks_again_at = match self.calls.get(&ticket).map(|call| call.phase) {
            None | Some(Phase::Asking(_)) => return Turn::Ask,
            Some(Phase::Asleep(until) | Phase::Next(until)) if until > now => until.min(now + IDLE),
            Some(_) => now + IDLE,
        };
        if now < until {
            return Turn::Wait(looks_again_at.min(until));
        }
        // A call that no key keeps waiting asks.
        let over = self.wait_over(ticket, now);
        over.map_or(Turn::Ask, Turn::TooLate)
    }

    /// Lets a call ask if it is first in all lines and there may be room for it.
    fn try_start(&mut self, ticket: Ticket, now: Instant) {
        let Self {
            lines,
            calls,
            to_advance,
            wakers,
        } = self;
        let Some(call) = calls.get_mut(&ticket) else {
            return;
        };
        let before = call.phase;
        match before {
            Phase::Asking(_) | Phase::Aside => return,
            Phase::Asleep(until) if now < until => return,
            Phase::Asleep(_) | Phase::Next(_) | Phase::Ready => call.phase = Phase::Ready,
        }
        let (mut is_behind, mut has_room, mut is_trial) = (false, true, false);
        let mut next_at = None;
        for want in &call.wants {
            let Some(line) = lines.get_mut(&want.line) else {
                continue;
            };
            let is_later = |after: &mut AfterHold| after.last.is_some_and(|last| last < ticket);
            line.after_hold.take_if(is_later);
            next_at = next_at.max(line.asked_at(want.needs));
            is_behind |= line.has_earlier(ticket);
            has_room &= line.has_room(want.needs);
            is_trial |= !line.room.holds(want.needs);
        }
        let next_at = next_at.filter(|next_at| now < *next_at);
        if is_behind || !has_room || next_at.is_some() {
            for want in &call.wants {
                let Some(line) = lines.get_mut(&want.line) else {
                    continue;
                };
                // A call that is behind others for one key keeps nobody from its other keys. One that is first everywhere
                // is the next one.
                if line.has_earlier(ticket) || !is_behind {
                    line.standing.insert(ticket, want.needs.units);
                } else if line.standing.remove(&ticket).is_some() {
                    to_advance.push(want.line);
                }
            }
            if let Some(next_at) = next_at.filter(|_| !is_behind) {
                call.phase = Phase::Next(next_at);
                if call.phase != before {
                    wakers.extend(call.waker.take());
                }
            }
            return;
        }
        for want in &call.wants {
            if let Some(line) = lines.get_mut(&want.line) {
                line.standing.remove(&ticket);
                line.asking.push(Asking { ticket, is_trial });
                line.room = line.room.without(want.needs);
                if let Some(after) = &mut line.after_hold {
                    let latest = || line.standing.keys().next_back().copied();
                    after.last.get_or_insert_with(|| latest().unwrap_or(ticket));
                    after.next_at = now + after.step.saturating_mul(want.needs.units).min(MAX_STEP);
                }
                to_advance.push(want.line);
            }
        }
        call.phase = Phase::Asking(now);
        wakers.extend(call.waker.take());
    }

    /// Lets those calls stand aside that keep this one waiting and do not move: the one that asks, or the first one.
    fn pass_idle(&mut self, ticket: Ticket, now: Instant) {
        let Some(call) = self.calls.get(&ticket) else {
            return;
        };
        let (own_runtime, wants) = (call.runtime, call.wants.clone());
        for want in wants {
            let stands_in = |line: &&Line| line.standing.contains_key(&ticket);
            let Some(line) = self.lines.get(&want.line).filter(stands_in) else {
                continue;
            };
            let asking = line.asking.iter().map(|asking| asking.ticket);
            let first = line.standing.keys().next().copied();
            let blocking = asking.chain(first).filter(|other| *other != ticket);
            let is_idle = |call: &&Call| match call.phase {
                Phase::Asleep(since) | Phase::Next(since) | Phase::Asking(since) => {
                    now > since + IDLE
                }
                Phase::Ready | Phase::Aside => false,
            };
            let idle: Vec<_> = blocking
                .filter(|other| self.calls.get(other).filter(is_idle).is_some())
                .collect();
            if idle.is_empty() {
                continue;
            }
            // With a call of another runtime, all that stand here and are of that runtime: each alone would take a second.
            let other_runtime = |other: &Ticket| {
                let runtime = self.calls.get(other)?.runtime?;
                (Some(runtime) != own_runtime).then_some(runtime)
            };
            let blocked: Vec<_> = idle.iter().filter_map(other_runtime).collect();
            let is_blocked = |runtime| blocked.contains(&runtime);
            let standing = line.standing.keys().copied();
            let with_them = standing.filter(|other| other_runtime(other).is_some_and(is_blocked));
            let with_them: Vec<_> = with_them.collect();
            for other in idle.into_iter().chain(with_them) {
                self.set_aside(other);
            }
        }
        self.advance(now);
    }

    fn set_aside(&mut self, ticket: Ticket) {
        self.take_out(ticket);
        if let Some(call) = self.calls.get_mut(&ticket) {
            call.phase = Phase::Aside;
            self.wakers.extend(call.waker.take());
        }
    }

    /// Lets a call stand in the lines of its keys that exist. If it is the first of one and behind others in another, it leaves
    /// the first one when that advances.
    fn stand(&mut self, ticket: Ticket) {
        let call = self.calls.get(&ticket);
        for want in call.into_iter().flat_map(|call| &call.wants) {
            if let Some(line) = self.lines.get_mut(&want.line) {
                line.standing.insert(ticket, want.needs.units);
                self.to_advance.push(want.line);
            }
        }
    }

    /// Takes a call out of the lines in which it stands or asks.
    fn take_out(&mut self, ticket: Ticket) {
        let call = self.calls.get(&ticket);
        for want in call.into_iter().flat_map(|call| &call.wants) {
            if let Some(line) = self.lines.get_mut(&want.line) {
                line.standing.remove(&ticket);
                line.asking.retain(|asking| asking.ticket != ticket);
                self.to_advance.push(want.line);
            }
        }
    }

    /// Lets those calls ask that may now, and removes the lines that are empty.
    fn advance(&mut self, now: Instant) {
        while let Some(key) = self.to_advance.pop() {
            let Some(line) = self.lines.get(&key) else {
                continue;
            };
            match line.standing.keys().next().copied() {
                // It notes the lines that change, also this one.
                Some(first) => self.try_start(first, now),
                None if line.asking.is_empty() => drop(self.lines.remove(&key)),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limiter::RateLimiter;
    use crate::limiter::level::Level;
    use crate::quota::Quota;
    use crate::store::MemoryStore;

    #[test]
    fn the_more_keys_calls_wait_for_the_less_often_a_process_looks_at_each() {
        let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1));
        let (lines, wait) = (Lines::default(), Arc::new(PermitWait::begin([])));
        let mut looked_at = Vec::new();
        for key in 0..1_000_u32 {
            let want = Level::new(&limiter, key, 1).want();
            let none = Room::least_of([(true, 0)]);
            let (before, wait) = (Instant::now(), Arc::downgrade(&wait));
            let refused = [(want, Some(none), Some(Duration::ZERO))];
            lines.take_in(lines.ticket(), &refused, Some(&wait), &mut Woken::default());
            let polls_at = lines.with(|state| state.lines.get(&want.line)?.polls_at);
            looked_at.push(polls_at.unwrap().saturating_duration_since(before));
        }
        // Each is between half of the mean and half more.
        let of = |index: usize| looked_at[index].as_secs_f64() * 1_000.0;
        assert!(of(0) >= 12.0 && of(99) >= 12.0, "{looked_at:?}");
        assert!(of(999) >= 125.0, "{looked_at:?}");
    }
}
