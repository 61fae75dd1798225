//! A server whose clock is stepped back.

use super::attack::Attack;
use super::outage::{Outage, judge};
use crate::contestant::Offer;
use crate::history::Action;

pub(super) const ATTACK: Attack = Attack {
    name: "clock",
    about: "the clock of the server steps back by an hour; three windows later, the key must admit again",
    needs: &[Offer::Redis],
    run: |arena| OUTAGE.run(arena),
    judge,
};

const HOUR: i64 = 3_600_000_000;

const OUTAGE: Outage = Outage {
    begin: (Action::Fault, |server| server.set_clock(-HOUR)),
    // It stays wrong.
    end: (Action::Fault, |_| Ok(())),
    windows: 3,
};
