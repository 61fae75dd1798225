//! The requests to a store: checks, refunds, credits, resets, blocks, refusals and announcements.

use std::time::Duration;

#[cfg(feature = "redis")]
use smallvec::SmallVec;

use crate::decision::{Answer, QuotaAnswer};
use crate::key::{Fingerprint, Key};
use crate::quota::{BlockRule, Quota, Quotas};

/// The limiter and the key under which units are counted, and the quotas that apply.
///
/// [`Check`], [`Reset`], [`Refund`] and [`Credit`] have one each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    /// The limiter's name, in its stored form.
    pub(crate) limiter: &'a Key,
    pub(crate) key: &'a Key,
    pub(crate) quotas: &'a Quotas,
}

impl<'a> Subject<'a> {
    /// Returns a check of `cost` units.
    pub(crate) fn check(self, cost: u32) -> Check<'a> {
        Check {
            subject: self,
            cost,
            more: 0,
        }
    }

    /// Returns the fingerprint of limiter and key together.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.key.fingerprint().within(self.limiter.fingerprint())
    }
}

/// Gives each request the accessors of its subject.
macro_rules! impl_subject_accessors {
    ($($request:ident)*) => {$(
        impl<'a> $request<'a> {
            /// Returns the name of the limiter, in its stored form. Limiters of one name share their counts.
            #[must_use]
            pub fn limiter(&self) -> &'a Key {
                self.subject.limiter
            }

            /// Returns the key that is counted.
            #[must_use]
            pub fn key(&self) -> &'a Key {
                self.subject.key
            }

            /// Returns the quotas that apply. In requests of a limiter, the list is never empty.
            #[must_use]
            pub fn quotas(&self) -> &'a Quotas {
                self.subject.quotas
            }
        }
    )*};
}

impl_subject_accessors!(Check Reset Refund Credit);

/// A limiter that begins to ask a [`Store`](crate::Store), for [`Store::announce`](crate::Store::announce).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LimiterInfo<'a> {
    pub(crate) limiter: &'a Key,
    pub(crate) quotas: &'a Quotas,
}

impl<'a> LimiterInfo<'a> {
    /// Returns the name of the limiter, in its stored form. Limiters of one name share their counts.
    #[must_use]
    pub fn limiter(&self) -> &'a Key {
        self.limiter
    }

    /// Returns the quotas of the limiter. A check may have others: see
    /// [`quotas_for`](crate::RateLimitLayer::quotas_for).
    #[must_use]
    pub fn quotas(&self) -> &'a Quotas {
        self.quotas
    }
}

/// A request to a [`Store`](crate::Store): charge a cost to a key, if its quotas admit it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Check<'a> {
    pub(crate) subject: Subject<'a>,
    pub(crate) cost: u32,
    pub(crate) more: u32,
}

impl<'a> Check<'a> {
    /// Creates a check of `cost` units.
    ///
    /// `limiter` is the name of the limiter as a key: `Key::from(name)`.
    #[must_use]
    pub fn new(limiter: &'a Key, key: &'a Key, quotas: &'a Quotas, cost: u32) -> Self {
        let subject = Subject {
            limiter,
            key,
            quotas,
        };
        subject.check(cost)
    }

    /// Asks for up to `more` units beyond the cost: see [`more`](Self::more).
    #[must_use]
    pub fn and_up_to(self, more: u32) -> Self {
        Self { more, ..self }
    }

    /// Returns the most units to charge beyond the cost, if the check is admitted: a limiter with a
    /// [lease](crate::RateLimiter::lease) holds them. 0 for most checks, and for a check of cost 0.
    ///
    /// The store charges at most an eighth of what the quotas have left after the cost. It charges them together
    /// with the cost, and returns their number in [`Answer::extra`]. Only stores that
    /// [support leases](crate::Store::supports_leases) are asked for more, and only by a check that is decided
    /// alone.
    #[must_use]
    pub fn more(&self) -> u32 {
        if self.cost == 0 { 0 } else { self.more }
    }

    /// Returns the number of units to charge. A check of cost 0 charges nothing.
    #[must_use]
    pub fn cost(&self) -> u32 {
        self.cost
    }
}

