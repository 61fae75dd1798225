//! The lines of this process: which of the calls that wait for units or slots may ask the store now.
//!
//! A call stands in the lines of the keys that it lacks, as far as is known: others may have its other keys meanwhile, until its
//! patience ends. The first of a line asks the store, and with it those that fit into what the last answer left. The others sleep.
//! All changes are made under one lock; nothing here asks, spawns, or has a timer.
//!
//! A call that is told to ask asks from then on: what it asks for is left for no later one, though its task runs later.
//!
//! The answers about slots are taken in by those who took the message in, not by the call: so it stands in its line before
//! the next message is made, and no later call gets its slots.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Weak};
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime;
use tokio::time::Instant;

use super::line_key::LineKey;
use super::patience::Patience;
use super::standing::{Standing, Ticket};
use crate::key::{Fingerprint, HashFingerprint};
use crate::lock::Mutex;
#[cfg(tollgate_simulation)]
use crate::planted::is_planted;
use crate::random::jittered;
use crate::telemetry::PermitWait;

/// The longest wait before a refused call asks again: others may give units back, or an operator may unblock the key.
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// The longest time between two calls after a pause. The rate of a daily limit says little about the next minute.
pub(super) const MAX_STEP: Duration = Duration::from_secs(1);

/// The time after which a call lets others pass if its task has something to do and does not move: its thread or its runtime
/// is blocked.
const IDLE: Duration = Duration::from_secs(1);

/// The time between two looks of a process, over all calls of a line. With more than ten thousand, each looks less often than
/// once a second.
const LOOK_OF_ANY: Duration = Duration::from_micros(100);

/// The mean time between two looks whether other processes have given slots back. Each is between half of it and half more.
const POLL: Duration = Duration::from_millis(25);

/// The mean time between two looks of a process, over all of its lines. With more than a hundred lines, each looks less often
/// than every 25 ms.
const POLL_OF_ANY: Duration = Duration::from_micros(250);

/// The time between two looks at all calls of a line for those whose turn certainly comes too late.
const FORECAST: Duration = Duration::from_secs(1);

/// How long a process whose calls wait takes each slot again that it gives back. Then other processes may get one, until its
/// next look. So it is without its slots for about 2.5 % of the time.
const KEPT: Duration = Duration::from_secs(1);

/// The lines of all stores. A line exists only while calls wait in it.
pub(in crate::limiter) static LINES: LazyLock<Lines> = LazyLock::new(Lines::default);

#[derive(Default)]
pub(in crate::limiter) struct Lines {
    state: Mutex<LinesState>,
    latest_ticket: AtomicU64,
    /// The calls in lines. While there are none, nothing is locked.
    waiting: AtomicUsize,
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

/// The bounds of the wait of a call.
#[derive(Clone, Copy)]
pub(in crate::limiter) struct WaitBounds {
    /// The time at which it gives up.
    pub(super) until: Instant,
    /// How many calls may wait for a key.
    pub(super) max_calls: usize,
    /// The longest time that an attempt takes.
    pub(super) longest_attempt: Duration,
}

/// The wait for slots of a call, which stands in line as soon as a message is refused.
#[derive(Clone)]
pub(in crate::limiter) struct SlotWait {
    /// It waits as long as this is there: a task that asks for several groups may outlive its caller.
    pub(super) wait: Weak<PermitWait>,
    pub(super) bounds: WaitBounds,
}

/// Why a call waits no longer: this key has no room for it in time.
#[derive(Clone, Copy)]
pub(crate) struct TooLate {
    pub(in crate::limiter) line: LineKey,
    /// The time before which the call is certainly not admitted. If that is unknown, the one that the last refusal suggests.
    pub(in crate::limiter) wait: Duration,
    pub(in crate::limiter) why: WhyTooLate,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhyTooLate {
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

/// A call that the store has refused.
pub(super) struct RefusedCall<'a> {
    pub(super) wants: Wants,
    pub(super) bounds: WaitBounds,
    pub(super) refusals: &'a [(Want, Refusal)],
    /// The keys that had room for it.
    pub(super) with_room: &'a [Want],
    /// When it will fit, unless it lacks slots.
    pub(super) fits_at: Option<Instant>,
}

/// The last refusal of a line.
#[derive(Clone, Copy)]
pub(super) struct Refusal {
    /// The call that was refused, and when it will fit.
    pub(super) ticket: Ticket,
    pub(super) fits_at: Option<Instant>,
    /// The limit and the window of the quota that refused, unless the key is blocked.
    pub(super) rate: Option<(u32, Duration)>,
    /// The time between two units after the end of the pause, if an upstream has paused the key.
    pub(super) step: Option<Duration>,
}

type LineMap = HashMap<LineKey, Line, HashFingerprint>;

#[derive(Default)]
pub(super) struct LinesState {
    lines: LineMap,
    calls: HashMap<Ticket, Call>,
    /// The lines whose first call may ask now.
    to_advance: Vec<LineKey>,
    /// Woken when the lock is free: a waker may drop a task, and with it a place in a line.
    wakers: Vec<Waker>,
}

#[derive(Default)]
struct Line {
    /// Those that ask just now are not among them.
    standing: Standing,
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
    /// When a refusal has all calls looked at next.
    forecast_at: Option<Instant>,
    /// The wait for slots that the last refusal has suggested.
    suggested_wait: Duration,
    after_pause: Option<AfterPause>,
}

/// The rate of the calls that have waited for the end of a pause: at once, they would provoke the next one.
struct AfterPause {
    /// The time between two units.
    step: Duration,
    /// When the next call asks.
    next_at: Instant,
    /// The last call that has waited for the end of the pause. `None` until the end.
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
    bounds: WaitBounds,
    phase: Phase,
    patience: Patience,
    /// The key that has refused it last. That line may be gone.
    refused_at: Option<TooLate>,
    waker: Option<Waker>,
    runtime: Option<runtime::Id>,
}

#[derive(Clone, Copy)]
enum Phase {
    /// Asks as soon as it is first.
    Ready,
    /// Asks at this time, if it is first.
    Asleep(Instant),
    /// It is first. It asks at this time, or as soon as slots are free.
    Next(Instant),
    /// Its task is to do something since then: to ask, or to take in that a message was refused.
    Told(Instant),
    /// Its task asks since then.
    Asking(Instant),
    /// Others go before it until it is polled.
    Aside,
    /// It waits no longer. Its task has not taken that in.
    TooLate(TooLate),
}

impl Lines {
    pub(in crate::limiter) fn ticket(&self) -> Ticket {
        self.latest_ticket.fetch_add(1, Ordering::Relaxed)
    }

