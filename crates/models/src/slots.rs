//! Slots in flight of one key: processes state what they hold, and the server grants what is free.
//!
//! Follows `src/limiter/in_flight` and `lua/in_flight.lua`. A process is a holder with one table of permits. What it does at once
//! under its lock is one action here. A process that does nothing while time passes is one that is stopped.

use stateright::{Model, Property};

use crate::case::{Case, set, with};
use crate::name::Name;

/// The most late requests of a holder that are on their way to the server while it sends a message.
const LATE: usize = 1;

/// By how much the clock of the server steps back.
const STEP: i8 = 2;

/// The sizes of a model, and which events it has.
#[derive(Clone, Debug)]
struct Slots {
    limit: u8,
    /// The lease of each process, in ticks of the server.
    leases: Vec<i8>,
    /// The checks of a message, each of which wants a slot.
    checks: u8,
    /// How many messages may arrive twice.
    repeats: u8,
    /// How many processes may be killed. Another one starts in place of each.
    kills: u8,
    /// How often the clock of the server may step back.
    steps: u8,
    /// How often the server may lose its data.
    losses: u8,
    fault: Option<Fault>,
}

/// A rule of the protocol that is left out, to see that a promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The server takes in a message that is older than the entry.
    NoSequence,
    /// The sequence starts anew when a process has nothing to say.
    SequenceRestarts,
    /// The second check of a message states what is held before the first one.
    SecondCheckRestates,
    /// A message states the difference to what was known, not what is held.
    Differences,
    /// A process sends a message while another one is under way.
    NoSingleFlight,
    /// A reply grants slots although its message was given up.
    LateReplyGrants,
    /// A renewal revives permits that are lost.
    LossNotFinal,
    /// A message does not state permits that are lost.
    LostNotStated,
    /// Permits are valid for the whole lease by the clock of the process.
    WholeLease,
    /// Permits are valid from the reply on, not from when the message was sent.
    ValidFromReply,
    /// Permits are valid from the last message on, though it was not acknowledged.
    ValidWithoutReply,
    /// A refusal does not write the entry of a holder that holds slots.
    RefusalWritesNothing,
    /// An entry without slots is removed.
    EmptyEntryRemoved,
    /// Entries stay when their lease has ended.
    NoExpiry,
    /// An entry keeps its end when the clock steps back.
    NoClamp,
    /// A refusal does not write the ends that it has clamped.
    ClampNotWritten,
    /// An entry ends at the latest after the lease of the process that asks.
    ClampToLeaseOfAsker,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    holders: Vec<Holder>,
    repeats: u8,
    kills: u8,
    steps: u8,
    losses: u8,
    /// The clock has stepped back, and no message was decided since.
    has_stepped: bool,
    /// A grant has exceeded the limit after the loss of data, though every process had stated what it holds.
    has_exceeded: bool,
}

/// A process, and what the server keeps of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Holder {
    /// Dead ones come last.
    is_dead: bool,
    lease: i8,
    entry: Option<Entry>,
    /// The requests on their way.
    requests: [Option<Request>; 2 + LATE],
    /// The message that waits for its reply.
    message: Option<Message>,
    /// The slots of permits, and those of permits that are lost and were not dropped.
    held: u8,
    lost: u8,
    /// The ticks of the process for which its permits are valid.
    valid: i8,
    /// The next message has to be written, also if it is refused.
    is_changed: bool,
    /// The ticks until its clock may miss one again.
    drift: i8,
    /// The number that the server is known to have. Only for messages with differences.
    known: u8,
    /// The ticks since the server has last heard of a process that is dead.
    silent: i8,
    /// The ticks for which the server certainly holds no slot of the process, which has told it so.
    returned: i8,
    /// The server has heard of it since it lost its data.
    is_heard: bool,
    name: Name,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Entry {
    sequence: u8,
    slots: u8,
    /// The ticks until its lease ends. Below 0 if it has ended, and nobody has looked.
    left: i8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Request {
    sequence: u8,
    held: u8,
    known: u8,
    wanted: u8,
    is_stated: bool,
    /// It was sent after the last loss of data.
    is_new: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Message {
    sequence: u8,
    checks: u8,
    replies: u8,
    /// The slots that were granted. `None` if a check was superseded.
    granted: Option<u8>,
    /// The ticks of the process for which the permits of the message are valid.
    left: i8,
}

/// The place of a process in the state, and its name.
type Who = (usize, Name);

/// The processes whose clocks miss a tick, by their places.
type Slow = [Option<Name>; 3];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    /// Time passes. The clocks of these processes miss a tick.
    Tick(Slow),
    Process(Who, Step),
    StepBack,
    LoseData,
}

/// An event of a process or of one of its messages.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// It sends a message that wants so many slots.
    Send(u8),
    /// The server decides a request, which may arrive twice.
    Decide(Request),
    DecideTwice(Request),
    /// It takes in the replies to its message, or gives it up. Requests without a reply are lost, or late. A reply that has
    /// granted so many slots may be lost.
    Complete(Rest, Option<u8>),
    /// It drops a permit, which may be lost.
    Release,
    ReleaseLost,
    /// It is killed, and another one starts. Requests are lost, or late.
    Kill(Rest),
}

