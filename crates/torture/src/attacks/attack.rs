//! What all attacks have in common.

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
