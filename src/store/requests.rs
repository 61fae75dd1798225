//! The requests to a store: checks, adjustments and blocks.

use std::collections::HashSet;
use std::ops::Deref;
use std::time::Duration;

use crate::algorithm::QuotaCheck;
use crate::decision::{Answer, Holding, QuotaAnswer};
use crate::error::{Error, ErrorKind};
use crate::key::{Fingerprint, Key};
use crate::quota::{Quota, Quotas, ShareId};

/// The limiter and the key under which units are counted, and the quotas that apply, with the share and the lease of the
/// request.
///
/// [`Check`] and [`Adjust`] dereference to their subject: `check.key` is `check.subject.key`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Subject<'a> {
    /// The name of the limiter, in its stored form. Limiters of one name share their counts.
    pub limiter: &'a Key,
    /// The key that is counted.
    pub key: &'a Key,
    /// The quotas that apply. In requests of a limiter, the list is never empty.
    pub quotas: &'a Quotas,
    /// The share that the request belongs to. `None` if no quota has it.
    pub(crate) share: Option<ShareId>,
    /// In microseconds: see [`lease`](Self::lease).
    pub(crate) lease_micros: u64,
}

impl<'a> Subject<'a> {
    /// Creates a subject. `limiter` is the name of the limiter as a key: `Key::from(name)`.
    #[must_use]
    pub fn new(limiter: &'a Key, key: &'a Key, quotas: &'a Quotas) -> Self {
        Self {
            limiter,
            key,
            quotas,
            share: None,
            lease_micros: 0,
        }
    }

    /// Returns the subject of a request of this [share](Quota::shares). If no quota has the share, the request is one without
    /// a share.
    #[must_use]
    pub fn in_share(self, share: &str) -> Self {
        let share = self.quotas.known_share(Some(ShareId::of(share)));
        Self { share, ..self }
    }

    /// Returns the name of the [share](Quota::shares) that the request belongs to. `None` for a request without a share, and
    /// if no quota has the share.
    ///
    /// The counts of all quotas that share a stored count with one that has the share are charged for it.
    #[must_use]
    pub fn share(&self) -> Option<&'a str> {
        let share = self.share?;
        let mut quotas = self.quotas.iter();
        quotas.find_map(|quota| quota.share_list().name_of(share))
    }

    /// Returns the subject of a request of a limiter with this lease: see [`lease`](Self::lease). It is cut to whole
    /// microseconds, and to a tenth of the shortest window.
    #[must_use]
    pub fn with_lease(self, lease: Duration) -> Self {
        let lease_micros = self.quotas.lease_micros(lease);
        Self {
            lease_micros,
            ..self
        }
    }

    /// Returns the time for which processes may hold units of these quotas before they use them: the
    /// [lease](crate::RateLimiter::lease) of the limiter, or a tenth of the shortest window if that is less. Zero without a
    /// lease.
    ///
    /// A charged unit counts for the window of its quota and this time. With
    /// [`FixedWindow`](crate::Algorithm::FixedWindow), it counts for its window.
    #[must_use]
    pub fn lease(&self) -> Duration {
        Duration::from_micros(self.lease_micros)
    }

    /// Returns whether another request has the same quotas, share and lease, so that both are counted alike.
    #[cfg(feature = "redis")]
    #[inline]
    pub(crate) fn counts_like(&self, other: Subject<'_>) -> bool {
        (self.share, self.lease_micros) == (other.share, other.lease_micros)
            && self.quotas == other.quotas
    }

    /// Returns a check of `cost` units.
    #[must_use]
    pub fn check(self, cost: u32) -> Check<'a> {
        Check {
            subject: self,
            cost,
            extra_units: 0,
            extra_eighths: 1,
            holding: None,
        }
    }

    /// Returns a request to change the units of the subject.
    #[must_use]
    pub fn adjust(self, change: Change<'a>) -> Adjust<'a> {
        Adjust {
            subject: self,
            change,
        }
    }

    /// Returns the refund of `units` of the `cost` units that a check charged. The others may be refunded later.
    ///
    /// The cost includes the [extra units](Answer::extra_units) of the answer.
    #[must_use]
    pub fn refund(self, answer: &'a Answer, cost: u32, units: u32) -> Adjust<'a> {
        self.adjust(Change::Refund {
            answer,
            cost,
            units,
            held: cost.saturating_sub(units),
        })
    }

    /// Returns the fingerprint of limiter and key together, for tables in memory.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.key.fingerprint().within(self.limiter.fingerprint())
    }
}

