//! The requests to a store: checks, refunds, credits, resets and blocks.

use std::time::Duration;

use smallvec::SmallVec;

use crate::decision::{Answer, Holding, QuotaAnswer};
use crate::key::{Fingerprint, Key};
use crate::quota::{Quota, Quotas};

/// The limiter and the key under which units are counted, and the quotas that apply.
///
/// [`Check`], [`Reset`], [`Refund`] and [`Credit`] have one each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedKey<'a> {
    /// The limiter's name, in its stored form.
    pub(crate) limiter: &'a Key,
    pub(crate) key: &'a Key,
    pub(crate) quotas: &'a Quotas,
}

impl<'a> CountedKey<'a> {
    /// Returns a check of `cost` units.
    pub(crate) fn check(self, cost: u32) -> Check<'a> {
        Check::new(self.limiter, self.key, self.quotas, cost)
    }

    /// Returns a refund of `units` of the units that were charged.
    pub(crate) fn refund(self, answer: &'a Answer, charged: u32, units: u32) -> Refund<'a> {
        let Self {
            limiter,
            key,
            quotas,
        } = self;
        Refund {
            limiter,
            key,
            quotas,
            units,
            cost: charged,
            held: charged.saturating_sub(units),
            answer,
        }
    }

    /// Returns the fingerprint of limiter and key together.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.key.fingerprint().within(self.limiter.fingerprint())
    }
}

/// Gives each request its counted key.
macro_rules! impl_subject {
    ($($request:ident)*) => {$(
        impl<'a> $request<'a> {
            #[inline]
            pub(crate) fn counted_key(&self) -> CountedKey<'a> {
                let Self { limiter, key, quotas, .. } = *self;
                CountedKey { limiter, key, quotas }
            }
        }
    )*};
}

impl_subject!(Check Reset Refund Credit);

/// A request to a [`Store`](crate::Store): charge a cost to a key, if its quotas admit it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Check<'a> {
    /// The name of the limiter, in its stored form. Limiters of one name share their counts.
    pub limiter: &'a Key,
    /// The key that is counted.
    pub key: &'a Key,
    /// The quotas that apply. In requests of a limiter, the list is never empty.
    pub quotas: &'a Quotas,
    /// The number of units to charge. A check of cost 0 charges nothing.
    pub cost: u32,
    /// The most units to charge beyond the cost, if the check is admitted: a limiter with a
    /// [lease](crate::RateLimiter::lease) holds them. 0 for most checks, and for a check of cost 0.
    ///
    /// The store charges at most an eighth of what the quotas have left after the cost. It charges them together
    /// with the cost, and returns their number in [`Answer::extra_units`]. Only stores that
    /// [support leases](crate::store::StoreParts::supports_leases) are asked for more, and only by a check that is decided
    /// alone.
    pub extra_units: u32,
    /// The slots that the asking process holds and wants, for quotas [in flight](crate::Quota::in_flight). `None` for a check
    /// that only looks at them, and for a check without such quotas. Their slots do not depend on the cost.
    pub holding: Option<&'a Holding>,
}

impl<'a> Check<'a> {
    /// Creates a check of `cost` units.
    ///
    /// `limiter` is the name of the limiter as a key: `Key::from(name)`.
    #[must_use]
    pub fn new(limiter: &'a Key, key: &'a Key, quotas: &'a Quotas, cost: u32) -> Self {
        Self {
            limiter,
            key,
            quotas,
            cost,
            extra_units: 0,
            holding: None,
        }
    }

    /// Adds the slots that the asking process holds and wants.
    #[must_use]
    pub fn with_holding(self, holding: &'a Holding) -> Self {
        let holding = Some(holding);
        Self { holding, ..self }
    }

    /// Asks for up to so many units beyond the cost, unless it is 0: see [`extra_units`](Self::extra_units).
    #[must_use]
    pub fn with_extra_units(mut self, extra_units: u32) -> Self {
        self.extra_units = if self.cost == 0 { 0 } else { extra_units };
        self
    }
}

/// A [`Check`] that owns its parts.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCheck {
    limiter: Key,
    key: Key,
    quotas: Quotas,
    cost: u32,
    extra_units: u32,
    holding: Option<Box<Holding>>,
}

/// The levels of a check: one, or several that are decided together.
pub(crate) type OwnedChecks = SmallVec<[OwnedCheck; 1]>;

/// Returns levels that own their parts.
#[inline(always)]
pub(crate) fn to_owned(levels: &[Check<'_>]) -> OwnedChecks {
    match levels {
        // The usual case, without the steps of an iterator.
        [check] => OwnedChecks::from_buf([OwnedCheck::from(*check)]),
        levels => levels.iter().copied().map(OwnedCheck::from).collect(),
    }
}

impl OwnedCheck {
    /// Sets the slots that this process holds and wants.
    pub(crate) fn set_holding(&mut self, holding: Holding) {
        self.holding = Some(Box::new(holding));
    }

    pub(crate) fn check(&self) -> Check<'_> {
        Check {
            limiter: &self.limiter,
            key: &self.key,
            quotas: &self.quotas,
            cost: self.cost,
            extra_units: self.extra_units,
            holding: self.holding.as_deref(),
        }
    }
}

