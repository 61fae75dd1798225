//! A process of the service: a runtime whose clock moves only in steps.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, advance, sleep_until};
use tollgate::RedisStore;

use super::clients;
use super::limits::Limits;
use super::network::Connection;
use super::plan::{FaultKind, Plan};
use super::shared::SharedWorld;
use crate::clocks;
use crate::random::Random;

/// How far the clocks of the processes are apart, in milliseconds: no code may compare them.
const APART: u64 = 1_000_000;

/// A process. It is killed by dropping it.
pub(crate) struct Process {
    runtime: Runtime,
    /// The time of its clock, in milliseconds, and the first one.
    local: u64,
    first: u64,
    /// The time of tokio's clock at the first.
    begin: Instant,
    /// Until when it stands still, by the time of the world.
    pub(crate) stopped_until: Option<u64>,
    /// The milliseconds that it has stood still.
    missed: u64,
    drift: Drift,
}

/// How a clock is wrong.
#[derive(Clone, Copy)]
enum Drift {
    None,
    /// Leaves one of so many steps out.
    Slow(u64),
    /// Makes one of so many steps twice.
    Fast(u64),
}

impl Drift {
    /// By up to 5 %.
    fn draw(random: &mut Random) -> Self {
        let every = 20 + random.below(200);
        if random.one_in(2) {
            Self::Slow(every)
        } else {
            Self::Fast(every)
        }
    }
}

impl Process {
    /// Starts a process with its clients.
    pub(crate) fn start(
        shared: &SharedWorld,
        plan: &Plan,
        number: usize,
        random: &mut Random,
    ) -> Self {
        let mut world = shared.lock();
        world.lives[number] += 1;
        let life = world.lives[number];
        let local = world.now + first_reading(number);
        world
            .log
            .note(format_args!("process {number} starts its life {life}"));
        drop(world);
        clocks::set_millis(local);
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        let runtime = runtime.expect("a runtime");
        let begin = runtime.block_on(async { Instant::now() });
        let drift = if plan.has(FaultKind::ClockSkew) {
            Drift::draw(random)
        } else {
            Drift::None
        };
        let connection = Connection {
            world: shared.clone(),
            process: number,
            life,
        };
        runtime.block_on(async {
            let limiters = Limits::draw(plan).limiters(RedisStore::with_connection(connection));
            clients::spawn(shared, plan, (number, life), &limiters, random);
        });
        Self {
            runtime,
            local,
            first: local,
            begin,
            stopped_until: None,
            missed: 0,
            drift,
        }
    }

    /// Makes the step of this time of the world: what is due by the process's own clock. Returns whether there is one.
    pub(crate) fn advance(&mut self, now: u64) -> bool {
        let steps = match self.drift {
            Drift::Slow(every) if now.is_multiple_of(every) => 0,
            Drift::Fast(every) if now.is_multiple_of(every) => 2,
            _ => 1,
        };
        for _ in 0..steps {
            self.step();
        }
        steps > 0
    }

    /// Does what is due, and moves the clock by a millisecond. Tokio's clock jumps: nothing waits.
    fn step(&mut self) {
        self.enter();
        self.local += 1;
        let passed = Duration::from_millis(self.local - self.first);
        let end = self.begin + passed;
        self.runtime.block_on(async { sleep_until(end).await });
    }

    /// Makes no step.
    pub(crate) fn stand_still(&mut self) {
        self.missed += 1;
    }

    /// Goes on after a stop: the clock has gone on, as wrong as it was before.
    pub(crate) fn resume(&mut self) {
        self.stopped_until = None;
        let missed = std::mem::take(&mut self.missed);
        self.local += missed;
        self.enter();
        let missed = Duration::from_millis(missed);
        self.runtime.block_on(async { advance(missed).await });
    }

    /// Makes the clock of this process the clock of the thread.
    pub(crate) fn enter(&self) {
        clocks::set_millis(self.local);
    }
}

fn first_reading(number: usize) -> u64 {
    APART * (number as u64 + 1)
}