/// A request to a [`Store`](crate::Store): charge a cost to a key, if its quotas admit it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Check<'a> {
    /// The limiter, the key and the quotas, with the share and the lease of the request.
    pub subject: Subject<'a>,
    /// The number of units to charge. A check of cost 0 charges nothing, and is admitted also where more units are used than the
    /// limit. Only a limit of 0, or of a share that never gets a unit, refuses it.
    pub cost: u32,
    /// The most units to charge beyond the cost, if the check is admitted: a limiter with a
    /// [lease](crate::RateLimiter::lease) holds them. 0 for most checks, and for a check of cost 0.
    ///
    /// The store charges them together with the cost, and returns their number in [`Answer::extra_units`]. Only stores that
    /// [support leases](crate::store::protocol::StoreParts::supports_leases) are asked for more, and only by a check that is decided
    /// alone.
    pub extra_units: u32,
    /// How many eighths of what is left after the cost the extra units may be: 1 to 8. The rest is for other processes.
    pub(crate) extra_eighths: u32,
    /// The slots that the asking process holds and wants, for quotas [in flight](crate::Quota::in_flight). `None` for a check
    /// that wants none, and for a check without such quotas. Slots do not depend on the cost.
    ///
    /// For quotas of a limiter with a [`reserve_lease`](crate::RateLimiter::reserve_lease), the units that it holds and wants:
    /// as many as the cost, which is not charged then. Without a holding, the cost is charged beside what is held.
    pub holding: Option<&'a Holding>,
}

impl<'a> Check<'a> {
    /// The message of the process that holds the units of this check, which are not charged.
    #[inline]
    pub(crate) fn unit_holding(&self) -> Option<&'a Holding> {
        self.holding.filter(|_| self.quotas.has_held())
    }

    /// Adds the slots that the asking process holds and wants.
    #[must_use]
    pub fn with_holding(self, holding: &'a Holding) -> Self {
        let holding = Some(holding);
        Self { holding, ..self }
    }

    /// Asks for up to so many units beyond the cost, unless it is 0: see [`extra_units`](Self::extra_units). They are at most
    /// this many eighths of what is left after the cost, from 1 to 8.
    #[must_use]
    pub fn with_extra_units(mut self, extra_units: u32, eighths: u32) -> Self {
        self.extra_units = if self.cost == 0 { 0 } else { extra_units };
        self.extra_eighths = eighths.clamp(1, 8);
        self
    }

    /// Returns how many units a store charges beyond the cost, if the quotas have `left` after it.
    #[must_use]
    pub fn granted_extra_units(&self, left: u32) -> u32 {
        let part = u64::from(left) * u64::from(self.extra_eighths) / 8;
        self.extra_units.min(u32::try_from(part).unwrap_or(left))
    }

    /// Returns whether another check of the same key asks for the same units.
    #[cfg(feature = "redis")]
    #[inline]
    pub(crate) fn asks_like(&self, other: Check<'_>) -> bool {
        self.cost == other.cost && self.counts_like(other.subject)
    }

    #[inline]
    pub(super) fn quota_check(&self, quota: &'a Quota, now: u64) -> QuotaCheck<'a> {
        let (quotas, lease) = (self.quotas, self.lease_micros);
        let share = quotas.share_of_count(quota, self.share, lease);
        QuotaCheck::new(quota, share, lease, self.cost, now)
    }

    /// Verifies that no two checks have both limiter and key in common. A store would decide each as if the other were not
    /// there.
    ///
    /// # Errors
    ///
    /// An error of kind [`ErrorKind::Misconfigured`] if two checks do.
    #[inline]
    pub fn verify_distinct(checks: &[Self]) -> Result<(), Error> {
        if checks.len() < 2 {
            return Ok(());
        }
        let mut names = HashSet::new();
        let is_distinct = checks.iter().all(|check| names.insert(check.fingerprint()));
        if is_distinct {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Misconfigured,
            "cannot decide two checks of one limiter and key together: send one check with the sum of their costs",
        ))
    }

    /// Returns a check that owns its parts, for a store that decides it later.
    #[inline]
    #[must_use]
    pub fn owned(&self) -> OwnedCheck {
        OwnedCheck {
            subject: OwnedSubject::from(self.subject),
            cost: self.cost,
            extra_units: self.extra_units,
            extra_eighths: self.extra_eighths,
            holding: self.holding.copied().map(Box::new),
        }
    }
}

impl<'a> Deref for Check<'a> {
    type Target = Subject<'a>;

    #[inline]
    fn deref(&self) -> &Subject<'a> {
        &self.subject
    }
}

/// A request to a [`Store`](crate::Store): change the units that count against a key.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Adjust<'a> {
    /// The limiter, the key, and the quotas whose counts change.
    pub subject: Subject<'a>,
    /// How they change.
    pub change: Change<'a>,
}

/// How an [`Adjust`] changes the units of its subject.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Change<'a> {
    /// Removes all units.
    ///
    /// Only the counts of the quotas are removed: a log with the history of all its windows, also windows of other quotas.
    /// A blocked key stays blocked.
    Reset,
    /// Returns units of one earlier charge, if they still count, and never units of another charge.
    Refund {
        /// The answer to the check that charged the units.
        answer: &'a Answer,
        /// The number of units that were charged, with the [extra units](Answer::extra_units).
        cost: u32,
        /// The number of units to return: at most the cost.
        units: u32,
        /// The number of charged units that a later refund may still return.
        held: u32,
    },
    /// Returns units in each stored count, whichever checks charged them.
    Credit {
        /// The number of units. A count with fewer units drops to zero.
        units: u32,
    },
    /// Charges units that were used without a check, also beyond the limits.
    ///
    /// Each stored count is charged, also that of a [soft](Quota::soft) quota, and is created if it is missing. Slots in
    /// flight are not. A count holds at most 2^32 - 1 units.
    Charge {
        /// The number of units.
        units: u32,
    },
}

