//! Callers of three processes that wait for the slots of one key.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout_at};
use tollgate::{Quota, RateLimiter};

use crate::support::args::Args;
use crate::support::latencies::Latencies;
use crate::support::redis_server::RedisServer;
use crate::support::spent::Meter;
use crate::support::table::{self, short};
use crate::{WAITS_AT, runtime, store};

const PROCESSES: usize = 3;
const CALLERS: usize = 50;
const SLOTS: u32 = 6;

/// How long a permit is held.
const HOLD: Duration = Duration::from_millis(20);

/// A line is so long that a second shows little.
const SPANS: u32 = 20;

/// The figures of a process, in the order in which it prints them: the permits, and the waits in milliseconds. The longest
/// wait may be one that has not ended.
const FIGURES: [&str; 4] = ["permits", "wait p50 ms", "p99", "longest"];

pub(crate) fn compare(args: &Args) {
    let redis = RedisServer::start();
    let span = args.span * SPANS;
    let mut meter = Meter::new(redis.connect());
    meter.begin();
    let began = Instant::now();
    let processes: Vec<_> = (0..PROCESSES).map(|_| start(&redis.url(), span)).collect();
    let figures: Vec<_> = processes.into_iter().map(figures_of).collect();
    let spent = meter.spent();
    let seconds = began.elapsed().as_secs_f64();
    let title = format!(
        "{CALLERS} callers in each of {PROCESSES} processes, {SLOTS} slots of one key, each held for {HOLD:?}; \
         one run of {span:?}"
    );
    let head = ["process"].into_iter().chain(FIGURES);
    let head: Vec<_> = head.map(str::to_owned).collect();
    let rows = figures.iter().enumerate().map(|(number, figures)| {
        let figures = figures.iter().map(|figure| short(*figure));
        [(number + 1).to_string()]
            .into_iter()
            .chain(figures)
            .collect()
    });
    table::print(&title, &head, &rows.collect::<Vec<_>>());
    let permits: f64 = figures.iter().map(|figures| figures[0]).sum();
    println!(
        "\nA second: {} permits, of at most {}; {} script calls and {} ms of CPU in Redis.",
        short(permits / seconds),
        short(f64::from(SLOTS) / HOLD.as_secs_f64()),
        short(spent.scripts / seconds),
        short(spent.cpu / 1_000.0 / seconds),
    );
}

fn start(url: &str, span: Duration) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([&format!("--{WAITS_AT}"), url, "--millis"]);
    command.arg(span.as_millis().to_string());
    command.stdout(Stdio::piped()).spawn().expect("a process")
}

fn figures_of(process: Child) -> Vec<f64> {
    let output = process.wait_with_output().expect("its output");
    assert!(output.status.success(), "a process has failed");
    let text = String::from_utf8(output.stdout).expect("text");
    let figures = text.split_whitespace();
    let figures: Vec<_> = figures
        .map(|figure| figure.parse().expect("a number"))
        .collect();
    assert_eq!(
        figures.len(),
        FIGURES.len(),
        "the figures of a process: {text}"
    );
    figures
}

/// Waits as one of the processes, and prints its figures.
pub(crate) fn wait_at(url: &str, span: Duration) {
    let (waits, longest) = runtime().block_on(async {
        let limiter = RateLimiter::new(store(url), Quota::in_flight(SLOTS)).name("waiting");
        let until = Instant::now() + span;
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            callers.spawn(wait(limiter.clone(), until));
        }
        let (mut waits, mut longest) = (Latencies::new(), Duration::ZERO);
        for (of_caller, its_longest) in callers.join_all().await {
            waits.add(&of_caller);
            longest = longest.max(its_longest);
        }
        (waits, longest)
    });
    let [p50, p99, _] = waits.tail().map(|micros| micros / 1_000.0);
    println!(
        "{} {p50} {p99} {}",
        waits.len(),
        longest.as_secs_f64() * 1_000.0
    );
}

/// Takes one permit after the other. Returns the waits, and the longest with the one that has not ended.
async fn wait(limiter: RateLimiter, until: Instant) -> (Latencies, Duration) {
    let (mut waits, mut longest) = (Latencies::new(), Duration::ZERO);
    loop {
        let began = Instant::now();
        let permit = timeout_at(until.into(), limiter.acquire("key")).await;
        longest = longest.max(began.elapsed());
        let Ok(permit) = permit else {
            return (waits, longest);
        };
        waits.record(began.elapsed());
        sleep(HOLD).await;
        drop(permit.expect("Redis answers"));
    }
}