/// The requests of a message that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rest {
    Lost,
    Late,
}

impl Holder {
    fn new(lease: i8, name: Name) -> Self {
        Self {
            is_dead: false,
            lease,
            entry: None,
            requests: [None; 2 + LATE],
            message: None,
            held: 0,
            lost: 0,
            valid: 0,
            is_changed: false,
            drift: 0,
            known: 0,
            silent: 0,
            returned: 0,
            is_heard: true,
            name,
        }
    }

    /// Returns the slots of permits that are not lost.
    fn valid_slots(&self) -> u8 {
        if self.valid > 0 { self.held } else { 0 }
    }

    /// Makes the permits lost if their time has passed.
    fn settle_end(&mut self, fault: Option<Fault>) {
        if self.valid == 0 && fault != Some(Fault::LossNotFinal) {
            self.lost += self.held;
            self.held = 0;
        }
    }

    /// Returns the latest sequence that anybody knows of.
    fn latest_sequence(&self) -> u8 {
        let requests = self
            .requests
            .iter()
            .flatten()
            .map(|request| request.sequence);
        let message = self.message.iter().map(|message| message.sequence);
        let entry = self.entry.iter().map(|entry| entry.sequence);
        requests.chain(message).chain(entry).max().unwrap_or(0)
    }

    /// Ends the message. Its requests are lost, or late.
    fn end_message(&mut self, rest: Rest) -> Option<Message> {
        let message = self.message.take()?;
        if rest == Rest::Lost {
            let is_own = |request: &mut Request| request.sequence == message.sequence;
            self.requests
                .iter_mut()
                .for_each(|request| _ = request.take_if(is_own));
        }
        Some(message)
    }

    /// Returns whether the server holds slots for it.
    fn has_slots(&self, fault: Option<Fault>) -> bool {
        let counts = |entry: &Entry| entry.left > 0 || fault == Some(Fault::NoExpiry);
        self.entry
            .filter(counts)
            .is_some_and(|entry| entry.slots > 0)
    }

    /// Returns whether nobody will hear of it any more.
    fn is_gone(&self) -> bool {
        self.is_dead && self.entry.is_none() && self.requests.iter().all(Option::is_none)
    }

    /// Replaces sequences by their ranks: only their order counts.
    fn rank_sequences(&mut self) {
        let requests = self
            .requests
            .iter_mut()
            .flatten()
            .map(|request| &mut request.sequence);
        let message = self.message.iter_mut().map(|message| &mut message.sequence);
        let entry = self.entry.iter_mut().map(|entry| &mut entry.sequence);
        let mut all: Vec<&mut u8> = requests.chain(message).chain(entry).collect();
        all.sort_unstable();
        let (mut last, mut rank) = (0, 0);
        for sequence in all {
            rank += u8::from(*sequence != last);
            last = *sequence;
            *sequence = rank;
        }
    }

    /// Gives states that differ only in what nothing reads the same form.
    fn normalize(&mut self) {
        if self.held == 0 {
            self.valid = 0;
        }
        if self.valid == 0 && self.message.is_none() {
            // A clock that misses a tick now makes no time longer that it measures.
            self.drift = 0;
        }
        if self.entry.is_none() || !self.is_dead {
            self.silent = 0;
        }
        self.requests.sort_unstable();
        self.rank_sequences();
    }
}

impl Slots {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Returns the ticks of a process for which permits are valid after a message: 0.8 of its lease.
    fn certain_part(&self, lease: i8) -> i8 {
        match self.has(Fault::WholeLease) {
            true => lease,
            false => lease * 4 / 5,
        }
    }

