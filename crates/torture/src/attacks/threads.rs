//! Threads on one key.

use super::attack::Attack;
use crate::arena::Arena;
use crate::case::Case;
use crate::contestant::Failure;

pub(super) const ATTACK: Attack = Attack {
    name: "threads",
    about: "eight threads check the same key as fast as they can, and a new one every 4 ms",
    needs: &[],
    run,
    judge: Case::bound,
};

fn run(arena: &Arena<'_>) -> Result<(), Failure> {
    let server = arena.server()?;
    let contestant = arena.contestant(&server)?;
    arena.crowd(&[contestant], 8, arena.duration(), |caller| {
        let key = caller.contested_key();
        let _ = caller.check(&key, 1);
    });
    Ok(())
}
