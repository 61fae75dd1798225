//! Calls of a process that wait for slots of one key: in line, in messages, after a pause, and by the counts of this process
//! while the store fails.
//!
//! Follows `src/limiter/line` and `src/limiter/in_flight/{request,state}.rs`. What a process does at once under its locks is one
//! action here. One process, so that a message is decided by what it states: it is decided when its reply is taken in.

use stateright::{Model, Property};

use crate::case::{Case, with};

/// The ticks after which a call looks whether slots are free that it does not know of.
const POLL: u8 = 1;

/// The ticks of a pause.
const PAUSE: u8 = 2;

/// The most ticks of a message.
const MESSAGE: u8 = 1;

/// The most ticks for which a call holds its slots.
const HOLD: u8 = 1;

/// The ticks in which every call is admitted: for each call of the line a hold, a round trip and a poll, and a pause.
const LONGEST_WAIT: u8 = 16;

#[derive(Clone, Debug)]
struct SlotLine {
    slots: u8,
    /// The slots that each call wants. They may arrive in any order.
    wants: Vec<u8>,
    /// How often an upstream may pause the key.
    pauses: u8,
    /// The time between two calls after a pause, and the most by which a call comes later than its end.
    step: u8,
    /// How often the store may begin to fail.
    outages: u8,
    /// How many calls give up.
    leavers: u8,
    fault: Option<Fault>,
}

