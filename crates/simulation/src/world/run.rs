//! Runs a world: in each millisecond the processes, then the messages, then the promises.

use std::collections::BTreeSet;

use super::budgets::{StoredBudgets, limiter_and_key, stored_budgets};
use super::faults::{Faults, ServerState, draw_quality};
use super::holders::Holders;
use super::ledger::Ledger;
use super::limits::SLOT_LEASE;
use super::log::{Log, Report};
use super::network::{Message, Network};
use super::plan::{FaultKind, Plan};
use super::process::Process;
use super::promises::{judge_end, judge_now};
use super::readable;
use super::record::Record;
use super::shared::{SharedWorld, World};
use crate::branches::Branches;
use crate::clocks;
use crate::planted;
use crate::random::Random;
use crate::server::{Reply, Server};

/// How long before the end of the load the faults end, in milliseconds.
const QUIET: u64 = 3_500;

/// How long a world goes on without clients, in milliseconds: two leases of slots, and one for what is late.
const REST: u64 = 3 * SLOT_LEASE + 2_000;

/// Runs a world to its end, on a thread of a process that has run no other one.
///
/// # Panics
///
/// Panics if Lua has no memory, or if the code that is simulated panics.
#[must_use]
pub fn run(plan: &Plan) -> Report {
    let mut random = Random::new(plan.seed, 4);
    clocks::begin(random.split());
    planted::plant(plan.planted);
    let quality = draw_quality(plan, &mut random);
    let shared = SharedWorld::new(World {
        now: 0,
        faults_end: plan.load.saturating_sub(QUIET),
        is_over: false,
        lives: vec![0; plan.processes],
        seen_at: vec![0; plan.processes],
        log: Log::new(plan.traced.as_deref()),
        network: Network::new(random.split(), plan.processes, quality),
        record: Record::default(),
        holders: Holders::default(),
        ledger: Ledger::default(),
        troubled_until: 0,
    });
    let mut server = Server::new().expect("Lua has memory");
    let branches = plan.counts_branches.then(|| Branches::new(server.lua()));
    let planted = plan.planted;
    server.prepare_scripts(move |text| {
        let text = planted::replaced(planted, text);
        if branches.is_some() {
            Branches::counted(&text)
        } else {
            text
        }
    });
    let mut scene = Scene {
        plan: plan.clone(),
        faults: Faults::new(plan),
        service: (0..plan.processes).map(|_| None).collect(),
        server: ServerState::new(server),
        shared,
        random,
    };
    for now in 0..plan.load + REST {
        scene.step(now);
    }
    scene.end()
}

/// A world that runs.
struct Scene {
    plan: Plan,
    faults: Faults,
    service: Vec<Option<Process>>,
    server: ServerState,
    shared: SharedWorld,
    random: Random,
}

impl Scene {
    fn step(&mut self, now: u64) {
        let mut world = self.shared.lock();
        world.now = now;
        world.log.set_time(now);
        world.network.set_time(now);
        world.ledger.set_time(now);
        world.is_over = now >= self.plan.load;
        let faults_end = world.faults_end;
        drop(world);
        if now < faults_end {
            self.faults
                .step(now, &self.shared, &mut self.service, &mut self.server);
        } else if now == faults_end {
            self.faults
                .end(now, &self.shared, &mut self.service, &mut self.server);
        }
        for index in 0..self.plan.processes {
            // Another one is the first in each step.
            let number = (index + now as usize) % self.plan.processes;
            self.step_process(now, number);
        }
        self.carry_messages(now);
        let keys = &self.server.server;
        let mut world = self.shared.lock();
        keys.with_keys(|keys| judge_now(&mut world, &self.plan, keys));
    }

    fn step_process(&mut self, now: u64, number: usize) {
        let process = &mut self.service[number];
        match process {
            None => {
                if self.faults.starts_at[number] <= now && now < self.plan.load {
                    let started =
                        Process::start(&self.shared, &self.plan, number, &mut self.random);
                    *process = Some(started);
                }
            }
            Some(process) if process.stopped_until.is_some_and(|until| until > now) => {
                process.stand_still();
            }
            Some(process) => {
                if process.stopped_until.is_some() {
                    process.resume();
                }
                // A slow clock may have no step after a stop: then no task has seen yet what that has ended.
                if process.advance(now) {
                    self.shared.lock().seen_at[number] = now;
                }
            }
        }
    }

    /// Lets the messages arrive whose time has come, also those that answer at once.
    fn carry_messages(&mut self, now: u64) {
        let micros = (clocks::BEGIN * 1_000 + now) as i64 * 1_000;
        let offset = self.server.clock_offset;
        self.server
            .server
            .with_keys(|keys| keys.now = micros + offset);
        loop {
            let mut world = self.shared.lock();
            let Some(message) = world.network.next_arrival(self.server.hangs()) else {
                return;
            };
            match message {
                Message::Request { call, command } => {
                    drop(world);
                    self.answer(call, &command);
                }
                Message::Reply { call, reply } => world.network.deliver(call, reply),
            }
        }
    }

    /// Runs a request, and sends its reply.
    fn answer(&mut self, call: u64, command: &[Vec<u8>]) {
        let before = self.server.holder_entries(command);
        let budgets_before = self.budgets(command);
        let is_refused = self.server.refuses();
        let reply = self.server.run(command);
        let mut world = self.shared.lock();
        let server_time = self.server.server.with_keys(|keys| keys.now);
        if !before.is_empty() && !matches!(reply, Reply::Error(_)) {
            let after = self.server.holder_entries(command);
            world.judge_holders(call, &before, after, server_time);
        }
        if !budgets_before.is_empty() {
            world.judge_budgets(&budgets_before, &self.budgets(command), server_time);
        }
        if let Some(process) = world.network.sender(call) {
            let now = world.now;
            for (_, text) in command.iter().filter_map(|arg| limiter_and_key(arg)) {
                let ran_at = world.record.ran_at.entry(text).or_default();
                ran_at.insert(process, now);
            }
        }
        world.log.count("commands");
        for arg in command {
            world.log.hash(arg);
        }
        world.log.hash_reply(&reply);
        if world.log.is_traced() {
            let process = world.network.sender(call);
            let shown = readable::exchange(self.server.server.lua(), process, command, &reply);
            world.log.trace(format_args!("{shown}"));
        }
        if let Reply::Error(text) = &reply
            && !is_refused
            && !text.starts_with("NOSCRIPT")
            && !text.starts_with("OOM")
            && !self.plan.has(FaultKind::Stranger)
        {
            world
                .log
                .violated(format_args!("the server replies {text}"));
        }
        world.network.reply(call, reply.into_value());
    }

    fn budgets(&self, command: &[Vec<u8>]) -> StoredBudgets {
        let server = &self.server.server;
        server.with_keys(|keys| stored_budgets(command, keys))
    }

    fn end(self) -> Report {
        let Self {
            plan,
            service,
            server,
            shared,
            ..
        } = self;
        let branches = Branches::reached(server.server.lua());
        let mut world = shared.lock();
        let keys = &server.server;
        keys.with_keys(|keys| judge_end(&mut world, &plan, keys));
        let log = std::mem::replace(&mut world.log, Log::new(None));
        drop(world);
        for process in service.into_iter().flatten() {
            process.enter();
            drop(process);
        }
        let branches: BTreeSet<String> = branches;
        log.into_report(branches)
    }
}
