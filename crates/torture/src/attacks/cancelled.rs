//! Callers that give up.

use std::slice::from_ref;
use std::time::Duration;

use super::attack::Attack;
use crate::arena::Arena;
use crate::case::{Case, KEY};
use crate::contestant::{Failure, Offer};
use crate::history::Event;
use crate::oracle::{self, Finding};

pub(super) const ATTACK: Attack = Attack {
    name: "cancelled",
    about: "four threads drop half of their calls before the answer; others must not get it",
    needs: &[Offer::Cancel],
    run,
    judge,
};

fn run(arena: &Arena<'_>) -> Result<(), Failure> {
    let server = arena.server()?;
    let contestant = arena.contestant(&server)?;
    arena.crowd(from_ref(&contestant), 4, arena.duration(), |caller| {
        if caller.random.one_in(2) {
            let time = Duration::from_micros(caller.random.below(400));
            let _ = caller.check_within(KEY, 1, time);
        } else if caller.random.one_in(4) {
            // Nobody has used this key: if it is refused, the answer is somebody else's.
            let key = format!("fresh-{}-{}", caller.id, caller.now());
            let _ = caller.check(&key, 1);
        } else {
            let _ = caller.check(KEY, 1);
        }
    });
    arena.recover(&*contestant, 2);
    Ok(())
}

fn judge(case: &Case, events: &[Event]) -> Result<Finding, Failure> {
    let (fresh, recovery) = (oracle::fresh_keys(events), oracle::recovery(events, KEY));
    Ok(Finding::worst([case.bound(events)?, fresh, recovery]))
}
