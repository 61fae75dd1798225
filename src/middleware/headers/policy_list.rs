//! The limiters and quotas of a decision, as the key of a cache.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use quick_cache::Equivalent;
use smallvec::SmallVec;

use crate::decision::DecisionView;
use crate::quota::Quota;

/// The limiters and quotas of all levels of a decision, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PolicyList(SmallVec<[LevelPolicies; 1]>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct LevelPolicies {
    limiter: Arc<str>,
    quotas: SmallVec<[Quota; 2]>,
}

/// The same list, borrowed from a decision: most lookups find it, and need no copy.
pub(super) struct PolicyListOf<'a>(pub(super) &'a DecisionView);

impl PolicyListOf<'_> {
    pub(super) fn to_owned(&self) -> PolicyList {
        let levels = self.0.levels().map(|level| LevelPolicies {
            limiter: level.limiter().into(),
            quotas: level.quota_list().into(),
        });
        PolicyList(levels.collect())
    }
}

impl Hash for PolicyList {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let levels = self.0.iter();
        hash_levels(levels.map(|level| (&*level.limiter, &*level.quotas)), state);
    }
}

impl Hash for PolicyListOf<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let levels = self.0.levels();
        hash_levels(
            levels.map(|level| (level.limiter(), level.quota_list())),
            state,
        );
    }
}

fn hash_levels<'a>(levels: impl Iterator<Item = (&'a str, &'a [Quota])>, state: &mut impl Hasher) {
    for level in levels {
        level.hash(state);
    }
}

impl Equivalent<PolicyList> for PolicyListOf<'_> {
    fn equivalent(&self, key: &PolicyList) -> bool {
        let levels = self.0.levels();
        levels.len() == key.0.len()
            && levels.zip(&key.0).all(|(level, listed)| {
                *level.limiter() == *listed.limiter && *level.quota_list() == *listed.quotas
            })
    }
}
