//! The faults of a world, and when they happen.

use super::budgets::{RESERVE_LEASE, budget_of};
use super::holders::HolderEntries;
use super::limits::Limits;
use super::network::Quality;
use super::plan::{Cast, FaultKind, Plan};
use super::process::Process;
use super::record::Excuse;
use super::shared::SharedWorld;
use crate::random::Random;
use crate::server::{Reply, Server};

/// Returns how bad the network of a world is.
pub(crate) fn draw_quality(plan: &Plan, random: &mut Random) -> Quality {
    let is_slow = plan.has(FaultKind::SlowNetwork);
    // With a long deadline, many replies come long after their message, but in time.
    let longest = Limits::draw(plan).deadline / 4 * 3;
    Quality {
        slowness: if is_slow { longest.max(250) } else { 8 },
        slow: if is_slow && longest > 250 { 20 } else { 4 },
        losses: if plan.has(FaultKind::LostMessages) {
            1 + random.below(20)
        } else {
            0
        },
        repeats: if plan.has(FaultKind::RepeatedMessages) {
            20
        } else {
            0
        },
        mixed: if plan.has(FaultKind::MixedReplies) {
            3
        } else {
            0
        },
    }
}

/// The text that another program writes.
const FOREIGN_TEXT: &str = "foreign bytes, which are no value";

/// The server, and how it is.
pub(crate) struct ServerState {
    pub(crate) server: Server,
    /// Until when it does nothing, by the time of the world.
    hangs_until: Option<u64>,
    full_until: Option<u64>,
    /// Until when it refuses every command, and how.
    refusal: Option<(u64, &'static str)>,
    /// The keys that another program has overwritten, and when it removes them.
    spoiled: Vec<(u64, Vec<u8>)>,
    /// How far its clock is ahead, in microseconds.
    pub(crate) clock_offset: i64,
}

impl ServerState {
    pub(crate) fn new(server: Server) -> Self {
        Self {
            server,
            hangs_until: None,
            full_until: None,
            refusal: None,
            spoiled: Vec::new(),
            clock_offset: 0,
        }
    }

    fn run_as_stranger(&mut self, command: &[Vec<u8>]) {
        let _ = self.server.run(command);
    }

    /// Returns whether a key still has the text of another program. Data may have been lost since, or a full server may have
    /// refused it.
    fn is_spoiled(&mut self, name: &[u8]) -> bool {
        let text = [b"GET".to_vec(), name.to_vec()];
        let field = [b"HGET".to_vec(), name.to_vec(), b"field".to_vec()];
        [text.as_slice(), field.as_slice()].iter().any(|command| {
            let reply = self.server.run(command);
            matches!(reply, Reply::Bulk(bytes) if bytes == FOREIGN_TEXT.as_bytes())
        })
    }

    /// Runs a command, unless the server refuses it.
    pub(crate) fn run(&mut self, command: &[Vec<u8>]) -> Reply {
        match self.refusal {
            Some((_, refusal)) => Reply::error(refusal),
            None => self.server.run(command),
        }
    }

    pub(crate) const fn refuses(&self) -> bool {
        self.refusal.is_some()
    }

    /// Returns what holders have of the keys that a command is about.
    pub(crate) fn holder_entries(&self, command: &[Vec<u8>]) -> HolderEntries {
        let server = &self.server;
        server.with_keys(|keys| HolderEntries::from_command(command, keys))
    }

    pub(crate) fn hangs(&self) -> bool {
        self.hangs_until.is_some()
    }
}

/// Makes the faults of a world happen.
pub(crate) struct Faults {
    random: Random,
    plan: Plan,
    /// Whether each call is answered soon, but for faults that are events.
    is_quiet: bool,
    /// When the clock of the server has stepped, and by how many microseconds.
    steps: Vec<(u64, i64)>,
    /// When each process that was killed starts again.
    pub(crate) starts_at: Vec<u64>,
}

/// How a server refuses every command.
const REFUSALS: [&str; 9] = [
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "ERR max number of clients reached",
    "ERR unknown command 'EVALSHA'",
    "LOADING Redis is loading the dataset in memory",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "NOAUTH Authentication required.",
    "NOPERM User default has no permissions to run the 'evalsha' command",
    "NOREPLICAS Not enough good replicas to write.",
    "READONLY You can't write against a read only replica.",
];

/// In microseconds.
const HOUR: u64 = 3_600_000_000;

/// The longest time of a fault, in milliseconds: of one in five, and of the others.
const LONG: u64 = 7_000;
const SHORT: u64 = 1_500;

impl Faults {
    pub(crate) fn new(plan: &Plan) -> Self {
        let unquiet = [
            FaultKind::LostMessages,
            FaultKind::MixedReplies,
            FaultKind::SlowNetwork,
        ];
        Self {
            random: Random::new(plan.seed, 3),
            plan: plan.clone(),
            steps: Vec::new(),
            is_quiet: !unquiet.iter().any(|fault| plan.has(*fault)),
            starts_at: vec![0; plan.processes],
        }
    }

