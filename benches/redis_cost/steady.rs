//! Decisions in the steady state: for each unit that is charged, one expires.

use std::sync::Arc;
use std::time::Duration;

use crate::args::Args;
use crate::contestant::{Contestant, Limiter};
use crate::sample::{Sample, Samples};
use crate::setting::{HOUR, Setting, WARM_UP};
use crate::support::load::Done;
use crate::support::redis_server::{RedisServer, run};
use crate::support::spent::Meter;
use crate::support::table::grouped;

/// The live units of a key, and for each table the tasks and the keys. The keys become fewer, because it takes a
/// window to fill them.
const LIVE: [(u32, &[(usize, usize)]); 5] = [
    (5, &[(64, 10_240)]),
    (10, &[(1, 1_024), (64, 10_240), (512, 10_240)]),
    (50, &[(64, 1_024)]),
    (1_000, &[(64, 128)]),
    (10_000, &[(64, 64)]),
];

/// A load whose window follows the contestant's speed.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) tasks: usize,
    /// A multiple of `tasks`: two tasks never check the same key, so that no checks coalesce.
    pub(crate) keys: usize,
    /// The charges of each key that are in the shortest window at a time.
    pub(crate) live: u32,
    pub(crate) quotas: u32,
    /// The units of a charge.
    pub(crate) cost: u32,
}

/// One contestant under one load.
pub(crate) struct Steady<'a> {
    contestant: &'a Contestant,
    load: Load,
    /// The time in which a key is charged `live` times.
    window: Duration,
    longest_window: Duration,
}

impl<'a> Steady<'a> {
    /// Chooses the window by a run in which no unit expires.
    pub(crate) async fn new(
        server: &RedisServer,
        contestant: &'a Contestant,
        load: Load,
        args: &Args,
    ) -> Self {
        assert!(
            load.keys.is_multiple_of(load.tasks),
            "two tasks share a key"
        );
        run(&mut server.connect(), &["FLUSHALL", "SYNC"]);
        let rounds = u32::try_from(args.rounds).unwrap_or(u32::MAX);
        let mut steady = Self {
            contestant,
            load,
            window: HOUR,
            // Keeps a short run short, although its keys then have fewer live units.
            longest_window: args.span * rounds * 10 / load.quotas,
        };
        let setting = Setting {
            limit: 1_000_000_000,
            ..steady.setting()
        };
        let limiter = contestant.limiter(&setting);
        let done = limiter.run(setting.load(WARM_UP + args.span)).await;
        steady.window = steady.window_at(done.per_second());
        steady
    }

    /// Starts on an empty server, runs for a little longer than the longest window, and measures then.
    pub(crate) async fn turn(&mut self, meter: &mut Meter, args: &Args) -> Sample {
        let (limiter, before) = self.warm_up(meter).await;
        let sample = Sample::take(meter, &limiter, &self.setting(), args.span).await;
        // The window may reach back into the warm-up.
        let part = args.span.as_secs_f64() / self.window.as_secs_f64();
        let part = part.min(1.0);
        let measured = sample.per_second * (1.0 - sample.wrong);
        let per_second = measured * part + before * (1.0 - part);
        let charges = per_second * self.window.as_secs_f64() / self.load.keys as f64;
        Sample {
            live: Some(charges * f64::from(self.load.cost)),
            ..sample
        }
    }

    /// Returns a limiter whose keys have the live units, and how many checks it admitted per second. Starts again
    /// with another window if the contestant turns out much slower or faster than the window assumes.
    async fn warm_up(&mut self, meter: &mut Meter) -> (Arc<Limiter>, f64) {
        const ATTEMPTS: usize = 3;
        let mut attempt = 1;
        loop {
            meter.run(&["FLUSHALL", "SYNC"]);
            let setting = self.setting();
            let limiter = self.contestant.limiter(&setting);
            let filling = self.window * self.load.quotas;
            let warm_up = filling + filling / 10 + WARM_UP;
            let per_second = admitted_per_second(&limiter.run(setting.load(warm_up)).await);
            let window = self.window_at(per_second);
            let ratio = window.as_secs_f64() / self.window.as_secs_f64();
            if attempt == ATTEMPTS || (0.8..1.25).contains(&ratio) {
                return (limiter, per_second);
            }
            self.window = window;
            attempt += 1;
        }
    }

    /// The time in which each key is charged `live` times, at this rate of checks on all keys.
    fn window_at(&self, per_second: f64) -> Duration {
        let seconds = f64::from(self.load.live) * self.load.keys as f64 / per_second;
        // The textbook's window is in whole milliseconds.
        let millis = Duration::from_secs_f64(seconds).as_millis();
        let window = u64::try_from(millis).map_or(HOUR, Duration::from_millis);
        window
            .min(self.longest_window)
            .max(Duration::from_millis(1))
    }

    fn setting(&self) -> Setting {
        Setting {
            tasks: self.load.tasks,
            keys: self.load.keys,
            // A contestant may become much faster than its window assumes.
            limit: self.load.live * self.load.cost * 16,
            window: self.window,
            quotas: self.load.quotas,
            cost: self.load.cost,
            sums_used: true,
            ..Setting::MANY_KEYS
        }
    }
}

fn admitted_per_second(done: &Done) -> f64 {
    done.admitted as f64 / done.elapsed.as_secs_f64()
}

pub(crate) async fn print(server: &RedisServer, args: &Args) {
    println!("\n### Steady state\n\nFor each unit that is charged, one expires.");
    for (live, tables) in LIVE {
        for &(tasks, keys) in tables {
            let load = Load {
                tasks,
                keys,
                live,
                quotas: 1,
                cost: 1,
            };
            let samples = take(server, load, args).await;
            let live = grouped(live.into());
            let keys = match keys {
                1 => "1 key".to_owned(),
                _ => format!("{} keys", grouped(keys as u64)),
            };
            samples.print(&format!(
                "About {live} live units a key, {keys}; {tasks} at a time"
            ));
        }
    }
}

/// Contestants take turns in each round.
async fn take(server: &RedisServer, load: Load, args: &Args) -> Samples {
    let mut contestants = Contestant::algorithms(server);
    contestants.extend(Contestant::natives(server).await);
    if load.tasks > 1 {
        contestants.push(Contestant::textbook_pool(server, load.tasks).await);
    }
    contestants.push(Contestant::textbook(server).await);
    let mut loads = Vec::new();
    for contestant in &contestants {
        loads.push(Steady::new(server, contestant, load, args).await);
    }
    let mut meter = Meter::new(server.connect());
    let mut samples: Vec<_> = contestants.iter().map(|one| (one.name, vec![])).collect();
    for _ in 0..args.rounds {
        for (load, (_, of_contestant)) in loads.iter_mut().zip(&mut samples) {
            of_contestant.push(load.turn(&mut meter, args).await);
        }
    }
    Samples(samples)
}
