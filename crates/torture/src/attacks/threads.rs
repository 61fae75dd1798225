//! Threads on one key.

use super::attack::Attack;
use crate::arena::Arena;
use crate::case::{Case, KEY};
use crate::contestant::Failure;

pub(super) const ATTACK: Attack = Attack {
    name: "threads",
    about: "eight threads check the same key as fast as they can, and a new one every 4 ms",
    needs: &[],
    run,
    judge: Case::bound,
};

/// How long the threads stay with a key, in microseconds.
const TURN: u64 = 2_000;

fn run(arena: &Arena<'_>) -> Result<(), Failure> {
    let server = arena.server()?;
    let contestant = arena.contestant(&server)?;
    arena.crowd(&[contestant], 8, arena.duration(), |caller| {
        // A race is for the last unit of a window: new keys have more of them than time has windows.
        let turn = caller.now() / TURN;
        let key = match turn % 2 {
            0 => KEY,
            _ => &format!("new-{turn}"),
        };
        let _ = caller.check(key, 1);
    });
    Ok(())
}