/// A rule that is left out, to see that a promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// After a pause, calls for slots ask at their pace, without the answer to the one before.
    SlotsHavePace,
    /// A call asks for slots that were given back, although an earlier one asks without knowing that they are free.
    TrialShared,
    /// A call that has no place in line asks for slots that were given back, although an earlier one asks without knowing that
    /// they are free.
    TrialNotSeen,
    /// A refused call stands in line when its task takes the refusal in, not when the message is.
    RefusalTakenInByCall,
    /// A question is sent although an earlier call stands in line.
    QuestionIgnoresLine,
    /// The slots of a call that has gone are not given back.
    SlotsOfGoneKept,
    /// The counts of this process admit a call although an earlier one stands in line.
    OwnCountsIgnoreLine,
    /// The counts of this process see only calls that stand in line, not those that were told to ask.
    OwnCountsIgnoreTold,
    /// The counts of this process do not know what the store has granted.
    OwnCountsForgetHeld,
    /// A reply grants slots that the counts of this process have given since the message was sent.
    ReplyForgetsOwnGrants,
    /// A call that the counts of this process refuse does not stand in line until its task moves.
    OwnRefusalStandsLater,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    calls: Vec<Call>,
    /// Exists while calls stand in it or ask.
    line: Option<Line>,
    message: Option<Message>,
    /// The ticks for which the key is paused.
    paused: u8,
    fails: bool,
    pauses: u8,
    outages: u8,
    leavers: u8,
    /// The slots of calls that have gone.
    of_gone: u8,
    is_overtaken: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Line {
    room: u8,
    least: Option<u8>,
    /// The ticks until a call asks for slots that are not known to be free. `None` if no answer has come.
    polls: Option<u8>,
    after_pause: Option<AfterPause>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct AfterPause {
    /// The ticks until the next call asks.
    next: u8,
    /// The last call that has waited for the end of the pause. `None` until the end.
    last: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Message {
    /// The calls that it asks for.
    parts: Vec<usize>,
    stated: u8,
    /// The slots that were given back since it was sent.
    returned: u8,
    age: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Call {
    wants: u8,
    /// The order of arrival.
    ticket: u8,
    phase: Phase,
    stands: bool,
    /// Asks in the line, maybe without room. `None` if it does not ask, or has no place in the line.
    asks: Option<bool>,
    /// The earlier calls that waited when its question was decided or sent.
    behind: u8,
    waited: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Away,
    /// Asks as soon as it is first.
    Ready,
    /// Asks after so many ticks, if it is first.
    Asleep(u8),
    /// It is first. It asks after so many ticks, or as soon as slots are free.
    Next(u8),
    /// It is to ask. Its task has not been polled.
    Told,
    /// Its question is in the table, and in no message.
    Queued,
    Sent,
    /// It was refused. Its task has not taken that in.
    Refused,
    /// Its message has failed. Its task has not asked the counts of this process.
    Failed,
    /// It holds its slots for so many ticks.
    Holds(u8),
    Done,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Tick,
    Arrive(usize),
    /// The task of a call is polled. If its key is paused, it comes so many ticks after the end.
    Poll(usize, u8),
    /// The questions that may be sent are one message.
    Send,
    /// The reply is taken in, or the message has failed.
    Reply,
    Release(usize),
    GiveUp(usize),
    Pause,
    Fail,
    Recover,
}

impl Call {
    fn new(wants: u8) -> Self {
        Self {
            wants,
            ticket: 0,
            phase: Phase::Away,
            stands: false,
            asks: None,
            behind: 0,
            waited: 0,
        }
    }

    fn is_waiting(&self) -> bool {
        !matches!(
            self.phase,
            Phase::Away | Phase::Holds(_) | Phase::Done | Phase::Gone
        )
    }

    /// Returns whether it has a place in the line. A call that asked when there was no line has none.
    fn is_in_line(&self) -> bool {
        self.stands || self.asks.is_some() || self.phase == Phase::Refused
    }

    /// Returns whether it waits for its turn: it was refused, or has not asked.
    fn waits_for_its_turn(&self) -> bool {
        matches!(
            self.phase,
            Phase::Ready | Phase::Asleep(_) | Phase::Next(_) | Phase::Refused
        )
    }

    fn is_admitted(&self) -> bool {
        matches!(self.phase, Phase::Holds(_) | Phase::Done)
    }

    fn is_behind(&self, other: usize) -> bool {
        (self.behind >> other) & 1 == 1
    }

    /// Returns whether its task has something to do.
    fn is_woken(&self) -> bool {
        matches!(
            self.phase,
            Phase::Told | Phase::Refused | Phase::Failed | Phase::Asleep(0) | Phase::Next(0)
        )
    }
}

impl Line {
    /// Takes in what an answer has left. It counts when all answers have come.
    fn take_in(&mut self, left: u8, is_last: bool) {
        let least = self.least.map_or(left, |least| least.min(left));
        self.least = Some(least);
        if is_last {
            self.room = least;
            self.least = None;
        }
    }

    /// No call asks for so many slots for so many ticks.
    fn ticks_until_asked(self, slots: u8) -> u8 {
        let polls = self.polls.filter(|_| self.room < slots).unwrap_or(0);
        self.after_pause.map_or(0, |after| after.next).max(polls)
    }
}

impl State {
    fn held(&self) -> u8 {
        let held = self
            .calls
            .iter()
            .filter(|call| matches!(call.phase, Phase::Holds(_)));
        held.map(|call| call.wants).sum()
    }

    fn has_earlier_standing(&self, ticket: u8) -> bool {
        self.calls
            .iter()
            .any(|call| call.stands && call.ticket < ticket)
    }

    fn first_standing(&self) -> Option<usize> {
        self.calls
            .iter()
            .enumerate()
            .filter(|(_, call)| call.stands)
            .min_by_key(|(_, call)| call.ticket)
            .map(|(at, _)| at)
    }

    fn asking(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(|call| call.asks.is_some())
    }

    /// Returns the earlier calls in line, but for those of the same message.
    fn before(&self, at: usize, together: &[usize]) -> u8 {
        let Some(ticket) = self.calls.get(at).map(|call| call.ticket) else {
            return 0;
        };
        self.calls
            .iter()
            .enumerate()
            .filter(|(other, call)| {
                call.ticket < ticket && call.is_in_line() && !together.contains(other)
            })
            .fold(0, |before, (other, _)| before | 1 << other)
    }

    /// Takes a call out of the line, and returns the part of the room that it was told to ask for.
    fn take_out(&mut self, at: usize) {
        let Some(call) = self.calls.get_mut(at) else {
            return;
        };
        let returned = call
            .asks
            .filter(|is_trial| call.phase == Phase::Told && !is_trial);
        let slots = call.wants;
        call.stands = false;
        call.asks = None;
        if let (Some(_), Some(line)) = (returned, &mut self.line) {
            line.room += slots;
        }
    }

    fn stand(&mut self, at: usize, phase: Phase) {
        self.take_out(at);
        self.line.get_or_insert_default();
        if let Some(call) = self.calls.get_mut(at) {
            call.phase = phase;
            call.stands = true;
        }
    }

    /// Takes in what an answer has left in the line.
    fn left(&mut self, left: u8) {
        let is_last = self.asking().next().is_none();
        if let Some(line) = &mut self.line {
            line.take_in(left, is_last);
            line.polls = Some(POLL);
        }
    }

    /// Notes if a call is admitted although an earlier one waits that it was behind, or refused after a later one was admitted.
    fn note_decided(&mut self, at: usize, is_admitted: bool) {
        let Some(behind) = self.calls.get(at).map(|call| call.behind) else {
            return;
        };
        self.is_overtaken |= self.calls.iter().enumerate().any(|(other_at, other)| {
            if is_admitted {
                (behind >> other_at) & 1 == 1 && other.waits_for_its_turn()
            } else {
                other.is_admitted() && other.is_behind(at)
            }
        });
    }
}

impl SlotLine {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Lets a call ask if it is first and there may be room for it.
    fn try_start(&self, state: &mut State, at: usize) -> Option<()> {
        let line = state.line?;
        let call = state.calls.get(at)?;
        if !matches!(call.phase, Phase::Ready | Phase::Asleep(0) | Phase::Next(_)) {
            return None;
        }
        let slots = call.wants;
        let ticket = call.ticket;
        let after_pause = line
            .after_pause
            .filter(|after| after.last.is_none_or(|last| last >= ticket));
        let line = Line {
            after_pause,
            ..line
        };
        let has_trial = state.asking().any(|call| call.asks == Some(true));
        let is_asked = state.asking().next().is_some();
        let keeps_room = has_trial && !self.has(Fault::TrialShared);
        let has_pace = after_pause.is_some() && self.has(Fault::SlotsHavePace);
        let has_room = has_pace || !is_asked || line.room >= slots && !keeps_room;
        let ticks = line.ticks_until_asked(slots);
        let is_behind = state.has_earlier_standing(ticket);
        state.line = Some(line);
        let call = state.calls.get_mut(at)?;
        if is_behind || ticks == 0 && !has_room {
            call.phase = Phase::Ready;
            return None;
        }
        if ticks > 0 {
            call.phase = Phase::Next(ticks);
            return None;
        }
        call.phase = Phase::Told;
        call.stands = false;
        call.asks = Some(line.room < slots);
        let latest = state
            .calls
            .iter()
            .filter(|call| call.stands)
            .map(|call| call.ticket)
            .max();
        let line = state.line.as_mut()?;
        line.room = line.room.saturating_sub(slots);
        if let Some(after) = &mut line.after_pause {
            let latest = latest.unwrap_or(ticket);
            after.last.get_or_insert(latest);
            after.next = self.step;
        }
        Some(())
    }

    /// Lets those calls ask that may now, and removes the line if it is empty.
    fn advance(&self, state: &mut State) {
        while let Some(first) = state.first_standing() {
            if self.try_start(state, first).is_none() {
                return;
            }
        }
        if state.asking().next().is_none() {
            state.line = None;
        }
    }

    fn arrive(&self, state: &mut State, at: usize) -> Option<()> {
        let ticket = state.calls.iter().map(|call| call.ticket).max()? + 1;
        state.calls.get_mut(at)?.ticket = ticket;
        if state.line.is_some() {
            state.stand(at, Phase::Ready);
            self.advance(state);
            return Some(());
        }
        self.ask(state, at, 0)
    }

    /// Begins an attempt: a call whose key is paused stands in line, and comes so many ticks after the end.
    fn ask(&self, state: &mut State, at: usize, later: u8) -> Option<()> {
        if state.paused == 0 {
            state.calls.get_mut(at)?.phase = Phase::Queued;
            return Some(());
        }
        // Those that were asked before the pause are not behind it.
        for call in &mut state.calls {
            call.behind &= !(1 << at);
        }
        state.stand(at, Phase::Asleep(state.paused + later));
        state.left(0);
        let line = state.line.as_mut()?;
        line.room = 0;
        let next = line.after_pause.map_or(0, |after| after.next);
        line.after_pause = Some(AfterPause { next, last: None });
        self.advance(state);
        Some(())
    }

    fn poll(&self, state: &mut State, at: usize, later: u8) -> Option<()> {
        match state.calls.get(at)?.phase {
            Phase::Told => self.ask(state, at, later)?,
            Phase::Failed => self.ask_own_counts(state, at)?,
            Phase::Refused => state.stand(at, Phase::Ready),
            _ => {
                self.try_start(state, at);
            }
        }
        self.advance(state);
        Some(())
    }

    /// Returns whether an earlier call stands in line, or was told to ask for what is left.
    fn is_behind(&self, state: &State, at: usize, sees_told: bool) -> bool {
        let (Some(line), Some(call)) = (state.line, state.calls.get(at)) else {
            return false;
        };
        if state.has_earlier_standing(call.ticket) {
            return true;
        }
        let has_room = line.room >= call.wants;
        let sees_trial = !self.has(Fault::TrialNotSeen);
        let mut earlier = state.asking().filter(|other| other.ticket < call.ticket);
        sees_told
            && call.asks.is_none()
            && earlier.any(|other| !has_room || sees_trial && other.asks == Some(true))
    }

    /// Takes in that what a call asks for is not left for a later one.
    fn reserve(state: &mut State, at: usize) -> Option<()> {
        let call = state.calls.get(at)?;
        let slots = call.wants;
        if call.asks.is_none()
            && let Some(line) = &mut state.line
        {
            line.room = line.room.saturating_sub(slots);
        }
        Some(())
    }

    /// Makes a message of the questions, in the order in which the calls arrived. It wants no more than there are slots.
    fn send(&self, state: &mut State) -> Option<()> {
        let mut queued: Vec<_> = state
            .calls
            .iter()
            .enumerate()
            .filter(|(_, call)| call.phase == Phase::Queued)
            .map(|(at, call)| (call.ticket, at))
            .collect();
        queued.sort_unstable();
        let mut parts = Vec::new();
        let mut wanted = 0;
        for (_, at) in queued {
            if self.is_behind(state, at, true) && !self.has(Fault::QuestionIgnoresLine) {
                state.stand(at, Phase::Refused);
                self.advance(state);
                continue;
            }
            let slots = state.calls.get(at)?.wants;
            if wanted + slots > self.slots {
                break;
            }
            wanted += slots;
            Self::reserve(state, at)?;
            parts.push(at);
        }
        for at in &parts {
            let behind = state.before(*at, &parts);
            let call = state.calls.get_mut(*at)?;
            call.phase = Phase::Sent;
            call.behind = behind;
        }
        let stated = state.held() + state.of_gone;
        state.message = (!parts.is_empty()).then_some(Message {
            parts,
            stated,
            returned: 0,
            age: 0,
        });
        Some(())
    }

    fn reply(&self, state: &mut State) -> Option<()> {
        let message = state.message.take()?;
        let mut free = self.slots - message.stated;
        for at in message.parts {
            let held = state.held();
            let call = state.calls.get_mut(at)?;
            let is_gone = call.phase == Phase::Gone;
            let slots = call.wants;
            let is_admitted = free >= slots;
            let is_superseded = is_admitted && held + slots > self.slots;
            if is_admitted {
                free -= slots;
            }
            if state.fails || is_superseded && !self.has(Fault::ReplyForgetsOwnGrants) {
                if !is_gone {
                    call.phase = Phase::Failed;
                }
                continue;
            }
            if is_gone {
                if is_admitted && self.has(Fault::SlotsOfGoneKept) {
                    state.of_gone += slots;
                }
                continue;
            }
            let stands_later = self.has(Fault::RefusalTakenInByCall);
            self.decided(
                state,
                at,
                is_admitted,
                free + message.returned,
                stands_later,
            )?;
        }
        Some(())
    }

    /// Takes in the answer to a call, and what it has left.
    fn decided(
        &self,
        state: &mut State,
        at: usize,
        is_admitted: bool,
        left: u8,
        stands_later: bool,
    ) -> Option<()> {
        state.note_decided(at, is_admitted);
        state.take_out(at);
        if is_admitted {
            state.calls.get_mut(at)?.phase = Phase::Holds(0);
        } else if stands_later {
            state.calls.get_mut(at)?.phase = Phase::Refused;
        } else {
            state.stand(at, Phase::Refused);
        }
        state.left(left);
        self.advance(state);
        Some(())
    }

    /// Decides a call by the counts of this process, because the store has failed.
    fn ask_own_counts(&self, state: &mut State, at: usize) -> Option<()> {
        let sees_told = !self.has(Fault::OwnCountsIgnoreTold);
        let is_behind = self.is_behind(state, at, sees_told);
        if is_behind && !self.has(Fault::OwnCountsIgnoreLine) {
            state.stand(at, Phase::Refused);
            return Some(());
        }
        let behind = state.before(at, &[]);
        let call = state.calls.get_mut(at)?;
        call.behind = behind;
        let slots = call.wants;
        let mut used = 0;
        if !self.has(Fault::OwnCountsForgetHeld) {
            used = state.held();
        }
        let is_admitted = used + slots <= self.slots;
        if is_admitted {
            used += slots;
            Self::reserve(state, at)?;
        }
        let stands_later = self.has(Fault::OwnRefusalStandsLater);
        let left = self.slots.saturating_sub(used);
        self.decided(state, at, is_admitted, left, stands_later)
    }

    fn release(&self, state: &mut State, at: usize) -> Option<()> {
        let call = state.calls.get_mut(at)?;
        call.phase = Phase::Done;
        let slots = call.wants;
        if let Some(line) = &mut state.line {
            line.room += slots;
        }
        if let Some(message) = &mut state.message {
            message.returned += slots;
        }
        self.advance(state);
        Some(())
    }

    fn give_up(&self, state: &mut State, at: usize) -> Option<()> {
        state.leavers -= 1;
        state.take_out(at);
        state.calls.get_mut(at)?.phase = Phase::Gone;
        self.advance(state);
        Some(())
    }

    fn tick(state: &mut State) {
        state.paused = state.paused.saturating_sub(1);
        if let Some(message) = &mut state.message {
            message.age += 1;
        }
        if let Some(line) = &mut state.line {
            line.polls = line.polls.map(|ticks| ticks.saturating_sub(1));
            if let Some(after) = &mut line.after_pause {
                after.next = after.next.saturating_sub(1);
            }
        }
        for call in &mut state.calls {
            if call.is_waiting() {
                call.waited = (call.waited + 1).min(LONGEST_WAIT + 1);
            }
            match &mut call.phase {
                Phase::Asleep(left) | Phase::Next(left) => *left = left.saturating_sub(1),
                Phase::Holds(ticks) => *ticks += 1,
                _ => {}
            }
        }
    }

    /// Returns whether time may pass: nothing that happens at once is left to do.
    fn may_tick(state: &State) -> bool {
        let has_questions = state.calls.iter().any(|call| call.phase == Phase::Queued);
        let is_due = match &state.message {
            Some(message) => message.age >= MESSAGE,
            None => has_questions,
        };
        let is_held_too_long =
            |call: &Call| matches!(call.phase, Phase::Holds(ticks) if ticks >= HOLD);
        let mut calls = state.calls.iter();
        !is_due && !calls.any(|call| call.is_woken() || is_held_too_long(call))
    }
}

impl Model for SlotLine {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            calls: self.wants.iter().map(|wants| Call::new(*wants)).collect(),
            line: None,
            message: None,
            paused: 0,
            fails: false,
            pauses: self.pauses,
            outages: self.outages,
            leavers: self.leavers,
            of_gone: 0,
            is_overtaken: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if Self::may_tick(state) {
            actions.push(Action::Tick);
        }
        match &state.message {
            Some(_) => actions.push(Action::Reply),
            None if state.calls.iter().any(|call| call.phase == Phase::Queued) => {
                actions.push(Action::Send);
            }
            None => {}
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
                let is_paused = call.phase == Phase::Told && state.paused > 0;
                let latest = if is_paused { self.step } else { 0 };
                actions.extend((0..=latest).map(|later| Action::Poll(at, later)));
            }
            if matches!(call.phase, Phase::Holds(_)) {
                actions.push(Action::Release(at));
            }
            if call.is_waiting() && state.leavers > 0 {
                actions.push(Action::GiveUp(at));
            }
        }
        if state.pauses > 0 {
            actions.push(Action::Pause);
        }
        if state.fails {
            actions.push(Action::Recover);
        } else if state.outages > 0 {
            actions.push(Action::Fail);
        }
    }

    fn next_state(&self, last_state: &State, action: Action) -> Option<State> {
        let mut state = last_state.clone();
        match action {
            Action::Tick => Self::tick(&mut state),
            Action::Arrive(at) => self.arrive(&mut state, at)?,
            Action::Poll(at, later) => self.poll(&mut state, at, later)?,
            Action::Send => self.send(&mut state)?,
            Action::Reply => self.reply(&mut state)?,
            Action::Release(at) => self.release(&mut state, at)?,
            Action::GiveUp(at) => self.give_up(&mut state, at)?,
            Action::Pause => {
                state.pauses -= 1;
                state.paused = PAUSE;
            }
            Action::Fail => {
                state.outages -= 1;
                state.fails = true;
            }
            Action::Recover => state.fails = false,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nobody is overtaken", |_, state: &State| {
                !state.is_overtaken
            }),
            Property::always(
                "no more permits than slots",
                |model: &Self, state: &State| state.held() <= model.slots,
            ),
            Property::always("no call waits without end", |_, state: &State| {
                state.calls.iter().all(|call| call.waited <= LONGEST_WAIT)
            }),
            // A bound of ticks says nothing if they end.
            Property::always("time goes on", |model: &Self, state: &State| {
                Self::may_tick(state) || !model.next_states(state).is_empty()
            }),
            Property::sometimes("all calls were admitted", |_, state: &State| {
                state.calls.iter().all(|call| call.phase == Phase::Done)
            }),
            Property::sometimes("a call stands behind another one", |_, state: &State| {
                state.calls.iter().filter(|call| call.stands).count() > 1
            }),
        ]
    }
}

