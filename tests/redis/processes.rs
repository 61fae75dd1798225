//! Many processes share one limit exactly.

use std::env;
use std::process::{Command, Stdio};
use std::time::Duration;

use tollgate::{Quota, RateLimiter, RedisStore};

use crate::support::redis_server::RedisServer;

const PROCESSES: usize = 4;
const TASKS: u32 = 16;
const CHECKS: u32 = 60;
const LIMIT: u32 = 1_000;

/// The variable with the server's URL, which only child processes have.
const SERVER: &str = "TOLLGATE_TEST_SERVER";

/// The prefix of the line in which a child process reports its admitted units.
const REPORT: &str = "admitted units: ";

/// Hammers one key, and returns the units admitted.
async fn hammer(url: &str, costs: [u32; 2]) -> u32 {
    let store = RedisStore::open(url).expect("a URL");
    let store = store.deadline(Duration::from_secs(30));
    let limiter = RateLimiter::new(store, Quota::per_minute(LIMIT));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let mut admitted = 0;
                for check in 0..CHECKS {
                    let cost = costs[usize::from(check % 2 == 1)];
                    let decision = limiter.check_n("ada", cost).await.expect("a decision");
                    admitted += if decision.is_allowed() { cost } else { 0 };
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.expect("a task ends");
    }
    admitted
}

/// Runs `test`, the calling test, in several processes at once. Returns the units admitted in all of
/// them in the parent, and `None` in a child process, which has reported.
fn admitted_by_processes(test: &str, costs: [u32; 2]) -> Option<u32> {
    if let Ok(url) = env::var(SERVER) {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        println!("\n{REPORT}{}", runtime.block_on(hammer(&url, costs)));
        return None;
    }
    let server = RedisServer::start();
    let children: Vec<_> = (0..PROCESSES)
        .map(|_| {
            Command::new(env::current_exe().expect("this program"))
                .args([test, "--exact", "--nocapture"])
                .env(SERVER, server.url())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a process")
        })
        .collect();
    let reports = children.into_iter().map(|child| {
        let output = child.wait_with_output().expect("a report");
        let text = String::from_utf8(output.stdout).expect("text");
        let report = text.lines().find_map(|line| line.strip_prefix(REPORT));
        let report = report.unwrap_or_else(|| panic!("no report in {text}"));
        report.parse::<u32>().expect("a number")
    });
    Some(reports.sum())
}

#[test]
fn processes_admit_exactly_the_limit_in_units_of_one() {
    let test = "processes::processes_admit_exactly_the_limit_in_units_of_one";
    if let Some(admitted) = admitted_by_processes(test, [1, 1]) {
        assert_eq!(admitted, LIMIT);
    }
}

#[test]
fn processes_admit_the_limit_in_mixed_costs_but_for_what_no_cost_fits_into() {
    let test = "processes::processes_admit_the_limit_in_mixed_costs_but_for_what_no_cost_fits_into";
    if let Some(admitted) = admitted_by_processes(test, [1, 7]) {
        assert!(
            admitted <= LIMIT && admitted > LIMIT - 7,
            "{admitted} units"
        );
    }
}