    fn tick(&self, state: &mut State, slow: Slow) {
        for (at, holder) in state.holders.iter_mut().enumerate() {
            if let Some(entry) = &mut holder.entry {
                entry.left -= 1;
            }
            let oldest = if self.steps > 0 { -STEP } else { 0 };
            match self.has(Fault::NoExpiry) {
                true => holder
                    .entry
                    .iter_mut()
                    .for_each(|entry| entry.left = entry.left.max(0)),
                false => _ = holder.entry.take_if(|entry| entry.left <= oldest),
            }
            holder.silent = (holder.silent + 1).min(holder.lease);
            holder.returned = (holder.returned - 1).max(0);
            if slow.get(at).is_some_and(Option::is_some) {
                holder.drift = holder.lease - 1;
                continue;
            }
            holder.drift = (holder.drift - 1).max(0);
            holder.valid = (holder.valid - 1).max(0);
            holder.settle_end(self.fault);
            if let Some(message) = &mut holder.message {
                message.left = (message.left - 1).max(0);
            }
        }
    }

    fn send(&self, holder: &mut Holder, wanted: u8) {
        let held = match self.has(Fault::LostNotStated) {
            true => holder.held,
            false => holder.held + holder.lost,
        };
        let is_over = holder.held + holder.lost == 0 && !holder.is_changed;
        let sequence = match self.has(Fault::SequenceRestarts) && is_over {
            true => 1,
            false => holder.latest_sequence() + 1,
        };
        let request = Request {
            sequence,
            held,
            known: holder.known,
            wanted: wanted.min(1),
            is_stated: holder.is_changed || held > 0,
            is_new: true,
        };
        let checks = wanted.max(1);
        let free = holder
            .requests
            .iter_mut()
            .filter(|request| request.is_none());
        free.take(checks.into())
            .for_each(|free| *free = Some(request));
        holder.message = Some(Message {
            sequence,
            checks,
            replies: 0,
            granted: Some(0),
            left: self.certain_part(holder.lease),
        });
        holder.is_changed = false;
        holder.known = if self.has(Fault::Differences) {
            held
        } else {
            0
        };
        holder.returned = 0;
    }

    /// Decides a request as the script does.
    fn decide(&self, state: &mut State, at: usize, request: Request) {
        let Some(asker) = state.holders.get(at) else {
            return;
        };
        let asker_lease = asker.lease;
        let entry_now = |holder: &Holder| {
            let latest = match self.fault {
                Some(Fault::NoClamp) => i8::MAX,
                Some(Fault::ClampToLeaseOfAsker) => asker_lease,
                _ => holder.lease,
            };
            let left = |entry: Entry| entry.left.min(latest);
            let entry = holder.entry.map(|entry| Entry {
                left: left(entry),
                ..entry
            });
            entry.filter(|entry| entry.left > 0 || self.has(Fault::NoExpiry))
        };
        let own = entry_now(asker);
        let others = state
            .holders
            .iter()
            .enumerate()
            .filter(|other| other.0 != at);
        let others: u8 = others
            .filter_map(|other| Some(entry_now(other.1)?.slots))
            .sum();
        let is_superseded =
            own.is_some_and(|own| own.sequence > request.sequence) && !self.has(Fault::NoSequence);
        let base = match own {
            Some(own) if self.has(Fault::Differences) => {
                (own.slots + request.held).saturating_sub(request.known)
            }
            Some(own)
                if own.sequence == request.sequence && !self.has(Fault::SecondCheckRestates) =>
            {
                own.slots
            }
            _ => request.held,
        };
        let fits = others + base + request.wanted <= self.limit && !is_superseded;
        let granted = if fits { request.wanted } else { 0 };
        let is_written = fits || request.is_stated && !self.has(Fault::RefusalWritesNothing);
        let is_written = is_written && !is_superseded;
        if is_written || !self.has(Fault::ClampNotWritten) {
            state
                .holders
                .iter_mut()
                .for_each(|holder| holder.entry = entry_now(holder));
        }
        if state.has_stepped {
            state.has_stepped = false;
            state
                .holders
                .iter_mut()
                .for_each(|holder| holder.silent = 0);
        }
        if let Some(asker) = state.holders.get_mut(at) {
            asker.silent = 0;
            asker.is_heard |= request.is_new && !is_superseded;
            if is_written {
                let slots = base + granted;
                let is_latest = asker.latest_sequence() == request.sequence;
                if request.held + request.wanted == 0 && is_latest && !asker.is_dead {
                    asker.returned = asker.lease;
                }
                let is_kept = slots > 0 || !self.has(Fault::EmptyEntryRemoved);
                asker.entry = is_kept.then_some(Entry {
                    sequence: request.sequence,
                    slots,
                    left: asker.lease,
                });
            }
            self.reply(asker, request, (!is_superseded).then_some(granted));
        }
        let are_heard = state.holders.iter().all(|holder| holder.is_heard);
        let is_recovered = state.losses < self.losses && are_heard;
        state.has_exceeded |= is_recovered && granted > 0 && state.valid() + granted > self.limit;
    }

