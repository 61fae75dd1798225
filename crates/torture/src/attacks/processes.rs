//! Processes that share a limit, with the same clock and with others.

use std::sync::Arc;

use super::attack::Attack;
use crate::arena::Arena;
use crate::case::{Case, KEY, LIMIT, all_are_answered};
use crate::contestant::{Contestant, Failure, Offer};
use crate::history::{Event, micros};
use crate::oracle::Finding;
use crate::server::Clock;

/// Processes with the clock of this machine.
pub(super) const PROCESSES: Attack = Attack {
    name: "processes",
    about: "three processes, with two callers each, check one key",
    needs: &[Offer::Redis],
    run: |arena| run(arena, [None; 3]),
    judge,
};

/// Callers whose clocks disagree.
pub(super) const SKEW: Attack = Attack {
    name: "skew",
    about: "of three processes, one has a clock that is two windows ahead, one is two windows behind",
    needs: &[Offer::Redis],
    run: |arena| {
        let step = i64::try_from(2 * micros(arena.window()))?;
        run(arena, [Some(0), Some(step), Some(-step)])
    },
    judge,
};

const CALLERS: u64 = 6;

/// Starts a process for each of these clocks, in microseconds ahead of the true time.
fn run(arena: &Arena<'_>, clocks: [Option<i64>; 3]) -> Result<(), Failure> {
    let server = arena.server()?;
    let mut processes: Vec<Arc<dyn Contestant>> = Vec::new();
    for micros in clocks {
        let clock = micros.map(Clock::new).transpose()?;
        // The file stays mapped.
        processes.push(arena.process(LIMIT, &server, clock.as_ref())?);
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
