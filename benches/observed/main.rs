//! The cost of metrics and tracing for a check in memory: `benches/observed/run`.
//!
//! A recorder cannot be uninstalled, so each turn is a new process of this program, or of the same program
//! built without the feature `metrics`.

#![expect(
    clippy::float_arithmetic,
    clippy::cast_precision_loss,
    reason = "what is measured is not what is counted"
)]

#[path = "../in_process/contestants.rs"]
#[expect(dead_code, reason = "the bench beside uses the rest")]
mod contestants;
mod listeners;

use std::process::Command;
use std::time::Instant;

use contestants::{KEYS, Outcome, with_limiter};
use lexopt::Arg::Long;
use lexopt::ValueExt;
use listeners::Listeners;
use tollgate::{MemoryStore, RateLimiter};

/// How many processes measure each row, in turns.
const ROUNDS: usize = 31;

/// How often each process checks all keys.
const PASSES: usize = 20;

fn main() -> Result<(), lexopt::Error> {
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Long("turn") => {
                let listeners: Listeners = args.value()?.parse()?;
                take_turn(listeners);
                return Ok(());
            }
            Long("beside") => {
                print_table(&args.value()?.string()?);
                return Ok(());
            }
            // What cargo passes.
            Long("bench") => {}
            arg => return Err(arg.unexpected()),
        }
    }
    println!("run by benches/observed/run");
    Ok(())
}

/// Prints nanoseconds for a check that is admitted, and for one that is refused.
fn take_turn(listeners: Listeners) {
    listeners.install();
    let [admitted, refused] = Outcome::ALL.map(|outcome| {
        let limiter = RateLimiter::new(MemoryStore::new(), outcome.quota()).name("observed");
        let check = with_limiter(listeners.configure(limiter));
        let passes = (0..PASSES).map(|_| {
            let start = Instant::now();
            let admitted = (0..KEYS).filter(|key| check(*key)).count();
            assert_eq!(admitted > 0, outcome == Outcome::Admitted);
            start.elapsed().as_secs_f64() * 1e9 / KEYS as f64
        });
        median(passes.collect())
    });
    println!("{admitted} {refused}");
}

fn print_table(off: &str) {
    let on = std::env::current_exe().expect("this program");
    let on = on.to_str().expect("text");
    let rows = Listeners::ALL.map(|listeners| match listeners {
        Listeners::NotBuilt => (listeners, off),
        _ => (listeners, on),
    });
    let mut times = vec![Vec::new(); rows.len()];
    for _ in 0..ROUNDS {
        for ((listeners, program), times) in rows.iter().zip(&mut times) {
            times.push(turn(program, *listeners));
        }
    }
    println!("| listening | admitted, ns | × | refused, ns | × |");
    println!("|---|--:|--:|--:|--:|");
    for ((listeners, _), of_row) in rows.iter().zip(&times) {
        let [admitted, refused] = [0, 1].map(|outcome| {
            let time = median(of_row.iter().map(|time| time[outcome]).collect());
            let ratios = of_row.iter().zip(&times[0]);
            let ratios = ratios.map(|(time, base)| time[outcome] / base[outcome]);
            format!("{time:.0} | {:.2}", median(ratios.collect()))
        });
        println!("| {} | {admitted} | {refused} |", listeners.text());
    }
}

fn turn(program: &str, listeners: Listeners) -> [f64; 2] {
    let run = Command::new(program)
        .args(["--turn", listeners.argument()])
        .output()
        .expect("a process");
    assert!(run.status.success(), "{run:?}");
    let text = String::from_utf8(run.stdout).expect("text");
    let mut times = text
        .split_whitespace()
        .map(|time| time.parse().expect("a time"));
    [(); 2].map(|()| times.next().expect("two times"))
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
