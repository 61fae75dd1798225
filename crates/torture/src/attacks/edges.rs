//! Bursts at the edges of windows.

use std::time::{Duration, UNIX_EPOCH};

use super::attack::Attack;
use crate::arena::{Arena, Caller};
use crate::case::KEY;
use crate::contestant::Failure;
use crate::history::micros;

pub(super) const ATTACK: Attack = Attack {
    name: "edges",
    about: "one caller uses the limit up just before a window ends, and again just after",
    needs: &[],
    run,
    judge: |case, events| case.bound_within(events, LIMIT, case.window()),
};

/// Small, so that a burst takes a few milliseconds, and large enough for a lease, which needs 21.
const LIMIT: u32 = 24;

fn run(arena: &Arena<'_>) -> Result<(), Failure> {
    let server = arena.server()?;
    let redis = crate::arena::url(&server);
    let contestant = arena.contestant_with(LIMIT, arena.window(), redis)?;
    let mut caller = arena.caller(1, &*contestant);
    let window = micros(arena.window());
    let end = caller.now() + 2 * micros(arena.duration());
    for round in 0.. {
        if caller.now() >= end {
            break;
        }
        // A window begins with the first request of a key, or is aligned to the time since 1970.
        let edge = if round % 2 == 0 {
            let _ = caller.check(KEY, 1);
            caller.now() + window
        } else {
            next_aligned(caller.now(), window)
        };
        let lead = 8_000 + caller.random.below(8_000);
        caller.wait_until(edge.saturating_sub(lead));
        use_up(&mut caller);
        let late = 500 + caller.random.below(1_500);
        caller.wait_until(edge + late);
        use_up(&mut caller);
        // Until everything has expired: the next round begins with an empty key.
        let rest = window * 2 + caller.random.below(window);
        caller.wait_until(caller.now() + rest);
    }
    Ok(())
}

/// Checks until it is refused.
fn use_up(caller: &mut Caller<'_>) {
    for _ in 0..=2 * LIMIT {
        match caller.check(KEY, 1) {
            Ok(checked) if checked.admitted => {}
            _ => return,
        }
    }
}

/// Returns the next moment that is a multiple of the window, counted from 1970, as a moment of the record.
fn next_aligned(now: u64, window: u64) -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "aligned windows follow the wall clock"
    )]
    let wall = std::time::SystemTime::now();
    let wall = micros(wall.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO));
    let since = wall.checked_rem(window).unwrap_or_default();
    now + window - since
}
