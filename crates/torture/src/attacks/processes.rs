//! Processes that share a limit.

use std::sync::Arc;

use super::attack::Attack;
use crate::arena::Arena;
use crate::case::{Case, KEY, LIMIT, all_are_answered};
use crate::contestant::{Contestant, Failure, Offer};
use crate::history::Event;
use crate::oracle::Finding;

pub(super) const ATTACK: Attack = Attack {
    name: "processes",
    about: "three processes, with two callers each, check one key",
    needs: &[Offer::Redis],
    run,
    judge,
};

const CALLERS: u64 = 6;

fn run(arena: &Arena<'_>) -> Result<(), Failure> {
    let server = arena.server()?;
    let mut processes: Vec<Arc<dyn Contestant>> = Vec::new();
    for _ in 0..3 {
        processes.push(arena.process(LIMIT, &server, None)?);
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
