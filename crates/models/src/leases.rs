//! Leases of units: processes take units of a key in advance, and use them without the store.
//!
//! Follows `src/limiter/lease`. The store keeps a log of charges, each of which counts for the window and the lease. The promise
//! is about uses: those of any span as long as the window are at most the limit.

use stateright::{Model, Property};

use crate::case::{Case, set, with};

/// The most grants of a process.
const GRANTS: usize = 2;

#[derive(Clone, Debug)]
struct Leases {
    processes: usize,
    /// The window and the lease, in ticks of the store.
    window: i8,
    lease: i8,
    limit: u8,
    /// Units count until the end of an aligned window.
    is_fixed: bool,
    /// How many requests may arrive twice.
    repeats: u8,
    /// How often the store may lose its data.
    losses: u8,
    fault: Option<Fault>,
}

/// A rule of the protocol that is left out, to see that a promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The store counts charges for the window without the lease.
    NoWindowExtension,
    /// Units are used for the whole lease by the clock of the process.
    WholeLease,
    /// The time for uses begins with the reply, not when the request was sent.
    UsedFromReply,
    /// The store grants units that it does not charge.
    GrantNotCharged,
    /// The store grants what is asked for, whatever is left.
    GrantBeyondLeft,
    /// Units of an aligned window are used after its end.
    EndOfWindowIgnored,
    /// A unit that is given back goes to the newest grant, not to its own.
    ReturnIntoLaterGrant,
    /// Units stay in the table until the store has taken them back.
    ReturnStaysUsable,
    /// A return is sent again.
    ReturnSentAgain,
    /// A return takes units of the newest charge, not of its own.
    ReturnWithoutReceipt,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    log: Vec<Charge>,
    /// The uses of each of the last ticks, as many as the window has. Of an aligned window, all are in the first.
    uses: Vec<u8>,
    /// The ticks until the aligned window ends.
    window_left: i8,
    processes: Vec<Process>,
    repeats: u8,
    losses: u8,
}

