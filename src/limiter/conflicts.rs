//! Warns if limiters of one name and store differ in this process: they share their counts, probably by accident.

use std::any::Any;
use std::sync::Weak;
use std::time::Duration;

use crate::decision::LimiterId;
use crate::error::warning;
use crate::lock::Mutex;
use crate::quota::Quotas;

/// The most limiters that are compared. Later ones are compared with these.
const MAX_LIMITERS: usize = 1_000;

/// A limiter of this process.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LimiterInUse {
    pub(super) id: LimiterId,
    pub(super) is_unnamed: bool,
    pub(super) quotas: Quotas,
    /// The type of the extractor of its key. `None` without HTTP.
    pub(super) key_type: Option<&'static str>,
    /// Zero without a lease.
    pub(super) lease: Duration,
    /// The lease with which the quotas are counted, in microseconds: it may be cut.
    pub(super) counted: u64,
}

/// Exists as long as the program has the limiter or a clone of it. A view that only remembers it is no use of it.
pub(super) type Owner = Weak<dyn Any + Send + Sync>;

static LIMITERS: Mutex<Limiters> = Mutex::new(Limiters {
    known: Vec::new(),
    warned: Vec::new(),
});

/// Warns once for each name and kind of conflict.
pub(super) fn warn_if_different(name: &str, limiter: &LimiterInUse, owner: Owner) {
    let mut limiters = LIMITERS.lock();
    let conflict = limiters.add(limiter.clone(), owner);
    drop(limiters);
    let Some(conflict) = conflict else {
        return;
    };
    let code = match conflict {
        Conflict::Leases(_) => warning::LEASES_DIFFER,
        Conflict::Quotas(_) | Conflict::Keys | Conflict::Unnamed => warning::SHARED_NAME,
    };
    let problem = match conflict {
        Conflict::Quotas(other) => {
            let quotas = &limiter.quotas;
            format!(
                "two limiters of this name and store have different quotas, \"{other}\" and \"{quotas}\": they share \
                 the counts of each key; give each limiter its own name, or use one limiter with `quotas_for` or \
                 `LevelCheck::quotas`"
            )
        }
        Conflict::Keys => {
            "two limiters of this name and store have keys of different kinds: they share a count \
             where keys are equal; give each limiter its own name"
                .to_owned()
        }
        Conflict::Leases(other) => {
            let [one, other] = [other, limiter.lease].map(text);
            format!(
                "two limiters of this name have different leases, {one} and {other}: they count apart, so a client \
                 may use its limit twice; give both the same lease"
            )
        }
        Conflict::Unnamed => {
            "two limiters of this store have the default name and the same quotas: they share the counts \
             of each key; give each limiter its own name, or use clones of one limiter"
                .to_owned()
        }
    };
    tracing::warn!(target: "tollgate::diagnostics", code, limiter = name, "{problem}");
}

fn text(lease: Duration) -> String {
    if lease.is_zero() {
        "none".to_owned()
    } else {
        format!("{lease:?}")
    }
}

/// The difference of two limiters, with the value of the earlier one.
#[derive(Debug)]
enum Conflict {
    Quotas(Quotas),
    Keys,
    Leases(Duration),
    /// There is no difference, but also no name that says that they belong together.
    Unnamed,
}

/// The limiters that exist.
#[derive(Default)]
struct Limiters {
    known: Vec<(LimiterInUse, Owner)>,
    warned: Vec<(LimiterId, std::mem::Discriminant<Conflict>)>,
}

impl Limiters {
    /// Returns the conflict with another limiter, the first time that the name has a conflict of this kind.
    fn add(&mut self, limiter: LimiterInUse, owner: Owner) -> Option<Conflict> {
        let is_known = self
            .known
            .iter()
            .any(|(known, other)| *known == limiter && is_same_owner(other, &owner));
        if is_known {
            return None;
        }
        if self.known.len() >= MAX_LIMITERS {
            self.known.retain(|(_, owner)| owner.strong_count() > 0);
        }
        let conflict = self.find_conflict(&limiter, &owner);
        let id = limiter.id;
        if self.known.len() < MAX_LIMITERS {
            self.known.push((limiter, owner));
        }
        let conflict = conflict?;
        let warning = (id, std::mem::discriminant(&conflict));
        if self.warned.contains(&warning) || self.warned.len() >= MAX_LIMITERS {
            return None;
        }
        self.warned.push(warning);
        Some(conflict)
    }

    fn find_conflict(&self, limiter: &LimiterInUse, owner: &Owner) -> Option<Conflict> {
        self.known
            .iter()
            .filter(|(known, owner)| known.id == limiter.id && owner.strong_count() > 0)
            .find_map(|(known, other)| {
                let are_unnamed = limiter.is_unnamed && !is_same_owner(other, owner);
                let unnamed = are_unnamed.then_some(Conflict::Unnamed);
                known.conflict_with(limiter).or(unnamed)
            })
    }
}

