//! One line for each key: the calls of a process that wait for units ask the store in the order of their arrival.
//!
//! Follows `src/limiter/line`, for keys with rates. Requests reach the store in the order in which they are sent; the calls take
//! in their answers in any order. What can happen at once happens before time passes, and a message takes at most a tick. So a
//! bound of ticks shows that no call waits without end.

use std::array::from_fn;

use stateright::{Model, Property};

use crate::case::{Case, set, with};

/// The ticks after which units return.
const WINDOW: u8 = 2;

/// The longest sleep before a refused call asks again.
const MAX_BACKOFF: u8 = 2;

/// The ticks after which a call lets others pass that was told to ask, and does not move; and between two looks of a call.
const IDLE: u8 = 2;

/// The ticks for which a call lets others pass before it stands at all its keys.
const PATIENCE: u8 = 2;

/// The most ticks of a message.
const MESSAGE: u8 = 1;

/// The same for a store whose replies take longer than a call may be idle.
const SLOW_MESSAGE: u8 = 3;

/// The ticks in which every call is admitted while units come, with messages of one tick: for each call of the line a window, a
/// round trip and a look; and once more for each disturbance.
const LONGEST_WAIT: u8 = 24;

const KEYS: usize = 2;

/// One number for each key.
type PerKey = [u8; KEYS];

#[derive(Clone, Debug)]
struct OneLine {
    limits: PerKey,
    /// The units that each call wants of each key. They may arrive in any order.
    wants: Vec<PerKey>,
    /// The units of each key that never return, as those of a tenant at its own limit.
    taken: PerKey,
    /// How many units other processes take.
    others: u8,
    /// How many calls give up.
    leavers: u8,
    /// How many calls have a task that is not polled any more.
    stalls: u8,
    /// The most ticks of a message, which is the deadline of the store.
    message: u8,
    fault: Option<Fault>,
}

/// A rule of the line that is left out, to see that a promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A call that fits asks, although an earlier one stands before it.
    LaterOvertakes,
    /// A new call asks, although there is a line.
    NewcomerAsks,
    /// A call that is refused goes to the end of the line.
    PlaceLost,
    /// The units that calls ask for stay in the room of the line.
    RoomNotReduced,
    /// A call that does not move keeps its place.
    IdleBlocks,
    /// A call that asks for as long as one that was told to ask may be idle loses its place.
    AskingIsIdle,
    /// A call that gives up stays in the line.
    GoneBlocks,
    /// A call that waits for one key stands in the lines of all.
    StandsEverywhere,
    /// A call lets others pass for ever, though each of its keys has had room for it.
    EndlessPatience,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// The charges that count: their age and their units.
    log: Vec<(u8, PerKey)>,
    lines: [Option<Line>; KEYS],
    calls: Vec<Call>,
    /// The calls whose requests are on their way.
    requests: Vec<usize>,
    /// The lines whose first call may ask now. None between two actions.
    to_advance: [bool; KEYS],
    others: u8,
    leavers: u8,
    stalls: u8,
    is_overtaken: bool,
}

