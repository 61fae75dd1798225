//! Processes that hold units of one limit in advance, and are killed.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tollgate::{Quota, RateLimiter, Source, Store};
use tollgate_postgres::PostgresRows;

use crate::killed_processes::{Fleet, Orders, run_until_killed};
use crate::notes::{note, now, open_notes};
use crate::server::Server;
use crate::several_processes::{until, used};
use crate::spans::{Admission, Admissions};

const SCHEMA: &str = "leases_of_processes";
const LIMIT: u32 = 400;
const TASKS: usize = 4;

/// The rest of a task after each check: a process checks often enough for a lease, and does not use up the limit within one.
const REST: Duration = Duration::from_millis(5);

/// Times are in microseconds, as in the notes.
const WINDOW: u64 = 1_000_000;

/// The longest for this window.
const LEASE: u64 = WINDOW / 10;

/// The time in which processes take units and use some.
const TAKE: u64 = LEASE * 3 / 2;

/// The times for which they then rest with the units that they hold. After the first, the units may still be used, at nearly the
/// end of their lease. After the second, they may not.
const HOLD: [u64; 2] = [LEASE * 6 / 10, LEASE * 15 / 10];

/// The time in which they use up the limit, and what comes back after a window.
const USE_UP: u64 = WINDOW + 2 * LEASE;

/// The time until they begin again: the whole limit is back.
const CYCLE: u64 = TAKE + HOLD[1] + USE_UP + WINDOW + 2 * LEASE;

/// The clock of the notes has whole microseconds.
const CLOCK_ERROR: u64 = 2;

/// Returns whether all processes rest at this time. Together, they hold enough units that a too short count of them shows.
fn is_rest(now: u64) -> bool {
    let hold = if (now / CYCLE).is_multiple_of(2) {
        HOLD[0]
    } else {
        HOLD[1]
    };
    let at = now % CYCLE;
    let uses_up_from = TAKE + hold;
    at >= TAKE && at < uses_up_from || at >= uses_up_from + USE_UP
}

fn limiter(store: impl Store) -> RateLimiter {
    RateLimiter::new(store, Quota::new(LIMIT, Duration::from_micros(WINDOW)))
        .name("search")
        .lease(Duration::from_micros(LEASE))
}

/// Checks until it is killed. Notes each answer, with the times before and after the check.
async fn use_units(orders: Orders) {
    let rows = PostgresRows::open(&orders.url).unwrap().schema(SCHEMA);
    let limiter = limiter(rows.into_store().deadline(Duration::from_secs(20)));
    let file = open_notes(&orders.notes);
    let tasks = (0..TASKS).map(|_| {
        let (limiter, file) = (limiter.clone(), Arc::clone(&file));
        async move {
            loop {
                let start = now();
                if !is_rest(start) {
                    let answer = match limiter.check("acme").await {
                        Ok(decision) if !decision.is_allowed() => "refused",
                        Ok(decision) if decision.source() == Source::Lease => "leased",
                        Ok(_) => "charged",
                        Err(_) => "failed",
                    };
                    note(&file, format_args!("{answer} {start}"));
                }
                tokio::time::sleep(REST).await;
            }
        }
    });
    run_until_killed(tasks).await;
}

/// The answers that processes have noted.
#[derive(Default)]
struct Answers {
    admitted: Vec<Admission>,
    leased: u32,
    refused: u32,
    failed: u32,
}

impl Answers {
    fn add(&mut self, notes: &Path) {
        // A process that was killed at once has none.
        let text = fs::read_to_string(notes).unwrap_or_default();
        for line in text.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let [answer, start, end] = words[..] else {
                continue; // cut off by the kill
            };
            match answer {
                "refused" => self.refused += 1,
                "failed" => self.failed += 1,
                _ => {
                    self.leased += u32::from(answer == "leased");
                    self.admitted.push(Admission {
                        start: Duration::from_micros(start.parse().unwrap()),
                        end: Duration::from_micros(end.parse().unwrap()),
                        units: 1,
                    });
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_with_leases_exceed_no_limit_in_any_window() {
    if let Some(orders) = Orders::of_this_process() {
        return use_units(orders).await;
    }
    const TEST: &str = "leases::killed_processes_with_leases_exceed_no_limit_in_any_window";
    let server = Server::shared();
    let look = limiter(server.store(SCHEMA).await);
    let mut fleet = Fleet::start(TEST, server.url());
    fleet.kill_at_random(16).await;
    until("the limit is used up", async || {
        used(&look, "acme").await == LIMIT
    })
    .await;
    fleet.kill_all();
    let left = used(&look, "acme").await;
    let returned = until("all units are back", async || {
        used(&look, "acme").await == 0
    })
    .await;
    let mut answers = Answers::default();
    fleet.notes().for_each(|notes| answers.add(notes));
    let Answers {
        admitted,
        leased,
        refused,
        failed,
    } = answers;
    let admitted = Admissions::new(admitted);
    let total = admitted.total();
    let most = admitted.most_within(Duration::from_micros(WINDOW - CLOCK_ERROR));
    let figure = format!(
        "{total} units admitted, {leased} of them from leases, {refused} checks refused, {failed} failed; {} processes killed: at \
         most {most} of {LIMIT} in a window; {left} units count after the last kill, none after {returned:.1?}",
        fleet.kills()
    );
    println!("{figure}");
    assert!(most <= u64::from(LIMIT), "{figure}");
    let counted = Duration::from_micros(WINDOW + LEASE);
    assert!(returned < counted + Duration::from_secs(1), "{figure}");
    // Otherwise the test says nothing.
    assert!(u64::from(leased) * 10 > total && refused > 0, "{figure}");
}
