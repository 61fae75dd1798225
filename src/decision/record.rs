//! The record of a level: what a check asks of a limiter, and the answer.

use std::sync::Arc;

use super::answer::{Answer, Source, StoreId};
use crate::error::Error;
use crate::key::{Fingerprint, IntoKey, Key};
use crate::quota::{Quotas, ShareId};

/// A request of a check to a limiter, and the answer. All that a repeat needs is here.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) key: Key,
    /// The quotas of the key, in place of the limiter's own.
    pub(crate) plan: Option<Quotas>,
    /// The part of this process in the quotas, by which it decides in place of the store.
    pub(crate) portion: Option<Quotas>,
    pub(crate) cost: u32,
    /// The cost before it is clamped to what the quotas can admit. `None` if it is not clamped.
    pub(crate) unclamped_cost: Option<u32>,
    /// The slots that the level takes of each quota in flight.
    pub(crate) slots: u32,
    /// Whether this process holds the cost, so that it is not charged.
    pub(crate) is_held: bool,
    /// Why the plan of the key is unknown, if its lookup has failed. The level then follows its failure policy with the
    /// quotas of the limiter.
    pub(crate) unknown: Option<Error>,
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

/// The part of a limiter that its decisions show.
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
    #[inline]
    pub(crate) fn new(lease: u64, key: impl IntoKey, cost: u32) -> Self {
        Self {
            key: key.into_key(),
            plan: None,
            portion: None,
            cost,
            unclamped_cost: None,
            slots: 1,
            is_held: false,
            unknown: None,
            share: None,
            lease,
            begun_at: 0,
            place: 0,
            is_hidden: false,
            answer: Answer::default(),
            grants: Vec::new(),
        }
    }

    /// The quotas by which the level is or was decided. `own` are those of its limiter.
    #[inline]
    pub(crate) fn quotas<'a>(&'a self, own: &'a Quotas) -> &'a Quotas {
        self.portion
            .as_ref()
            .unwrap_or_else(|| self.asked_quotas(own))
    }

    /// The quotas that the store is asked to decide by. `own` are those of its limiter.
    #[inline]
    pub(crate) fn asked_quotas<'a>(&'a self, own: &'a Quotas) -> &'a Quotas {
        self.plan.as_ref().unwrap_or(own)
    }

    pub(crate) fn reserved(&self, limiter: &LimiterFacts) -> u32 {
        self.answer.reserved(self.quotas(&limiter.quotas))
    }

    pub(crate) fn ask_again(&mut self) {
        self.portion = None;
        self.begun_at = 0;
        self.answer.clear(0, Source::None);
        self.grants.clear();
    }
}
