//! A server without memory.

use super::attack::Attack;
use super::outage::{Outage, judge};
use crate::contestant::{Failure, Offer};
use crate::history::Action;
use crate::server::Server;

pub(super) const ATTACK: Attack = Attack {
    name: "full",
    about: "the server refuses to write (maxmemory, noeviction), and then has memory again",
    needs: &[Offer::Redis],
    run: |arena| OUTAGE.run(arena),
    judge,
};

const OUTAGE: Outage = Outage {
    begin: (Action::Fault, |server| max_memory(server, "1")),
    end: (Action::Fault, |server| max_memory(server, "0")),
    windows: 2,
};

fn max_memory(server: &mut Server, bytes: &str) -> Result<(), Failure> {
    server.command(&["CONFIG", "SET", "maxmemory", bytes])
}
