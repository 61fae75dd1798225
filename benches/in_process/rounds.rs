//! The contestants take turns, round by round, so that disturbances of the machine affect all of them. The
//! table has medians over the rounds, and medians of the ratios within each round.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use tollgate::Quota;

use crate::contestants::{KEYS, Outcome, algorithms, governor, with_keys, with_texts};

/// How often all limiters are rebuilt: once under `cargo test`, which does not measure.
fn fresh() -> usize {
    if crate::is_tried() { 1 } else { 5 }
}

/// How many turns each contestant has with one limiter. A turn checks each key twice and times the second
/// check: it takes about a millisecond, so it is rarely interrupted, and the CPU caches are warm.
const TURNS: usize = 10;

/// Times one turn on this many threads. Returns nanoseconds per check of a thread.
type Turn = Box<dyn Fn(usize) -> f64>;

/// The name of a contestant, and its setup.
type Contestant = (String, Box<dyn Fn() -> Turn>);

pub(crate) fn print() {
    println!("| a check of | threads | admitted, ns | × governor | refused, ns | × governor |");
    println!("|---|--:|--:|--:|--:|--:|");
    for threads in [1, 2] {
        let [admitted, refused] = Outcome::ALL.map(|outcome| measure(outcome, threads));
        let refused = refused.into_iter().map(|(_, cells)| cells);
        let refused = refused.chain(std::iter::repeat(" | ".to_owned()));
        for ((name, admitted), refused) in admitted.into_iter().zip(refused) {
            println!("| {name} | {threads} | {admitted} | {refused} |");
        }
    }
    println!();
}

/// Of each contestant its name, and the cells of its time and its ratio to the first.
fn measure(outcome: Outcome, threads: usize) -> Vec<(String, String)> {
    let contestants = contestants(outcome);
    let mut times = vec![Vec::new(); contestants.len()];
    for _ in 0..fresh() {
        let turns: Vec<Turn> = contestants.iter().map(|(_, set_up)| set_up()).collect();
        for _ in 0..TURNS {
            for (times, turn) in times.iter_mut().zip(&turns) {
                times.push(turn(threads));
            }
        }
    }
    let base = times[0].clone();
    let rows = contestants.into_iter().zip(times);
    rows.map(|((name, _), times)| {
        let ratios = times.iter().zip(&base).map(|(time, base)| time / base);
        let ratio = median(ratios.collect());
        (name, format!("{:.0} | {ratio:.2}", median(times)))
    })
    .collect()
}

fn contestants(outcome: Outcome) -> Vec<Contestant> {
    let mut all = vec![contestant("governor, keyed", outcome, move || {
        governor(outcome)
    })];
    for (name, algorithm) in algorithms() {
        let quota = outcome.quota().with_algorithm(algorithm);
        let ours = quota.clone();
        all.push(contestant(name, outcome, move || with_keys(ours.clone())));
        let name = format!("{name}, by `&str`");
        all.push(contestant(&name, outcome, move || {
            with_texts(quota.clone())
        }));
    }
    // In a window this brief, about as many units leave a log as come.
    if outcome == Outcome::Admitted {
        let brief = Quota::new(1_000_000, Duration::from_millis(5));
        all.push(contestant(
            "SlidingLog, units leaving",
            outcome,
            move || with_keys(brief.clone()),
        ));
    }
    all
}

fn contestant<F: Fn(usize) -> bool + Sync + 'static>(
    name: &str,
    outcome: Outcome,
    limiter: impl Fn() -> F + 'static,
) -> Contestant {
    let set_up = move || -> Turn {
        let check = limiter();
        Box::new(move |threads| time(threads, outcome, &check))
    };
    (name.to_owned(), Box::new(set_up))
}

fn time(threads: usize, outcome: Outcome, check: &(impl Fn(usize) -> bool + Sync)) -> f64 {
    let begin = Barrier::new(threads);
    let run = |thread: usize| {
        // Threads meet at a key only by chance.
        let pass = || {
            let keys = (0..KEYS).map(|step| (step + thread * KEYS / 2) % KEYS);
            keys.filter(|key| check(*key)).count()
        };
        pass();
        begin.wait();
        let start = Instant::now();
        let admitted = pass();
        let elapsed = start.elapsed();
        let expected = match outcome {
            Outcome::Admitted => KEYS,
            Outcome::Refused => 0,
        };
        assert_eq!(admitted, expected, "{outcome:?}");
        elapsed
    };
    let run = &run;
    let slowest = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || run(thread)))
            .collect();
        let ended = running.into_iter().map(|thread| thread.join());
        ended.map(|elapsed| elapsed.expect("no panic")).max()
    });
    nanos(slowest.unwrap_or_default()) / KEYS as f64
}

fn nanos(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e9
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
