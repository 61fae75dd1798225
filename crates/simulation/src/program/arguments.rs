//! The arguments of the program.

use std::collections::BTreeSet;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};

use crate::planted::Planted;
use crate::world::{Cast, ClientKind, FaultKind, Plan};

/// The task of the program.
#[derive(Debug)]
pub(super) enum Task {
    /// Runs many worlds.
    Run(Run),
    /// Runs one world, and shows what happened.
    Replay(Plan),
    /// Runs one world, and writes its report for the process that started this one.
    Report(Plan),
    /// Leaves out what a failing world does not need.
    Shrink(Plan),
    /// Plants each fault, and counts the worlds until it is found.
    Planted(Run),
}

/// The worlds to run.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) first: u64,
    pub(super) seeds: u64,
    /// Ends the run after this time, if it is not done before.
    pub(super) time: Option<Duration>,
    pub(super) jobs: usize,
    pub(super) planted: Option<&'static Planted>,
    /// Leaves out worlds of another cast.
    pub(super) cast: Option<Cast>,
    /// Whether a branch or a code that is not reached fails the run.
    pub(super) needs_coverage: bool,
}

/// Reads the arguments.
pub(super) fn parse(mut parser: Parser) -> Result<Task, lexopt::Error> {
    match parser.value()?.string()?.as_str() {
        "run" => parse_run(parser).map(Task::Run),
        "planted" => parse_run(parser).map(Task::Planted),
        "replay" => {
            let (plan, is_report) = parse_plan(parser)?;
            Ok(if is_report {
                Task::Report(plan)
            } else {
                Task::Replay(plan)
            })
        }
        "shrink" => parse_plan(parser).map(|(plan, _)| Task::Shrink(plan)),
        other => Err(format!("unknown task {other}: run, replay, shrink or planted").into()),
    }
}

fn parse_run(mut parser: Parser) -> Result<Run, lexopt::Error> {
    let mut run = Run {
        first: 1,
        seeds: 200,
        time: None,
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
        planted: None,
        cast: None,
        needs_coverage: false,
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("first") => run.first = first_seed(&parser.value()?.string()?),
            Arg::Long("seeds") => run.seeds = parser.value()?.parse()?,
            Arg::Long("jobs") => run.jobs = parser.value()?.parse()?,
            Arg::Long("planted") => run.planted = Some(planted(&mut parser)?),
            Arg::Long("cast") => {
                let casts = listed(&parser.value()?.string()?, Cast::ALL, Cast::name)?;
                run.cast = casts.first().copied();
            }
            Arg::Long("coverage") => run.needs_coverage = true,
            Arg::Long("minutes") => {
                let minutes: u64 = parser.value()?.parse()?;
                run.time = Some(Duration::from_secs(60 * minutes));
                run.seeds = u64::MAX;
            }
            other => return Err(other.unexpected()),
        }
    }
    Ok(run)
}

/// Returns a number as such, and of another text, such as the hash of a commit, a large number.
fn first_seed(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| {
        let digits: String = text.chars().take(12).collect();
        u64::from_str_radix(&digits, 16).unwrap_or(1)
    })
}

fn parse_plan(mut parser: Parser) -> Result<(Plan, bool), lexopt::Error> {
    let seed = parser.value()?.parse()?;
    let mut plan = Plan::from_seed(seed);
    let mut is_report = false;
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("millis") => plan.load = parser.value()?.parse()?,
            Arg::Long("processes") => plan.processes = parser.value()?.parse()?,
            Arg::Long("faults") => {
                plan.faults = listed(&parser.value()?.string()?, FaultKind::ALL, FaultKind::name)?;
            }
            Arg::Long("clients") => {
                plan.clients = listed(
                    &parser.value()?.string()?,
                    ClientKind::ALL,
                    ClientKind::name,
                )?;
            }
            Arg::Long("planted") => plan.planted = Some(planted(&mut parser)?),
            Arg::Long("trace") => plan.traced = Some(parser.value()?.string()?),
            Arg::Long("branches") => plan.counts_branches = true,
            Arg::Long("report") => is_report = true,
            other => return Err(other.unexpected()),
        }
    }
    Ok((plan, is_report))
}

fn planted(parser: &mut Parser) -> Result<&'static Planted, lexopt::Error> {
    let name = parser.value()?.string()?;
    let planted = Planted::by_name(&name);
    planted.ok_or_else(|| format!("no planted fault is called {name}").into())
}

/// Reads a list of names with commas between them.
fn listed<T: Copy + Ord>(
    text: &str,
    all: &[T],
    name: fn(T) -> &'static str,
) -> Result<BTreeSet<T>, lexopt::Error> {
    let names = text.split(',').filter(|name| !name.is_empty());
    let items = names.map(|wanted| {
        let item = all.iter().copied().find(|item| name(*item) == wanted);
        item.ok_or_else(|| format!("{wanted} is not known").into())
    });
    items.collect()
}