/// A line, which exists while calls stand in it or ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Line {
    room: u8,
    least: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Call {
    wants: PerKey,
    /// The order of arrival, and the number by which it stands in line.
    arrived: u8,
    ticket: u8,
    phase: Phase,
    stands_in: [bool; KEYS],
    /// The lines in which it stood before it asked.
    stood_in: [bool; KEYS],
    /// The lines in which it asks, and whether there may be too little room.
    asks_in: [Option<bool>; KEYS],
    /// The keys that had room for it while it lacked another one, the ticks since the first of these, and those for which it stands
    /// at all its keys.
    let_pass: [bool; KEYS],
    patient: Option<u8>,
    holds: Option<u8>,
    /// The earlier calls that waited for a key of it when it asked.
    behind: u8,
    message: Option<Message>,
    /// The ticks since its last look, those for which it could have moved, and those since its arrival.
    looked: u8,
    idle: u8,
    waited: u8,
    is_stalled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Away,
    /// Asks without a place in a line, as there was none.
    Direct,
    Ready,
    Asleep(u8),
    /// It is to ask. Its task has not been polled.
    Told,
    Asking,
    Aside,
    Admitted,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Message {
    age: u8,
    answer: Option<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Answer {
    left: PerKey,
    /// The keys that have refused it, and the ticks until it fits. None if it is admitted.
    refused_by: [bool; KEYS],
    wait: u8,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Tick,
    /// A call comes, and asks or joins a line.
    Arrive(usize),
    /// The task of a call is polled.
    Poll(usize),
    /// The store decides the first request.
    Decide,
    /// A call takes in its answer.
    TakeIn(usize),
    GiveUp(usize),
    /// The task of a call is not polled any more.
    Stall(usize),
    /// Another process takes a unit.
    Take(usize),
}

impl Call {
    fn new(wants: PerKey) -> Self {
        Self {
            wants,
            arrived: 0,
            ticket: 0,
            phase: Phase::Away,
            stands_in: [false; KEYS],
            stood_in: [false; KEYS],
            asks_in: [None; KEYS],
            let_pass: [false; KEYS],
            patient: None,
            holds: None,
            behind: 0,
            message: None,
            looked: 0,
            idle: 0,
            waited: 0,
            is_stalled: false,
        }
    }

    /// Returns whether it has a place in a line.
    fn is_in_line(&self) -> bool {
        matches!(
            self.phase,
            Phase::Ready | Phase::Asleep(_) | Phase::Told | Phase::Asking | Phase::Aside
        )
    }

    fn is_waiting(&self) -> bool {
        self.is_in_line() || self.phase == Phase::Direct
    }

    /// Takes in that it lets others pass at a key, which has room for it.
    fn let_pass(&mut self, key: usize) {
        self.patient.get_or_insert(0);
        set(&mut self.let_pass, key, true);
    }

    /// Ends its patience if each of its keys had room for it, but not all in one moment: then it stands at all of them, for as long
    /// as it has let others pass. Returns for how long.
    fn end_patience(&mut self) -> Option<u8> {
        if self.holds == Some(0) {
            self.holds = None;
            self.let_pass = [false; KEYS];
        }
        let mut keys = self.wants.into_iter().zip(self.let_pass);
        let had_room = keys.all(|(units, had_room)| units == 0 || had_room);
        let patient = self.patient.filter(|ticks| *ticks >= PATIENCE);
        self.holds = self.holds.or_else(|| patient.filter(|_| had_room));
        self.holds
    }

    fn stands_at(&self, key: usize) -> bool {
        self.stands_in.get(key) == Some(&true)
    }

    /// Returns whether it waits for one of the keys of which units are wanted.
    fn waits_for_any(&self, wants: PerKey) -> bool {
        let wanted = self.wants.map(|units| units > 0 && self.holds.is_some());
        [self.stands_in, self.stood_in, wanted]
            .into_iter()
            .any(|lines| both(lines, wants))
    }

    /// Returns whether it waits for its turn, and its task is polled.
    fn waits_for_its_turn(&self) -> bool {
        let is_refused = self
            .message
            .and_then(|message| message.answer)
            .is_some_and(|answer| any(answer.refused_by));
        let asks = self.message.is_some() && !is_refused
            || matches!(self.phase, Phase::Told | Phase::Asking);
        self.is_in_line() && !asks && !self.is_stalled
    }

    fn is_behind(&self, other: usize) -> bool {
        (self.behind >> other) & 1 == 1
    }

    fn is_admitted(&self) -> bool {
        let answer = self.message.and_then(|message| message.answer);
        self.phase == Phase::Admitted || answer.is_some_and(|answer| !any(answer.refused_by))
    }

    /// Returns whether its task has something to do.
    fn is_woken(&self) -> bool {
        let is_due = match self.phase {
            Phase::Told => true,
            Phase::Asleep(left) => left == 0,
            Phase::Ready => self.looked >= IDLE,
            Phase::Aside => true,
            _ => false,
        };
        is_due && !self.is_stalled
    }
}

fn any(flags: [bool; KEYS]) -> bool {
    flags.into_iter().any(|flag| flag)
}

fn both(one: [bool; KEYS], other: PerKey) -> bool {
    one.into_iter()
        .zip(other)
        .any(|(flag, units)| flag && units > 0)
}

impl State {
    fn has_earlier(&self, key: usize, ticket: u8) -> bool {
        self.calls
            .iter()
            .any(|call| call.stands_at(key) && call.ticket < ticket)
    }

    /// Returns the earlier calls that wait for a key of this one.
    fn before(&self, at: usize) -> u8 {
        let Some(Call { wants, arrived, .. }) = self.calls.get(at) else {
            return 0;
        };
        let mut before = 0;
        for (other, call) in self.calls.iter().enumerate() {
            let is_earlier = call.arrived < *arrived && call.is_in_line();
            if is_earlier && call.waits_for_any(*wants) {
                before |= 1 << other;
            }
        }
        before
    }

    fn first(&self, key: usize) -> Option<usize> {
        self.calls
            .iter()
            .enumerate()
            .filter(|(_, call)| call.stands_at(key))
            .min_by_key(|(_, call)| call.ticket)
            .map(|(at, _)| at)
    }

    fn asking(&self, key: usize) -> impl Iterator<Item = bool> {
        self.calls
            .iter()
            .filter_map(move |call| *call.asks_in.get(key)?)
    }

    /// Returns the keys of a call that have lines.
    fn wanted_lines(&self, at: usize) -> Option<[bool; KEYS]> {
        let wants = self.calls.get(at)?.wants;
        Some(from_fn(|key| {
            let is_line = self.lines.get(key).is_some_and(Option::is_some);
            is_line && wants.get(key) > Some(&0)
        }))
    }

    fn line(&mut self, key: usize) -> Option<&mut Line> {
        self.lines.get_mut(key)?.as_mut()
    }

    /// Takes in what an answer has left of a key.
    fn take_in(&mut self, key: usize, left: u8) {
        let is_last = self.asking(key).next().is_none();
        if let Some(line) = self.line(key) {
            let least = line.least.map_or(left, |least| least.min(left));
            line.least = Some(least);
            if is_last {
                (line.room, line.least) = (least, None);
            }
        }
    }

    fn note(&mut self, key: usize) {
        set(&mut self.to_advance, key, true);
    }

    /// Returns the room that a call was told to ask for, if it has not asked.
    fn return_part(&mut self, at: usize) {
        let told = self.calls.get(at).filter(|call| call.phase == Phase::Told);
        let Some(Call { wants, asks_in, .. }) = told.cloned() else {
            return;
        };
        for (key, (units, asks)) in wants.into_iter().zip(asks_in).enumerate() {
            if let (Some(false), Some(line)) = (asks, self.line(key)) {
                line.room += units;
            }
        }
    }

    /// Takes a call out of all lines.
    fn remove(&mut self, at: usize, phase: Phase) {
        self.return_part(at);
        if let Some(call) = self.calls.get_mut(at) {
            for (note, units) in self.to_advance.iter_mut().zip(call.wants) {
                *note |= units > 0;
            }
            call.phase = phase;
            call.stands_in = [false; KEYS];
            call.stood_in = [false; KEYS];
            call.asks_in = [None; KEYS];
            call.idle = 0;
        }
    }
}

impl OneLine {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Returns whether all keys of a call have units again and again.
    fn has_units(&self, call: &Call) -> bool {
        let keys = call.wants.into_iter().zip(self.limits).zip(self.taken);
        keys.into_iter()
            .all(|((units, limit), taken)| units + taken <= limit)
    }

    /// Returns the ticks in which every call is admitted while units come.
    fn longest_wait(&self) -> u8 {
        LONGEST_WAIT * self.message
    }

    /// Lets a call ask if it is first in all its lines and there may be room for it. Returns whether it does.
    fn try_start(&self, state: &mut State, at: usize) -> bool {
        let Some(call) = state.calls.get(at) else {
            return false;
        };
        if !matches!(call.phase, Phase::Ready | Phase::Asleep(0)) {
            return false;
        }
        let ticket = call.ticket;
        let wants = call.wants;
        let stood_in = call.stands_in;
        let lines: Vec<_> = state
            .lines
            .into_iter()
            .zip(wants)
            .enumerate()
            .filter_map(|(key, (line, units))| Some((key, line?, units)))
            .filter(|(.., units)| *units > 0)
            .collect();
        let mut is_behind = false;
        let mut fits = true;
        let mut keeps_first = [false; KEYS];
        let mut is_trial = [false; KEYS];
        for &(key, line, units) in &lines {
            let has_trial = state.asking(key).any(|is_trial| is_trial);
            let is_asked = state.asking(key).next().is_some();
            is_behind |= state.has_earlier(key, ticket);
            fits &= line.room >= units;
            set(&mut is_trial, key, line.room < units);
            set(
                &mut keeps_first,
                key,
                is_asked && (line.room < units || has_trial),
            );
        }
        let behind = state.before(at);
        let overtakes = self.has(Fault::LaterOvertakes) && fits;
        let waits = (is_behind || any(keeps_first)) && !overtakes;
        let waiting = state.calls.get_mut(at).filter(|_| waits);
        let holds = waiting.and_then(Call::end_patience);
        let stands_at_all = holds.is_some() && !self.has(Fault::EndlessPatience)
            || self.has(Fault::StandsEverywhere);
        let mut kept = keeps_first.into_iter().zip(stood_in);
        let is_kept = kept.any(|(keeps, stood)| keeps && stood);
        let mut stands_in = [false; KEYS];
        let mut asks_in = [None; KEYS];
        if waits && stands_at_all {
            for key in (0..KEYS).filter(|key| wants.get(*key) > Some(&0)) {
                set(&mut stands_in, key, true);
                if let Some(line) = state.lines.get_mut(key) {
                    line.get_or_insert_default();
                }
            }
        }
        for &(key, line, units) in &lines {
            let stood = stood_in.get(key) == Some(&true);
            let keeps = keeps_first.get(key) == Some(&true);
            // A call that is behind others for one key keeps nobody from its other keys. If it lacks room where it stands, it
            // comes to no further line.
            let lacks = if is_behind {
                state.has_earlier(key, ticket)
            } else {
                keeps && (stood || !is_kept)
            };
            let stands = waits && (stands_at_all || lacks);
            set(&mut stands_in, key, stands);
            if !stands && (!waits || stood) {
                state.note(key);
            }
            if waits && !stands && line.room >= units && !keeps {
                state
                    .calls
                    .get_mut(at)
                    .into_iter()
                    .for_each(|call| call.let_pass(key));
            }
            if !waits {
                set(&mut asks_in, key, is_trial.get(key).copied());
                if let Some(line) = state.line(key).filter(|_| !self.has(Fault::RoomNotReduced)) {
                    line.room = line.room.saturating_sub(units);
                }
            }
        }
        if let Some(call) = state.calls.get_mut(at) {
            (call.stands_in, call.asks_in) = (stands_in, asks_in);
            call.phase = if waits { Phase::Ready } else { Phase::Told };
            if !waits {
                (call.stood_in, call.behind, call.idle) = (stood_in, behind, 0);
            }
        }
        !waits
    }

    /// Lets those calls ask that may now, and removes the lines that are empty.
    fn advance(&self, state: &mut State) {
        while let Some(key) = state.to_advance.iter().position(|flag| *flag) {
            set(&mut state.to_advance, key, false);
            if let Some(first) = state.first(key) {
                self.try_start(state, first);
            } else if state.asking(key).next().is_none() {
                set(&mut state.lines, key, None);
            }
        }
    }

    fn arrive(&self, state: &mut State, at: usize) -> Option<()> {
        let arrived = state.calls.iter().map(|call| call.arrived).max()? + 1;
        let stands_in = state.wanted_lines(at)?;
        let ticket = state.calls.iter().map(|call| call.ticket).max()? + 1;
        let call = state.calls.get_mut(at)?;
        (call.arrived, call.ticket) = (arrived, ticket);
        if any(stands_in) && !self.has(Fault::NewcomerAsks) {
            (call.phase, call.stands_in) = (Phase::Ready, stands_in);
            self.try_start(state, at);
            self.advance(state);
        } else {
            call.phase = Phase::Direct;
            let behind = state.before(at);
            state.calls.get_mut(at)?.behind = behind;
            Self::send(state, at)?;
        }
        Some(())
    }

    /// Sends the request of a call.
    fn send(state: &mut State, at: usize) -> Option<()> {
        let call = state.calls.get_mut(at)?;
        call.message = Some(Message {
            age: 0,
            answer: None,
        });
        state.requests.push(at);
        Some(())
    }

    fn poll(&self, state: &mut State, at: usize) -> Option<()> {
        let lines = state.wanted_lines(at)?;
        let call = state.calls.get_mut(at)?;
        call.looked = 0;
        match call.phase {
            Phase::Told => {
                (call.phase, call.idle) = (Phase::Asking, 0);
                return Self::send(state, at);
            }
            Phase::Aside => {
                (call.phase, call.stands_in) = (Phase::Ready, lines);
            }
            _ => {}
        }
        if !self.try_start(state, at) {
            self.pass_idle(state, at)?;
        }
        self.advance(state);
        Some(())
    }

    /// Lets those calls stand aside that keep this one waiting and do not move.
    fn pass_idle(&self, state: &mut State, at: usize) -> Option<()> {
        let stands_in = state.calls.get(at)?.stands_in;
        for key in (0..KEYS).filter(|key| stands_in.get(*key) == Some(&true)) {
            let first = state.first(key);
            for other in (0..state.calls.len()).filter(|other| *other != at) {
                let call = state.calls.get_mut(other)?;
                let asks = call.asks_in.get(key).is_some_and(Option::is_some);
                let blocks = asks || first == Some(other);
                // A call that asks has its answer by the deadline, or else its task is not polled.
                let longest = match call.phase {
                    Phase::Asking if !self.has(Fault::AskingIsIdle) => IDLE + self.message,
                    _ => IDLE,
                };
                if blocks && call.idle > longest && !self.has(Fault::IdleBlocks) {
                    let mut lines = call.stood_in.into_iter().zip(call.stands_in);
                    let lines =
                        from_fn(|_| lines.next().is_some_and(|(stood, stands)| stood || stands));
                    state.remove(other, Phase::Aside);
                    state.calls.get_mut(other)?.stood_in = lines;
                }
            }
        }
        Some(())
    }

    /// Decides the first request: charges all keys, or none.
    fn decide(&self, state: &mut State) -> Option<()> {
        let at = state.requests.remove(0);
        let wants = state.calls.get(at)?.wants;
        let mut refused_by = [false; KEYS];
        let mut wait = 0;
        let mut left = self.limits;
        for (key, left) in left.iter_mut().enumerate() {
            let units = *wants.get(key)?;
            *left -= *self.taken.get(key)?;
            if *left < units {
                *refused_by.get_mut(key)? = true;
                wait = WINDOW;
                continue;
            }
            for (age, charged) in &state.log {
                *left = left.saturating_sub(*charged.get(key)?);
                if *left < units {
                    // The log is sorted, the newest first: the charge that has to leave.
                    *refused_by.get_mut(key)? = true;
                    wait = wait.max(WINDOW - age);
                    break;
                }
            }
        }
        let is_admitted = !any(refused_by);
        if is_admitted {
            for (left, units) in left.iter_mut().zip(wants) {
                *left -= units;
            }
            state.log.insert(0, (0, wants));
        }
        let call = state.calls.get(at)?;
        if self.others == 0 && call.is_waiting() {
            state.is_overtaken |= state.calls.iter().enumerate().any(|(other_at, other)| {
                if is_admitted {
                    call.is_behind(other_at) && other.waits_for_its_turn()
                } else {
                    // A later one was admitted, in the same round trip.
                    other.is_admitted() && other.is_behind(at) && !call.is_stalled
                }
            });
        }
        let answer = Answer {
            left,
            refused_by,
            wait,
        };
        let call = state.calls.get_mut(at)?;
        call.message.as_mut()?.answer = Some(answer);
        call.message.take_if(|_| call.phase == Phase::Gone);
        Some(())
    }

    fn take_in(&self, state: &mut State, at: usize) -> Option<()> {
        let wants = state.calls.get(at)?.wants;
        let answer = state.calls.get_mut(at)?.message.take()?.answer?;
        if any(answer.refused_by) {
            let ticket = state.calls.iter().map(|call| call.ticket).max()? + 1;
            state.remove(at, Phase::Asleep(answer.wait.min(MAX_BACKOFF)));
            for key in (0..KEYS).filter(|key| answer.refused_by.get(*key) == Some(&true)) {
                state.note(key);
                state.lines.get_mut(key)?.get_or_insert_default();
                state.take_in(key, 0);
                state.line(key)?.room = 0;
            }
            let call = state.calls.get_mut(at)?;
            for key in 0..KEYS {
                if wants.get(key) > Some(&0) && answer.refused_by.get(key) == Some(&false) {
                    call.let_pass(key);
                }
            }
            call.stands_in = answer.refused_by;
            let stands_at_all = call.end_patience() >= Some(answer.wait);
            let stands_at_all = stands_at_all && !self.has(Fault::EndlessPatience);
            if stands_at_all || self.has(Fault::StandsEverywhere) {
                call.stands_in = wants.map(|units| units > 0);
                for key in (0..KEYS).filter(|key| wants.get(*key) > Some(&0)) {
                    state.lines.get_mut(key)?.get_or_insert_default();
                }
            }
            let call = state.calls.get_mut(at)?;
            if self.has(Fault::PlaceLost) {
                call.ticket = ticket;
            }
        } else {
            state.remove(at, Phase::Admitted);
            for (key, left) in answer.left.into_iter().enumerate() {
                if wants.get(key) > Some(&0) {
                    state.note(key);
                    state.take_in(key, left);
                }
            }
        }
        self.advance(state);
        Some(())
    }

    fn tick(&self, state: &mut State) {
        state.log.iter_mut().for_each(|charge| charge.0 += 1);
        state.log.retain(|charge| charge.0 < WINDOW);
        for call in &mut state.calls {
            if call.is_waiting() {
                call.looked = (call.looked + 1).min(IDLE);
                let waited = call.waited + u8::from(!call.is_stalled);
                call.waited = waited.min(self.longest_wait() + 1);
            }
            if let Some(ticks) = &mut call.patient {
                *ticks = (*ticks + 1).min(2 * PATIENCE);
            }
            if let Some(ticks) = &mut call.holds {
                *ticks = ticks.saturating_sub(1);
            }
            match &mut call.phase {
                Phase::Asleep(left) if *left > 0 => *left -= 1,
                Phase::Asleep(_) | Phase::Told | Phase::Asking => {
                    call.idle = (call.idle + 1).min(IDLE + self.message + 1);
                }
                _ => {}
            }
            call.message
                .iter_mut()
                .for_each(|message| message.age = self.message.min(message.age + 1));
        }
    }

    /// Returns whether time may pass: nothing that happens at once is left to do.
    fn may_tick(&self, state: &State) -> bool {
        !state.calls.iter().any(|call| {
            let is_waited_for = call.message.is_some_and(|message| {
                let is_due = message.age >= self.message;
                is_due && (message.answer.is_none() || !call.is_stalled)
            });
            call.is_woken() || is_waited_for
        })
    }
}

impl Model for OneLine {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            log: Vec::new(),
            lines: [None; KEYS],
            calls: self.wants.iter().map(|wants| Call::new(*wants)).collect(),
            requests: Vec::new(),
            to_advance: [false; KEYS],
            others: self.others,
            leavers: self.leavers,
            stalls: self.stalls,
            is_overtaken: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.may_tick(state) {
            actions.push(Action::Tick);
        }
        if !state.requests.is_empty() {
            actions.push(Action::Decide);
        }
        for (at, call) in state.calls.iter().enumerate() {
            // Which of those comes that want the same makes no difference.
            let first = state
                .calls
                .iter()
                .position(|other| other.phase == Phase::Away && other.wants == call.wants);
            if call.phase == Phase::Away && first == Some(at) {
                actions.push(Action::Arrive(at));
            }
            if call.is_woken() {
                actions.push(Action::Poll(at));
            }
            let is_answered = call.message.is_some_and(|message| message.answer.is_some());
            if is_answered && !call.is_stalled && call.is_waiting() {
                actions.push(Action::TakeIn(at));
            }
            if call.is_waiting() && state.leavers > 0 {
                actions.push(Action::GiveUp(at));
            }
            if call.is_waiting() && state.stalls > 0 && !call.is_stalled {
                actions.push(Action::Stall(at));
            }
        }
        if state.others > 0 {
            actions.extend((0..KEYS).map(Action::Take));
        }
    }

    fn next_state(&self, last_state: &State, action: Action) -> Option<State> {
        let mut state = last_state.clone();
        match action {
            Action::Tick => self.tick(&mut state),
            Action::Arrive(at) => self.arrive(&mut state, at)?,
            Action::Poll(at) => self.poll(&mut state, at)?,
            Action::Decide => self.decide(&mut state)?,
            Action::TakeIn(at) => self.take_in(&mut state, at)?,
            Action::GiveUp(at) => {
                state.leavers -= 1;
                if self.has(Fault::GoneBlocks) {
                    state.calls.get_mut(at)?.phase = Phase::Gone;
                } else {
                    state.remove(at, Phase::Gone);
                    self.advance(&mut state);
                }
                if !state.requests.contains(&at) {
                    state.calls.get_mut(at)?.message = None;
                }
            }
            Action::Stall(at) => {
                state.stalls -= 1;
                state.calls.get_mut(at)?.is_stalled = true;
            }
            Action::Take(key) => {
                let units = state.log.iter().filter_map(|charge| charge.1.get(key));
                if units.sum::<u8>() >= *self.limits.get(key)? {
                    return None;
                }
                state.others -= 1;
                let mut taken = [0; KEYS];
                *taken.get_mut(key)? = 1;
                state.log.insert(0, (0, taken));
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nobody is overtaken", |_, state: &State| {
                !state.is_overtaken
            }),
            Property::always(
                "no call waits without end",
                |model: &Self, state: &State| {
                    let waiting = state.calls.iter().filter(|call| call.is_waiting());
                    let mut served = waiting.filter(|call| model.has_units(call));
                    served.all(|call| call.waited <= model.longest_wait())
                },
            ),
            // A bound of ticks says nothing if they end.
            Property::always("time goes on", |model: &Self, state: &State| {
                model.may_tick(state) || !model.next_states(state).is_empty()
            }),
            Property::sometimes("all calls are admitted", |model: &Self, state: &State| {
                let mut served = state.calls.iter().filter(|call| model.has_units(call));
                served.all(|call| call.phase == Phase::Admitted)
            }),
            Property::sometimes("calls stand in two lines", |model: &Self, state: &State| {
                let are_all_used =
                    (0..KEYS).all(|key| model.wants.iter().any(|wants| wants.get(key) > Some(&0)));
                state.lines.iter().all(Option::is_some) || !are_all_used
            }),
        ]
    }
}