fn is_same_owner(one: &Owner, other: &Owner) -> bool {
    std::ptr::addr_eq(one.as_ptr(), other.as_ptr())
}

impl LimiterInUse {
    fn conflict_with(&self, other: &Self) -> Option<Conflict> {
        if self.lease != other.lease && self.counted != other.counted {
            return Some(Conflict::Leases(self.lease));
        }
        if self.quotas != other.quotas {
            return Some(Conflict::Quotas(self.quotas.clone()));
        }
        let own = self.key_type?;
        let other = other.key_type?;
        (own != other).then_some(Conflict::Keys)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::decision::StoreId;
    use crate::key::Key;
    use crate::quota::Quota;

    fn limiter(name: &str, store: StoreId) -> LimiterInUse {
        LimiterInUse {
            id: LimiterId {
                name: Key::from(name).fingerprint(),
                store,
            },
            is_unnamed: false,
            quotas: Quota::per_minute(9).into(),
            key_type: None,
            lease: Duration::ZERO,
            counted: 0,
        }
    }

    fn millis(name: &str, store: StoreId, lease: u64) -> LimiterInUse {
        LimiterInUse {
            lease: Duration::from_millis(lease),
            counted: (lease * 1_000).min(100_000),
            ..limiter(name, store)
        }
    }

    fn owner() -> (Arc<dyn Any + Send + Sync>, Owner) {
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(0_u8);
        let weak = Arc::downgrade(&owner);
        (owner, weak)
    }

    fn other_lease(conflict: Option<Conflict>) -> Option<Duration> {
        conflict.map(|conflict| match conflict {
            Conflict::Leases(lease) => lease,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn another_lease_of_one_name_and_store_is_found_once() {
        let store = StoreId::unique();
        let other = StoreId::unique();
        let mut limiters = Limiters::default();
        let (_owner, weak) = owner();
        let mut add = |limiter| other_lease(limiters.add(limiter, weak.clone()));
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
    fn other_quotas_and_other_kinds_of_keys_are_found_once_each() {
        let store = StoreId::unique();
        let mut limiters = Limiters::default();
        let owners: Vec<_> = (0..6).map(|_| owner()).collect();
        let mut owners = owners.iter().map(|(_, weak)| weak.clone());
        let mut add = |limiter| limiters.add(limiter, owners.next().unwrap());
        let first = limiter("a", store);
        let by_address = LimiterInUse {
            key_type: Some("PeerIp"),
            ..first.clone()
        };
        let by_header = LimiterInUse {
            key_type: Some("Header"),
            ..first.clone()
        };
        let higher = LimiterInUse {
            quotas: Quota::per_minute(10).into(),
            ..limiter("a", store)
        };
        assert!(add(first).is_none());
        assert!(add(by_address).is_none(), "without HTTP there is no key");
        assert!(matches!(add(by_header.clone()), Some(Conflict::Keys)));
        let conflict = add(higher.clone());
        let Some(Conflict::Quotas(quotas)) = conflict else {
            panic!("{conflict:?}");
        };
        assert_eq!(quotas.to_string(), "9/minute");
        assert!(add(higher).is_none() && add(by_header).is_none());
    }

    #[test]
    fn a_limiter_that_is_gone_conflicts_with_none() {
        let store = StoreId::unique();
        let mut limiters = Limiters::default();
        let (gone, weak) = owner();
        assert!(limiters.add(millis("a", store, 50), weak).is_none());
        drop(gone);
        let (_owner, weak) = owner();
        assert!(limiters.add(millis("a", store, 60), weak).is_none());
    }

    #[test]
    fn many_limiters_take_bounded_memory() {
        let store = StoreId::unique();
        let mut limiters = Limiters::default();
        for name in 0..3 * MAX_LIMITERS {
            let (_gone, weak) = owner();
            limiters.add(millis(&name.to_string(), store, 50), weak);
        }
        assert!(limiters.known.len() <= MAX_LIMITERS);
        let owners: Vec<_> = (0..3 * MAX_LIMITERS).map(|_| owner()).collect();
        let mut conflicts = 0;
        for (name, (_, weak)) in owners.iter().enumerate() {
            for lease in [50, 60] {
                let lease = millis(&name.to_string(), store, lease);
                conflicts += usize::from(limiters.add(lease, weak.clone()).is_some());
            }
        }
        assert_eq!(
            (limiters.known.len(), conflicts),
            (MAX_LIMITERS, MAX_LIMITERS / 2)
        );
        assert_eq!(limiters.warned.len(), conflicts);
    }
}
