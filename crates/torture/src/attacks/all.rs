//! The list of attacks.

use super::attack::Attack;
use super::{
    cancelled, clock, costs, cut, edges, emptied, full, killed, paused, processes, skew, slots,
    threads, waits,
};

/// All attacks, in the order of the tables.
pub(crate) const ALL: [Attack; 14] = [
    threads::ATTACK,
    processes::ATTACK,
    edges::ATTACK,
    costs::ATTACK,
    cancelled::ATTACK,
    cut::ATTACK,
    paused::ATTACK,
    killed::ATTACK,
    emptied::ATTACK,
    full::ATTACK,
    clock::ATTACK,
    skew::ATTACK,
    slots::ATTACK,
    waits::ATTACK,
];
