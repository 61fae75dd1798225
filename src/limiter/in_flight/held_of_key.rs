//! The slots or units that one check holds of a key.

use crate::limiter::line::{LineKey, Want};

/// The slots or units of one check and key.
#[derive(Clone, Copy)]
pub(super) struct HeldOfKey {
    pub(super) want: Want,
    /// They are lost if the key has a later one.
    pub(super) epoch: u64,
    /// The slots, or the units that were not used.
    pub(super) left: u32,
    /// The units that were used, also beyond those that were held.
    pub(super) used: u32,
    pub(super) rest: Rest,
}

/// The fate of units that were not used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    Returns,
    /// Nobody has said what was used, so all of it may have been.
    IsCharged,
}

impl HeldOfKey {
    pub(super) fn line(&self) -> LineKey {
        self.want.line
    }
}