    /// Sends the reply to a process, which has it if it waits for it.
    fn reply(&self, holder: &mut Holder, request: Request, granted: Option<u8>) {
        if holder.is_dead {
            return;
        }
        let message = holder.message.as_mut();
        if let Some(message) = message.filter(|message| message.sequence == request.sequence) {
            if message.replies < message.checks {
                message.replies += 1;
                let sum = message.granted.zip(granted);
                message.granted = sum.map(|(before, granted)| before + granted);
            }
        } else if let Some(granted) = granted
            && (self.has(Fault::LateReplyGrants) || self.has(Fault::NoSingleFlight))
        {
            holder.held += granted;
            holder.valid = holder.valid.max(self.certain_part(holder.lease));
        }
    }

    /// Takes in the end of a message, and the replies that have come.
    fn complete(&self, holder: &mut Holder, rest: Rest, lost_reply: Option<u8>) {
        let Some(message) = holder.end_message(rest) else {
            return;
        };
        let replies = message.replies - u8::from(lost_reply.is_some());
        let granted = message
            .granted
            .map(|granted| granted - lost_reply.unwrap_or(0));
        let granted = granted.filter(|_| message.left > 0);
        let has_failed = granted.is_none() || replies < message.checks;
        holder.held += granted.unwrap_or(0);
        holder.is_changed |= has_failed;
        if self.has(Fault::Differences) {
            holder.known += granted.unwrap_or(0);
        }
        // After a failure, another check of the message may have granted the first slots.
        let are_first = holder.valid == 0 && granted > Some(0);
        if !has_failed || are_first || self.has(Fault::ValidWithoutReply) {
            holder.valid = match self.fault {
                Some(Fault::ValidFromReply) => self.certain_part(holder.lease),
                _ => message.left,
            };
        }
    }

    fn kill(&self, state: &mut State, at: usize, rest: Rest) {
        let Some(dead) = state.holders.get_mut(at) else {
            return;
        };
        dead.end_message(rest);
        let name = self.leases.len() + usize::from(self.kills - state.kills);
        let next = Holder::new(dead.lease, Name(u8::try_from(name).unwrap_or(u8::MAX)));
        *dead = Holder {
            is_dead: true,
            entry: dead.entry,
            requests: dead.requests,
            ..Holder::new(dead.lease, dead.name)
        };
        state.kills -= 1;
        state.holders.push(next);
    }

    fn lose_data(state: &mut State) {
        state.losses -= 1;
        for holder in &mut state.holders {
            holder.entry = None;
            holder.returned = 0;
            holder.is_heard = holder.is_dead;
            holder
                .requests
                .iter_mut()
                .flatten()
                .for_each(|request| request.is_new = false);
        }
    }