impl From<Check<'_>> for OwnedCheck {
    #[inline(always)]
    fn from(check: Check<'_>) -> Self {
        Self {
            limiter: check.limiter.clone(),
            key: check.key.clone(),
            quotas: check.quotas.clone(),
            cost: check.cost,
            extra_units: check.extra_units,
            holding: check.holding.copied().map(Box::new),
        }
    }
}

/// A request to a [`Store`](crate::Store): remove all units that count against a key.
///
/// Only the counts of [`quotas`](Self::quotas) are removed: a log with the history of all its windows, also windows
/// of other quotas. A blocked key stays blocked.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Reset<'a> {
    /// The name of the limiter, in its stored form.
    pub limiter: &'a Key,
    /// The key that is counted.
    pub key: &'a Key,
    /// The quotas whose counts change.
    pub quotas: &'a Quotas,
}

impl<'a> Reset<'a> {
    /// Creates a reset of the counts of these quotas.
    ///
    /// `limiter` is the name of the limiter as a key: `Key::from(name)`.
    #[must_use]
    pub fn new(limiter: &'a Key, key: &'a Key, quotas: &'a Quotas) -> Self {
        Self {
            limiter,
            key,
            quotas,
        }
    }
}

/// A request to a [`Store`](crate::Store): block a key of a limiter for a time, regardless of its quotas.
///
/// A duration of zero unblocks the key. A block by an operator replaces an earlier one. An
/// [automatic](Self::is_automatic) block does not.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Block<'a> {
    /// The name of the limiter that blocks the key, in its stored form.
    pub limiter: &'a Key,
    /// The key to block.
    pub key: &'a Key,
    /// How long the key is blocked from now on. Zero unblocks it.
    pub duration: Duration,
    /// Whether a [rule](crate::BlockRule) blocks the key, and not an operator.
    pub is_automatic: bool,
}

impl<'a> Block<'a> {
    /// Creates a block by an operator, for a time that starts now. A duration of zero unblocks the key.
    ///
    /// `limiter` is the name of the limiter as a key: `Key::from(name)`.
    #[must_use]
    pub fn new(limiter: &'a Key, key: &'a Key, duration: Duration) -> Self {
        Self {
            limiter,
            key,
            duration,
            is_automatic: false,
        }
    }

    /// Makes this an [automatic](Self::is_automatic) block.
    #[must_use]
    pub fn automatic(self) -> Self {
        Self {
            is_automatic: true,
            ..self
        }
    }
}

/// A request to a [`Store`](crate::Store): return units of one earlier charge.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Refund<'a> {
    /// The name of the limiter, in its stored form.
    pub limiter: &'a Key,
    /// The key that is counted.
    pub key: &'a Key,
    /// The quotas whose counts change.
    pub quotas: &'a Quotas,
    /// The number of units to return: at most the cost.
    pub units: u32,
    /// The number of units that were charged.
    pub cost: u32,
    /// The number of charged units that a later refund may still return.
    pub held: u32,
    /// The store's answer to the check that charged the units.
    pub answer: &'a Answer,
}

impl<'a> Refund<'a> {
    /// Creates a refund of `units` units of a check that was charged with this answer.
    ///
    /// The cost includes the [extra units](Answer::extra_units). More units than that count as the cost. A later refund may
    /// return the rest: see [`holding`](Self::holding).
    #[must_use]
    pub fn new(check: Check<'a>, answer: &'a Answer, units: u32) -> Self {
        let cost = check.cost.saturating_add(answer.extra_units());
        check.counted_key().refund(answer, cost, units.min(cost))
    }

    /// Sets the number of charged units that a later refund may still return.
    ///
    /// The default is the cost less the units of this refund. Set a lower number if an earlier refund has
    /// already returned units of the charge.
    #[must_use]
    pub fn holding(self, held: u32) -> Self {
        Self { held, ..self }
    }

    /// Returns one quota for each stored count that was charged, with its answer. A [soft](Quota::soft) quota without room was
    /// not charged.
    ///
    /// All quotas of [`SlidingLog`](crate::Algorithm::SlidingLog) share a count, and so do all buckets of one length. Of
    /// these it is the quota with the longest window, and then with the largest limit. Otherwise, quotas of one
    /// algorithm and window share a count. Of these it is the one with the lowest limit.
    pub fn charged(&self) -> impl Iterator<Item = (&'a Quota, &'a QuotaAnswer)> {
        let answers = self.answer.quotas();
        let charging = self.quotas.charging();
        let charging = charging.filter_map(|(index, quota)| Some((quota, answers.get(index)?)));
        charging.filter(|(_, answer)| !answer.is_exceeded())
    }
}

/// A request to a [`Store`](crate::Store): return units of a key, whichever checks charged them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Credit<'a> {
    /// The name of the limiter, in its stored form.
    pub limiter: &'a Key,
    /// The key that is counted.
    pub key: &'a Key,
    /// The quotas whose counts change.
    pub quotas: &'a Quotas,
    /// The number of units to return in each stored count. A count with fewer units drops to zero.
    pub units: u32,
}

impl<'a> Credit<'a> {
    /// Creates a credit of `units` units to each count of these quotas.
    #[must_use]
    pub fn new(limiter: &'a Key, key: &'a Key, quotas: &'a Quotas, units: u32) -> Self {
        Self {
            limiter,
            key,
            quotas,
            units,
        }
    }
}
