//! Waits that are not true.

use super::attack::Attack;
use crate::arena::Arena;
use crate::case::{Case, KEY, is_tried};
use crate::contestant::{Failure, Offer};
use crate::history::{Event, micros};
use crate::oracle::{self, Finding, drift};

pub(super) const ATTACK: Attack = Attack {
    name: "waits",
    about: "one caller waits as long as it is told: refused then, or, if the wait is exact, admitted before (in µs)",
    needs: &[Offer::Waits],
    run,
    judge,
};

/// Large enough for a lease, which needs 21.
const LIMIT: u32 = 24;

fn run(arena: &Arena<'_>) -> Result<(), Failure> {
    let server = arena.server()?;
    let redis = crate::arena::url(&server);
    let contestant = arena.contestant_with(LIMIT, arena.window(), redis)?;
    let [is_exact, has_costs] =
        [Offer::ExactWaits, Offer::Costs].map(|offer| arena.case.description.has(offer));
    let resolution = micros(arena.case.description.resolution);
    let mut caller = arena.caller(1, &*contestant);
    let mut cost = 1;
    let end = caller.now() + 2 * micros(arena.duration());
    while caller.now() < end {
        let start = caller.now();
        let Ok(checked) = caller.check_and_keep(KEY, cost) else {
            continue;
        };
        let Some(wait) = checked
            .retry_after
            .map(micros)
            .filter(|_| !checked.admitted)
        else {
            // Units at different times return at different times.
            let pause = caller.random.below(micros(arena.window()) / 48);
            caller.wait_until(caller.now() + pause);
            let most = if has_costs { 4 } else { 1 };
            cost = u32::try_from(caller.random.below(most) + 1).unwrap_or(1);
            continue;
        };
        // Half of the time, a call comes about a millisecond too early.
        if is_exact && wait > 3_000 + resolution && caller.random.one_in(2) {
            let early = 300 + resolution + caller.random.below(1_500);
            caller.wait_until(start + wait - early);
        } else {
            caller.wait_until(checked.end + wait + drift(wait) + resolution + 10);
        }
    }
    Ok(())
}

fn judge(case: &Case, events: &[Event]) -> Result<Finding, Failure> {
    is_tried(events, LIMIT)?;
    let finding = oracle::waits(
        events,
        case.description.has(Offer::ExactWaits),
        micros(case.description.resolution),
    );
    finding.ok_or_else(|| Failure::new("not attacked: no wait was told and tried"))
}