    /// Returns how often a fault of this kind happens: about once in so many milliseconds.
    fn every(&self, fault: FaultKind) -> u64 {
        match fault {
            FaultKind::Kill if self.plan.cast() == Cast::ReservationsAlone => 1_500,
            FaultKind::Kill => 4_000,
            FaultKind::Stop => 3_000,
            FaultKind::Cut => 1_500,
            FaultKind::Partition if self.has_long_partitions() => 3_000,
            FaultKind::Partition => 6_000,
            FaultKind::Freeze | FaultKind::FullMemory | FaultKind::Refusals => 6_000,
            FaultKind::Restart => 8_000,
            FaultKind::ClockStep | FaultKind::Stranger => 9_000,
            // These are no events.
            _ => u64::MAX,
        }
    }

    const fn has_long_partitions(&self) -> bool {
        matches!(self.plan.cast(), Cast::SlotsAlone | Cast::ReservationsAlone)
    }

    /// Returns how long a fault lasts, in milliseconds. Those of the server are shorter: while it fails, little else happens.
    fn draw_length(&mut self, fault: FaultKind) -> u64 {
        let longest = if self.random.one_in(5) { LONG } else { SHORT };
        let length = 1 + self.random.below(longest);
        match fault {
            // Longer than the lease of slots, at times.
            FaultKind::Partition if self.has_long_partitions() => length + 4_500,
            // For two leases.
            FaultKind::Stop
                if self.plan.cast() == Cast::ReservationsAlone && self.random.one_in(4) =>
            {
                length + 2 * RESERVE_LEASE
            }
            FaultKind::Freeze | FaultKind::FullMemory | FaultKind::Refusals => length / 3,
            FaultKind::Restart | FaultKind::Kill => length / 4,
            _ => length,
        }
    }

    /// Returns by how much the clock has stepped forward within a lease, in microseconds.
    fn recent_steps(&self, now: u64) -> i64 {
        let steps = self
            .steps
            .iter()
            .filter(|(at, _)| at + RESERVE_LEASE >= now);
        steps.map(|(_, step)| (*step).max(0)).sum()
    }

    /// Returns by how much the clock may step forward so that units are held for as long as their permits are valid: by a fifth
    /// of the lease, less what clocks of processes are slow.
    fn harmless_steps(&self) -> i64 {
        let percent = if self.plan.has(FaultKind::ClockSkew) {
            15
        } else {
            20
        };
        RESERVE_LEASE as i64 * 10 * percent
    }

    /// Makes the faults of this millisecond happen.
    pub(crate) fn step(
        &mut self,
        now: u64,
        shared: &SharedWorld,
        service: &mut [Option<Process>],
        server: &mut ServerState,
    ) {
        for fault in FaultKind::ALL {
            let every = self.every(*fault);
            if self.plan.has(*fault) && self.random.one_in(every) {
                let victim = self.random.below(self.plan.processes as u64) as usize;
                let length = self.draw_length(*fault);
                let mut world = shared.lock();
                world.log.count("faults");
                world.log.note(format_args!(
                    "fault: {} of {victim} for {length} ms",
                    fault.name()
                ));
                drop(world);
                self.happen(*fault, victim, now + length, shared, service, server);
            }
        }
        Self::end_outages(now, shared, server);
    }

    fn happen(
        &mut self,
        fault: FaultKind,
        victim: usize,
        until: u64,
        shared: &SharedWorld,
        service: &mut [Option<Process>],
        server: &mut ServerState,
    ) {
        if fault != FaultKind::Kill {
            let mut world = shared.lock();
            world.troubled_until = world.troubled_until.max(until);
        }
        match fault {
            FaultKind::Kill => self.kill(victim, until, shared, service),
            FaultKind::Stop => {
                if let Some(process) = &mut service[victim] {
                    process.stopped_until = Some(until);
                    let mut world = shared.lock();
                    if until >= world.now + 2 * RESERVE_LEASE {
                        let held = world.ledger.held_by(victim);
                        world
                            .log
                            .count_many("reservations stopped for two leases", held);
                    }
                }
            }
            FaultKind::Cut => shared.lock().network.cut(victim),
            FaultKind::Partition => shared.lock().network.part(victim, until),
            FaultKind::Freeze => server.hangs_until = Some(until),
            FaultKind::Restart => self.restart(until, shared, server),
            FaultKind::ClockStep => {
                // An entry about units is kept for an hour.
                let reserves = self.plan.cast() == Cast::ReservationsAlone;
                let longest = if reserves { 2 * HOUR } else { HOUR };
                let most = if self.random.one_in(3) {
                    longest
                } else {
                    2_000_000
                };
                let step = self.random.below(2 * most) as i64 - most as i64;
                server.clock_offset += step;
                excuse(shared, Excuse::Step);
                let mut world = shared.lock();
                let now = world.now;
                world.log.note(format_args!("the clock steps by {step} µs"));
                self.steps.push((now, step));
                if self.recent_steps(now) > self.harmless_steps() {
                    world.ledger.excuse(None);
                }
            }
            FaultKind::Stranger => self.spoil(until, shared, server),
            FaultKind::Refusals => server.refusal = Some((until, self.random.pick(&REFUSALS))),
            FaultKind::FullMemory => {
                server.full_until = Some(until);
                server.server.with_keys(|keys| keys.is_full = true);
            }
            _ => {}
        }
    }

