//! Runs the worlds of many seeds, a few at a time.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use super::arguments::Run;
use super::world_process;
use crate::planted::{Planted, ShownBy};
use crate::world::{ClientKind, Plan, Report};

/// In one of so many worlds, the branches of the scripts are counted.
const COUNTED: u64 = 4;

/// One of so many worlds runs a second time, which has to be the same.
const REPEATED: u64 = 50;

/// The promises that are known to break.
const EXPECTED: &str = include_str!("../expected.txt");

/// The sum of many worlds.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) sum: Report,
    pub(super) worlds: u64,
    /// The plans of those in which a promise broke, and the first of these promises.
    pub(super) failed: Vec<(Plan, String)>,
    /// The seeds of those that broke only a promise that is known to break.
    pub(super) expected: Vec<u64>,
}

/// Runs worlds until all are done or the time is over; with a planted fault, until it is found.
pub(super) fn run(run: &Run) -> Outcome {
    let since = Instant::now();
    let mut outcome = Outcome::default();
    let seeds = Mutex::new(run.first..run.first.saturating_add(run.seeds));
    let (done, reports) = channel();
    thread::scope(|scope| {
        for _ in 0..run.jobs {
            let done = done.clone();
            let seeds = &seeds;
            scope.spawn(move || {
                while let Some(plan) = next_plan(run, seeds, since) {
                    let mut report = world_process::run(&plan);
                    if plan.seed % REPEATED == 1 {
                        compare_with_another(&plan, &mut report);
                    }
                    if done.send((plan, report)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        for (plan, report) in reports {
            outcome.take_in(plan, &report);
            if run.planted.is_some() && !outcome.failed.is_empty() {
                break;
            }
        }
    });
    outcome
}

/// Runs a world a second time, with a trace, which must not change it.
fn compare_with_another(plan: &Plan, report: &mut Report) {
    let traced = Plan {
        traced: Some("slots,x".to_owned()),
        ..plan.clone()
    };
    let other = world_process::run(&traced);
    if other.hash != report.hash {
        let violation = format!(
            "the world has another hash in its second run: {:016x}",
            other.hash
        );
        report.violations.insert(0, violation);
    }
}

fn next_plan(run: &Run, seeds: &Mutex<std::ops::Range<u64>>, since: Instant) -> Option<Plan> {
    if run.time.is_some_and(|time| since.elapsed() > time) {
        return None;
    }
    let mut seeds = seeds.lock().expect("no thread panics");
    let mut plans = seeds.by_ref().map(Plan::of_seed);
    let mut plan = plans.find(|plan| run.planted.is_none_or(|planted| shows(plan, planted)))?;
    let seed = plan.seed;
    plan.planted = run.planted;
    plan.counts_branches = run.planted.is_none() && seed % COUNTED == 1;
    Some(plan)
}

fn shows(plan: &Plan, planted: &Planted) -> bool {
    let has_all = plan.clients.contains(&ClientKind::Checks);
    has_all == (planted.shown_by == ShownBy::AllClients)
}

impl Outcome {
    fn take_in(&mut self, plan: Plan, report: &Report) {
        self.worlds += 1;
        self.sum.add(report);
        let mut violations = report.violations.iter();
        let unexpected = violations.find(|violation| !is_expected(violation));
        if unexpected.is_none() && !report.violations.is_empty() {
            self.expected.push(plan.seed);
        }
        if let Some(first) = unexpected {
            if plan.planted.is_none() {
                println!("seed {}: {first}\n  {plan}", plan.seed);
            }
            self.failed.push((plan, first.clone()));
        }
    }
}

/// Returns whether a promise is known to break in this way.
fn is_expected(violation: &str) -> bool {
    let lines = EXPECTED.lines().filter(|line| !line.starts_with('#'));
    let mut texts = lines.filter_map(|line| line.split_once(" | "));
    texts.any(|(text, _)| violation.contains(text))
}