    /// Adds what may happen to a holder.
    fn holder_actions(&self, state: &State, at: usize, actions: &mut Vec<Action>) -> Option<()> {
        let holder = state.holders.get(at)?;
        let requests = || holder.requests.iter().flatten();
        let mut last = None;
        let different = requests().filter(|request| last.replace(*request) != Some(*request));
        let mut steps: Vec<_> = different
            .map(|request| (true, Step::Decide(*request)))
            .collect();
        let repeated = |request: &Request| (state.repeats > 0, Step::DecideTwice(*request));
        steps.extend(requests().map(repeated));
        if let Some(message) = &holder.message {
            let granted = message.granted.unwrap_or(0);
            // As many slots as one reply can have granted, if the others have granted the rest.
            let least = (granted + 1).saturating_sub(message.replies);
            let lost = (least..=granted.min(1)).map(Some);
            let lost = lost.filter(|_| message.replies > 0).chain([None]);
            let may_be_late = requests().any(|request| request.sequence == message.sequence);
            for lost in lost {
                steps.push((true, Step::Complete(Rest::Lost, lost)));
                steps.push((may_be_late, Step::Complete(Rest::Late, lost)));
            }
        }
        let is_idle = holder.message.is_none();
        let may_overlap =
            |message: &Message| self.has(Fault::NoSingleFlight) && message.replies == 0;
        let may_send = is_idle || holder.message.as_ref().is_some_and(may_overlap);
        let may_send = may_send && requests().count() <= LATE;
        let has_news = holder.held + holder.lost > 0 || holder.is_changed;
        let may_be_killed = state.kills > 0 && (holder.entry.is_some() || requests().count() > 0);
        let wants = u8::from(!has_news)..=self.checks;
        steps.extend(wants.map(|wanted| (may_send, Step::Send(wanted))));
        steps.extend([
            (holder.held > 0, Step::Release),
            (holder.lost > 0, Step::ReleaseLost),
            (may_be_killed, Step::Kill(Rest::Late)),
            (may_be_killed && !is_idle, Step::Kill(Rest::Lost)),
        ]);
        // The requests of a dead one arrive.
        let is_done =
            |step: &Step| !holder.is_dead || matches!(step, Step::Decide(_) | Step::DecideTwice(_));
        let possible = steps
            .into_iter()
            .filter(|(is_possible, step)| *is_possible && is_done(step));
        actions.extend(possible.map(|(_, step)| Action::Process((at, holder.name), step)));
        Some(())
    }

    fn step(&self, state: &mut State, at: usize, step: Step) -> Option<()> {
        let holder = state.holders.get_mut(at)?;
        match step {
            Step::Send(wanted) => self.send(holder, wanted),
            Step::Decide(request) => {
                let mut requests = holder.requests.iter_mut();
                requests.find(|other| **other == Some(request))?.take();
                self.decide(state, at, request);
            }
            Step::DecideTwice(request) => {
                state.repeats -= 1;
                self.decide(state, at, request);
            }
            Step::Complete(rest, lost_reply) => self.complete(holder, rest, lost_reply),
            Step::Release => (holder.held, holder.is_changed) = (holder.held - 1, true),
            Step::ReleaseLost => (holder.lost, holder.is_changed) = (holder.lost - 1, true),
            Step::Kill(rest) => self.kill(state, at, rest),
        }
        Some(())
    }
}

impl State {
    /// Returns the slots of permits that are not lost.
    fn valid(&self) -> u8 {
        self.holders.iter().map(Holder::valid_slots).sum()
    }

    /// The processes change places, so that states that differ only in that are the same.
    fn normalize(&mut self) {
        self.holders.retain(|holder| !holder.is_gone());
        self.holders.iter_mut().for_each(Holder::normalize);
        self.holders.sort_unstable();
    }
}

impl Model for Slots {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let names = (0..).map(Name);
        let holders = self.leases.iter().zip(names);
        let mut state = State {
            holders: holders
                .map(|(lease, name)| Holder::new(*lease, name))
                .collect(),
            repeats: self.repeats,
            kills: self.kills,
            steps: self.steps,
            losses: self.losses,
            has_stepped: false,
            has_exceeded: false,
        };
        state.normalize();
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick(Slow::default()));
        for (at, holder) in state.holders.iter().enumerate() {
            if holder.drift == 0 && (holder.valid > 0 || holder.message.is_some()) {
                for other in 0..actions.len() {
                    if let Some(Action::Tick(mut slow)) = actions.get(other).copied() {
                        set(&mut slow, at, Some(holder.name));
                        actions.push(Action::Tick(slow));
                    }
                }
            }
        }
        for at in 0..state.holders.len() {
            self.holder_actions(state, at, actions);
        }
        let has_entries = state.holders.iter().any(|holder| holder.entry.is_some());
        if state.steps > 0 && has_entries {
            actions.push(Action::StepBack);
        }
        if state.losses > 0 && has_entries {
            actions.push(Action::LoseData);
        }
    }

    fn next_state(&self, last_state: &State, action: Action) -> Option<State> {
        let mut state = last_state.clone();
        match action {
            Action::Tick(slow) => self.tick(&mut state, slow),
            Action::Process(who, step) => self.step(&mut state, who.0, step)?,
            Action::StepBack => {
                (state.steps, state.has_stepped) = (state.steps - 1, true);
                let entries = state
                    .holders
                    .iter_mut()
                    .flat_map(|holder| &mut holder.entry);
                entries.for_each(|entry| entry.left += STEP);
            }
            Action::LoseData => Self::lose_data(&mut state),
        }
        state.normalize();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "no more permits than slots",
                |model: &Self, state: &State| {
                    // Lost data may give every slot once more, until all processes have stated what they hold.
                    state.valid() <= model.limit * (1 + model.losses - state.losses)
                },
            ),
            Property::always(
                "no grant beyond the limit once all have stated",
                |_, state: &State| !state.has_exceeded,
            ),
            Property::always(
                "lost permits count until they are dropped",
                |model: &Self, state: &State| {
                    let mut holders = state.holders.iter();
                    holders.all(|holder| holder.held + holder.lost <= model.limit)
                },
            ),
            Property::always(
                "a killed process returns its slots in a lease",
                |model: &Self, state: &State| {
                    let silent = |holder: &&Holder| holder.is_dead && holder.silent >= holder.lease;
                    let mut silent = state.holders.iter().filter(silent);
                    state.has_stepped || !silent.any(|holder| holder.has_slots(model.fault))
                },
            ),
            Property::always(
                "a released slot stays free",
                |model: &Self, state: &State| {
                    let mut released = state.holders.iter().filter(|holder| holder.returned > 0);
                    !released.any(|holder| holder.has_slots(model.fault))
                },
            ),
            Property::sometimes("all slots are held", |model: &Self, state: &State| {
                state.valid() == model.limit
            }),
            Property::sometimes(
                "a lost permit is held beside a valid one",
                |_, state: &State| {
                    state.valid() > 0 && state.holders.iter().any(|holder| holder.lost > 0)
                },
            ),
        ]
    }
}

