//! What all attacks have in common, and their list.

use super::{
    cancelled, clock, costs, cut, edges, emptied, full, killed, paused, processes, skew, slots,
    threads, waits,
};
use crate::arena::Arena;
use crate::case::Case;
use crate::contestant::{Failure, Offer};
use crate::history::Event;
use crate::oracle::Finding;

pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// What is done, in a sentence.
    pub(crate) about: &'static str,
    /// What a contestant has to offer.
    pub(crate) needs: &'static [Offer],
    /// Makes the calls, and records them.
    pub(crate) run: fn(&Arena<'_>) -> Result<(), Failure>,
    /// Finds in the record what is broken. Fails if the record shows nothing.
    pub(crate) judge: fn(&Case, &[Event]) -> Result<Finding, Failure>,
}

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
