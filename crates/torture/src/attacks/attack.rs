//! The parts of every attack.

use crate::arena::Arena;
use crate::case::Case;
use crate::contestant::{Failure, Offer};
use crate::history::Event;
use crate::oracle::Finding;

pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// The attack in a sentence.
    pub(crate) about: &'static str,
    /// The offers that it needs of a contestant.
    pub(crate) needs: &'static [Offer],
    /// Makes the calls, and records them.
    pub(crate) run: fn(&Arena<'_>) -> Result<(), Failure>,
    /// Finds in the record what is broken. Fails if the record shows nothing.
    pub(crate) judge: fn(&Case, &[Event]) -> Result<Finding, Failure>,
}