/// A [`Check`] that owns its parts.
#[cfg(feature = "redis")]
#[derive(Clone, Debug)]
pub(crate) struct OwnedCheck {
    limiter: Key,
    key: Key,
    quotas: Quotas,
    cost: u32,
    more: u32,
}

/// The levels of a check: one, or several that are decided together.
#[cfg(feature = "redis")]
pub(crate) type OwnedChecks = SmallVec<[OwnedCheck; 1]>;

/// Returns levels that own their parts.
#[cfg(feature = "redis")]
#[inline(always)]
pub(crate) fn to_owned(levels: &[Check<'_>]) -> OwnedChecks {
    match levels {
        // The usual case, without the steps of an iterator.
        [check] => OwnedChecks::from_buf([OwnedCheck::from(*check)]),
        levels => levels.iter().copied().map(OwnedCheck::from).collect(),
    }
}

#[cfg(feature = "redis")]
impl OwnedCheck {
    pub(crate) fn check(&self) -> Check<'_> {
        Check {
            subject: Subject {
                limiter: &self.limiter,
                key: &self.key,
                quotas: &self.quotas,
            },
            cost: self.cost,
            more: self.more,
        }
    }
}

#[cfg(feature = "redis")]
impl From<Check<'_>> for OwnedCheck {
    fn from(check: Check<'_>) -> Self {
        Self {
            limiter: check.limiter().clone(),
            key: check.key().clone(),
            quotas: check.quotas().clone(),
            cost: check.cost(),
            more: check.more(),
        }
    }
}

/// A request to a [`Store`](crate::Store): remove all units that count against a key.
///
/// Only the counts of [`quotas`](Self::quotas) are removed: a log with the history of all its windows, also those of
/// other quotas. A blocked key stays blocked.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Reset<'a> {
    pub(crate) subject: Subject<'a>,
}

impl<'a> Reset<'a> {
    /// Creates a reset of the counts of these quotas.
    ///
    /// `limiter` is the name of the limiter as a key: `Key::from(name)`.
    #[must_use]
    pub fn new(limiter: &'a Key, key: &'a Key, quotas: &'a Quotas) -> Self {
        let subject = Subject {
            limiter,
            key,
            quotas,
        };
        Self { subject }
    }
}

/// A request to a [`Store`](crate::Store): block a key of a limiter for a time, regardless of its quotas.
///
/// It replaces an earlier block of the key. A duration of zero unblocks the key.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Block<'a> {
    pub(crate) limiter: &'a Key,
    pub(crate) key: &'a Key,
    pub(crate) duration: Duration,
}

impl<'a> Block<'a> {
    /// Creates a block of a key for a time that starts now. A duration of zero unblocks the key.
    ///
    /// `limiter` is the name of the limiter as a key: `Key::from(name)`.
    #[must_use]
    pub fn new(limiter: &'a Key, key: &'a Key, duration: Duration) -> Self {
        Self {
            limiter,
            key,
            duration,
        }
    }

    /// Returns the name of the limiter that blocks the key, in its stored form.
    #[must_use]
    pub fn limiter(&self) -> &'a Key {
        self.limiter
    }

    /// Returns the key to block.
    #[must_use]
    pub fn key(&self) -> &'a Key {
        self.key
    }

    /// Returns how long the key is blocked from now on. Zero unblocks it.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.duration
    }
}

/// A request to a [`Store`](crate::Store): count refusals of a key, and block it if its rule says so.
///
/// Limiters with [`block_after`](crate::RateLimiter::block_after) send one for each key that was refused lately.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Refusals<'a> {
    pub(crate) limiter: &'a Key,
    pub(crate) key: &'a Key,
    pub(crate) rule: &'a BlockRule,
    pub(crate) count: u32,
    pub(crate) age: Duration,
}

impl<'a> Refusals<'a> {
    /// Creates a request to count refusals of now. A count of 0 only looks for a block.
    ///
    /// `limiter` is the name of the limiter as a key: `Key::from(name)`.
    #[must_use]
    pub fn new(limiter: &'a Key, key: &'a Key, rule: &'a BlockRule, count: u32) -> Self {
        Self {
            limiter,
            key,
            rule,
            count,
            age: Duration::ZERO,
        }
    }

