//! Callers whose clocks disagree.

use std::sync::Arc;

use super::attack::Attack;
use crate::arena::Arena;
use crate::case::{Case, KEY, LIMIT, all_are_answered};
use crate::contestant::{Contestant, Failure, Offer};
use crate::history::{Event, micros};
use crate::oracle::Finding;
use crate::server::Clock;

pub(super) const ATTACK: Attack = Attack {
    name: "skew",
    about: "of three processes, one has a clock that is two windows ahead, one is two windows behind",
    needs: &[Offer::Redis],
    run,
    judge,
};

const CALLERS: u64 = 6;

fn run(arena: &Arena<'_>) -> Result<(), Failure> {
    let server = arena.server()?;
    let step = i64::try_from(2 * micros(arena.window()))?;
    let mut processes: Vec<Arc<dyn Contestant>> = Vec::new();
    for micros in [0, step, -step] {
        let clock = Clock::new(micros)?;
        // The file stays mapped.
        processes.push(arena.process(LIMIT, &server, Some(&clock))?);
    }
    arena.crowd(&processes, CALLERS, arena.duration(), |caller| {
        let _ = caller.check(KEY, 1);
    });
    Ok(())
}

fn judge(case: &Case, events: &[Event]) -> Result<Finding, Failure> {
    let finding = case.bound(events)?;
    if finding.broken_by == 0 {
        all_are_answered(events, CALLERS)?;
    }
    Ok(finding)
}