impl<'a> Adjust<'a> {
    /// Returns one quota for each stored count that changes; in a refund, with its answer to the charge. A
    /// [soft](Quota::soft) quota without room was not charged, so a refund of that charge leaves it out.
    ///
    /// All quotas of [`SlidingLog`](crate::Algorithm::SlidingLog) share a count, and so do all buckets of one length. Of
    /// these it is the quota with the longest window, and then with the largest limit. Otherwise, quotas of one
    /// algorithm and window share a count. Of these it is the one with the lowest limit, or of
    /// [`SortedSetLog`](crate::Algorithm::SortedSetLog) the largest.
    pub fn counts(&self) -> impl Iterator<Item = (&'a Quota, Option<&'a QuotaAnswer>)> {
        let answers = match self.change {
            Change::Refund { answer, .. } => answer.quotas(),
            Change::Reset | Change::Credit { .. } | Change::Charge { .. } => &[],
        };
        let charging = self.quotas.charging(self.lease_micros);
        let counts = charging.map(|(index, quota)| (quota, answers.get(index)));
        counts.filter(|(_, answer)| !answer.is_some_and(QuotaAnswer::is_exceeded))
    }

    /// Returns a request that owns its parts, for a store that makes the change later.
    #[must_use]
    pub fn owned(&self) -> OwnedAdjust {
        let change = match self.change {
            Change::Reset => OwnedChange::Reset,
            Change::Refund {
                answer,
                cost,
                units,
                held,
            } => OwnedChange::Refund {
                answer: Box::new(answer.clone()),
                cost,
                units,
                held,
            },
            Change::Credit { units } => OwnedChange::Credit { units },
            Change::Charge { units } => OwnedChange::Charge { units },
        };
        OwnedAdjust {
            subject: OwnedSubject::from(self.subject),
            change,
        }
    }
}

impl<'a> Deref for Adjust<'a> {
    type Target = Subject<'a>;

    fn deref(&self) -> &Subject<'a> {
        &self.subject
    }
}

/// A [`Subject`] that owns its parts.
#[derive(Clone, Debug)]
pub(crate) struct OwnedSubject {
    limiter: Key,
    key: Key,
    quotas: Quotas,
    share: Option<ShareId>,
    lease_micros: u64,
}

impl OwnedSubject {
    pub(crate) fn subject(&self) -> Subject<'_> {
        Subject {
            share: self.share,
            lease_micros: self.lease_micros,
            ..Subject::new(&self.limiter, &self.key, &self.quotas)
        }
    }
}

impl From<Subject<'_>> for OwnedSubject {
    #[inline]
    fn from(subject: Subject<'_>) -> Self {
        Self {
            limiter: subject.limiter.clone(),
            key: subject.key.clone(),
            quotas: subject.quotas.clone(),
            share: subject.share,
            lease_micros: subject.lease_micros,
        }
    }
}

/// A [`Check`] that owns its parts, from [`Check::owned`].
#[derive(Clone, Debug)]
pub struct OwnedCheck {
    subject: OwnedSubject,
    cost: u32,
    extra_units: u32,
    extra_eighths: u32,
    holding: Option<Box<Holding>>,
}

impl OwnedCheck {
    /// Returns the check.
    #[must_use]
    pub fn check(&self) -> Check<'_> {
        Check {
            subject: self.subject.subject(),
            cost: self.cost,
            extra_units: self.extra_units,
            extra_eighths: self.extra_eighths,
            holding: self.holding.as_deref(),
        }
    }

    /// Sets the slots that this process holds and wants.
    pub(crate) fn set_holding(&mut self, holding: Holding) {
        self.holding = Some(Box::new(holding));
    }
}

/// An [`Adjust`] that owns its parts, from [`Adjust::owned`].
#[derive(Clone, Debug)]
pub struct OwnedAdjust {
    subject: OwnedSubject,
    change: OwnedChange,
}

#[derive(Clone, Debug)]
enum OwnedChange {
    Reset,
    Refund {
        answer: Box<Answer>,
        cost: u32,
        units: u32,
        held: u32,
    },
    Credit {
        units: u32,
    },
    Charge {
        units: u32,
    },
}

impl OwnedAdjust {
    /// Returns the request.
    #[must_use]
    pub fn adjust(&self) -> Adjust<'_> {
        let change = match &self.change {
            OwnedChange::Reset => Change::Reset,
            OwnedChange::Refund {
                answer,
                cost,
                units,
                held,
            } => Change::Refund {
                answer,
                cost: *cost,
                units: *units,
                held: *held,
            },
            OwnedChange::Credit { units } => Change::Credit { units: *units },
            OwnedChange::Charge { units } => Change::Charge { units: *units },
        };
        self.subject.subject().adjust(change)
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