    /// Sets how long ago the first of these refusals happened.
    #[must_use]
    pub fn aged(self, age: Duration) -> Self {
        Self { age, ..self }
    }

    /// Returns the name of the limiter, in its stored form.
    #[must_use]
    pub fn limiter(&self) -> &'a Key {
        self.limiter
    }

    /// Returns the key that was refused.
    #[must_use]
    pub fn key(&self) -> &'a Key {
        self.key
    }

    /// Returns the rule that says when the key is blocked, and for how long.
    #[must_use]
    pub fn rule(&self) -> &'a BlockRule {
        self.rule
    }

    /// Returns the number of refusals. 0 only looks for a block.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns how long ago the first of these refusals happened. The others are later.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age
    }
}

/// The outcome of [`Refusals`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalOutcome {
    /// No block is due.
    Counted,
    /// These refusals have blocked the key.
    Blocked {
        /// The duration of the block.
        duration: Duration,
        /// The number of blocks that are not forgotten, with this one.
        blocks: u32,
    },
    /// Earlier refusals have blocked the key. Those of this request do not count.
    StillBlocked {
        /// The rest of the block.
        left: Duration,
        /// The number of blocks that are not forgotten, with this one.
        blocks: u32,
    },
    /// A block is due, but the block list has no room.
    NoRoom,
}

/// A request to a [`Store`](crate::Store): return units of one earlier charge.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Refund<'a> {
    pub(crate) subject: Subject<'a>,
    pub(crate) units: u32,
    /// The units that were charged.
    pub(crate) cost: u32,
    /// The charged units that a later refund may still return.
    pub(crate) held: u32,
    pub(crate) answer: &'a Answer,
}

impl<'a> Refund<'a> {
    /// Creates a refund of `units` units of a check that was charged with this answer.
    ///
    /// The cost includes the [extra](Answer::extra) units. More units than that count as the cost. A later refund may return the rest: see
    /// [`holding`](Self::holding).
    #[must_use]
    pub fn new(check: Check<'a>, answer: &'a Answer, units: u32) -> Self {
        let cost = check.cost.saturating_add(answer.extra());
        let units = units.min(cost);
        Self {
            subject: check.subject,
            units,
            cost,
            held: cost - units,
            answer,
        }
    }

    /// Sets the number of charged units that a later refund may still return.
    ///
    /// The default is the cost less the units of this refund. Set a lower number if an earlier refund has
    /// already returned units of the charge.
    #[must_use]
    pub fn holding(self, held: u32) -> Self {
        Self { held, ..self }
    }

    /// Returns the number of units to return: at most the cost.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.units
    }

    /// Returns the number of units that the check charged.
    #[must_use]
    pub fn cost(&self) -> u32 {
        self.cost
    }

    /// Returns the number of charged units that a later refund may still return.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Returns the store's answer to the check that charged the units.
    #[must_use]
    pub fn answer(&self) -> &'a Answer {
        self.answer
    }

    /// Returns one quota for each stored count that was charged, with its answer.
    ///
    /// All quotas of [`SlidingLog`](crate::Algorithm::SlidingLog) share a count, and so do all buckets of one length. Of
    /// these it is the quota with the longest window, and then with the largest limit. Otherwise, quotas of one
    /// algorithm and window share a count. Of these it is the one with the lowest limit.
    pub fn charged(&self) -> impl Iterator<Item = (&'a Quota, &'a QuotaAnswer)> {
        let answers = self.answer.quotas();
        let charging = self.subject.quotas.charging();
        charging.filter_map(|(index, quota)| Some((quota, answers.get(index)?)))
    }
}

/// A request to a [`Store`](crate::Store): return units of a key, whichever checks charged them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Credit<'a> {
    pub(crate) subject: Subject<'a>,
    pub(crate) units: u32,
}

impl<'a> Credit<'a> {
    /// Creates a credit of `units` units to each count of these quotas.
    #[must_use]
    pub fn new(limiter: &'a Key, key: &'a Key, quotas: &'a Quotas, units: u32) -> Self {
        let subject = Subject {
            limiter,
            key,
            quotas,
        };
        Self { subject, units }
    }

    /// Returns the number of units to return in each stored count. A count with fewer units drops to zero.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.units
    }
}