/// Identifies a charge, as its receipt does. 0 if nobody has the receipt.
type Receipt = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Charge {
    age: i8,
    receipt: Receipt,
    units: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Process {
    request: Option<Request>,
    /// The units of a request that was given up, and may still arrive.
    late: Option<u8>,
    /// In the order in which they are used.
    grants: Vec<Grant>,
    /// A unit that was used, and may be given back.
    used: Option<Used>,
    /// Units on their way back to the store.
    returned: Option<(Receipt, u8)>,
    /// The ticks until its clock may miss one again.
    drift: i8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Request {
    units: u8,
    /// The ticks of the process since it was sent.
    age: i8,
    /// It has not arrived, or may arrive once more.
    is_on_its_way: bool,
    /// The charge, its units, and the ticks until the end of an aligned window.
    reply: Option<(Receipt, u8, i8)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Grant {
    receipt: Receipt,
    left: u8,
    /// The ticks of the process for which units may be used.
    ends_in: i8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Used {
    receipt: Receipt,
    age: i8,
}

/// The index of a process.
type Who = usize;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    /// Time passes. The clocks of these processes miss a tick.
    Tick([bool; 3]),
    Process(Who, Step),
    /// Somebody asks the store for a unit, and uses it at once.
    Check,
    LoseData,
}

/// An event of a process or of one of its messages.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// It asks for units in advance.
    Ask(u8),
    /// The store decides the request, which may arrive twice, or late.
    Decide,
    DecideTwice,
    DecideLate,
    /// It takes in the reply.
    TakeIn,
    /// It gives the request up, which is lost, or late.
    GiveUp,
    GiveUpLate,
    /// It uses a unit that it holds, and may give it back.
    Use,
    UseReturnable,
    /// It gives a unit back that was not used after all.
    GiveBack,
    /// It returns what is left of its first grant.
    Release,
    /// The store takes units back. The message may be lost, or arrive twice.
    Return,
    LoseReturn,
    ReturnTwice,
    Crash,
}

impl Process {
    /// Returns whether its clock measures anything.
    fn measures(&self) -> bool {
        self.request.is_some() || !self.grants.is_empty()
    }

    /// Sends units of a grant back, unless others are on their way.
    fn send_back(&mut self, receipt: Receipt, units: u8) {
        if units > 0 {
            self.returned.get_or_insert((receipt, units));
        }
    }

    fn receipts(&self) -> impl Iterator<Item = Receipt> {
        let request = self.request.and_then(|request| Some(request.reply?.0));
        let grants = self.grants.iter().map(|grant| grant.receipt);
        let used = self.used.map(|used| used.receipt);
        let returned = self.returned.map(|(receipt, _)| receipt);
        grants.chain(request).chain(used).chain(returned)
    }
}

impl Leases {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Returns the part of a time of the store that has certainly not passed there when it has passed here.
    fn certain_part(&self, ticks: i8) -> i8 {
        if self.has(Fault::WholeLease) {
            ticks
        } else {
            ticks * 4 / 5
        }
    }

    fn tick(&self, state: &mut State, is_slow: [bool; 3]) {
        let counts_for = if self.has(Fault::NoWindowExtension) {
            self.window
        } else {
            self.window + self.lease
        };
        for charge in &mut state.log {
            charge.age += 1;
        }
        if self.is_fixed {
            state.window_left -= 1;
            if state.window_left == 0 {
                state.window_left = self.window;
                state.log.clear();
                state.uses.fill(0);
                let used = state
                    .processes
                    .iter_mut()
                    .filter_map(|process| process.used.as_mut());
                used.for_each(|used| used.age = self.window);
            }
        } else {
            state.log.retain(|charge| charge.age < counts_for);
            state.uses.rotate_right(1);
            state
                .uses
                .first_mut()
                .into_iter()
                .for_each(|uses| *uses = 0);
        }
        for (process, is_slow) in state.processes.iter_mut().zip(is_slow) {
            if let Some(used) = &mut process.used {
                used.age += i8::from(!self.is_fixed && used.age < self.window);
            }
            if is_slow {
                process.drift = self.lease - 1;
                continue;
            }
            process.drift = (process.drift - 1).max(0);
            if let Some(request) = &mut process.request {
                request.age = (request.age + 1).min(self.lease);
            }
            process
                .grants
                .iter_mut()
                .for_each(|grant| grant.ends_in -= 1);
            let ended: Vec<_> = process
                .grants
                .extract_if(.., |grant| grant.ends_in <= 0)
                .collect();
            for grant in ended {
                process.send_back(grant.receipt, grant.left);
            }
        }
    }

    /// Charges up to so many units. Returns the charge and its units.
    ///
    /// Which part of what is left a process may get is not a rule of the model: it asks for every number of units.
    fn charge(&self, state: &mut State, units: u8, has_receipt: bool) -> (Receipt, u8) {
        let used: u8 = state.log.iter().map(|charge| charge.units).sum();
        let is_bound = !(has_receipt && self.has(Fault::GrantBeyondLeft));
        let units = if is_bound {
            units.min(self.limit.saturating_sub(used))
        } else {
            units
        };
        let receipt = if has_receipt { state.free_receipt() } else { 0 };
        if units > 0 && !(has_receipt && self.has(Fault::GrantNotCharged)) {
            state.log.push(Charge {
                age: 0,
                receipt,
                units,
            });
        }
        (receipt, units)
    }

    fn decide(&self, state: &mut State, who: Who, is_repeated: bool) -> Option<()> {
        state.repeats -= u8::from(is_repeated);
        let request = state.processes.get_mut(who)?.request.as_mut()?;
        request.is_on_its_way = is_repeated;
        let units = request.units;
        let is_first = request.reply.is_none();
        let window_left = state.window_left;
        let (receipt, units) = self.charge(state, units, is_first);
        if is_first {
            let request = state.processes.get_mut(who)?.request.as_mut()?;
            request.reply = Some((receipt, units, window_left));
        }
        Some(())
    }

    fn take_in(&self, process: &mut Process) -> Option<()> {
        let request = process.request.take()?;
        let (receipt, units, window_left) = request.reply?;
        let is_bound = self.is_fixed && !self.has(Fault::EndOfWindowIgnored);
        let time = if is_bound {
            window_left.min(self.lease)
        } else {
            self.lease
        };
        let age = if self.has(Fault::UsedFromReply) {
            0
        } else {
            request.age
        };
        let ends_in = self.certain_part(time) - age;
        if request.is_on_its_way {
            process.late = Some(request.units);
        }
        if units > 0 && ends_in > 0 {
            process.grants.push(Grant {
                receipt,
                left: units,
                ends_in,
            });
        } else {
            process.send_back(receipt, units);
        }
        Some(())
    }

    fn give_back(&self, state: &mut State, who: Who) -> Option<()> {
        let process = state.processes.get_mut(who)?;
        let used = process.used.take()?;
        let tick = if self.is_fixed && used.age < self.window {
            0
        } else {
            used.age
        };
        let uses = usize::try_from(tick)
            .ok()
            .and_then(|tick| state.uses.get_mut(tick));
        uses.into_iter().for_each(|uses| *uses -= 1);
        let newest = self.has(Fault::ReturnIntoLaterGrant);
        let grant = process
            .grants
            .iter_mut()
            .rev()
            .find(|grant| newest || grant.receipt == used.receipt);
        match grant {
            Some(grant) => grant.left += 1,
            None => process.send_back(used.receipt, 1),
        }
        Some(())
    }

    fn take_back(&self, state: &mut State, (receipt, units): (Receipt, u8)) {
        let mut charges = state.log.iter_mut();
        let charge = if self.has(Fault::ReturnWithoutReceipt) {
            charges.min_by_key(|charge| charge.age)
        } else {
            charges.find(|charge| charge.receipt == receipt)
        };
        if let Some(charge) = charge {
            charge.units = charge.units.saturating_sub(units);
        }
        state.log.retain(|charge| charge.units > 0);
    }

    /// Adds what a process may do next.
    fn process_actions(&self, state: &State, who: Who, actions: &mut Vec<Action>) -> Option<()> {
        let process = state.processes.get(who)?;
        let request = process.request;
        let is_on_its_way = request.is_some_and(|request| request.is_on_its_way);
        let has_reply = request.is_some_and(|request| request.reply.is_some());
        let has_units = process.grants.iter().any(|grant| grant.left > 0);
        let may_repeat = state.repeats > 0;
        let returns = process.returned.is_some();
        let returns_twice = returns && may_repeat && self.has(Fault::ReturnSentAgain);
        let steps = [
            (is_on_its_way, Step::Decide),
            (is_on_its_way && may_repeat, Step::DecideTwice),
            (process.late.is_some(), Step::DecideLate),
            (has_reply, Step::TakeIn),
            (request.is_some(), Step::GiveUp),
            (is_on_its_way, Step::GiveUpLate),
            (has_units, Step::Use),
            (has_units && process.used.is_none(), Step::UseReturnable),
            (process.used.is_some(), Step::GiveBack),
            (has_units && !returns, Step::Release),
            (returns, Step::Return),
            (returns, Step::LoseReturn),
            (returns_twice, Step::ReturnTwice),
            (process.measures(), Step::Crash),
        ];
        let may_ask = request.is_none() && process.grants.len() < GRANTS;
        let asks = (1..=self.limit).map(|units| (may_ask, Step::Ask(units)));
        let possible = asks.chain(steps).filter(|(is_possible, _)| *is_possible);
        actions.extend(possible.map(|(_, step)| Action::Process(who, step)));
        Some(())
    }

    fn step(&self, state: &mut State, who: Who, step: Step) -> Option<()> {
        let process = state.processes.get_mut(who)?;
        match step {
            Step::Ask(units) => {
                process.request = Some(Request {
                    units,
                    age: 0,
                    is_on_its_way: true,
                    reply: None,
                });
            }
            Step::Decide => self.decide(state, who, false)?,
            Step::DecideTwice => self.decide(state, who, true)?,
            Step::DecideLate => {
                let units = process.late.take()?;
                self.charge(state, units, false);
            }
            Step::TakeIn => self.take_in(process)?,
            Step::GiveUp => process.request = None,
            Step::GiveUpLate => process.late = Some(process.request.take()?.units),
            Step::Use | Step::UseReturnable => {
                let grant = process.grants.iter_mut().find(|grant| grant.left > 0)?;
                grant.left -= 1;
                if step == Step::UseReturnable {
                    let receipt = grant.receipt;
                    process.used = Some(Used { receipt, age: 0 });
                }
                *state.uses.first_mut()? += 1;
            }
            Step::GiveBack => self.give_back(state, who)?,
            Step::Release => {
                let first = process.grants.iter().position(|grant| grant.left > 0)?;
                let grant = *process.grants.get(first)?;
                process.send_back(grant.receipt, grant.left);
                if !self.has(Fault::ReturnStaysUsable) {
                    process.grants.remove(first);
                }
            }
            Step::Return => {
                let returned = process.returned.take()?;
                self.take_back(state, returned);
            }
            Step::ReturnTwice => {
                let returned = process.returned?;
                state.repeats -= 1;
                self.take_back(state, returned);
            }
            Step::LoseReturn => process.returned = None,
            Step::Crash => {
                let late = process.request.filter(|request| request.is_on_its_way);
                let late = late.map(|request| request.units).or(process.late);
                *process = Process::default();
                process.late = late;
            }
        }
        Some(())
    }
}

/// Replaces a receipt by its place among those that are known.
fn number(receipt: &mut Receipt, known: &[Receipt]) {
    let at = known.iter().position(|known| known == receipt);
    *receipt = at.and_then(|at| u8::try_from(at + 1).ok()).unwrap_or(0);
}

impl State {
    /// Returns the age of the charge with a receipt.
    fn age(&self, receipt: Receipt) -> Option<i8> {
        self.log
            .iter()
            .find(|charge| charge.receipt == receipt)
            .map(|charge| charge.age)
    }

    /// Returns a receipt that no process knows.
    fn free_receipt(&self) -> Receipt {
        let known: Vec<_> = self.processes.iter().flat_map(Process::receipts).collect();
        (1..).find(|receipt| !known.contains(receipt)).unwrap_or(0)
    }

    /// Gives states that differ only in what nothing reads the same form.
    fn normalize(&mut self) {
        for process in &mut self.processes {
            if !process.measures() {
                process.drift = 0;
            }
        }
        let mut known: Vec<Receipt> = Vec::new();
        for receipt in self.processes.iter().flat_map(Process::receipts) {
            if !known.contains(&receipt) {
                known.push(receipt);
            }
        }
        for process in &mut self.processes {
            for grant in &mut process.grants {
                number(&mut grant.receipt, &known);
            }
            if let Some(used) = &mut process.used {
                number(&mut used.receipt, &known);
            }
            if let Some((receipt, _)) = &mut process.returned {
                number(receipt, &known);
            }
            if let Some(Request {
                reply: Some((receipt, ..)),
                ..
            }) = &mut process.request
            {
                number(receipt, &known);
            }
        }
        for charge in &mut self.log {
            number(&mut charge.receipt, &known);
        }
        self.log.sort_unstable();
    }
}

impl Model for Leases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            log: Vec::new(),
            uses: (0..self.window).map(|_| 0).collect(),
            window_left: self.window,
            processes: vec![Process::default(); self.processes],
            repeats: self.repeats,
            losses: self.losses,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick([false; 3]));
        for (at, process) in state.processes.iter().enumerate() {
            if process.drift == 0 && process.measures() {
                for other in 0..actions.len() {
                    if let Some(Action::Tick(mut is_slow)) = actions.get(other).copied() {
                        set(&mut is_slow, at, true);
                        actions.push(Action::Tick(is_slow));
                    }
                }
            }
        }
        for who in 0..state.processes.len() {
            self.process_actions(state, who, actions);
        }
        actions.push(Action::Check);
        if state.losses > 0 && !state.log.is_empty() {
            actions.push(Action::LoseData);
        }
    }

    fn next_state(&self, last_state: &State, action: Action) -> Option<State> {
        let mut state = last_state.clone();
        match action {
            Action::Tick(is_slow) => self.tick(&mut state, is_slow),
            Action::Process(who, step) => self.step(&mut state, who, step)?,
            Action::Check => {
                let (_, units) = self.charge(&mut state, 1, false);
                *state.uses.first_mut()? += units;
            }
            Action::LoseData => {
                state.losses -= 1;
                state.log.clear();
            }
        }
        state.normalize();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "no span of the window exceeds the limit",
                |model: &Self, state: &State| {
                    // Lost data may admit the limit once more.
                    let losses = model.losses - state.losses;
                    state.uses.iter().sum::<u8>() <= model.limit * (1 + losses)
                },
            ),
            Property::sometimes("the limit is used", |model: &Self, state: &State| {
                state.uses.iter().sum::<u8>() == model.limit
            }),
            Property::sometimes(
                "a grant outlives its window",
                |model: &Self, state: &State| {
                    let held = state.processes.iter().flat_map(|process| &process.grants);
                    let oldest = held.filter_map(|grant| state.age(grant.receipt)).max();
                    model.is_fixed || oldest >= Some(model.window)
                },
            ),
        ]
    }
}