    pub(in crate::limiter) fn are_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Returns whether an earlier call waits for any of this, also if it was told to ask.
    pub(in crate::limiter) fn is_behind(
        &self,
        ticket: Ticket,
        mut wants: impl Iterator<Item = Want>,
    ) -> bool {
        #[cfg(tollgate_simulation)]
        if is_planted("NewcomerAsks") {
            return false;
        }
        if self.are_empty() {
            return false;
        }
        self.with(|state| {
            wants.any(|want| {
                let line = state.lines.get(&want.line);
                line.is_some_and(|line| line.has_before(ticket, want.needs))
            })
        })
    }

    /// Takes in that a call asks for this: it is not left for a later one. Those in line had that taken in when they were told.
    pub(in crate::limiter) fn ask(&self, ticket: Ticket, wants: impl Iterator<Item = Want>) {
        if self.are_empty() {
            return;
        }
        self.with(|state| {
            for want in wants {
                if let Some(line) = state.lines.get_mut(&want.line)
                    && !line.asks(ticket)
                {
                    line.room = line.room.without(want.needs);
                }
            }
        });
    }

    /// Takes in the answer to a call: what it left of each key, and the waits that those suggest that have refused it. A refused
    /// call that waits stands in their lines, so that no later one asks before it.
    pub(in crate::limiter) fn take_in(
        &self,
        ticket: Ticket,
        answers: &[(Want, Option<Room>, Option<Duration>)],
        wait: Option<&SlotWait>,
        woken: &mut Woken,
    ) {
        let is_refused = answers.iter().any(|(.., refused)| refused.is_some());
        if self.are_empty() && !(is_refused && wait.is_some()) {
            return;
        }
        let now = Instant::now();
        let was_asked = answers.iter().any(|(_, left, _)| left.is_some());
        self.change(woken, |state| {
            if !was_asked {
                state.return_part(ticket);
            }
            let waiting = wait.filter(|wait| is_refused && wait.wait.strong_count() > 0);
            let is_new = match waiting {
                Some(waiting) => state.keep_refused(ticket, answers, waiting.bounds, now),
                None => {
                    state.remove(ticket);
                    false
                }
            };
            state.take_in_answers(ticket, answers, waiting.is_some(), now);
            if is_new {
                state.came_to_wait(ticket, now);
            }
            state.end_if_too_late(ticket, now);
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

    pub(super) fn with<T>(&self, change: impl FnOnce(&mut LinesState) -> T) -> T {
        self.change(&mut Woken::default(), change)
    }

    /// Changes the state. Adds those that may ask now: to wake one may drop a permit.
    fn change<T>(&self, woken: &mut Woken, change: impl FnOnce(&mut LinesState) -> T) -> T {
        let mut state = self.state.lock();
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

    fn with(self, returned: Self) -> Self {
        Self {
            units: self.units.saturating_add(returned.units),
            slots: self.slots.saturating_add(returned.slots),
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
    fn asks(&self, ticket: Ticket) -> bool {
        self.asking.iter().any(|asking| asking.ticket == ticket)
    }

    /// Returns whether an earlier call stands here, or asks for what is left. A call that asks has its part of that.
    fn has_before(&self, ticket: Ticket, needs: Room) -> bool {
        if self.standing.has_earlier(ticket) {
            return true;
        }
        let has_room = self.room.holds(needs);
        let asks_before = |asking: &Asking| {
            let is_earlier = asking.ticket < ticket;
            is_earlier && (asking.is_trial || !has_room)
        };
        !self.asks(ticket) && self.asking.iter().any(asks_before)
    }

    fn has_room(&self, needs: Room) -> bool {
        // The units after a pause have their pace. Slots have none: all would ask at once, in any order.
        let has_pace = self.after_pause.is_some() && needs.slots == 0;
        has_pace || self.asking.is_empty() || (self.room.holds(needs) && !self.has_trial())
    }

    /// Answers leave a rate that has refused without units. It has some again when the wait of that refusal is over, until the next
    /// call asks.
    fn is_known_to_hold(&self, needs: Room, now: Instant) -> bool {
        let fits_at = self.refusal.and_then(|refusal| refusal.fits_at);
        let has_units_again = fits_at.is_some_and(|fits_at| fits_at <= now);
        let has_units = has_units_again || self.room.units >= needs.units;
        has_units && self.room.slots >= needs.slots
    }

    fn has_trial(&self) -> bool {
        self.asking.iter().any(|asking| asking.is_trial)
    }

    fn has_later_trial(&self, ticket: Ticket) -> bool {
        let mut later = self.asking.iter().filter(|asking| ticket < asking.ticket);
        later.any(|asking| asking.is_trial)
    }

    fn keeps_first_waiting(&self, needs: Room, now: Instant) -> bool {
        !self.has_room(needs) || self.asked_at(needs) > Some(now)
    }

    fn keeps_standing(&self, ticket: Ticket, needs: Room, now: Instant) -> bool {
        self.standing.contains(ticket) && self.keeps_first_waiting(needs, now)
    }

    /// No call asks for this before that time.
    fn asked_at(&self, needs: Room) -> Option<Instant> {
        let polls_at = self.polls_at.filter(|_| self.room.slots < needs.slots);
        let slots_at = polls_at.max(self.yields_until);
        let after_pause = self.after_pause.as_ref();
        let next_at = after_pause.map(|after| after.next_at);
        next_at.max(slots_at.filter(|_| needs.slots > 0))
    }

    fn lacks_room(&self, ticket: Ticket, needs: Room, now: Instant) -> bool {
        self.standing.has_earlier(ticket)
            || !self.room.holds(needs)
            || self.asked_at(needs) > Some(now)
    }

    /// Ends the rate after a pause when the calls that have waited for its end have asked.
    fn end_pause_before(&mut self, ticket: Ticket) {
        self.after_pause
            .take_if(|after| after.last.is_some_and(|last| last < ticket));
    }

    fn start(&mut self, ticket: Ticket, needs: Room, now: Instant) {
        self.standing.remove(ticket);
        let is_trial = !self.room.holds(needs);
        self.asking.push(Asking { ticket, is_trial });
        self.room = self.room.without(needs);
        if let Some(refusal) = &mut self.refusal {
            refusal.fits_at.take_if(|fits_at| *fits_at <= now);
        }
        if let Some(after) = &mut self.after_pause {
            let latest = self.standing.last().unwrap_or(ticket);
            after.last.get_or_insert(latest);
            after.next_at = now + after.step.saturating_mul(needs.units).min(MAX_STEP);
        }
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

    /// Returns the time before which a call behind so many units is certainly not admitted: within a window, no more than the
    /// limit is, and a burst of as much may come first.
    fn earliest(&self, ahead: u64, units: u32, now: Instant) -> Option<Instant> {
        let refusal = self.refusal?;
        let is_first = self.standing.first() == Some(refusal.ticket);
        let first_fits_at = refusal.fits_at.filter(|_| is_first);
        let by_rate = refusal.rate.and_then(|(limit, window)| {
            let units = (ahead + u64::from(units)).saturating_sub(1);
            let windows = units.checked_div(limit.into())?.saturating_sub(1);
            let begins_at = first_fits_at.map_or(now, |fits_at| fits_at.max(now));
            begins_at.checked_add(window.checked_mul(u32::try_from(windows).ok()?)?)
        });
        by_rate.or(first_fits_at)
    }

    /// The units before a call that stands here are known only for the last one.
    fn earliest_for(&self, ticket: Ticket, now: Instant) -> Option<Instant> {
        let ahead = self.standing.units_before_last(ticket).unwrap_or(0);
        self.earliest(ahead, self.standing.wanted_units(ticket), now)
    }

    /// Returns the time before which a call is certainly not admitted, or else the wait that the last refusal suggests.
    fn wait(&self, ticket: Ticket, now: Instant) -> Duration {
        match self.earliest_for(ticket, now) {
            Some(earliest) => earliest.saturating_duration_since(now),
            None => self.suggested_wait,
        }
    }
}

impl Call {
    fn new(wants: Wants, bounds: WaitBounds, phase: Phase) -> Self {
        Self {
            wants,
            bounds,
            phase,
            patience: Patience::default(),
            refused_at: None,
            waker: None,
            runtime: None,
        }
    }

    /// `None` if it stands where it lacks room, instead of at all its keys.
    fn stands_at_all_until(&mut self, now: Instant) -> Option<Instant> {
        self.patience.stands_at_all_until(self.wants.len(), now)
    }

    /// Returns whether its task does not move although it could. An attempt ends with its reply, or with the deadline of the
    /// store.
    fn is_idle(&self, now: Instant) -> bool {
        let since = match self.phase {
            Phase::Asleep(since) | Phase::Next(since) | Phase::Told(since) => since,
            #[cfg(tollgate_simulation)]
            Phase::Asking(since) if is_planted("AskingIsIdle") => since,
            Phase::Asking(since) => since + self.bounds.longest_attempt,
            Phase::Ready | Phase::Aside | Phase::TooLate(_) => return false,
        };
        now > since + IDLE
    }

    fn find_obstacle(&self, ticket: Ticket, lines: &mut LineMap, now: Instant) -> Obstacle {
        let mut is_behind = false;
        let mut has_room = true;
        let mut next_at = None;
        for want in &self.wants {
            if let Some(line) = lines.get_mut(&want.line) {
                line.end_pause_before(ticket);
                next_at = next_at.max(line.asked_at(want.needs));
                is_behind |= line.standing.has_earlier(ticket);
                has_room &= line.has_room(want.needs);
            }
        }
        #[cfg(tollgate_simulation)]
        let is_behind = is_behind && !is_planted("LaterOvertakes");
        let next_at = next_at.filter(|next_at| now < *next_at);
        if is_behind {
            Obstacle::Behind
        } else if let Some(next_at) = next_at {
            Obstacle::Until(next_at)
        } else if has_room {
            Obstacle::None
        } else {
            Obstacle::LacksRoom
        }
    }

    /// Stands where it has to, and leaves its other lines to the calls behind it.
    fn keep_waiting(
        &mut self,
        ticket: Ticket,
        is_behind: bool,
        lines: &mut LineMap,
        to_advance: &mut Vec<LineKey>,
        now: Instant,
    ) {
        if self.stands_at_all_until(now).is_some() {
            for want in &self.wants {
                let line = lines.entry(want.line).or_default();
                line.standing.insert(ticket, want.needs.units);
            }
            return;
        }
        let is_kept = self.wants.iter().any(|want| {
            let line = lines.get(&want.line);
            line.is_some_and(|line| line.keeps_standing(ticket, want.needs, now))
        });
        for want in &self.wants {
            let Some(line) = lines.get_mut(&want.line) else {
                continue;
            };
            // A call that is behind others for one key keeps nobody from its other keys. If it lacks room where it
            // stands, it comes to no further line: it would stop those that were told to ask there.
            let stands = if is_behind {
                line.standing.has_earlier(ticket)
            } else if is_kept {
                line.keeps_standing(ticket, want.needs, now)
            } else {
                line.keeps_first_waiting(want.needs, now)
            };
            if stands {
                line.standing.insert(ticket, want.needs.units);
                continue;
            }
            if line.standing.remove(ticket) {
                to_advance.push(want.line);
            }
            if line.is_known_to_hold(want.needs, now) && !line.keeps_first_waiting(want.needs, now)
            {
                self.patience.let_pass(want.line, now);
            }
        }
    }

    /// Tells the call to ask. What it asks for is left for no later one.
    fn start(
        &mut self,
        ticket: Ticket,
        lines: &mut LineMap,
        to_advance: &mut Vec<LineKey>,
        now: Instant,
    ) {
        for want in &self.wants {
            if let Some(line) = lines.get_mut(&want.line) {
                line.start(ticket, want.needs, now);
                to_advance.push(want.line);
            }
        }
        self.phase = Phase::Told(now);
    }
}

/// Whether a call may ask, or else what keeps it waiting.
enum Obstacle {
    None,
    /// An earlier call stands in one of its lines.
    Behind,
    /// No call asks before this time.
    Until(Instant),
    LacksRoom,
}

impl LinesState {
    pub(super) fn has_line(&self, wants: &Wants) -> bool {
        wants.iter().any(|want| self.lines.contains_key(&want.line))
    }

    /// A call that asks nothing of a key waits only in the time after a pause.
    pub(super) fn may_wait_for(&self, want: &Want) -> bool {
        let line = self.lines.get(&want.line);
        want.needs.is_any() || line.is_some_and(|line| line.after_pause.is_some())
    }

    pub(super) fn join(&mut self, ticket: Ticket, wants: Wants, bounds: WaitBounds, now: Instant) {
        let call = Call::new(wants, bounds, Phase::Ready);
        self.calls.insert(ticket, call);
        self.stand(ticket);
        self.came_to_wait(ticket, now);
        self.end_if_too_late(ticket, now);
    }

    /// Lets a refused call stand in the lines of the keys that have refused it, until `fits_at`, but for at most a second. `None`
    /// if it lacks slots. Fails if too many calls wait.
    pub(super) fn stand_refused(
        &mut self,
        ticket: Ticket,
        refused: RefusedCall<'_>,
        now: Instant,
    ) -> Result<(), WhyTooLate> {
        let RefusedCall {
            wants,
            bounds,
            refusals,
            with_room,
            fits_at,
        } = refused;
        self.verify_waits(ticket)?;
        self.take_out(ticket);
        let phase = fits_at.map_or(Phase::Ready, |fits_at| {
            Phase::Asleep(fits_at.min(now + MAX_BACKOFF))
        });
        let known = self.calls.remove(&ticket);
        let is_new = known.is_none();
        let mut call = Call::new(wants, bounds, phase);
        if let Some(known) = known {
            call.patience = known.patience;
            self.wakers.extend(known.waker);
        }
        for want in with_room {
            call.patience.let_pass(want.line, now);
        }
        let stands_until = call.stands_at_all_until(now);
        // A wait that is longer would keep others waiting in vain.
        let stands_at_all = stands_until >= Some(fits_at.unwrap_or(now));
        self.calls.insert(ticket, call);
        if stands_at_all {
            self.stand_at_all(ticket);
        }
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
                let next_at = line.after_pause.as_ref().map_or(now, |after| after.next_at);
                line.after_pause = Some(AfterPause {
                    step,
                    next_at,
                    last: None,
                });
            }
        }
        let refused_at = refusals
            .iter()
            .map(|(want, _)| self.too_late(ticket, want.line, WhyTooLate::WaitOver, now))
            .max_by_key(|too_late| too_late.wait);
        if let Some(call) = self.calls.get_mut(&ticket) {
            call.refused_at = refused_at;
        }
        if is_new {
            self.came_to_wait(ticket, now);
        }
        self.end_if_too_late(ticket, now);
        for (want, _) in refusals {
            self.forecast(want.line, now);
        }
        self.advance(now);
        self.verify_waits(ticket)
    }

    /// Keeps a call whose message was refused, and lets it stand at all its keys if its patience has ended. Returns whether it is
    /// new here.
    fn keep_refused(
        &mut self,
        ticket: Ticket,
        answers: &[(Want, Option<Room>, Option<Duration>)],
        bounds: WaitBounds,
        now: Instant,
    ) -> bool {
        self.take_out(ticket);
        let is_new = !self.calls.contains_key(&ticket);
        let call = self.calls.entry(ticket).or_insert_with(|| {
            let wants = answers.iter().map(|(want, ..)| *want).collect();
            Call::new(wants, bounds, Phase::Ready)
        });
        call.phase = Phase::Told(now);
        if call.stands_at_all_until(now).is_some() {
            self.stand_at_all(ticket);
        }
        is_new
    }

    /// Takes in the room and the waits that answers have left in each line. A call that `waits` stands where it was refused.
    fn take_in_answers(
        &mut self,
        ticket: Ticket,
        answers: &[(Want, Option<Room>, Option<Duration>)],
        waits: bool,
        now: Instant,
    ) {
        let lines = u32::try_from(self.lines.len()).unwrap_or(u32::MAX);
        let poll = POLL.max(POLL_OF_ANY.saturating_mul(lines));
        for (want, left, refused) in answers {
            if waits && refused.is_some() {
                let line = self.lines.entry(want.line).or_default();
                line.standing.insert(ticket, want.needs.units);
            }
            let Some(line) = self.lines.get_mut(&want.line) else {
                continue;
            };
            if let Some(suggested) = refused {
                line.suggested_wait = *suggested;
            }
            if let Some(left) = left {
                line.take_in(*left);
                line.polls_at = Some(now + jittered(poll));
                self.to_advance.push(want.line);
            }
        }
    }

    fn verify_waits(&self, ticket: Ticket) -> Result<(), WhyTooLate> {
        match self.calls.get(&ticket).map(|call| call.phase) {
            Some(Phase::TooLate(TooLate {
                why: WhyTooLate::QueueFull,
                ..
            })) => Err(WhyTooLate::QueueFull),
            _ => Ok(()),
        }
    }

    /// Ends the wait of the last call of each line in which a new one stands, if too many wait there. A call that waits already
    /// ends no wait when it comes to stand at a further key: its own lines have counted it.
    fn came_to_wait(&mut self, ticket: Ticket, now: Instant) {
        for want in self.wants(ticket) {
            if let Some(last) = self.beyond_bound(want.line) {
                self.end_wait(last, want.line, WhyTooLate::QueueFull, now);
            }
        }
    }

    fn end_if_too_late(&mut self, ticket: Ticket, now: Instant) {
        for want in self.wants(ticket) {
            if self.is_too_late(ticket, want.line, now) {
                self.end_wait(ticket, want.line, WhyTooLate::TurnTooLate, now);
            }
        }
    }

    fn wants(&self, ticket: Ticket) -> Wants {
        self.calls
            .get(&ticket)
            .map_or_else(Wants::new, |call| call.wants.clone())
    }

    /// The last call of a line, if it has come although too many wait. So an earlier one has the place of the last.
    fn beyond_bound(&self, key: LineKey) -> Option<Ticket> {
        let line = self.lines.get(&key)?;
        let last = line.standing.last()?;
        let max_calls = self.calls.get(&last)?.bounds.max_calls;
        let waiting = line.standing.len() + line.asking.len();
        (waiting > max_calls).then_some(last)
    }

    fn is_too_late(&self, ticket: Ticket, key: LineKey, now: Instant) -> bool {
        let earliest = self
            .lines
            .get(&key)
            .filter(|line| line.standing.contains(ticket))
            .and_then(|line| line.earliest_for(ticket, now));
        let call = self.calls.get(&ticket);
        call.zip(earliest)
            .is_some_and(|(call, earliest)| call.bounds.until < earliest)
    }

    /// Ends the waits of all calls of a line whose turn certainly comes too late. At most once a second: it looks at all of them.
    fn forecast(&mut self, key: LineKey, now: Instant) {
        let Some(line) = self.lines.get_mut(&key) else {
            return;
        };
        if line.forecast_at.is_some_and(|at| now < at) {
            return;
        }
        line.forecast_at = Some(now + FORECAST);
        let mut ahead = 0;
        let mut late = Vec::new();
        for (ticket, units) in line.standing.iter() {
            let earliest = line.earliest(ahead, units, now);
            let until = self.calls.get(&ticket).map(|call| call.bounds.until);
            match earliest {
                Some(earliest) if until < Some(earliest) => late.push((ticket, earliest)),
                _ => ahead += u64::from(units),
            }
        }
        for (ticket, earliest) in late {
            let too_late = TooLate {
                line: key,
                wait: earliest.saturating_duration_since(now),
                why: WhyTooLate::TurnTooLate,
            };
            self.step_out(ticket, Phase::TooLate(too_late));
        }
    }

    fn end_wait(&mut self, ticket: Ticket, key: LineKey, why: WhyTooLate, now: Instant) {
        let too_late = self.too_late(ticket, key, why, now);
        self.step_out(ticket, Phase::TooLate(too_late));
    }

    fn too_late(&self, ticket: Ticket, key: LineKey, why: WhyTooLate, now: Instant) -> TooLate {
        let line = self.lines.get(&key);
        TooLate {
            line: key,
            wait: line.map_or(Duration::ZERO, |line| line.wait(ticket, now)),
            why,
        }
    }

    /// Ends the wait of a call whose time is over: by the key that it lacks, or else by the one that has refused it last, or by the
    /// one with the longest wait. `None` if there is no line of its keys.
    fn wait_over(&self, ticket: Ticket, now: Instant) -> Option<TooLate> {
        let call = self.calls.get(&ticket)?;
        let (is_certain, longest) = call
            .wants
            .iter()
            .filter_map(|want| {
                let line = self.lines.get(&want.line)?;
                let lacks_room = line.lacks_room(ticket, want.needs, now);
                // A later call asks there without knowing of room, and its part of it may come back.
                let is_certain = lacks_room && !line.has_later_trial(ticket);
                let too_late = self.too_late(ticket, want.line, WhyTooLate::WaitOver, now);
                Some((is_certain, too_late))
            })
            .max_by_key(|(is_certain, too_late)| (*is_certain, too_late.wait))?;
        let last = call.refused_at.filter(|_| !is_certain);
        Some(last.unwrap_or(longest))
    }

    /// Takes in that units of a key were given back in this process: the first call asks whether that is enough for it.
    pub(super) fn returned(&mut self, key: LineKey, now: Instant) {
        let Some(line) = self.lines.get_mut(&key) else {
            return;
        };
        if line.after_pause.is_some() {
            // A pause does not end because units are left.
            return;
        }
        if let Some(refusal) = &mut line.refusal {
            refusal.fits_at = None;
        }
        let first = line.standing.first();
        if let Some(call) = first.and_then(|first| self.calls.get_mut(&first)) {
            call.phase = Phase::Ready;
        }
        self.to_advance.push(key);
        self.advance(now);
    }

    pub(super) fn forget_room(&mut self, key: LineKey) {
        if let Some(line) = self.lines.get_mut(&key) {
            line.room.units = 0;
            if let Some(least) = &mut line.least {
                least.units = 0;
            }
        }
    }

    pub(super) fn leave(&mut self, ticket: Ticket, now: Instant) {
        #[cfg(tollgate_simulation)]
        if is_planted("GoneBlocks") {
            return;
        }
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
        waker: &Waker,
        runtime: Option<runtime::Id>,
        now: Instant,
    ) -> Turn {
        let Some(call) = self.calls.get_mut(&ticket) else {
            return Turn::Ask;
        };
        let known = call.waker.as_ref();
        if !known.is_some_and(|known| known.will_wake(waker)) {
            self.wakers.extend(call.waker.replace(waker.clone()));
        }
        call.runtime = runtime;
        if let Phase::Aside = call.phase {
            call.phase = Phase::Ready;
            self.stand(ticket);
        }
        self.try_start(ticket, now);
        self.advance(now);
        self.pass_idle(ticket, now);
        if let Some(call) = self.calls.get_mut(&ticket)
            && let Phase::Told(_) = call.phase
        {
            call.phase = Phase::Asking(now);
        }
        let Some(call) = self.calls.get(&ticket) else {
            return Turn::Ask;
        };
        let looks_at = now + self.time_between_looks(call);
        let looks_again_at = match call.phase {
            Phase::Told(_) | Phase::Asking(_) => return Turn::Ask,
            Phase::TooLate(too_late) => return Turn::TooLate(too_late),
            Phase::Asleep(until) | Phase::Next(until) if until > now => until.min(looks_at),
            Phase::Asleep(_) | Phase::Next(_) | Phase::Ready | Phase::Aside => looks_at,
        };
        let until = call.bounds.until;
        if now < until {
            return Turn::Wait(looks_again_at.min(until));
        }
        // A call that no key keeps waiting asks.
        let over = self.wait_over(ticket, now);
        over.map_or(Turn::Ask, Turn::TooLate)
    }

    /// The time after which a call looks whether those before it move. Others in its lines do, too.
    fn time_between_looks(&self, call: &Call) -> Duration {
        let calls = call
            .wants
            .iter()
            .filter_map(|want| self.lines.get(&want.line))
            .map(|line| line.standing.len())
            .min()
            .unwrap_or(0);
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        IDLE.max(LOOK_OF_ANY.saturating_mul(calls))
    }

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
            Phase::Told(_) | Phase::Asking(_) | Phase::Aside | Phase::TooLate(_) => return,
            Phase::Asleep(until) if now < until => return,
            Phase::Asleep(_) | Phase::Next(_) | Phase::Ready => call.phase = Phase::Ready,
        }
        match call.find_obstacle(ticket, lines, now) {
            Obstacle::None => {
                call.start(ticket, lines, to_advance, now);
                wakers.extend(call.waker.take());
            }
            Obstacle::Behind => call.keep_waiting(ticket, true, lines, to_advance, now),
            Obstacle::LacksRoom => call.keep_waiting(ticket, false, lines, to_advance, now),
            Obstacle::Until(next_at) => {
                call.keep_waiting(ticket, false, lines, to_advance, now);
                call.phase = Phase::Next(next_at);
                if !matches!(before, Phase::Next(known) if known == next_at) {
                    wakers.extend(call.waker.take());
                }
            }
        }
    }

    /// Lets those calls stand aside that keep this one waiting and do not move: the one that asks, or the first one.
    fn pass_idle(&mut self, ticket: Ticket, now: Instant) {
        let Some(call) = self.calls.get(&ticket) else {
            return;
        };
        let own_runtime = call.runtime;
        for want in self.wants(ticket) {
            for idle in self.idle_before(ticket, own_runtime, want.line, now) {
                self.step_out(idle, Phase::Aside);
            }
        }
        self.advance(now);
    }

    /// The calls that keep this one waiting in a line and do not move. With a call of another runtime, these are all that stand
    /// here and are of that runtime: each alone would take a second.
    fn idle_before(
        &self,
        ticket: Ticket,
        own_runtime: Option<runtime::Id>,
        key: LineKey,
        now: Instant,
    ) -> Vec<Ticket> {
        let line = self.lines.get(&key);
        let Some(line) = line.filter(|line| line.standing.contains(ticket)) else {
            return Vec::new();
        };
        let mut idle: Vec<Ticket> = line
            .asking
            .iter()
            .map(|asking| asking.ticket)
            .chain(line.standing.first())
            .filter(|other| *other != ticket && self.is_idle(*other, now))
            .collect();
        let blocked: Vec<runtime::Id> = idle
            .iter()
            .filter_map(|idle| self.runtime(*idle))
            .filter(|runtime| Some(*runtime) != own_runtime)
            .collect();
        if !blocked.is_empty() {
            let blocked_with_it = line
                .standing
                .iter()
                .map(|(other, _)| other)
                .filter(|other| {
                    let runtime = self.runtime(*other);
                    runtime.is_some_and(|runtime| blocked.contains(&runtime))
                });
            idle.extend(blocked_with_it);
        }
        idle
    }

    fn is_idle(&self, ticket: Ticket, now: Instant) -> bool {
        let call = self.calls.get(&ticket);
        call.is_some_and(|call| call.is_idle(now))
    }

    fn runtime(&self, ticket: Ticket) -> Option<runtime::Id> {
        self.calls.get(&ticket)?.runtime
    }

    fn step_out(&mut self, ticket: Ticket, phase: Phase) {
        self.take_out(ticket);
        if let Some(call) = self.calls.get_mut(&ticket) {
            call.phase = phase;
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

    /// Lets a call stand in the lines of all its keys, also of those that have had none.
    fn stand_at_all(&mut self, ticket: Ticket) {
        let call = self.calls.get(&ticket);
        for want in call.into_iter().flat_map(|call| &call.wants) {
            let line = self.lines.entry(want.line).or_default();
            line.standing.insert(ticket, want.needs.units);
            self.to_advance.push(want.line);
        }
    }

    /// Returns to each line the part of its room that a call was told to ask for. It asks for nothing.
    fn return_part(&mut self, ticket: Ticket) {
        let call = self.calls.get(&ticket);
        for want in call.into_iter().flat_map(|call| &call.wants) {
            if let Some(line) = self.lines.get_mut(&want.line) {
                let has_part = line
                    .asking
                    .iter()
                    .any(|asking| asking.ticket == ticket && !asking.is_trial);
                if has_part {
                    line.room = line.room.with(want.needs);
                }
            }
        }
    }

    fn take_out(&mut self, ticket: Ticket) {
        let phase = self.calls.get(&ticket).map(|call| call.phase);
        if let Some(Phase::Told(_)) = phase {
            self.return_part(ticket);
        }
        let call = self.calls.get(&ticket);
        for want in call.into_iter().flat_map(|call| &call.wants) {
            if let Some(line) = self.lines.get_mut(&want.line) {
                line.standing.remove(ticket);
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
            match line.standing.first() {
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
    use crate::limiter::asked_level::AskedLevel;
    use crate::quota::Quota;
    use crate::store::MemoryStore;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn one_an_hour() -> Want {
        let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(1));
        AskedLevel::new(&limiter, "ada", 1).want()
    }

    fn refuse(
        lines: &Lines,
        (ticket, want): (Ticket, Want),
        bounds: WaitBounds,
        wait: Duration,
        now: Instant,
    ) -> Result<(), WhyTooLate> {
        let refusal = Refusal {
            ticket,
            fits_at: Some(now + wait),
            rate: Some((1, HOUR)),
            step: None,
        };
        let wants = Wants::from_buf_and_len([want; 2], 1);
        let refused = RefusedCall {
            wants,
            bounds,
            refusals: &[(want, refusal)],
            with_room: &[],
            fits_at: refusal.fits_at,
        };
        lines.with(|state| state.stand_refused(ticket, refused, now))
    }

    fn end_of_wait(lines: &Lines, ticket: Ticket, now: Instant) -> Option<(WhyTooLate, Duration)> {
        match lines.with(|state| state.poll(ticket, Waker::noop(), None, now)) {
            Turn::TooLate(too_late) => Some((too_late.why, too_late.wait)),
            Turn::Ask | Turn::Wait(_) => None,
        }
    }

    fn ended_calls(lines: &Lines, now: Instant) -> Vec<Ticket> {
        (2..=10)
            .filter(|call| end_of_wait(lines, *call, now).is_some())
            .collect()
    }

    #[test]
    fn once_a_second_a_refusal_ends_the_waits_of_all_whose_turn_comes_too_late() {
        let lines = Lines::default();
        let want = one_an_hour();
        let began = Instant::now();
        let bounds = WaitBounds {
            until: began + 2 * HOUR - Duration::from_secs(200),
            max_calls: usize::MAX,
            longest_attempt: IDLE,
        };
        // None is the last one when it comes, so that the units before it are not known.
        for ticket in (2..=10).rev() {
            assert!(refuse(&lines, (ticket, want), bounds, HOUR, began).is_ok());
        }
        let soon = began + FORECAST / 2;
        assert!(refuse(&lines, (2, want), bounds, HOUR - FORECAST / 2, soon).is_ok());
        assert!(ended_calls(&lines, soon).is_empty());
        let later = began + FORECAST;
        assert!(refuse(&lines, (2, want), bounds, HOUR - FORECAST, later).is_ok());
        // The first is in time. A rate may allow a burst, so the next one may be, too.
        assert_eq!(ended_calls(&lines, later), (4..=10).collect::<Vec<_>>());
        let (why, wait) = end_of_wait(&lines, 4, later).unwrap();
        assert!(matches!(why, WhyTooLate::TurnTooLate));
        assert_eq!(wait, 2 * HOUR - FORECAST);
        // Those that have left are not before the next one.
        lines.with(|state| (4..=10).for_each(|call| state.leave(call, later)));
        let patient = WaitBounds {
            until: began + 3 * HOUR,
            ..bounds
        };
        lines.with(|state| state.join(11, Wants::from_buf_and_len([want; 2], 1), patient, later));
        assert!(end_of_wait(&lines, 11, later).is_none());
        lines.with(|state| state.join(12, Wants::from_buf_and_len([want; 2], 1), bounds, later));
        let (_, wait) = end_of_wait(&lines, 12, later).unwrap();
        assert_eq!(wait, 3 * HOUR - FORECAST);
    }

    #[test]
    fn an_earlier_call_has_the_place_of_the_last_one_of_a_full_queue() {
        let lines = Lines::default();
        let want = one_an_hour();
        let now = Instant::now();
        let bounds = WaitBounds {
            until: now + 100 * HOUR,
            max_calls: 2,
            longest_attempt: IDLE,
        };
        let refuse = |ticket| refuse(&lines, (ticket, want), bounds, HOUR, now);
        assert!(refuse(3).is_ok() && refuse(5).is_ok());
        assert!(refuse(7) == Err(WhyTooLate::QueueFull));
        assert!(refuse(4).is_ok());
        let (why, _) = end_of_wait(&lines, 5, now).unwrap();
        assert!(why == WhyTooLate::QueueFull);
        assert!(end_of_wait(&lines, 3, now).is_none());
        assert!(end_of_wait(&lines, 4, now).is_none());
    }

    /// It was counted where it waits, so that no call that was told to wait is sent away for it.
    #[test]
    fn a_call_that_waits_already_ends_no_wait_at_a_further_key() {
        let lines = Lines::default();
        let now = Instant::now();
        let one = one_an_hour();
        let further = one_an_hour();
        let bounds = WaitBounds {
            until: now + 100 * HOUR,
            max_calls: 2,
            longest_attempt: IDLE,
        };
        let refuse = |ticket, want| refuse(&lines, (ticket, want), bounds, HOUR, now);
        assert!(refuse(1, one).is_ok());
        assert!(refuse(3, further).is_ok() && refuse(5, further).is_ok());
        assert!(refuse(1, further).is_ok());
        // A new one ends no other wait, either.
        assert!(refuse(7, further) == Err(WhyTooLate::QueueFull));
        for waiting in [1, 3, 5] {
            assert!(end_of_wait(&lines, waiting, now).is_none(), "{waiting}");
        }
    }

    #[test]
    fn slots_that_come_back_are_left_to_the_call_that_asks_although_it_may_lack_room() {
        let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(2));
        let want = AskedLevel::new(&limiter, "ada", 1).want();
        let both = Want {
            needs: Room { units: 0, slots: 2 },
            ..want
        };
        let lines = Lines::default();
        let now = Instant::now();
        let refusal = Refusal {
            ticket: 1,
            fits_at: None,
            rate: None,
            step: None,
        };
        let refused = RefusedCall {
            wants: Wants::from_buf_and_len([both; 2], 1),
            bounds: WaitBounds {
                until: now + HOUR,
                max_calls: usize::MAX,
                longest_attempt: IDLE,
            },
            refusals: &[(both, refusal)],
            with_room: &[],
            fits_at: None,
        };
        assert!(
            lines
                .with(|state| state.stand_refused(1, refused, now))
                .is_ok()
        );
        // It was told to ask.
        assert!(lines.returned_slots(want.line, 1, false, &mut Woken::default()));
        assert!(lines.is_behind(2, [want].into_iter()));
    }

    /// By then, it has left the line of the key that has refused it, which may have room again.
    #[test]
    fn a_wait_that_ends_while_a_later_call_asks_at_another_key_is_put_down_to_the_key_that_refused()
    {
        let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(2));
        let [full, free] = ["full", "free"].map(|key| AskedLevel::new(&limiter, key, 1).want());
        let two = Want {
            needs: Room { units: 0, slots: 2 },
            ..free
        };
        let lines = Lines::default();
        let wait = Arc::new(PermitWait::begin([]));
        let later = Instant::now() + 10 * POLL;
        let wait = SlotWait {
            wait: Arc::downgrade(&wait),
            bounds: WaitBounds {
                until: later,
                max_calls: usize::MAX,
                longest_attempt: IDLE,
            },
        };
        let left = |slots| {
            Some(Room {
                units: u32::MAX,
                slots,
            })
        };
        let suggested = Some(Duration::from_secs(5));
        let refused = [(full, left(0), suggested), (free, left(1), None)];
        lines.take_in(1, &refused, Some(&wait), &mut Woken::default());
        let behind = [(two, left(1), suggested)];
        lines.take_in(2, &behind, Some(&wait), &mut Woken::default());
        for (ticket, wants, refused, with_room) in [
            (1, [full, free].as_slice(), full, [free].as_slice()),
            (2, &[two], two, &[]),
        ] {
            let refusal = Refusal {
                ticket,
                fits_at: None,
                rate: None,
                step: None,
            };
            let refused = RefusedCall {
                wants: wants.into(),
                bounds: wait.bounds,
                refusals: &[(refused, refusal)],
                with_room,
                fits_at: None,
            };
            let now = Instant::now();
            let stands = lines.with(|state| state.stand_refused(ticket, refused, now));
            assert!(stands.is_ok());
        }
        let poll = |ticket| lines.with(|state| state.poll(ticket, Waker::noop(), None, later));
        assert!(matches!(poll(2), Turn::Ask));
        let Turn::TooLate(too_late) = poll(1) else {
            panic!("the wait goes on");
        };
        assert!(too_late.line == full.line);
        assert_eq!(too_late.wait, Duration::from_secs(5));
    }

    #[test]
    fn the_more_keys_calls_wait_for_the_less_often_a_process_looks_at_each() {
        let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1));
        let lines = Lines::default();
        let wait = Arc::new(PermitWait::begin([]));
        let mut looked_at = Vec::new();
        for key in 0..1_000_u32 {
            let want = AskedLevel::new(&limiter, key, 1).want();
            let none = Room::from_quotas([(true, 0)], false);
            let before = Instant::now();
            let refused = [(want, Some(none), Some(Duration::ZERO))];
            let wait = SlotWait {
                wait: Arc::downgrade(&wait),
                bounds: WaitBounds {
                    until: before + IDLE,
                    max_calls: usize::MAX,
                    longest_attempt: IDLE,
                },
            };
            lines.take_in(lines.ticket(), &refused, Some(&wait), &mut Woken::default());
            let polls_at = lines.with(|state| state.lines.get(&want.line)?.polls_at);
            looked_at.push(polls_at.unwrap().saturating_duration_since(before));
        }
        // Each is between half of the mean and half more.
        let half_a_poll = Duration::from_millis(12);
        assert!(looked_at[0] >= half_a_poll, "{looked_at:?}");
        assert!(looked_at[99] >= half_a_poll, "{looked_at:?}");
        assert!(
            looked_at[999] >= Duration::from_millis(125),
            "{looked_at:?}"
        );
    }
}
