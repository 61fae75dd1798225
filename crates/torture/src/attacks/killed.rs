//! A server that crashes.

use super::attack::Attack;
use super::outage::{Outage, judge};
use crate::contestant::Offer;
use crate::history::Action;
use crate::server::Server;

pub(super) const ATTACK: Attack = Attack {
    name: "killed",
    about: "the server is killed, and starts again without data: counts before and after are judged apart",
    needs: &[Offer::Redis],
    run: |arena| OUTAGE.run(arena),
    judge,
};

const OUTAGE: Outage = Outage {
    begin: (Action::Loss, |server| {
        server.kill();
        Ok(())
    }),
    end: (Action::Fault, Server::restart),
    windows: 2,
};
