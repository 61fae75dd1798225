//! The tasks of the program.

use std::process::ExitCode;
use std::time::Instant;

use lexopt::Parser;

use super::arguments::{Run, Task, parse};
use super::many::{self, Outcome};
use super::{shrink, world_process};
use crate::branches;
use crate::planted::Planted;
use crate::world::{Plan, Report};

/// The codes of errors that the clients of a world have to get at some time. The others are of Cluster, Sentinel and TLS, of wrong
/// set-ups, or of replies that no Redis sends.
const CODES: [&str; 18] = [
    "tollgate::E001",
    "tollgate::E003",
    "tollgate::E004",
    "tollgate::E011",
    "tollgate::E012",
    "tollgate::E101",
    "tollgate::E105",
    "tollgate::E107",
    "tollgate::E108",
    "tollgate::E109",
    "tollgate::E110",
    "tollgate::E111",
    "tollgate::E112",
    "tollgate::E113",
    "tollgate::E114",
    "tollgate::E115",
    "tollgate::E122",
    "tollgate::E127",
];

/// Does what the arguments ask for.
#[must_use]
pub fn main() -> ExitCode {
    let task = match parse(Parser::from_env()) {
        Ok(task) => task,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let holds = match task {
        Task::Run(run) => run_many(&run),
        Task::Replay(plan) => replay(&plan),
        Task::Report(plan) => report(&plan),
        Task::Shrink(plan) => shrunk(&plan),
        Task::Planted(run) => run_planted(&run),
    };
    if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run_many(run: &Run) -> bool {
    // Else nobody would see that a planted fault has lost its rule: all tests run worlds, and plant none.
    Planted::verify_all();
    let since = Instant::now();
    let outcome = many::run(run);
    print_sum(&outcome.sum);
    let seconds = since.elapsed().as_secs_f64();
    let failed = outcome.failed.len();
    println!(
        "{} worlds in {seconds:.0} s, of which {failed} broke a promise",
        outcome.worlds
    );
    let is_covered = !run.needs_coverage || print_coverage(&outcome);
    outcome.failed.is_empty() && is_covered
}

fn print_sum(sum: &Report) {
    let counts: Vec<String> = sum
        .counts
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    println!("{}", counts.join(", "));
}

/// Prints the branches and codes that were not reached. Returns whether there are none.
fn print_coverage(outcome: &Outcome) -> bool {
    let reached = &outcome.sum.branches;
    let missing = branches::missing(reached);
    let codes = CODES
        .iter()
        .filter(|code| !outcome.sum.codes.contains(**code));
    let codes: Vec<&str> = codes.copied().collect();
    let (reached_too, excused): (Vec<&str>, Vec<&str>) =
        branches::excused().partition(|branch| reached.contains(*branch));
    println!("codes of errors: {:?}", outcome.sum.codes);
    println!(
        "{} branches of the scripts were reached, {} were not, {} need not be; codes not reached: {codes:?}",
        reached.len(),
        missing.len(),
        excused.len()
    );
    for branch in reached_too {
        println!("  reached, and need not be: {branch}");
    }
    for branch in &missing {
        println!("  not reached: {branch}");
    }
    missing.is_empty() && codes.is_empty()
}

fn report(plan: &Plan) -> bool {
    let Some(report) = world_process::run_here(plan) else {
        return false;
    };
    println!("{}", report.to_lines());
    report.violations.is_empty()
}

fn replay(plan: &Plan) -> bool {
    let Some(report) = world_process::run_here(plan) else {
        return false;
    };
    for event in &report.trace {
        println!("{event}");
    }
    print_sum(&report);
    println!("hash {:016x}", report.hash);
    for violation in &report.violations {
        println!("broken: {violation}");
    }
    report.violations.is_empty()
}

fn shrunk(plan: &Plan) -> bool {
    match shrink::shrink(plan) {
        Some(smallest) => println!("{smallest}"),
        None => println!("no promise breaks: {plan}"),
    }
    true
}

/// Plants each fault, and prints a table. Returns whether each was found.
fn run_planted(run: &Run) -> bool {
    Planted::verify_all();
    let mut are_found = true;
    println!("| planted fault | different | promise that breaks | worlds |\n|---|---|---|---|");
    for fault in Planted::all() {
        if run.planted.is_some_and(|one| one.name != fault.name) {
            continue;
        }
        let outcome = many::run(&Run {
            planted: Some(fault),
            ..run.clone()
        });
        let found = outcome.failed.first();
        are_found &= found.is_some();
        let promise = found.map_or("not found", |(_, promise)| promise);
        println!(
            "| `{}` | {} | {promise} | {} |",
            fault.name, fault.what, outcome.worlds
        );
    }
    are_found
}
