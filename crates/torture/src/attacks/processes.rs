//! Processes that share a limit.

use std::sync::Arc;

use super::attack::Attack;
use crate::arena::Arena;
use crate::case::{Case, KEY, LIMIT};
use crate::contestant::{Contestant, Failure, Offer};

pub(super) const ATTACK: Attack = Attack {
    name: "processes",
    about: "three processes, with two callers each, check one key",
    needs: &[Offer::Redis],
    run,
    judge: Case::bound,
};

fn run(arena: &Arena<'_>) -> Result<(), Failure> {
    let server = arena.server()?;
    let mut processes: Vec<Arc<dyn Contestant>> = Vec::new();
    for _ in 0..3 {
        processes.push(arena.process(LIMIT, &server, None)?);
    }
    arena.crowd(&processes, 6, arena.duration(), |caller| {
        let _ = caller.check(KEY, 1);
    });
    Ok(())
}
