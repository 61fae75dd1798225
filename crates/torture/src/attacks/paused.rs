//! A server that hangs.

use super::attack::Attack;
use super::outage::{Outage, judge};
use crate::contestant::Offer;
use crate::history::Action;

pub(super) const ATTACK: Attack = Attack {
    name: "paused",
    about: "the server is stopped by a signal, and continues",
    needs: &[Offer::Redis],
    run: |arena| OUTAGE.run(arena),
    judge,
};

const OUTAGE: Outage = Outage {
    begin: (Action::Fault, |server| server.signal("STOP")),
    end: (Action::Fault, |server| server.signal("CONT")),
    windows: 2,
};