/// Two processes and a slot, whose messages are lost and late.
fn two_processes() -> Slots {
    Slots {
        limit: 1,
        leases: vec![2, 2],
        checks: 1,
        repeats: 0,
        kills: 0,
        steps: 0,
        losses: 0,
        fault: None,
    }
}

/// Returns the cases: without a fault, and with each.
pub(crate) fn cases() -> Vec<Case> {
    let two = two_processes;
    let leases = |ticks: &[i8]| with(two(), |model| model.leases = ticks.to_vec());
    let repeated = || with(two(), |model| model.repeats = 1);
    let killed = || with(two(), |model| model.kills = 1);
    let stepped = || with(killed(), |model| model.steps = 1);
    let two_slots = || with(two(), |model| model.limit = 2);
    let two_checks = || with(two_slots(), |model| model.checks = 2);
    let lost_data = with(two(), |model| model.losses = 1);
    let sound = [
        ("two processes, one slot", None, two()),
        ("a repeated message", Some(12), repeated()),
        ("a killed process", Some(13), killed()),
        ("a step back of the clock", Some(12), stepped()),
        ("lost data", Some(12), lost_data),
        ("two slots", Some(13), two_slots()),
        ("two checks in a message", Some(11), two_checks()),
        ("three processes", Some(12), leases(&[2, 2, 2])),
        ("leases of different lengths", Some(13), leases(&[3, 2])),
        ("three ticks a lease", Some(13), leases(&[3, 3])),
        ("five ticks a lease", Some(11), leases(&[5, 5])),
    ];
    let sound = sound.map(|(name, depth, model)| Case::new(("slots", name), None, depth, model));
    let faulty = [
        (Fault::NoSequence, two()),
        (Fault::SequenceRestarts, two()),
        (Fault::SecondCheckRestates, two_checks()),
        (Fault::Differences, repeated()),
        (Fault::NoSingleFlight, two()),
        (Fault::LateReplyGrants, two()),
        (Fault::LossNotFinal, two()),
        (Fault::LostNotStated, two()),
        (Fault::WholeLease, two()),
        (Fault::ValidFromReply, leases(&[3, 3])),
        (Fault::ValidWithoutReply, leases(&[3, 3])),
        (Fault::RefusalWritesNothing, leases(&[3, 3])),
        (Fault::EmptyEntryRemoved, two()),
        (Fault::NoExpiry, killed()),
        (Fault::NoClamp, stepped()),
        (Fault::ClampNotWritten, stepped()),
        (Fault::ClampToLeaseOfAsker, leases(&[3, 2])),
    ];
    let faulty = faulty.map(|(fault, model)| {
        let model = with(model, |model| model.fault = Some(fault));
        let fault = Some(format!("{fault:?}"));
        Case::new(("slots", "a planted fault"), fault, None, model)
    });
    sound.into_iter().chain(faulty).collect()
}
