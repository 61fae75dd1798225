//! Callers that go on while something happens to the server.

use std::slice::from_ref;
use std::thread;

use super::attack::Attack;
use crate::arena::Arena;
use crate::case::{Case, KEY};
use crate::contestant::{Failure, Offer};
use crate::history::{Action, Event};
use crate::oracle::{self, Finding};
use crate::server::Server;

/// A server that hangs.
pub(super) const PAUSED: Attack = attack(
    "paused",
    "the server is stopped by a signal, and continues",
    |arena| {
        let outage = Outage {
            begin: (Action::Fault, |server| server.signal("STOP")),
            end: (Action::Fault, |server| server.signal("CONT")),
            windows: 2,
        };
        outage.run(arena)
    },
);

/// A server that crashes.
pub(super) const KILLED: Attack = attack(
    "killed",
    "the server is killed, and starts again without data: counts before and after are judged apart",
    |arena| {
        let outage = Outage {
            begin: (Action::Loss, kill_server),
            end: (Action::Fault, Server::restart),
            windows: 2,
        };
        outage.run(arena)
    },
);

fn kill_server(server: &mut Server) -> Result<(), Failure> {
    server.kill();
    Ok(())
}

fn empty_server(server: &mut Server) -> Result<(), Failure> {
    server.command::<()>(&["FLUSHALL"])?;
    server.command(&["SCRIPT", "FLUSH"])
}

/// A server that forgets all keys and scripts.
pub(super) const EMPTIED: Attack = attack(
    "emptied",
    "FLUSHALL and SCRIPT FLUSH: counts before and after are judged apart",
    |arena| {
        let outage = Outage {
            begin: (Action::Loss, empty_server),
            end: (Action::Loss, empty_server),
            windows: 2,
        };
        outage.run(arena)
    },
);

/// A server without memory.
pub(super) const FULL: Attack = attack(
    "full",
    "the server refuses to write (maxmemory, noeviction), and then has memory again",
    |arena| {
        let outage = Outage {
            begin: (Action::Fault, |server| max_memory(server, "1")),
            end: (Action::Fault, |server| max_memory(server, "0")),
            windows: 2,
        };
        outage.run(arena)
    },
);

/// A server whose clock is stepped back.
pub(super) const CLOCK: Attack = attack(
    "clock",
    "the clock of the server steps back by an hour; three windows later, the key must admit again",
    |arena| {
        let outage = Outage {
            begin: (Action::Fault, |server| server.set_clock(-HOUR)),
            // It stays wrong.
            end: (Action::Fault, |_| Ok(())),
            windows: 3,
        };
        outage.run(arena)
    },
);

const HOUR: i64 = 3_600_000_000;

const fn attack(
    name: &'static str,
    about: &'static str,
    run: fn(&Arena<'_>) -> Result<(), Failure>,
) -> Attack {
    Attack {
        name,
        about,
        needs: &[Offer::Redis],
        run,
        judge,
    }
}

fn max_memory(server: &mut Server, bytes: &str) -> Result<(), Failure> {
    server.command(&["CONFIG", "SET", "maxmemory", bytes])
}

/// The changes of a server: the first after a third of the attack, the second after two. [`Action::Loss`] if it loses all counts.
struct Outage {
    begin: (Action, Change),
    end: (Action, Change),
    /// After how many quiet windows the key must admit again.
    windows: u32,
}

type Change = fn(&mut Server) -> Result<(), Failure>;

impl Outage {
    /// Lets four callers check one key before, during and after it.
    fn run(&self, arena: &Arena<'_>) -> Result<(), Failure> {
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
fn judge(case: &Case, events: &[Event]) -> Result<Finding, Failure> {
    Ok(Finding::worst([
        case.bound(events)?,
        oracle::recovery(events, KEY),
    ]))
}
