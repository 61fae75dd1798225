//! This process stands still while Redis is healthy: it is stopped, or at its limit of CPU.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tollgate::{ErrorKind, FailurePolicy, Quota, RateLimiter, RedisStore};

use crate::support::log;
use crate::support::node::Node;
use crate::support::process::{Process, argument, report};
use crate::support::redis_server::RedisServer;
use crate::support::standing_still::{LIMIT, PAUSES, Pauses, ready, use_up};

/// The default.
const DEADLINE: Duration = Duration::from_millis(100);

fn runtime(flavor: &str) -> Runtime {
    log::keep();
    let log = log::of_thread();
    let mut builder = match flavor {
        "one thread" => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(2).enable_all();
    let runtime = runtime.on_thread_start(move || log.adopt()).build();
    runtime.expect("a runtime")
}

/// A limiter of the URL and the runtime in the argument, and with the name of the process.
fn limiter(url: &str, quota: Quota) -> RateLimiter {
    let name = std::process::id().to_string();
    RateLimiter::new(RedisStore::open(url).expect("a URL"), quota).name(&*name)
}

/// The runtime and the URL of a child.
fn parts(argument: &str) -> (&str, &str) {
    argument.split_once('|').expect("a runtime and a URL")
}

/// Runs a test in a process for each kind of runtime and these pauses, all at once. Returns their reports.
fn reports<'a>(test: &str, url: &str, pauses: &'a [Pauses]) -> Vec<(String, &'a Pauses)> {
    let flavors = ["one thread", "two threads"];
    thread::scope(|scope| {
        let each = pauses.iter().flat_map(|pauses| {
            flavors.map(|flavor| {
                let process = Process::of(test, &format!("{flavor}|{url}"));
                scope.spawn(move || (pauses.stop(process), pauses))
            })
        });
        let running: Vec<_> = each.collect();
        let ended = running.into_iter().map(|one| one.join().expect("a report"));
        ended.collect()
    })
}

#[test]
fn a_process_that_stands_still_admits_the_limit_and_blames_no_server() {
    const TEST: &str =
        "standing_still::a_process_that_stands_still_admits_the_limit_and_blames_no_server";
    if let Some(argument) = argument() {
        let (flavor, url) = parts(&argument);
        let runtime = runtime(flavor);
        let limiter = limiter(url, Quota::per_hour(LIMIT)).on_failure(FailurePolicy::fall_back());
        let [admitted, undecided] = runtime.block_on(use_up(&limiter));
        let lines = log::kept().join(" / ");
        return report(format_args!(
            "{admitted} admitted, {undecided} without Redis; {lines}"
        ));
    }
    let server = RedisServer::start();
    let reports = reports(TEST, &server.url(), &PAUSES);
    for (report, Pauses { of, every }) in &reports {
        println!("stopped for {of:?} of {every:?}: {report}");
    }
    for (report, _) in reports {
        assert_eq!(report, format!("{LIMIT} admitted, 0 without Redis; "));
    }
}

#[test]
fn a_standstill_of_a_process_with_many_tasks_opens_no_circuit_breaker() {
    const TEST: &str =
        "standing_still::a_standstill_of_a_process_with_many_tasks_opens_no_circuit_breaker";
    const TASKS: u32 = 400;
    const ROUNDS: u32 = 12;
    if let Some(argument) = argument() {
        let (flavor, url) = parts(&argument);
        let limiter = limiter(url, Quota::per_hour(u32::MAX));
        let failed = runtime(flavor).block_on(async {
            ready(&limiter).await;
            let mut failed = BTreeMap::new();
            for _ in 0..ROUNDS {
                // All at once, so that most of them wait to be sent whenever the parent stops this process.
                let checks = (0..TASKS).map(|task| {
                    let limiter = limiter.clone();
                    tokio::spawn(async move { limiter.check(format!("user:{task}")).await })
                });
                for check in checks.collect::<Vec<_>>() {
                    if let Err(error) = check.await.expect("a task") {
                        *failed.entry(error.code()).or_insert(0) += 1;
                    }
                }
            }
            failed
        });
        return report(format_args!("{failed:?}"));
    }
    let server = RedisServer::start();
    for of in [150, 200, 250] {
        // One after the other: each keeps a core busy.
        for (report, _) in reports(TEST, &server.url(), &[Pauses::new(of, 300)]) {
            println!(
                "stopped for {of} ms, failed of {}: {report}",
                TASKS * ROUNDS
            );
            // The breaker is open. A check may wait here for too long, as the machine is slow.
            assert!(!report.contains("E012"), "{report}");
        }
    }
}

#[tokio::test]
async fn a_server_that_hangs_costs_the_deadline_and_at_most_5_ms() {
    const AT_MOST: Duration = DEADLINE.saturating_add(Duration::from_millis(5));
    // This machine may stand still, too. A call that costs more on its own costs more each time.
    const TRIES: usize = 60;
    let server = Node::start(&[]);
    let mut costs: Vec<Duration> = Vec::new();
    while costs.len() < TRIES && costs.last().is_none_or(|cost| *cost > AT_MOST) {
        let limiter = limiter(&server.url(), Quota::per_hour(9));
        while limiter.peek("ada").await.is_err() {}
        server.stop();
        let began = Instant::now();
        let error = limiter.check("ada").await.unwrap_err();
        costs.push(began.elapsed());
        server.resume();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    }
    println!("{costs:?}");
    assert!(costs.iter().all(|cost| *cost >= DEADLINE), "{costs:?}");
    assert!(
        costs.last().is_some_and(|cost| *cost <= AT_MOST),
        "{costs:?}"
    );
}

#[test]
fn the_error_of_a_process_that_stood_still_names_it() {
    const TEST: &str = "standing_still::the_error_of_a_process_that_stood_still_names_it";
    if let Some(url) = argument() {
        let limiter = limiter(&url, Quota::per_hour(9));
        let error = runtime("one thread").block_on(async {
            ready(&limiter).await;
            // The parent stops the server now.
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).expect("a line");
            let check = tokio::spawn(async move { limiter.check("ada").await });
            tokio::time::sleep(DEADLINE / 4).await;
            // As a task does that blocks its runtime.
            thread::sleep(DEADLINE);
            check.await.expect("a task").expect_err("the server hangs")
        });
        return report(error);
    }
    let server = Node::start(&[]);
    let mut process = Process::of(TEST, &server.url());
    process.rest_of_line("it has checked once");
    server.stop();
    process.send_line("go");
    let error = process.report();
    let named = ", and this process stood still for ";
    assert!(error.contains(named), "{error}");
    assert!(error.ends_with("[tollgate::E003]"), "{error}");
}
