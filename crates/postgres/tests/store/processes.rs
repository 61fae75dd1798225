//! Processes that share one limit, and are killed, and a server that is.

use std::io::Write;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate::{Quota, RateLimiter};
use tollgate_postgres::PostgresRows;

use crate::killed_processes::{Fleet, Orders, hold_slots_while_processes_are_killed, take_slots};
use crate::process::{Process, argument, child};
use crate::server::Server;

const LIMIT: u32 = 6_000;

/// The checks of a process that are under way at the same time, and so the most that a kill makes it forget.
const TASKS: u32 = 8;

/// Patient with a slow machine: a check whose deadline passes may be charged, and is not told.
fn limiter(url: &str) -> RateLimiter {
    let store = PostgresRows::open(url)
        .unwrap()
        .schema("processes")
        .into_store();
    let store = store.deadline(Duration::from_secs(20));
    RateLimiter::new(store, Quota::per_day(LIMIT)).name("shared")
}

/// Not a test of its own: a process of the tests below. Writes a line for each admitted check, until the limit is used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker() {
    let Some(url) = argument() else {
        return;
    };
    let limiter = limiter(&url);
    let tasks = (0..TASKS).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            loop {
                match limiter.check("key").await {
                    Ok(decision) if decision.is_allowed() => {
                        let _ = std::io::stdout().lock().write_all(b"admitted\n");
                    }
                    Ok(_) => return,
                    // Without a server.
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// A process that counts what its lines say, also after it was killed.
struct Worker {
    process: Process,
    reader: thread::JoinHandle<()>,
}

impl Worker {
    fn start(url: &str, admitted: &Arc<AtomicU32>) -> Self {
        let mut command = child("processes::worker", url);
        let mut process = Process::with_pipes(command.stderr(Stdio::null()));
        let lines = process.take_lines();
        let admitted = Arc::clone(admitted);
        let reader = thread::spawn(move || {
            for line in lines {
                admitted.fetch_add(u32::from(line == "admitted"), Ordering::SeqCst);
            }
        });
        Self { process, reader }
    }

    fn kill(mut self) {
        self.process.kill();
        self.reader.join().unwrap();
    }
}

/// Lets four processes use the limit, with a fault every 200 ms. Returns what they were admitted, and the faults.
fn run(url: &str, mut fault: impl FnMut(&mut Vec<Worker>, u32) -> bool) -> (u32, u32) {
    let admitted = Arc::default();
    let mut workers: Vec<_> = (0..4).map(|_| Worker::start(url, &admitted)).collect();
    let (mut faults, patience) = (0, Instant::now() + Duration::from_secs(60));
    while workers.iter_mut().any(|worker| worker.process.is_running()) {
        assert!(
            Instant::now() < patience,
            "the limit is not used: {admitted:?}"
        );
        thread::sleep(Duration::from_millis(200));
        faults += u32::from(fault(&mut workers, faults));
        while workers.len() < 4 {
            workers.push(Worker::start(url, &admitted));
        }
    }
    workers.into_iter().for_each(Worker::kill);
    (admitted.load(Ordering::SeqCst), faults)
}

async fn used(url: &str) -> u32 {
    limiter(url).peek("key").await.unwrap().used()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_exceed_no_limit_and_strand_only_what_was_under_way() {
    let server = Server::start();
    server.store("processes").await;
    let url = server.url();
    let asked = url.clone();
    let killing = move || {
        run(&asked, |workers, faults| {
            let is_due = faults < 8;
            if is_due {
                workers.remove(0).kill();
            }
            is_due
        })
    };
    let (admitted, kills) = tokio::task::spawn_blocking(killing).await.unwrap();
    println!("{admitted} of {LIMIT} admitted, {kills} processes killed");
    assert!(kills >= 3, "{kills}");
    assert_eq!(used(&url).await, LIMIT);
    assert!(
        admitted <= LIMIT && admitted + kills * TASKS >= LIMIT,
        "{admitted}"
    );
}

/// A logged table keeps what was charged. An answer that the crash cut off may be charged and not told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_with_a_logged_table_forgets_no_charge() {
    let server = Arc::new(Server::start());
    server.store_with("processes", PostgresRows::logged).await;
    let url = server.url();
    let (asked, crashed) = (url.clone(), Arc::clone(&server));
    let crashing = move || {
        run(&asked, |_, faults| {
            let is_due = faults < 3;
            if is_due {
                crashed.crash();
            }
            is_due
        })
    };
    let (admitted, crashes) = tokio::task::spawn_blocking(crashing).await.unwrap();
    println!("{admitted} of {LIMIT} admitted, the server killed {crashes} times");
    assert!(crashes >= 2, "{crashes}");
    assert_eq!(used(&url).await, LIMIT);
    assert!(
        admitted <= LIMIT && admitted + crashes * 4 * TASKS >= LIMIT,
        "{admitted}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_hold_no_more_slots_than_the_limit_and_return_them_within_a_lease() {
    const TEST: &str = "processes::killed_processes_hold_no_more_slots_than_the_limit_and_return_them_within_a_lease";
    const SCHEMA: &str = "slots_of_processes";
    if let Some(orders) = Orders::of_this_process() {
        let rows = PostgresRows::open(&orders.url).unwrap().schema(SCHEMA);
        let store = rows.into_store().deadline(Duration::from_secs(20));
        return take_slots(store, orders).await;
    }
    let server = Server::shared();
    let look = server.store(SCHEMA).await;
    let fleet = Fleet::start(TEST, server.url());
    hold_slots_while_processes_are_killed(fleet, look).await;
}
