//! Processes that share a store, and are killed and replaced at random.
#![allow(dead_code, reason = "each test uses a part")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tollgate::{Acquired, Quota, RateLimiter, Store};

use super::notes::{Noted, Random, hold, note, now, open_notes};
use super::process::{Process, argument, child};
use super::several_processes::{until, used};

const PROCESSES: usize = 3;

/// Longer than any test. A process whose test was killed ends after this time.
const LIFE: Duration = Duration::from_secs(60);

/// The orders of a process.
pub(crate) struct Orders {
    /// Where the store is.
    pub(crate) url: String,
    /// Where the process writes what it does.
    pub(crate) notes: PathBuf,
    pub(crate) seed: u64,
}

impl Orders {
    /// Returns the orders of this process, if it is one of a fleet.
    pub(crate) fn of_this_process() -> Option<Self> {
        let argument = argument()?;
        let mut lines = argument.lines();
        let mut next = || lines.next().expect("three lines");
        Some(Self {
            url: next().to_owned(),
            notes: next().into(),
            seed: next().parse().expect("a number"),
        })
    }

    fn to_argument(&self) -> String {
        let Self { url, notes, seed } = self;
        format!("{url}\n{}\n{seed}", notes.display())
    }
}

/// Three processes, and those that they have replaced.
pub(crate) struct Fleet {
    /// The test that the processes run.
    test: &'static str,
    url: String,
    directory: TempDir,
    started: Vec<Started>,
    random: Random,
}

struct Started {
    process: Process,
    notes: PathBuf,
    killed_at: Option<u64>,
}

impl Fleet {
    pub(crate) fn start(test: &'static str, url: String) -> Self {
        let seed = now();
        println!("seed {seed}");
        let mut fleet = Self {
            test,
            url,
            directory: tempfile::tempdir().expect("a directory"),
            started: Vec::new(),
            random: Random(seed),
        };
        for _ in 0..PROCESSES {
            fleet.add();
        }
        fleet
    }

    fn add(&mut self) {
        let number = self.started.len();
        let orders = Orders {
            url: self.url.clone(),
            notes: self.directory.path().join(number.to_string()),
            seed: number as u64 + 1,
        };
        self.started.push(Started {
            process: Process::start(&mut child(self.test, &orders.to_argument())),
            notes: orders.notes,
            killed_at: None,
        });
    }

    fn kill(&mut self, number: usize) {
        let started = &mut self.started[number];
        // Before the kill, so that no permit counts for longer than its process lived.
        started.killed_at = Some(now());
        started.process.kill();
    }

    fn running(&self) -> Vec<usize> {
        let numbers = 0..self.started.len();
        numbers
            .filter(|number| self.started[*number].killed_at.is_none())
            .collect()
    }

    /// Kills processes at random moments, 0.7 seconds apart on average. Another one replaces each.
    pub(crate) async fn kill_at_random(&mut self, kills: usize) {
        for _ in 0..kills {
            let pause = 300 + self.random.below(800);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let running = self.running();
            let victim = self.random.below(PROCESSES as u64);
            self.kill(running[usize::try_from(victim).expect("few")]);
            self.add();
        }
    }

    /// Kills all processes. None replaces them.
    pub(crate) fn kill_all(&mut self) {
        for number in self.running() {
            self.kill(number);
        }
    }

    pub(crate) fn kills(&self) -> usize {
        self.started.len() - self.running().len()
    }

    /// Returns the notes of all processes that ever ran.
    pub(crate) fn notes(&self) -> impl Iterator<Item = &PathBuf> {
        self.started.iter().map(|started| &started.notes)
    }

    fn permits(&self) -> Noted {
        let mut noted = Noted::default();
        for started in &self.started {
            noted.add(&started.notes, started.killed_at);
        }
        noted
    }
}

/// Runs the tasks of a process until it is killed.
pub(crate) async fn run_until_killed(
    tasks: impl Iterator<Item = impl Future<Output = ()> + Send + 'static>,
) {
    for task in tasks {
        tokio::spawn(task);
    }
    tokio::time::sleep(LIFE).await;
}

const SLOTS: u32 = 16;
const TASKS: u64 = 10;

/// The shortest lease of slots.
const SLOT_LEASE: Duration = Duration::from_secs(5);

/// The longest work of most permits, in milliseconds.
const SHORT_WORK: u64 = 60;

