//! Slots that are held at the same time.

use std::slice::from_ref;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::attack::Attack;
use crate::arena::{Arena, Caller};
use crate::case::{Case, KEY, is_tried};
use crate::contestant::{Contestant, Failure, Offer};
use crate::history::{Action, Event, Outcome};
use crate::oracle::{self, Finding, Measure};

pub(super) const ATTACK: Attack = Attack {
    name: "slots",
    about: "six threads hold slots, some give up while they wait, a process is killed; then all slots must be free",
    needs: &[Offer::Slots],
    run,
    judge,
};

const SLOTS: u32 = 3;

/// The caller who takes all slots at the end.
const LAST: u64 = 99;

/// The lease of a killed process ends within this time.
const LEASE: Duration = Duration::from_secs(8);

fn run(arena: &Arena<'_>) -> Result<(), Failure> {
    let server = arena.server()?;
    let redis = crate::arena::url(&server);
    let contestant = arena.contestant_with(SLOTS, arena.window(), redis)?;
    let cancels = arena.case.description.has(Offer::Cancel);
    arena.crowd(from_ref(&contestant), 6, arena.duration(), |caller| {
        let gives_up = cancels && caller.random.one_in(4);
        let time = gives_up.then(|| Duration::from_micros(caller.random.below(300)));
        if let Some(slot) = caller.acquire(KEY, time) {
            thread::sleep(Duration::from_micros(caller.random.below(3_000)));
            caller.release(KEY, slot);
        }
    });
    if server.is_some() {
        kill_a_holder(arena, &server)?;
    }
    take_all(&mut arena.caller(LAST, &*contestant));
    Ok(())
}

fn judge(_: &Case, events: &[Event]) -> Result<Finding, Failure> {
    is_tried(events, SLOTS)?;
    let last = events
        .iter()
        .filter(|event| event.caller == LAST && event.is_admitted());
    let leaked = u64::from(SLOTS).saturating_sub(u64::try_from(last.count())?);
    let leaked = Finding::new(
        leaked,
        Measure::Slot,
        format!("{leaked} of {SLOTS} slots never came back"),
    );
    Ok(Finding::worst([
        oracle::slots(events, SLOTS.into()),
        leaked,
    ]))
}

/// Kills a process that holds two slots.
fn kill_a_holder(arena: &Arena<'_>, server: &Option<crate::server::Server>) -> Result<(), Failure> {
    let process = arena.process(SLOTS, server, None)?;
    let holder: Arc<dyn Contestant> = Arc::clone(&process) as _;
    let mut caller = arena.caller(50, &*holder);
    let patience = Instant::now() + LEASE;
    let mut held = Vec::new();
    while held.len() < 2 && Instant::now() < patience {
        held.extend(caller.acquire(KEY, None));
    }
    for (of, _) in held {
        let mut event = arena.recorder.event(50, KEY, Action::Release { of });
        arena.recorder.end(&mut event, Outcome::Done);
        arena.recorder.keep(event);
    }
    process.kill();
    Ok(())
}

/// Takes slots until it holds all.
fn take_all(caller: &mut Caller<'_>) {
    let patience = Instant::now() + LEASE;
    let mut held = 0;
    while held < SLOTS && Instant::now() < patience {
        match caller.acquire(KEY, None) {
            Some(_) => held += 1,
            None => thread::sleep(Duration::from_millis(10)),
        }
    }
}