    fn kill(
        &mut self,
        victim: usize,
        until: u64,
        shared: &SharedWorld,
        service: &mut [Option<Process>],
    ) {
        let Some(process) = service[victim].take() else {
            return;
        };
        let mut world = shared.lock();
        let life = (victim, world.lives[victim]);
        world.lives[victim] += 1;
        let seen_at = world.seen_at[victim];
        world.record.end_process(victim, seen_at);
        let held = world.ledger.held_by(victim);
        world.log.count_many("reservations killed", held);
        let is_quiet = self.is_quiet && world.now > world.troubled_until + RESERVE_LEASE;
        world.ledger.end_process(life, seen_at, is_quiet);
        world.network.abandon(victim);
        drop(world);
        process.enter();
        drop(process);
        self.starts_at[victim] = until;
    }

    fn restart(&mut self, until: u64, shared: &SharedWorld, server: &mut ServerState) {
        let loses_data = self.plan.has(FaultKind::DataLoss) && self.random.one_in(2);
        server.server.forget_scripts();
        if loses_data {
            server.server.with_keys(crate::server::Keyspace::clear);
            excuse(shared, Excuse::Loss);
            shared.lock().ledger.excuse(None);
        }
        server.hangs_until = Some(until);
        let mut world = shared.lock();
        world.log.note(format_args!(
            "fault: the server restarts, loses data: {loses_data}"
        ));
        world.network.cut_all();
        world.network.is_down = true;
    }

    /// Lets another program overwrite a key, by a string or by a value of another type.
    fn spoil(&mut self, until: u64, shared: &SharedWorld, server: &mut ServerState) {
        let names = server.server.with_keys(|keys| {
            let names = keys.keys().map(|key| key.name.to_vec());
            names.collect::<Vec<_>>()
        });
        let Some(name) = names.get(self.random.below(names.len() as u64) as usize) else {
            return;
        };
        let value: &[&str] = if self.random.one_in(2) {
            &["SET", FOREIGN_TEXT, "PX", "60000"]
        } else {
            &["HSET", "field", FOREIGN_TEXT]
        };
        let rest = value[1..].iter().map(|word| word.as_bytes().to_vec());
        let mut command = vec![value[0].as_bytes().to_vec(), name.clone()];
        command.extend(rest);
        server.run_as_stranger(&[b"UNLINK".to_vec(), name.clone()]);
        server.run_as_stranger(&command);
        server.run_as_stranger(&[b"PEXPIRE".to_vec(), name.clone(), b"60000".to_vec()]);
        excuse(shared, Excuse::Loss);
        if let Some((_, key)) = budget_of(name) {
            shared.lock().ledger.excuse(Some(&key));
        }
        server.spoiled.push((until, name.clone()));
    }

    fn end_outages(now: u64, shared: &SharedWorld, server: &mut ServerState) {
        if server.hangs_until.is_some_and(|until| until <= now) {
            server.hangs_until = None;
            shared.lock().network.is_down = false;
        }
        let spoiled = std::mem::take(&mut server.spoiled);
        for (until, name) in spoiled {
            if until > now {
                server.spoiled.push((until, name));
            } else if server.is_spoiled(&name) {
                server.run_as_stranger(&[b"UNLINK".to_vec(), name]);
            }
        }
        server.refusal = server.refusal.filter(|(until, _)| *until > now);
        if server.full_until.is_some_and(|until| until <= now) {
            server.full_until = None;
            server.server.with_keys(|keys| keys.is_full = false);
        }
    }

    /// Ends all faults.
    pub(crate) fn end(
        &mut self,
        now: u64,
        shared: &SharedWorld,
        service: &mut [Option<Process>],
        server: &mut ServerState,
    ) {
        self.starts_at.fill(now);
        for process in service.iter_mut().flatten() {
            process.stopped_until = process.stopped_until.map(|_| now);
        }
        server.hangs_until = server.hangs_until.map(|_| now);
        server.full_until = server.full_until.map(|_| now);
        server.refusal = None;
        server
            .spoiled
            .iter_mut()
            .for_each(|(until, _)| *until = now);
        Self::end_outages(now, shared, server);
        shared.lock().network.heal();
    }
}

/// Remembers that a limit may be granted once more.
fn excuse(shared: &SharedWorld, why: Excuse) {
    let mut world = shared.lock();
    let now = world.now;
    world.record.excuses.push((now, why));
    world.holders.forget_times();
}
