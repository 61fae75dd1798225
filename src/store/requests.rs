//! What a store is asked.

use std::time::Duration;

use crate::decision::{Answer, QuotaAnswer};
use crate::key::Fingerprint;
use crate::key::Key;
use crate::quota::{Quota, Quotas};

/// Under which limiter and key units are counted, and against which quotas.
///
/// [`Check`], [`Reset`], [`Refund`] and [`Credit`] have it in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    /// The limiter's name, in the form in which it is stored.
    pub(crate) limiter: &'a Key,
    pub(crate) key: &'a Key,
    pub(crate) quotas: &'a Quotas,
}

impl Subject<'_> {
    /// What stands for limiter and key together.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.key.fingerprint().within(self.limiter.fingerprint())
    }
}

/// What all that is asked of a store tells of its subject.
macro_rules! subject {
    ($($asked:ident)*) => {$(
        impl<'a> $asked<'a> {
            /// The limiter that asks, in the form in which it is stored. Limiters of one name share
            /// their counts.
            #[must_use]
            pub fn limiter(&self) -> &'a Key {
                self.subject.limiter
            }

            /// Who is counted.
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

subject!(Check Reset Refund Credit);

/// One question to a [`Store`](crate::Store): does this cost fit into these quotas of this key?
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Check<'a> {
    pub(crate) subject: Subject<'a>,
    pub(crate) cost: u32,
}

impl Check<'_> {
    /// The units asked for; 0 only looks.
    #[must_use]
    pub fn cost(&self) -> u32 {
        self.cost
    }
}

/// The order to a [`Store`](crate::Store) to forget what is charged to a key.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Reset<'a> {
    pub(crate) subject: Subject<'a>,
}

/// The order to a [`Store`](crate::Store) to block a key of a limiter, whatever its quotas are, in place
/// of what was so before.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Block<'a> {
    pub(crate) limiter: &'a Key,
    pub(crate) key: &'a Key,
    pub(crate) duration: Duration,
}

impl<'a> Block<'a> {
    /// The limiter that does not admit it, in the form in which it is stored.
    #[must_use]
    pub fn limiter(&self) -> &'a Key {
        self.limiter
    }

    /// Who is blocked.
    #[must_use]
    pub fn key(&self) -> &'a Key {
        self.key
    }

    /// For how long, from now on; zero not at all.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.duration
    }
}

/// The order to a [`Store`](crate::Store) to take back units that it charged.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Refund<'a> {
    pub(crate) subject: Subject<'a>,
    pub(crate) units: u32,
    /// The units that were charged.
    pub(crate) cost: u32,
    /// How many of them may be given back later.
    pub(crate) held: u32,
    pub(crate) answer: &'a Answer,
}

impl<'a> Refund<'a> {
    /// How many are to be taken back: no more than were charged.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.units
    }

    /// What the store answered when it charged them.
    #[must_use]
    pub fn answer(&self) -> &'a Answer {
        self.answer
    }

    /// Of each stored count the strictest quota, by which it was charged, with its answer.
    pub(crate) fn charged(&self) -> impl Iterator<Item = (&'a Quota, &'a QuotaAnswer)> {
        let answers = self.answer.quotas();
        let charging = self.subject.quotas.strictest_with_index();
        charging.filter_map(|(index, quota)| Some((quota, answers.get(index)?)))
    }
}

/// The order to a [`Store`](crate::Store) to count fewer units than were charged, whoever charged them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Credit<'a> {
    pub(crate) subject: Subject<'a>,
    pub(crate) units: u32,
}

impl Credit<'_> {
    /// How many fewer are to count in each of the stored counts; none where fewer count than that.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.units
    }
}
