//! The list of attacks.

use super::attack::Attack;
use super::{cancelled, costs, cut, edges, outage, processes, slots, threads, waits};

/// All attacks, in the order of the tables.
pub(crate) const ALL: [Attack; 14] = [
    threads::ATTACK,
    processes::PROCESSES,
    edges::ATTACK,
    costs::ATTACK,
    cancelled::ATTACK,
    cut::ATTACK,
    outage::PAUSED,
    outage::KILLED,
    outage::EMPTIED,
    outage::FULL,
    outage::CLOCK,
    processes::SKEW,
    slots::ATTACK,
    waits::ATTACK,
];
