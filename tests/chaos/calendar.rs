//! Processes whose clocks are wrong share one calendar day, across its end.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tollgate::{Quota, RateLimiter, RedisStore};

use crate::clock::{preload_skew, skewed_server};
use crate::suite::beside_others;

const LIMIT: u32 = 500;
const DAY: i64 = 86_400 * 1_000_000;
const HOUR: i64 = 3_600 * 1_000_000;
const TASKS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(60);

/// By how much the clock of each process is ahead of the system's, in microseconds. The last one knows no window at the
/// time of the server until the server has told it.
const AHEAD: [i64; 4] = [0, HOUR, -HOUR, 400 * DAY];

/// The variable with the server's URL, which only child processes have.
const SERVER: &str = "TOLLGATE_TEST_CALENDAR";

/// The prefix of the line in which a child process reports its admitted units of the first day and of the second.
const REPORT: &str = "admitted units: ";

/// Checks until the second day refuses. Returns the units admitted on each day.
async fn hammer(url: &str) -> [u32; 2] {
    // A check whose deadline has passed may have been charged.
    let store = RedisStore::open(url).expect("a URL").deadline(PATIENCE);
    // A refusal that is remembered would make the process miss the end of the day for up to a second.
    let store = store.refusal_cache(Duration::ZERO);
    let quota = Quota::per_calendar_day(LIMIT, "UTC").expect("a zone");
    let limiter = RateLimiter::new(store, quota);
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let mut admitted = [0, 0];
                loop {
                    let decision = limiter.check("ada").await.expect("a decision");
                    // The first day has a few seconds left, the second one nearly all of its hours.
                    let day = usize::from(decision.reset_after() > Duration::from_secs(3_600));
                    admitted[day] += u32::from(decision.is_allowed());
                    if day == 1 && !decision.is_allowed() {
                        return admitted;
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        })
        .collect();
    let mut admitted = [0, 0];
    for task in tasks {
        let ended = tokio::time::timeout(PATIENCE, task).await;
        let units = ended.expect("the second day refuses").expect("a task");
        admitted = add(admitted, units);
    }
    admitted
}

fn add(left: [u32; 2], right: [u32; 2]) -> [u32; 2] {
    std::array::from_fn(|index| left[index] + right[index])
}

/// Starts a process with a clock that is ahead, which runs the calling test.
fn start(directory: &Path, index: usize, url: &str) -> std::process::Child {
    let offset = directory.join(format!("offset{index}"));
    fs::write(&offset, AHEAD[index].to_ne_bytes()).expect("a file");
    let mut command = Command::new(env::current_exe().expect("this program"));
    preload_skew(&mut command, &directory.join("skew.so"), &offset);
    command
        .args([
            "calendar::processes_with_wrong_clocks_admit_exactly_the_limit_on_both_sides_of_midnight",
            "--exact",
            "--nocapture",
        ])
        .env(SERVER, url)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

#[test]
fn processes_with_wrong_clocks_admit_exactly_the_limit_on_both_sides_of_midnight() {
    if let Ok(url) = env::var(SERVER) {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let [first, second] = runtime.block_on(hammer(&url));
        println!("\n{REPORT}{first} {second}");
        return;
    }
    assert_eq!(beside_others(async { admitted_by_processes() }), [LIMIT; 2]);
}

/// Runs the processes, and returns the sum of their reports.
fn admitted_by_processes() -> [u32; 2] {
    let directory = tempfile::tempdir().expect("a directory");
    let (server, skew) = skewed_server(directory.path());
    // Midnight is in five seconds, by the clock of the server.
    let time = redis::cmd("TIME").query(&mut server.connect());
    let (seconds, micros): (i64, i64) = time.expect("the server's time");
    let now = seconds * 1_000_000 + micros;
    skew.set(DAY - now % DAY - 5_000_000);
    let children: Vec<_> = (0..AHEAD.len())
        .map(|index| start(directory.path(), index, &server.url()))
        .collect();
    let mut admitted = [0, 0];
    for child in children {
        let output = child.wait_with_output().expect("a report");
        let text = String::from_utf8(output.stdout).expect("text");
        let report = text.lines().find_map(|line| line.strip_prefix(REPORT));
        let report = report.unwrap_or_else(|| panic!("no report in {text}"));
        let units: Vec<u32> = report
            .split(' ')
            .map(|units| units.parse().expect("a number"))
            .collect();
        let units: [u32; 2] = units.try_into().expect("two numbers");
        // On the first day, the units may be gone before the process has started.
        assert!(units[1] > 0, "idle: {units:?}");
        admitted = add(admitted, units);
    }
    admitted
}
