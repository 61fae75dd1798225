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

/// The fewest cancelled checks that make an attack.
const LEAST: usize = 100;

fn run(arena: &Arena<'_>) -> Result<(), Failure> {
    let server = arena.server()?;
    let contestant = arena.contestant(&server)?;
    arena.crowd(from_ref(&contestant), 4, arena.duration(), |caller| {
        if caller.random.one_in(2) {
            let time = Duration::from_micros(caller.random.below(200));
            // A key that is used up may be refused at once, without anything to wait for.
            let own = format!("left-{}-{}", caller.id, caller.now());
            let key = if caller.random.one_in(2) { &own } else { KEY };
            let _ = caller.check_within(key, 1, time);
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
    let (cancelled, checks) = oracle::cancelled(events);
    if cancelled < LEAST {
        return Err(Failure::new(format!(
            "not attacked: only {cancelled} of {checks} checks were cancelled"
        )));
    }
    let fresh = oracle::fresh_keys(events);
    let recovery = oracle::recovery(events, KEY);
    let mut bound = case.bound(events)?;
    bound.seen += &format!("; {cancelled} of {checks} checks cancelled");
    Ok(Finding::worst([bound, fresh, recovery]))
}
