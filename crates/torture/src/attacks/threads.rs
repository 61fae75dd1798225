//! Threads on one key.

use super::attack::Attack;
use crate::arena::Arena;
use crate::case::{Case, KEY};
use crate::contestant::Failure;

pub(super) const ATTACK: Attack = Attack {
    name: "threads",
    about: "eight threads check one key as fast as they can",
    needs: &[],
    run,
    judge: Case::bound,
};

fn run(arena: &Arena<'_>) -> Result<(), Failure> {
    let server = arena.server()?;
    let contestant = arena.contestant(&server)?;
    arena.crowd(&[contestant], 8, arena.duration(), |caller| {
        let _ = caller.check(KEY, 1);
    });
    Ok(())
}
