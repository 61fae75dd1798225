//! Many processes share one limit exactly.

use std::time::Duration;

use tollgate::{Quota, RateLimiter, RedisStore};

use crate::support::process::{Process, argument, report};
use crate::support::redis_server::RedisServer;
use crate::support::store_on;

const PROCESSES: usize = 4;
const TASKS: u32 = 16;
const CHECKS: u32 = 60;
const LIMIT: u32 = 1_000;

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
    if let Some(url) = argument() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        report(runtime.block_on(hammer(&url, costs)));
        return None;
    }
    let server = RedisServer::start();
    let children = [(); PROCESSES].map(|()| Process::of(test, &server.url()));
    let reports = children.map(|child| child.report().parse::<u32>().expect("a number"));
    Some(reports.iter().sum())
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

const SETTLING_TASKS: u32 = 24;
const USED: u32 = 37;

/// Reserves a unit for each task, and settles all of them at the same time to more than the limit.
async fn settle_together(url: &str) {
    let store = RedisStore::open(url).expect("a URL");
    let store = store.deadline(Duration::from_secs(30));
    let limiter = RateLimiter::new(store, Quota::per_hour(LIMIT));
    let mut reserved = Vec::new();
    for _ in 0..SETTLING_TASKS {
        reserved.push(limiter.check("ada").await.expect("a decision"));
    }
    // All processes have reserved before one settles.
    limiter.charge("ready", 1).await.expect("a charge");
    let processes = u32::try_from(PROCESSES).expect("a few");
    while limiter.peek("ready").await.expect("a look").used() < processes {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let settling = reserved
        .into_iter()
        .map(|decision| tokio::spawn(async move { decision.settle(USED).await }));
    let settling: Vec<_> = settling.collect();
    for settled in settling {
        settled.await.expect("a task ends").expect("settled");
    }
}

#[test]
fn processes_that_settle_over_each_other_are_charged_in_full() {
    const TEST: &str = "processes::processes_that_settle_over_each_other_are_charged_in_full";
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if let Some(url) = argument() {
        runtime.block_on(settle_together(&url));
        return report("settled");
    }
    let server = RedisServer::start();
    let children = [(); PROCESSES].map(|()| Process::of(TEST, &server.url()));
    for child in children {
        assert_eq!(child.report(), "settled");
    }
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(LIMIT));
    let looked = runtime.block_on(limiter.peek("ada")).expect("a look");
    let all = u32::try_from(PROCESSES).expect("a few") * SETTLING_TASKS * USED;
    assert!(all > 3 * LIMIT);
    assert_eq!((looked.used(), looked.remaining()), (all, 0));
}