/// The key of which each process holds one slot for all its life. It asks for no other there, so that only renewals keep the slot.
const HELD: u64 = 1;

/// The key whose slots are given back soon, and which all other tasks compete for.
const BUSY: u64 = 0;

/// Longer than a process waits between two renewals.
const WATCHED: Duration = Duration::from_millis(1_700);

fn slots(store: impl Store) -> RateLimiter {
    let quota = Quota::in_flight(SLOTS).slot_lease(SLOT_LEASE);
    RateLimiter::new(store, quota).name("exports")
}

/// One process of [`hold_slots_while_processes_are_killed`].
pub(crate) async fn take_slots(store: impl Store, orders: Orders) {
    let limiter = slots(store);
    let file = open_notes(&orders.notes);
    let permits = Arc::new(AtomicU64::new(0));
    let tasks = (0..TASKS).map(|task| {
        let (limiter, file, permits) = (limiter.clone(), Arc::clone(&file), Arc::clone(&permits));
        let mut random = Random(orders.seed * 1_000 + task + 1);
        let key = if task == 0 { HELD } else { BUSY };
        async move {
            loop {
                let acquired = if random.below(2) == 0 {
                    limiter.try_acquire(key.to_string()).await
                } else {
                    limiter.acquire(key.to_string()).await.map(Acquired::Permit)
                };
                let what = match acquired {
                    Ok(Acquired::Permit(permit)) => {
                        let number = permits.fetch_add(1, Ordering::Relaxed);
                        let work = match key {
                            HELD => LIFE,
                            _ => Duration::from_millis(random.below(SHORT_WORK)),
                        };
                        hold(&file, permit, (number, key), work).await;
                        continue;
                    }
                    Ok(Acquired::Refused(_)) => 'R',
                    Err(_) => 'F',
                };
                note(&file, format_args!("{what} 0 {key}"));
                tokio::time::sleep(Duration::from_millis(random.below(20))).await;
            }
        }
    });
    run_until_killed(tasks).await;
}

/// Processes that [take slots](take_slots) are killed at random. The living ones never hold more than there are, and keep what
/// they hold. The slots of the dead are back within one lease.
pub(crate) async fn hold_slots_while_processes_are_killed(mut fleet: Fleet, look: impl Store) {
    let look = slots(look);
    let used = async |key: u64| used(&look, key.to_string()).await;
    let living = u32::try_from(PROCESSES).expect("few");
    fleet.kill_at_random(5).await;
    tokio::time::sleep(SLOT_LEASE + Duration::from_millis(500)).await;
    let held = used(HELD).await;
    assert!(held <= living, "{held} slots beside {living} processes");
    let all_hold = until("each process holds a slot", async || {
        used(HELD).await == living
    });
    all_hold.await;
    let watched = Instant::now();
    while watched.elapsed() < WATCHED {
        assert_eq!(used(HELD).await, living, "held by the living");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    fleet.kill_all();
    let left = used(BUSY).await;
    let returned = until("all slots are back", async || {
        used(BUSY).await + used(HELD).await == 0
    });
    let returned = returned.await;
    let mut noted = fleet.permits();
    let most = noted.most();
    let Noted {
        acquired,
        refused,
        failed,
        lost,
        killed,
        longest,
        ..
    } = noted;
    let figure = format!(
        "{acquired} permits, the longest held for {longest:.1?}, {refused} refused, {failed} failed, {lost} lost; {} processes \
         killed with {killed} permits: at most {most} of {SLOTS} at the same time; {left} taken after the last kill, all free \
         after {returned:.1?}",
        fleet.kills()
    );
    println!("{figure}");
    assert!(most <= i32::try_from(SLOTS).expect("few"), "{figure}");
    assert!(returned < SLOT_LEASE + Duration::from_secs(1), "{figure}");
    // Otherwise the test says nothing.
    assert!(
        acquired > 200 && refused > 0 && killed > 0 && left > 0 && longest > SLOT_LEASE,
        "{figure}"
    );
    let key = BUSY.to_string();
    let mut permits = Vec::new();
    for _ in 0..SLOTS {
        match look.try_acquire(key.as_str()).await.expect("an answer") {
            Acquired::Permit(permit) => permits.push(permit),
            Acquired::Refused(decision) => panic!("{figure}; then {decision:?}"),
        }
    }
    let next = look.try_acquire(key).await.expect("an answer");
    assert!(matches!(next, Acquired::Refused(_)), "{next:?}");
}
