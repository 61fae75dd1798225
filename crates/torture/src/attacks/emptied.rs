//! A server that forgets all keys and scripts.

use super::attack::Attack;
use super::outage::{Outage, judge};
use crate::contestant::{Failure, Offer};
use crate::history::Action;
use crate::server::Server;

pub(super) const ATTACK: Attack = Attack {
    name: "emptied",
    about: "FLUSHALL and SCRIPT FLUSH: counts before and after are judged apart",
    needs: &[Offer::Redis],
    run: |arena| OUTAGE.run(arena),
    judge,
};

const OUTAGE: Outage = Outage {
    begin: (Action::Loss, empty),
    end: (Action::Loss, empty),
    windows: 2,
};

fn empty(server: &mut Server) -> Result<(), Failure> {
    server.command::<()>(&["FLUSHALL"])?;
    server.command(&["SCRIPT", "FLUSH"])
}
