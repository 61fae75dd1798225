//! How long the quotas refuse keys that may be blocked meanwhile, by the refusals of this process.

use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};

use crate::key::{Fingerprint, HashFingerprint};

/// The most keys whose waits are known. When there are more, the least used are forgotten.
const MAX_WAITS: usize = 10_000;

/// The last known wait of each key. Times are in microseconds of the list's clock.
pub(super) struct Waits(Cache<Fingerprint, Wait, UnitWeighter, HashFingerprint>);

#[derive(Clone, Copy)]
struct Wait {
    /// The time at which the check began that reported this wait, or the time at which the wait was forgotten.
    as_of: u64,
    /// The time until which the quotas refuse the key.
    until: u64,
}

impl Waits {
    /// Sets the wait of a key, unless a check that began later has set it, or it was forgotten since.
    pub(super) fn set(&self, name: Fingerprint, as_of: u64, until: u64) {
        if self.0.get(&name).is_none_or(|known| known.as_of <= as_of) {
            self.0.insert(name, Wait { as_of, until });
        }
    }

    /// Forgets the wait of a key, also that of checks which have begun and are not answered yet.
    pub(super) fn forget(&self, name: Fingerprint, now: u64) {
        self.set(name, now, 0);
    }

    /// Returns the time until which the quotas refuse a key. 0 if it is not known.
    pub(super) fn end(&self, name: Fingerprint) -> u64 {
        self.0.get(&name).map_or(0, |wait| wait.until)
    }
}

impl Default for Waits {
    fn default() -> Self {
        Self(Cache::with(
            0,
            MAX_WAITS as u64,
            UnitWeighter,
            HashFingerprint::default(),
            DefaultLifecycle::default(),
        ))
    }
}
