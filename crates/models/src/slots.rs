//! Slots in flight and held units of one key: processes state what they hold and what they have used, and the server grants
//! what is free.
//!
//! A held unit that its process uses is charged with the next message. What is charged never returns, as with a total. Slots
//! are units that nobody uses up.
//!
//! Follows `src/limiter/in_flight` and `lua/holds.lua`. A process is a holder with one table of permits. What it does at once
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
    /// How many held units may be used. 0 for slots.
    uses: u8,
    /// How often a table may forget the key, and count from the highest sum that it had of any key.
    forgets: u8,
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
    /// The server charges what a message has beyond its acknowledged sum, whatever the entry has.
    TrustAcknowledged,
    /// The server charges what a message has beyond the sum of the entry, if there is one.
    TrustEntry,
    /// An entry with a sum goes with its lease.
    SumGoesWithLease,
    /// A table that forgets a key counts from 0 when it comes back.
    SumRestarts,
    /// A process gives a unit up before it counts it as used.
    UnitBeforeSum,
    /// A refused message charges nothing.
    RefusalChargesNothing,
    /// Units used by a lost permit are not counted.
    LostUseNotCounted,
    /// A reply acknowledges what was used after its message was sent.
    ReplyAcknowledgesAll,
    /// A table forgets a key although the server has not acknowledged all that was used.
    ForgetsUnacknowledged,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    holders: Vec<Holder>,
    repeats: u8,
    kills: u8,
    steps: u8,
    losses: u8,
    uses: u8,
    forgets: u8,
    /// The units that are charged.
    used: u8,
    /// Units were charged that their process could not know it had.
    has_overrun: bool,
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
    /// The sum of all that it has used of the key, and the part that is acknowledged.
    spent: u8,
    acknowledged: u8,
    /// The units that it has used and the server has not charged. Below 0 if some are charged twice.
    uncharged: i8,
    /// The units that it has given up and not counted yet. Only without the rule that both are one step.
    uncounted: u8,
    name: Name,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Entry {
    sequence: u8,
    slots: u8,
    /// The sum of all that the holder has used, as far as it is charged.
    spent: u8,
    /// The ticks until its lease ends. Below 0 if it has ended, and nobody has looked.
    left: i8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Request {
    sequence: u8,
    held: u8,
    known: u8,
    wanted: u8,
    spent: u8,
    acknowledged: u8,
    is_stated: bool,
    /// It was sent after the last loss of data.
    is_new: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Message {
    sequence: u8,
    spent: u8,
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
    /// It uses a unit of a permit, which may be lost.
    Use,
    UseLost,
    /// It counts a unit as used that it has given up before.
    Count,
    /// Its table forgets the key.
    Forget,
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
            spent: 0,
            acknowledged: 0,
            uncharged: 0,
            uncounted: 0,
            name,
        }
    }

    /// Returns the slots of permits that are not lost, and what was used of them and is not charged yet.
    fn valid_slots(&self) -> u8 {
        let uncharged = u8::try_from(self.uncharged).unwrap_or(0);
        if self.valid > 0 {
            self.held + uncharged
        } else {
            0
        }
    }

    /// Returns whether the server knows all that was used.
    fn is_acknowledged(&self) -> bool {
        self.spent == self.acknowledged && self.uncounted == 0
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
            for request in &mut self.requests {
                request.take_if(|request| request.sequence == message.sequence);
            }
        }
        Some(message)
    }

    /// Returns whether the server holds slots for it.
    fn has_slots(&self, fault: Option<Fault>) -> bool {
        self.entry.is_some_and(|entry| {
            let counts = entry.left > 0 || fault == Some(Fault::NoExpiry);
            counts && entry.slots > 0
        })
    }

    /// Returns whether nobody will hear of it any more. `oldest` is the least time that an entry can have left.
    fn is_gone(&self, oldest: i8) -> bool {
        let has_ended = self.entry.is_none_or(|entry| entry.left <= oldest);
        self.is_dead && has_ended && self.requests.iter().all(Option::is_none)
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
        let mut last = 0;
        let mut rank = 0;
        for sequence in all {
            rank += u8::from(*sequence != last);
            last = *sequence;
            *sequence = rank;
        }
    }

    /// Gives states that differ only in what nothing reads the same form.
    fn normalize(&mut self) {
        if self.held == 0 && self.uncharged == 0 {
            self.valid = 0;
        }
        if self.is_dead && self.uncharged > 0 {
            // Its late requests may charge less than it has used, but never more.
            (self.spent, self.acknowledged) = (0, 0);
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
        if self.has(Fault::WholeLease) {
            lease
        } else {
            lease * 4 / 5
        }
    }

    /// Returns the least time that an entry can have left: after that, no step back of the clock revives it.
    fn oldest(&self) -> i8 {
        match (self.fault, self.steps) {
            // None ever ends.
            (Some(Fault::NoExpiry), _) => -1,
            (_, 0) => 0,
            _ => -STEP,
        }
    }

    /// Returns whether an entry stays when its lease has ended, without its slots: in practice for an hour.
    fn keeps_sum(&self, entry: Entry) -> bool {
        entry.spent > 0 && !self.has(Fault::SumGoesWithLease)
    }

    /// Returns the units that a request charges: those that neither it nor the entry has as charged.
    fn due(&self, own: Option<Entry>, request: Request) -> u8 {
        let of_entry = own.map_or(0, |own| own.spent);
        let charged = match self.fault {
            Some(Fault::TrustAcknowledged) => request.acknowledged,
            Some(Fault::TrustEntry) if own.is_some() => of_entry,
            _ => of_entry.max(request.acknowledged),
        };
        request.spent.saturating_sub(charged)
    }

    fn tick(&self, state: &mut State, slow: Slow) {
        for (at, holder) in state.holders.iter_mut().enumerate() {
            if let Some(entry) = &mut holder.entry {
                entry.left -= 1;
            }
            let oldest = self.oldest();
            if !self.has(Fault::NoExpiry) {
                holder
                    .entry
                    .take_if(|entry| entry.left <= oldest && !self.keeps_sum(*entry));
            } else if let Some(entry) = &mut holder.entry {
                entry.left = entry.left.max(0);
            }
            if let Some(entry) = &mut holder.entry {
                entry.left = entry.left.max(oldest);
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
        let held = if self.has(Fault::LostNotStated) {
            holder.held
        } else {
            holder.held + holder.lost
        };
        let is_over = holder.held + holder.lost == 0 && !holder.is_changed;
        let sequence = if self.has(Fault::SequenceRestarts) && is_over {
            1
        } else {
            holder.latest_sequence() + 1
        };
        let request = Request {
            sequence,
            held,
            known: holder.known,
            wanted: wanted.min(1),
            spent: holder.spent,
            acknowledged: holder.acknowledged,
            is_stated: holder.is_changed || held > 0 || holder.spent > holder.acknowledged,
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
            spent: holder.spent,
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

    /// Returns the entry of a holder as the server reads it: clamped, and without slots if its lease has ended.
    fn entry_now(&self, holder: &Holder, asker_lease: i8) -> Option<Entry> {
        let latest = match self.fault {
            Some(Fault::NoClamp) => i8::MAX,
            Some(Fault::ClampToLeaseOfAsker) => asker_lease,
            _ => holder.lease,
        };
        let entry = holder.entry?;
        let entry = Entry {
            left: entry.left.min(latest),
            ..entry
        };
        if entry.left > 0 || self.has(Fault::NoExpiry) {
            Some(entry)
        } else if self.keeps_sum(entry) {
            Some(Entry { slots: 0, ..entry })
        } else {
            None
        }
    }

    /// Decides a request as the script does.
    fn decide(&self, state: &mut State, at: usize, request: Request) {
        let Some(asker) = state.holders.get(at) else {
            return;
        };
        let asker_lease = asker.lease;
        let is_valid = asker.valid > 0 || asker.uncharged == 0;
        let own = self.entry_now(asker, asker_lease);
        let others = state
            .holders
            .iter()
            .enumerate()
            .filter(|other| other.0 != at);
        let others: u8 = others
            .filter_map(|other| Some(self.entry_now(other.1, asker_lease)?.slots))
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
        let due = if is_superseded {
            0
        } else {
            self.due(own, request)
        };
        let used = state.used + due;
        let fits = used + others + base + request.wanted <= self.limit && !is_superseded;
        let due = if self.has(Fault::RefusalChargesNothing) && !fits {
            0
        } else {
            due
        };
        let granted = if fits { request.wanted } else { 0 };
        let is_written = fits || request.is_stated && !self.has(Fault::RefusalWritesNothing);
        let is_written = is_written && !is_superseded;
        if is_written || !self.has(Fault::ClampNotWritten) {
            for holder in &mut state.holders {
                holder.entry = self.entry_now(holder, asker_lease);
            }
        }
        if state.has_stepped {
            state.has_stepped = false;
            state
                .holders
                .iter_mut()
                .for_each(|holder| holder.silent = 0);
        }
        state.used += due;
        state.has_overrun |= due > 0 && !is_valid;
        if let Some(asker) = state.holders.get_mut(at) {
            asker.silent = 0;
            asker.uncharged -= i8::try_from(due).unwrap_or(i8::MAX);
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
                    spent: own.map_or(0, |own| own.spent).max(request.spent),
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
        if !has_failed {
            let acknowledged = if self.has(Fault::ReplyAcknowledgesAll) {
                holder.spent
            } else {
                message.spent
            };
            holder.acknowledged = holder.acknowledged.max(acknowledged);
        }
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
            uncharged: dead.uncharged,
            ..Holder::new(dead.lease, dead.name)
        };
        state.kills -= 1;
        state.holders.push(next);
    }

    fn lose_data(state: &mut State) {
        state.losses -= 1;
        state.used = 0;
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
        let requests: Vec<Request> = holder.requests.iter().flatten().copied().collect();
        let mut steps = Vec::new();
        let mut last = None;
        for request in &requests {
            let is_other = last.replace(*request) != Some(*request);
            steps.push((is_other, Step::Decide(*request)));
            steps.push((state.repeats > 0, Step::DecideTwice(*request)));
        }
        if let Some(message) = &holder.message {
            let granted = message.granted.unwrap_or(0);
            // As many slots as one reply can have granted, if the others have granted the rest.
            let least = (granted + 1).saturating_sub(message.replies);
            let lost = (least..=granted.min(1)).map(Some);
            let lost = lost.filter(|_| message.replies > 0).chain([None]);
            let may_be_late = requests
                .iter()
                .any(|request| request.sequence == message.sequence);
            for lost in lost {
                steps.push((true, Step::Complete(Rest::Lost, lost)));
                steps.push((may_be_late, Step::Complete(Rest::Late, lost)));
            }
        }
        let is_idle = holder.message.is_none();
        let may_overlap =
            |message: &Message| self.has(Fault::NoSingleFlight) && message.replies == 0;
        let may_send = is_idle || holder.message.as_ref().is_some_and(may_overlap);
        let may_send = may_send && requests.len() <= LATE;
        let is_known = holder.spent == holder.acknowledged;
        let has_news = holder.held + holder.lost > 0 || holder.is_changed || !is_known;
        let is_over = holder.held + holder.lost == 0 && !holder.is_changed;
        let is_counted = holder.is_acknowledged() || self.has(Fault::ForgetsUnacknowledged);
        let may_forget = state.forgets > 0 && is_idle && is_over && is_counted;
        let may_be_killed = state.kills > 0 && (holder.entry.is_some() || !requests.is_empty());
        let wants = u8::from(!has_news)..=self.checks;
        steps.extend(wants.map(|wanted| (may_send, Step::Send(wanted))));
        steps.extend([
            (holder.held > 0, Step::Release),
            (holder.lost > 0, Step::ReleaseLost),
            (holder.held > 0 && state.uses > 0, Step::Use),
            (holder.lost > 0 && state.uses > 0, Step::UseLost),
            (holder.uncounted > 0, Step::Count),
            (may_forget, Step::Forget),
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
                holder
                    .requests
                    .iter_mut()
                    .find(|other| **other == Some(request))?
                    .take();
                self.decide(state, at, request);
            }
            Step::DecideTwice(request) => {
                state.repeats -= 1;
                self.decide(state, at, request);
            }
            Step::Complete(rest, lost_reply) => self.complete(holder, rest, lost_reply),
            Step::Release => (holder.held, holder.is_changed) = (holder.held - 1, true),
            Step::ReleaseLost => (holder.lost, holder.is_changed) = (holder.lost - 1, true),
            Step::Use => {
                state.uses -= 1;
                holder.held -= 1;
                holder.uncharged += 1;
                if self.has(Fault::UnitBeforeSum) {
                    holder.uncounted += 1;
                    holder.is_changed = true;
                } else {
                    holder.spent += 1;
                }
            }
            Step::UseLost => {
                state.uses -= 1;
                holder.lost -= 1;
                holder.uncharged += 1;
                if self.has(Fault::LostUseNotCounted) {
                    holder.is_changed = true;
                } else {
                    holder.spent += 1;
                }
            }
            Step::Count => {
                holder.uncounted -= 1;
                holder.spent += 1;
            }
            Step::Forget => {
                state.forgets -= 1;
                // Another key had a higher sum.
                holder.spent = if self.has(Fault::SumRestarts) {
                    0
                } else {
                    holder.spent + 1
                };
                holder.acknowledged = holder.spent;
            }
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
    fn normalize(&mut self, oldest: i8) {
        self.holders.retain(|holder| !holder.is_gone(oldest));
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
            uses: self.uses,
            forgets: self.forgets,
            used: 0,
            has_overrun: false,
            has_stepped: false,
            has_exceeded: false,
        };
        state.normalize(self.oldest());
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
        state.normalize(self.oldest());
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "no more permits than slots",
                |model: &Self, state: &State| {
                    // Lost data may give every slot once more, until all processes have stated what they hold. What is charged of a
                    // process that was stopped, or of a lost permit, may be beyond the limit.
                    let most = model.limit * (1 + model.losses - state.losses);
                    state.has_overrun || state.used + state.valid() <= most
                },
            ),
            Property::always(
                "no grant beyond the limit once all have stated",
                |_, state: &State| !state.has_exceeded,
            ),
            Property::always(
                "lost permits count until they are dropped",
                |model: &Self, state: &State| {
                    state
                        .holders
                        .iter()
                        .all(|holder| holder.held + holder.lost <= model.limit)
                },
            ),
            Property::always(
                "a killed process returns its slots in a lease",
                |model: &Self, state: &State| {
                    state.has_stepped
                        || !state.holders.iter().any(|holder| {
                            let is_silent = holder.is_dead && holder.silent >= holder.lease;
                            is_silent && holder.has_slots(model.fault)
                        })
                },
            ),
            Property::always(
                "a released slot stays free",
                |model: &Self, state: &State| {
                    let mut released = state.holders.iter().filter(|holder| holder.returned > 0);
                    !released.any(|holder| holder.has_slots(model.fault))
                },
            ),
            Property::always("no unit is charged twice", |_, state: &State| {
                state.holders.iter().all(|holder| holder.uncharged >= 0)
            }),
            Property::always("what is acknowledged is charged", |_, state: &State| {
                let mut living = state.holders.iter().filter(|holder| !holder.is_dead);
                living.all(|holder| !holder.is_acknowledged() || holder.uncharged <= 0)
            }),
            Property::sometimes("all units are used", |model: &Self, state: &State| {
                state.used >= model.uses && state.uses == 0
            }),
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
fn two() -> Slots {
    Slots {
        limit: 1,
        leases: vec![2, 2],
        checks: 1,
        repeats: 0,
        kills: 0,
        steps: 0,
        losses: 0,
        uses: 0,
        forgets: 0,
        fault: None,
    }
}

fn leases(ticks: &[i8]) -> Slots {
    with(two(), |model| model.leases = ticks.to_vec())
}

fn repeated() -> Slots {
    with(two(), |model| model.repeats = 1)
}

fn killed() -> Slots {
    with(two(), |model| model.kills = 1)
}

fn stepped() -> Slots {
    with(killed(), |model| model.steps = 1)
}

fn two_slots() -> Slots {
    with(two(), |model| model.limit = 2)
}

fn two_checks() -> Slots {
    with(two_slots(), |model| model.checks = 2)
}

fn used() -> Slots {
    with(two_slots(), |model| model.uses = 2)
}

fn used_and(change: fn(&mut Slots)) -> Slots {
    with(used(), change)
}

fn forgotten() -> Slots {
    with(used(), |model| model.forgets = 1)
}

fn alone() -> Slots {
    with(forgotten(), |model| model.leases = vec![2])
}

/// Returns the cases: without a fault, and with each.
pub(crate) fn cases() -> Vec<Case> {
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
        ("two units, which are used", Some(12), used()),
        ("a table that forgets a key", Some(12), forgotten()),
        (
            "use in a repeated message",
            Some(11),
            used_and(|model| model.repeats = 1),
        ),
        (
            "use of a killed process",
            Some(11),
            used_and(|model| model.kills = 1),
        ),
        (
            "use and a step back of the clock",
            Some(11),
            used_and(|model| model.steps = 1),
        ),
        (
            "use in two checks of a message",
            Some(10),
            used_and(|model| model.checks = 2),
        ),
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
        (Fault::TrustAcknowledged, used()),
        (Fault::TrustEntry, alone()),
        (Fault::SumGoesWithLease, used()),
        (Fault::SumRestarts, alone()),
        (Fault::UnitBeforeSum, used()),
        (Fault::RefusalChargesNothing, used()),
        (Fault::LostUseNotCounted, used()),
        (Fault::ReplyAcknowledgesAll, used()),
        (Fault::ForgetsUnacknowledged, alone()),
    ];
    let faulty = faulty.map(|(fault, model)| {
        let model = with(model, |model| model.fault = Some(fault));
        let fault = Some(format!("{fault:?}"));
        Case::new(("slots", "a planted fault"), fault, None, model)
    });
    sound.into_iter().chain(faulty).collect()
}