/// Three calls for one slot.
fn three() -> SlotLine {
    SlotLine {
        slots: 1,
        wants: vec![1, 1, 1],
        pauses: 0,
        step: 0,
        outages: 0,
        leavers: 0,
        fault: None,
    }
}

/// Three calls for two slots, of which one wants both.
fn two_slots() -> SlotLine {
    with(three(), |model| {
        model.slots = 2;
        model.wants = vec![2, 1, 1];
    })
}

fn paused(model: SlotLine) -> SlotLine {
    with(model, |model| model.pauses = 1)
}

fn paced(model: SlotLine) -> SlotLine {
    with(paused(model), |model| model.step = 1)
}

fn failing(model: SlotLine) -> SlotLine {
    with(model, |model| model.outages = 1)
}

fn left(model: SlotLine) -> SlotLine {
    with(model, |model| model.leavers = 1)
}

/// Returns the cases: without a fault, and with each.
pub(crate) fn cases() -> Vec<Case> {
    let sound = [
        ("slots", with(three(), |model| model.wants = vec![1; 4])),
        ("two slots", two_slots()),
        ("slots after a pause", paused(two_slots())),
        ("slots and rates after a pause", paced(two_slots())),
        ("counts of this process", failing(two_slots())),
        (
            "counts of this process after a pause",
            failing(paused(three())),
        ),
        ("a call that gives up", left(failing(two_slots()))),
    ];
    let sound = sound.map(|(name, model)| Case::new(("slot_line", name), None, None, model));
    let faulty = [
        (Fault::SlotsHavePace, paused(two_slots())),
        (Fault::TrialShared, two_slots()),
        (Fault::TrialNotSeen, failing(two_slots())),
        (Fault::RefusalTakenInByCall, two_slots()),
        (Fault::QuestionIgnoresLine, two_slots()),
        (Fault::SlotsOfGoneKept, left(three())),
        (Fault::OwnCountsIgnoreLine, failing(two_slots())),
        (Fault::OwnCountsIgnoreTold, failing(two_slots())),
        (Fault::OwnCountsForgetHeld, failing(two_slots())),
        (Fault::ReplyForgetsOwnGrants, failing(two_slots())),
        (Fault::OwnRefusalStandsLater, failing(two_slots())),
    ];
    let faulty = faulty.map(|(fault, model)| {
        let model = with(model, |model| model.fault = Some(fault));
        let fault = Some(format!("{fault:?}"));
        Case::new(("slot_line", "a planted fault"), fault, None, model)
    });
    sound.into_iter().chain(faulty).collect()
}