/// One process and two units in a window of two ticks, with a lease of three.
fn small() -> Leases {
    Leases {
        processes: 1,
        window: 2,
        lease: 3,
        limit: 2,
        is_fixed: false,
        repeats: 0,
        losses: 0,
        fault: None,
    }
}

fn repeated() -> Leases {
    with(small(), |model| model.repeats = 1)
}

fn long() -> Leases {
    with(small(), |model| model.lease = 5)
}

fn fixed() -> Leases {
    with(long(), |model| {
        model.window = 5;
        model.is_fixed = true;
    })
}

fn processes(count: usize) -> Leases {
    with(small(), |model| model.processes = count)
}

fn for_a_unit(count: usize) -> Leases {
    with(processes(count), |model| model.limit = 1)
}

/// Returns the cases: without a fault, and with each.
pub(crate) fn cases() -> Vec<Case> {
    let lost_data = with(small(), |model| model.losses = 1);
    let sound = [
        ("one process", None, small()),
        ("two processes", Some(8), processes(2)),
        ("two processes, one unit", Some(11), for_a_unit(2)),
        ("three processes, one unit", Some(8), for_a_unit(3)),
        ("a repeated request", Some(11), repeated()),
        ("lost data", Some(11), lost_data),
        ("a lease of five ticks", Some(12), long()),
        ("an aligned window", Some(12), fixed()),
    ];
    let sound = sound.map(|(name, depth, model)| Case::new(("leases", name), None, depth, model));
    let faulty = [
        (Fault::NoWindowExtension, small()),
        (Fault::WholeLease, small()),
        (Fault::UsedFromReply, small()),
        (Fault::GrantNotCharged, small()),
        (Fault::GrantBeyondLeft, small()),
        (Fault::EndOfWindowIgnored, fixed()),
        (Fault::ReturnIntoLaterGrant, small()),
        (Fault::ReturnStaysUsable, small()),
        (Fault::ReturnSentAgain, repeated()),
        (Fault::ReturnWithoutReceipt, small()),
    ];
    let faulty = faulty.map(|(fault, model)| {
        let model = with(model, |model| model.fault = Some(fault));
        let fault = Some(format!("{fault:?}"));
        Case::new(("leases", "a planted fault"), fault, None, model)
    });
    sound.into_iter().chain(faulty).collect()
}
