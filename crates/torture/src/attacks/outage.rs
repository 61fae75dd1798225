//! Callers that go on while something happens to the server.

use std::slice::from_ref;
use std::thread;

use crate::arena::Arena;
use crate::case::{Case, KEY};
use crate::contestant::Failure;
use crate::history::{Action, Event};
use crate::oracle::{self, Finding};
use crate::server::Server;

/// The changes of a server: the first after a third of the attack, the second after two. [`Action::Loss`] if it loses all counts.
pub(super) struct Outage {
    pub(super) begin: (Action, Change),
    pub(super) end: (Action, Change),
    /// After how many quiet windows the key must admit again.
    pub(super) windows: u32,
}

type Change = fn(&mut Server) -> Result<(), Failure>;

impl Outage {
    /// Lets four callers check one key before, during and after it.
    pub(super) fn run(&self, arena: &Arena<'_>) -> Result<(), Failure> {
        let mut server = arena.server()?;
        let contestant = arena.contestant(&server)?;
        let third = arena.duration() / 3;
        let outcome = thread::scope(|scope| {
            scope.spawn(|| {
                arena.crowd(from_ref(&contestant), 4, third * 3, |caller| {
                    let _ = caller.check(KEY, 1);
                });
            });
            let server = server.as_mut().ok_or_else(|| Failure::new("no server"))?;
            for (action, change) in [self.begin, self.end] {
                thread::sleep(third);
                arena.fault(action, || change(server))?;
            }
            Ok::<(), Failure>(())
        });
        outcome?;
        arena.recover(&*contestant, self.windows);
        Ok(())
    }
}

/// Judges the bound, and whether the key admits again.
pub(super) fn judge(case: &Case, events: &[Event]) -> Result<Finding, Failure> {
    Ok(Finding::worst([
        case.bound(events)?,
        oracle::recovery(events, KEY),
    ]))
}