/// Four calls for one key, of which one wants all units.
fn four() -> OneLine {
    OneLine {
        limits: [2, 2],
        wants: vec![[1, 0], [2, 0], [1, 0], [1, 0]],
        taken: [0, 0],
        others: 0,
        leavers: 0,
        stalls: 0,
        message: MESSAGE,
        fault: None,
    }
}

fn each_key() -> OneLine {
    with(four(), |model| {
        model.limits = [1, 1];
        model.wants = vec![[1, 1], [1, 0], [0, 1], [1, 0]];
    })
}

fn at_its_limit() -> OneLine {
    with(four(), |model| {
        model.taken = [0, 2];
        model.wants = vec![[1, 1], [2, 0], [1, 0]];
    })
}

fn three() -> OneLine {
    with(four(), |model| model.wants.truncate(3))
}

fn leaver(model: OneLine) -> OneLine {
    with(model, |model| model.leavers = 1)
}

fn stalled() -> OneLine {
    with(three(), |model| model.stalls = 1)
}

fn slow() -> OneLine {
    with(three(), |model| model.message = SLOW_MESSAGE)
}

/// Returns the cases: without a fault, and with each.
pub(crate) fn cases() -> Vec<Case> {
    let two_keys = vec![[1, 1], [2, 0], [0, 2], [1, 1]];
    let sound = [
        ("four calls", four()),
        (
            "four calls for two keys",
            with(four(), |model| model.wants = two_keys),
        ),
        ("calls for each key and for both", each_key()),
        ("a key that never has room", at_its_limit()),
        ("a call that gives up", leaver(four())),
        ("a task that is not polled", stalled()),
        ("other processes", with(three(), |model| model.others = 2)),
        ("slow replies", slow()),
    ];
    let sound = sound.map(|(name, model)| Case::new(("line", name), None, None, model));
    let faulty = [
        (Fault::LaterOvertakes, four()),
        (Fault::NewcomerAsks, four()),
        (Fault::PlaceLost, four()),
        (Fault::RoomNotReduced, four()),
        (Fault::IdleBlocks, stalled()),
        (Fault::AskingIsIdle, slow()),
        (Fault::GoneBlocks, leaver(three())),
        (Fault::StandsEverywhere, at_its_limit()),
        (Fault::EndlessPatience, each_key()),
    ];
    let faulty = faulty.map(|(fault, model)| {
        let model = with(model, |model| model.fault = Some(fault));
        let fault = Some(format!("{fault:?}"));
        Case::new(("line", "a planted fault"), fault, None, model)
    });
    sound.into_iter().chain(faulty).collect()
}
