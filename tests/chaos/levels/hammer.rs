//! One process of a crowd: tasks that check trees, and note each answer.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tollgate::{Decision, Error, RedisStore, Source};

use super::notes::Note;
use super::tree::{Limiters, Tree};
use crate::cancelled::Dice;
use crate::suite::{PATIENCE, run, until};

/// The load of each process.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Load {
    pub(super) url: String,
    /// The tasks take them in turn.
    pub(super) trees: Vec<Tree>,
    pub(super) max_cost: u32,
    /// One check in this number is cancelled; 0: none.
    pub(super) cancelled: u64,
    pub(super) pace: Pace,
    /// The deadline of the checks, if it is not the default.
    pub(super) deadline: Option<Duration>,
}

/// How fast each task checks: by default, as fast as it is answered.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Pace {
    /// The number of checks, one after the other, before a rest.
    pub(super) burst: u32,
    pub(super) rest: Duration,
    /// The time is cut in parts so long. In a quarter of them all processes are idle, and may hold units; in
    /// another one they are slow, so that the limit is not used up. Zero: in none.
    pub(super) part: Duration,
}

impl Pace {
    /// The rest after a burst now. `None` in an idle part.
    fn rest(&self) -> Option<Duration> {
        let parts = unix_time().as_micros().checked_div(self.part.as_micros());
        let number = parts.map(|number| u64::try_from(number).expect("a time"));
        match number.map(|number| Dice(number.wrapping_mul(number)).roll(4)) {
            Some(0) => None,
            Some(1) => Some(self.rest.max(self.part * self.burst / 12)),
            _ => Some(self.rest),
        }
    }
}

/// The argument of one process.
#[derive(Deserialize, Serialize)]
pub(super) struct Told {
    pub(super) load: Load,
    pub(super) seed: u64,
    /// Where it notes its answers.
    pub(super) notes: PathBuf,
    /// A file that is there when it is to end.
    pub(super) end: PathBuf,
}

pub(super) const TASKS: u32 = 16;

/// How long the return of units may take at the end of their lease.
pub(super) const RETURN: Duration = Duration::from_millis(100);

/// How long a task rests after a refusal or a failure.
const REST: Duration = Duration::from_millis(1);

#[expect(
    clippy::disallowed_methods,
    reason = "several processes and Redis share this clock"
)]
pub(super) fn unix_time() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.expect("a time")
}

/// Checks until it is to end, and no refund is left to do.
pub(super) fn hammer(told: &str) {
    let told: Told = serde_json::from_str(told).expect("what is told");
    run(async move {
        let store = RedisStore::open(&told.load.url).expect("a URL");
        let store = match told.load.deadline {
            Some(deadline) => store.deadline(deadline),
            None => store,
        };
        let limiters = told.load.trees.iter().map(|tree| tree.limiters(&store));
        let limiters: Arc<[Limiters]> = limiters.collect();
        // Connects to all servers.
        for limiters in limiters.iter() {
            until(PATIENCE, "the servers answer", async || {
                limiters.ask_each_level().await.is_ok()
            })
            .await;
        }
        let tasks = || Handle::current().metrics().num_alive_tasks();
        let tasks_before = tasks();
        let notes = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&told.notes);
        let notes = Arc::new(notes.expect("a file"));
        let mut all = JoinSet::new();
        for task in 0..TASKS {
            let checking = Checking {
                tree: usize::try_from(task).expect("few") % limiters.len(),
                limiters: Arc::clone(&limiters),
                max_cost: told.load.max_cost,
                cancelled: told.load.cancelled,
                pace: told.load.pace,
                dice: Dice(told.seed * u64::from(TASKS) + u64::from(task)),
                notes: Arc::clone(&notes),
            };
            all.spawn(checking.until(told.end.clone()));
        }
        all.join_all().await;
        // A check that was cancelled goes on in a task of its own. Without such checks, new connections have tasks.
        let lease = told.load.trees.iter().filter_map(Tree::longest_lease).max();
        let cancels = told.load.cancelled > 0 && lease.is_none();
        until(PATIENCE, "all refunds are done", async || {
            !cancels || tasks() <= tasks_before
        })
        .await;
        if let Some(lease) = lease {
            tokio::time::sleep(lease + RETURN).await;
        }
    });
}

/// One task.
struct Checking {
    limiters: Arc<[Limiters]>,
    tree: usize,
    max_cost: u32,
    cancelled: u64,
    pace: Pace,
    dice: Dice,
    notes: Arc<File>,
}

impl Checking {
    async fn until(mut self, end: PathBuf) {
        let limiters = Arc::clone(&self.limiters);
        let limiters = &limiters[self.tree];
        let mut checks = 0;
        while !end.exists() {
            let Some(rest) = self.pace.rest() else {
                tokio::time::sleep(REST).await;
                continue;
            };
            let start = unix_time();
            let users = u64::try_from(limiters.tree.users()).expect("few");
            let user = usize::try_from(self.dice.roll(users)).expect("few");
            let cost = 1 + u32::try_from(self.dice.roll(self.max_cost.into())).expect("few");
            let patience = self.patience();
            let note = tokio::select! {
                biased;
                checked = limiters.check(user, cost) => note(limiters, checked, user, cost, start),
                () = patience => Note::Cancelled { cost },
            };
            self.write(note);
            if let Note::Refused { .. } | Note::Failed { .. } = note {
                tokio::time::sleep(REST).await;
            }
            checks += 1;
            if checks >= self.pace.burst && !rest.is_zero() {
                checks = 0;
                tokio::time::sleep(rest).await;
            }
        }
    }

    /// How long the next check is waited for.
    fn patience(&mut self) -> impl Future<Output = ()> + Send + 'static {
        let is_cancelled = self.cancelled > 0 && self.dice.roll(self.cancelled) == 0;
        let (yields, micros) = (self.dice.roll(2) == 0, self.dice.roll(2_000));
        async move {
            match (is_cancelled, yields) {
                (false, _) => std::future::pending().await,
                (true, true) => {
                    for _ in 0..micros / 100 {
                        tokio::task::yield_now().await;
                    }
                }
                (true, false) => tokio::time::sleep(Duration::from_micros(micros)).await,
            }
        }
    }

    /// By one call, so that a kill leaves whole lines.
    fn write(&self, note: Note) {
        let line = format!("{} {note}\n", self.tree);
        (&*self.notes).write_all(line.as_bytes()).expect("a file");
    }
}

fn note(
    limiters: &Limiters,
    checked: Result<Decision, Error>,
    user: usize,
    cost: u32,
    start: Duration,
) -> Note {
    let micros = |time: Duration| u64::try_from(time.as_micros()).expect("a time");
    let Ok(decision) = checked else {
        return Note::Failed { cost };
    };
    if decision.is_allowed() {
        return Note::Admitted {
            user,
            cost,
            start: micros(start),
            end: micros(unix_time()),
            leased: decision.source() == Source::Lease,
        };
    }
    let refusing = decision
        .levels()
        .find(|level| level.is_asked() && !level.is_allowed());
    let refusing = refusing.expect("a level refused").limiter();
    let levels = limiters.tree.0.iter();
    let admitting = decision
        .levels()
        .filter(|level| level.is_asked() && level.is_allowed());
    Note::Refused {
        level: levels
            .enumerate()
            .find_map(|(index, level)| (level.name == refusing).then_some(index))
            .expect("a level of the tree"),
        passing: admitting.map(|level| level.cost()).sum(),
    }
}
