//! Warns if limiters that should share their counts have different leases.

use std::any::Any;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::decision::LimiterId;

/// The most limiters that are compared. Later ones are compared with these.
const MAX_LIMITERS: usize = 1_000;

/// The lease of a limiter in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::limiter) struct LeaseInUse {
    pub(in crate::limiter) limiter: LimiterId,
    /// Zero without a lease.
    pub(in crate::limiter) lease: Duration,
    /// The lease with which the quotas are counted, in microseconds: it may be cut.
    pub(in crate::limiter) counted: u64,
}

/// Exists as long as the limiter or a clone of it.
pub(in crate::limiter) type Owner = Weak<dyn Any + Send + Sync>;

static LEASES: Mutex<LeaseConflicts> = Mutex::new(LeaseConflicts::new());

/// Warns, once for each name, if another limiter of this name and store has another lease.
pub(in crate::limiter) fn observe_lease(name: &str, lease: LeaseInUse, owner: Owner) {
    let mut leases = LEASES.lock().unwrap_or_else(PoisonError::into_inner);
    let conflict = leases.add(lease, owner);
    drop(leases);
    if let Some(other) = conflict {
        let [one, other] = [other, lease.lease].map(text);
        tracing::warn!(target: "tollgate::diagnostics",
            limiter = name,
            "two limiters of this name have different leases, {one} and {other}: they count apart, so a client \
             may use its limit twice; give both the same lease"
        );
    }
}

fn text(lease: Duration) -> String {
    if lease.is_zero() {
        "none".to_owned()
    } else {
        format!("{lease:?}")
    }
}

/// The leases of the limiters that exist.
struct LeaseConflicts {
    known: Vec<(LeaseInUse, Owner)>,
    warned: Vec<LimiterId>,
}

impl LeaseConflicts {
    const fn new() -> Self {
        Self {
            known: Vec::new(),
            warned: Vec::new(),
        }
    }

    /// Adds the lease of a limiter. Returns the conflicting lease of another one, the first time that its name has
    /// a conflict.
    fn add(&mut self, lease: LeaseInUse, owner: Owner) -> Option<Duration> {
        let is_same = |(known, other): &(LeaseInUse, Owner)| {
            *known == lease && std::ptr::addr_eq(other.as_ptr(), owner.as_ptr())
        };
        if self.known.iter().any(is_same) {
            return None;
        }
        if self.known.len() >= MAX_LIMITERS {
            self.known.retain(|(_, owner)| owner.strong_count() > 0);
        }
        let conflict = self
            .known
            .iter()
            .find(|(known, owner)| owner.strong_count() > 0 && known.conflicts_with(lease));
        let conflict = conflict.map(|(known, _)| known.lease);
        if self.known.len() < MAX_LIMITERS {
            self.known.push((lease, owner));
        }
        let is_first = !self.warned.contains(&lease.limiter) && self.warned.len() < MAX_LIMITERS;
        let conflict = conflict.filter(|_| is_first)?;
        self.warned.push(lease.limiter);
        Some(conflict)
    }
}

impl LeaseInUse {
    fn conflicts_with(self, other: Self) -> bool {
        self.limiter == other.limiter && self.lease != other.lease && self.counted != other.counted
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::decision::StoreId;
    use crate::key::Key;

    fn millis(name: &str, store: StoreId, lease: u64) -> LeaseInUse {
        LeaseInUse {
            limiter: LimiterId {
                name: Key::from(name).fingerprint(),
                store,
            },
            lease: Duration::from_millis(lease),
            counted: (lease * 1_000).min(100_000),
        }
    }

    fn owner() -> (Arc<dyn Any + Send + Sync>, Owner) {
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(0_u8);
        let weak = Arc::downgrade(&owner);
        (owner, weak)
    }

    #[test]
    fn another_lease_of_one_name_and_store_is_found_once() {
        let (store, other) = (StoreId::unique(), StoreId::unique());
        let mut leases = LeaseConflicts::new();
        let (_owner, weak) = owner();
        let mut add = |lease| leases.add(lease, weak.clone());
        assert_eq!(add(millis("a", store, 50)), None);
        assert_eq!(add(millis("a", store, 50)), None);
        assert_eq!(add(millis("b", store, 60)), None);
        assert_eq!(add(millis("a", other, 60)), None);
        assert_eq!(add(millis("a", store, 0)), Some(Duration::from_millis(50)));
        assert_eq!(add(millis("a", store, 60)), None);
        // Both are cut to 100 ms.
        assert_eq!(add(millis("c", store, 100)), None);
        assert_eq!(add(millis("c", store, 200)), None);
    }

    #[test]
    fn a_limiter_that_is_gone_conflicts_with_none() {
        let store = StoreId::unique();
        let mut leases = LeaseConflicts::new();
        let (gone, weak) = owner();
        assert_eq!(leases.add(millis("a", store, 50), weak), None);
        drop(gone);
        let (_owner, weak) = owner();
        assert_eq!(leases.add(millis("a", store, 60), weak), None);
    }

    #[test]
    fn many_limiters_take_bounded_memory() {
        let store = StoreId::unique();
        let mut leases = LeaseConflicts::new();
        for name in 0..3 * MAX_LIMITERS {
            let (_gone, weak) = owner();
            leases.add(millis(&name.to_string(), store, 50), weak);
        }
        assert!(leases.known.len() <= MAX_LIMITERS);
        let owners: Vec<_> = (0..3 * MAX_LIMITERS).map(|_| owner()).collect();
        let mut conflicts = 0;
        for (name, (_, weak)) in owners.iter().enumerate() {
            for lease in [50, 60] {
                let lease = millis(&name.to_string(), store, lease);
                conflicts += usize::from(leases.add(lease, weak.clone()).is_some());
            }
        }
        assert_eq!(
            (leases.known.len(), conflicts),
            (MAX_LIMITERS, MAX_LIMITERS / 2)
        );
        assert_eq!(leases.warned.len(), conflicts);
    }
}
