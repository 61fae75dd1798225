//! Cut replies and killed connections.

use std::slice::from_ref;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::attack::Attack;
use crate::arena::Arena;
use crate::case::{Case, KEY, is_tried};
use crate::contestant::{Failure, Offer};
use crate::history::Event;
use crate::oracle::{self, Finding};
use crate::proxy::Proxy;

pub(super) const ATTACK: Attack = Attack {
    name: "cut",
    about: "a proxy loses one request in ten and one reply in ten, each with its connection; no call may be charged twice",
    needs: &[Offer::Redis],
    run,
    judge,
};

/// So long that no unit returns during the attack, and so many that they are not used up while connections are cut.
const WINDOW: Duration = Duration::from_secs(36_000);
const LIMIT: u32 = 2_000;

fn run(arena: &Arena<'_>) -> Result<(), Failure> {
    let server = arena.server()?.ok_or_else(|| Failure::new("no server"))?;
    let proxy = Proxy::start(server.port(), arena.seed, Arc::clone(&arena.recorder))?;
    let contestant = arena.contestant_with(LIMIT, WINDOW, proxy.url())?;
    proxy.cut_one_in(10);
    arena.crowd(from_ref(&contestant), 4, arena.duration() / 2, |caller| {
        let _ = caller.check_and_keep(KEY, 1);
        // A connection takes longer than a call.
        thread::sleep(Duration::from_millis(caller.random.below(20)));
    });
    proxy.cut_one_in(0);
    use_up(arena, &*contestant);
    Ok(())
}

fn judge(case: &Case, events: &[Event]) -> Result<Finding, Failure> {
    // Calls without a reply take a part of the limit.
    is_tried(events, LIMIT / 2)?;
    if !events.last().is_some_and(Event::is_refused) {
        return Err(Failure::new("not attacked: the limit was not used up"));
    }
    let once = oracle::once(events, KEY, LIMIT.into());
    let bound = case
        .bound_within(events, LIMIT, WINDOW)
        .unwrap_or_else(|_| once.clone());
    Ok(Finding::worst([once, bound]))
}

/// Checks until it is refused a thousand times in a row, a millisecond apart, so that what is missing was charged and not
/// admitted. A limiter that cannot ask yet may refuse less often.
fn use_up(arena: &Arena<'_>, contestant: &dyn crate::Contestant) {
    let mut caller = arena.caller(99, contestant);
    let patience = caller.now() + 60_000_000;
    let mut refusals = 0;
    while refusals < 1_000 && caller.now() < patience {
        match caller.check_and_keep(KEY, 1) {
            Ok(checked) if !checked.admitted => {
                refusals += 1;
                thread::sleep(Duration::from_millis(1));
            }
            _ => refusals = 0,
        }
    }
}
