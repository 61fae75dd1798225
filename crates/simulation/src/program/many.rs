//! Runs the worlds of many seeds, a few at a time.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use super::arguments::Run;
use super::world_process;
use crate::world::{Plan, Report};

/// One of so many worlds runs a second time, which has to be the same.
const REPEATED: u64 = 50;

/// The sum of many worlds.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) sum: Report,
    pub(super) worlds: u64,
    /// The plans of those in which a promise broke, and the first of these promises.
    pub(super) failed: Vec<(Plan, String)>,
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
    let mut plans = seeds.by_ref().map(Plan::from_seed);
    let mut plan = plans.find(|plan| {
        let shown_by = run.planted.map(|planted| planted.shown_by);
        let wanted = shown_by.or(run.cast);
        wanted.is_none_or(|cast| cast == plan.cast())
    })?;
    plan.planted = run.planted;
    plan.counts_branches = run.needs_coverage;
    Some(plan)
}

impl Outcome {
    fn take_in(&mut self, plan: Plan, report: &Report) {
        self.worlds += 1;
        self.sum.add(report);
        if let Some(first) = report.violations.first() {
            if plan.planted.is_none() {
                println!("seed {}: {first}\n  {plan}", plan.seed);
            }
            self.failed.push((plan, first.clone()));
        }
    }
}
