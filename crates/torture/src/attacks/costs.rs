//! Mixed costs, some of which are given back.

use super::attack::Attack;
use crate::arena::Arena;
use crate::case::Case;
use crate::contestant::{Failure, Offer};

pub(super) const ATTACK: Attack = Attack {
    name: "costs",
    about: "four threads check as in *threads*, with costs of 1 to 7, and give back a part of some if the limiter takes it",
    needs: &[Offer::Costs],
    run,
    judge: Case::bound,
};

fn run(arena: &Arena<'_>) -> Result<(), Failure> {
    let server = arena.server()?;
    let contestant = arena.contestant(&server)?;
    let refunds = arena.case.description.has(Offer::Refunds);
    arena.crowd(&[contestant], 4, arena.duration(), |caller| {
        let cost = caller.random.below(7) + 1;
        let Ok(cost) = u32::try_from(cost) else {
            return;
        };
        let key = caller.contested_key();
        let checked = caller.check(&key, cost);
        if let Ok(checked) = checked
            && checked.admitted
            && refunds
            && caller.random.one_in(3)
        {
            let units = caller.random.below(cost.into()) + 1;
            caller.refund(&key, &checked, u32::try_from(units).unwrap_or(1));
        }
    });
    Ok(())
}
