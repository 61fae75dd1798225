//! The record of a level: what a check asks of a limiter, and the answer.

use std::sync::Arc;

use super::answer::{Answer, Source, StoreId};
use crate::key::{Fingerprint, IntoKey, Key};
use crate::quota::{Quotas, ShareId};

/// A request of a check to a limiter, and the answer. The check writes it, and its decision shares it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) limiter: Arc<LimiterFacts>,
    pub(crate) key: Key,
    /// The quotas of the key, in place of the limiter's own.
    pub(crate) plan: Option<Quotas>,
    /// The part of this process in the quotas, by which it decides in place of the store.
    pub(crate) portion: Option<Quotas>,
    pub(crate) cost: u32,
    /// The share that the check belongs to. After the check has begun, `None` if no quota has it.
    pub(crate) share: Option<ShareId>,
    /// How much longer than its window a unit counts, in microseconds.
    pub(crate) lease: u64,
    /// The time at which the check began, in microseconds of the store's block list. 0 if the limiter does not block keys.
    pub(crate) begun_at: u64,
    /// The index of the level in its layer or call. Levels that are left out have one, too.
    pub(crate) place: usize,
    /// Whether no response tells the name and the numbers of the level.
    pub(crate) is_hidden: bool,
    /// Empty if the level has quotas and was not asked.
    pub(crate) answer: Answer,
    /// The units that came from grants, beyond the units of the answer.
    pub(crate) grants: Vec<GrantUnits>,
}

/// A record that a check writes in place, and then shares with its decision. Unlike the `Arc` of std, it has no weak
/// references, so that writing takes no atomic step.
pub(crate) type SharedRecord = Arc<Record>;

/// The part of a limiter that its decisions know: one value, so that a level counts one reference for all of it.
#[derive(Clone, Debug)]
pub(crate) struct LimiterFacts {
    pub(crate) name: Arc<str>,
    pub(crate) id: LimiterId,
    pub(crate) quotas: Quotas,
}

/// Units of a decision that came from one grant of a lease.
#[derive(Clone, Debug)]
pub(crate) struct GrantUnits {
    /// The answer to the use of these units, with the receipt of the grant.
    pub(crate) answer: Answer,
    pub(crate) units: u32,
}

/// Identifies a limiter by its name and its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LimiterId {
    /// A fingerprint, because all threads would contend for the reference count of the name.
    pub(crate) name: Fingerprint,
    pub(crate) store: StoreId,
}

impl Record {
    /// Asks for units of a key by the limiter's own quotas.
    #[inline]
    pub(crate) fn shared(
        limiter: &Arc<LimiterFacts>,
        lease: u64,
        key: impl IntoKey,
        cost: u32,
    ) -> SharedRecord {
        SharedRecord::new(Self {
            limiter: Arc::clone(limiter),
            key: key.into_key(),
            plan: None,
            portion: None,
            cost,
            share: None,
            lease,
            begun_at: 0,
            place: 0,
            is_hidden: false,
            answer: Answer::default(),
            grants: Vec::new(),
        })
    }

    /// Returns the quotas by which the level is or was decided.
    #[inline]
    pub(crate) fn quotas(&self) -> &Quotas {
        self.portion.as_ref().unwrap_or_else(|| self.asked_quotas())
    }

    /// Returns the quotas that the store is asked to decide by.
    #[inline]
    pub(crate) fn asked_quotas(&self) -> &Quotas {
        self.plan.as_ref().unwrap_or(&self.limiter.quotas)
    }

    /// Returns whether the level was asked, or has no quotas.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.quotas().is_empty() || !self.answer.quotas().is_empty()
    }

    /// Returns whether the level admits its cost. One that was not asked does not.
    #[inline]
    pub(crate) fn is_admitted(&self) -> bool {
        self.is_asked() && self.answer.is_admitted()
    }

    /// Forgets the attempt before, and sets the time at which this one begins.
    #[inline]
    pub(crate) fn begin(&mut self, now: u64) {
        self.portion = None;
        self.share = self.quotas().known_share(self.share);
        self.begun_at = now;
        self.answer.clear(0, Source::None);
        self.grants.clear();
    }
}
