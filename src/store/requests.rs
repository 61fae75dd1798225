//! The requests to a store: checks, refunds, credits, resets and blocks.

use std::time::Duration;

use crate::decision::{Answer, QuotaAnswer};
use crate::key::{Fingerprint, Key};
use crate::quota::{Quota, Quotas};

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

impl Subject<'_> {
    /// Returns the fingerprint of limiter and key together.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.key.fingerprint().within(self.limiter.fingerprint())
    }
}

/// Gives each request the accessors of its subject.
macro_rules! impl_subject_accessors {
    ($($request:ident)*) => {$(
        impl<'a> $request<'a> {
            /// The name of the limiter, in its stored form. Limiters of one name share their counts.
            #[must_use]
            pub fn limiter(&self) -> &'a Key {
                self.subject.limiter
            }

            /// The key that is counted.
            #[must_use]
            pub fn key(&self) -> &'a Key {
                self.subject.key
            }

            /// The quotas whose counts are meant; never empty.
            #[must_use]
            pub fn quotas(&self) -> &'a Quotas {
                self.subject.quotas
            }
        }
    )*};
}

impl_subject_accessors!(Check Reset Refund Credit);

/// Asks a [`Store`](crate::Store) whether a cost fits into the quotas of a key.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Check<'a> {
    pub(crate) subject: Subject<'a>,
    pub(crate) cost: u32,
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
        Self { subject, cost }
    }

    /// The units to charge. A cost of 0 charges nothing.
    #[must_use]
    pub fn cost(&self) -> u32 {
        self.cost
    }
}

/// A [`Check`] that outlives its caller's borrow.
#[cfg(feature = "redis")]
#[derive(Clone, Debug)]
pub(crate) struct OwnedCheck {
    limiter: Key,
    key: Key,
    quotas: Quotas,
    cost: u32,
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
        }
    }
}

/// Tells a [`Store`](crate::Store) to forget what is charged to a key.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Reset<'a> {
    pub(crate) subject: Subject<'a>,
}

impl<'a> Reset<'a> {
    /// Creates a reset of the counts of these quotas.
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

/// Tells a [`Store`](crate::Store) to block a key of a limiter, regardless of its quotas. It
/// replaces an earlier block of the key.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Block<'a> {
    pub(crate) limiter: &'a Key,
    pub(crate) key: &'a Key,
    pub(crate) duration: Duration,
}

impl<'a> Block<'a> {
    /// Creates a block of a key for a time from now on. Zero unblocks the key.
    #[must_use]
    pub fn new(limiter: &'a Key, key: &'a Key, duration: Duration) -> Self {
        Self {
            limiter,
            key,
            duration,
        }
    }

    /// The name of the limiter that blocks the key, in its stored form.
    #[must_use]
    pub fn limiter(&self) -> &'a Key {
        self.limiter
    }

    /// The key to block.
    #[must_use]
    pub fn key(&self) -> &'a Key {
        self.key
    }

    /// How long the key is blocked from now on. Zero unblocks it.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.duration
    }
}

/// Tells a [`Store`](crate::Store) to take back units that it charged.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Refund<'a> {
    pub(crate) subject: Subject<'a>,
    pub(crate) units: u32,
    /// The units that were charged.
    pub(crate) cost: u32,
    /// The charged units that may still be refunded later.
    pub(crate) held: u32,
    pub(crate) answer: &'a Answer,
}

impl<'a> Refund<'a> {
    /// Creates a refund of `units` that `check` charged with this answer. A later refund may take the
    /// others.
    #[must_use]
    pub fn new(check: Check<'a>, answer: &'a Answer, units: u32) -> Self {
        let units = units.min(check.cost);
        Self {
            subject: check.subject,
            units,
            cost: check.cost,
            held: check.cost - units,
            answer,
        }
    }

    /// Sets the charged units that a later refund may still take. The default is the cost less the units
    /// of this refund; it is fewer after earlier refunds.
    #[must_use]
    pub fn holding(self, held: u32) -> Self {
        Self { held, ..self }
    }

    /// The units to take back: no more than were charged.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.units
    }

    /// The units that the check charged.
    #[must_use]
    pub fn cost(&self) -> u32 {
        self.cost
    }

    /// The charged units that a later refund may still take.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// The answer with which the store charged them.
    #[must_use]
    pub fn answer(&self) -> &'a Answer {
        self.answer
    }

    /// Returns the quotas that were charged, each with its answer: the strictest one of each algorithm and
    /// window, since all of them share a count.
    pub fn charged(&self) -> impl Iterator<Item = (&'a Quota, &'a QuotaAnswer)> {
        let answers = self.answer.quotas();
        let charging = self.subject.quotas.strictest_with_index();
        charging.filter_map(|(index, quota)| Some((quota, answers.get(index)?)))
    }
}

/// Tells a [`Store`](crate::Store) to count fewer units than were charged, whichever check charged
/// them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Credit<'a> {
    pub(crate) subject: Subject<'a>,
    pub(crate) units: u32,
}

impl<'a> Credit<'a> {
    /// Creates a credit of `units` to the counts of these quotas.
    #[must_use]
    pub fn new(limiter: &'a Key, key: &'a Key, quotas: &'a Quotas, units: u32) -> Self {
        let subject = Subject {
            limiter,
            key,
            quotas,
        };
        Self { subject, units }
    }

    /// How many units fewer each stored count holds afterwards; a smaller count drops to zero.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.units
    }
}
