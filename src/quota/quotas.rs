//! A list of quotas that apply together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use smallvec::SmallVec;

use super::algorithm::Algorithm;
use super::quota::Quota;
use super::shares::ShareId;
use crate::clock::micros;
use crate::error::{ConfigError, warning};

/// A list of quotas that apply together: a check is charged to all of them or to none.
///
/// Functions that take quotas take `impl IntoQuotas`: one [`Quota`], an array, a slice or a `Vec`. The list
/// also parses from text, such as `100/minute, 5/10s`; [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new)
/// takes such a text. Cloning is cheap.
///
/// An empty list admits every check, and the store is not asked. Empty text is an error, and so is an empty
/// list in a configuration, because a missing setting would disable the limiter.
///
/// Quotas of one list may share a stored count: all that count with [`SlidingLog`](crate::Algorithm::SlidingLog),
/// with any windows, all buckets of one length, all [totals](Quota::total), and otherwise those with the same algorithm and window. A check
/// charges that count once, and each of the quotas compares the units in its window with its own limit. A
/// [soft](Quota::soft) quota shares its count with none.
///
/// # Examples
///
/// ```
/// use tollgate::{Quota, Quotas};
///
/// let quotas = Quotas::from([Quota::per_second(5), Quota::per_day(2_000)]);
/// assert_eq!(quotas.len(), 2);
///
/// let parsed: Quotas = "5/second, 2000/day".parse()?;
/// assert_eq!(parsed, quotas);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Quotas(Arc<List>);

#[derive(Debug)]
struct List {
    quotas: SmallVec<[Quota; 1]>,
    /// The count of the units that processes hold beside all quotas. `None` if units are charged when they are reserved.
    held: Option<Quota>,
    /// The highest cost that all algorithms accept.
    max_cost: u32,
    /// A lower cost is within all limits, and no slots are needed. 0 without quotas, and with soft ones or totals.
    unusual_cost: u32,
}

pub(super) const EMPTY_RULE: &str = "it would admit every check; list at least one quota";

/// The most warnings about limits of 0, for a program that reads its configuration again for each request.
const MAX_ZERO_WARNINGS: u64 = 100;

/// A lease is at most this part of the shortest window.
const MAX_LEASE_PART: u32 = 10;

impl Quotas {
    fn new(quotas: impl IntoIterator<Item = Quota>) -> Self {
        Self::beside(None, quotas)
    }

    fn beside(held: Option<Quota>, quotas: impl IntoIterator<Item = Quota>) -> Self {
        let mut list: SmallVec<[Quota; 1]> = SmallVec::new();
        for quota in quotas {
            let quota = with_own_calendar_count(quota, &list);
            list.push(quota.with_own_soft_count(&list));
        }
        let max_cost = list
            .iter()
            .map(|quota| quota.algorithm().max_cost())
            .min()
            .unwrap_or(u32::MAX);
        let are_usual = list
            .iter()
            .all(|quota| quota.is_rate() && !quota.is_soft() && quota.share_list().is_none());
        let unusual_cost = match list.iter().map(Quota::limit).min() {
            Some(limit) if are_usual && held.is_none() => limit.min(max_cost).saturating_add(1),
            _ => 0,
        };
        Self(Arc::new(List {
            max_cost,
            unusual_cost,
            held: held.filter(|_| !list.is_empty()),
            quotas: list,
        }))
    }

    /// Returns these quotas with units that processes hold beside them, for this lease. Without quotas, nothing is held.
    pub(crate) fn with_held(&self, lease: Duration) -> Self {
        Self::beside(Some(Quota::held(lease)), self.iter().cloned())
    }

    pub(crate) fn map(&self, change: impl FnMut(&Quota) -> Quota) -> Self {
        Self::beside(self.0.held.clone(), self.iter().map(change))
    }

    /// The count of the units that processes hold beside these quotas. An answer to a check has it behind those of the quotas.
    #[inline]
    pub(crate) fn held(&self) -> Option<&Quota> {
        self.0.held.as_ref()
    }

    #[inline]
    pub(crate) fn has_held(&self) -> bool {
        self.0.held.is_some()
    }

    /// Returns whether a process is a holder of these quotas: of slots, or of reserved units.
    #[inline]
    pub(crate) fn have_holders(&self) -> bool {
        self.has_held() || self.has_slots()
    }

    #[inline]
    pub(crate) fn answers(&self) -> usize {
        self.len() + usize::from(self.has_held())
    }

    /// Names what of these quotas no units are held beside.
    pub(crate) fn not_held(&self) -> Option<&'static str> {
        if self.has_slots() {
            Some("slots in flight")
        } else if self.has_soft() {
            Some("soft quotas")
        } else if self.have_shares() {
            Some("shares")
        } else if self
            .iter()
            .any(|quota| quota.algorithm() == Algorithm::SortedSetLog)
        {
            Some("a sorted-set-log")
        } else {
            None
        }
    }

    pub(crate) fn have_shares(&self) -> bool {
        self.iter().any(|quota| !quota.share_list().is_none())
    }

    /// `None` stands for requests without a share.
    pub(crate) fn shares_and_none(&self) -> impl Iterator<Item = Option<ShareId>> {
        self.iter()
            .flat_map(|quota| quota.share_list().iter())
            .map(|share| Some(share.id))
            .chain([None])
    }

    /// Names what of these quotas is not held in advance, so that they have no lease.
    pub(crate) fn not_leased(&self) -> Option<&'static str> {
        if self.has_slots() {
            Some("slots in flight")
        } else if self.has_held() {
            Some("units with a `reserve_lease`")
        } else if self.has_soft() {
            Some("soft quotas")
        } else if self.iter().any(Quota::is_total) {
            Some("totals")
        } else if self.have_shares() {
            Some("shares")
        } else {
            None
        }
    }

    /// A request of a share that no quota has is one without a share.
    #[inline]
    pub(crate) fn known_share(&self, share: Option<ShareId>) -> Option<ShareId> {
        share.filter(|share| self.iter().any(|quota| quota.has_share(*share)))
    }

    pub(crate) fn known_slot_share(&self, share: Option<ShareId>) -> Option<ShareId> {
        share.filter(|share| self.slots().any(|quota| quota.has_share(*share)))
    }

    /// The share of a request, if a quota with the stored count of this one has it. Each charge of the count is one
    /// of this share, by any quota.
    #[inline]
    pub(crate) fn share_of_count(
        &self,
        quota: &Quota,
        share: Option<ShareId>,
        lease: u64,
    ) -> Option<ShareId> {
        share.filter(|share| {
            self.iter()
                .filter(|other| quota.is_same_count(lease, other, lease))
                .any(|other| other.has_share(*share))
        })
    }

    /// A tenth of the shortest window. `None` without quotas.
    pub(crate) fn longest_lease(&self) -> Option<Duration> {
        let shortest = self.iter().map(Quota::window).min()?;
        Some(shortest / MAX_LEASE_PART)
    }

    /// The time for which processes with this lease may hold units: at most a tenth of the shortest window.
    pub(crate) fn lease_micros(&self, lease: Duration) -> u64 {
        micros(self.longest_lease().unwrap_or_default().min(lease))
    }

    /// Converts quotas from outside the program, such as text. An empty list is an error.
    pub(crate) fn configured(
        quotas: impl TryInto<Self, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        let quotas = quotas.try_into().map_err(Into::into)?;
        if quotas.is_empty() {
            return Err(ConfigError::quota_part("list of quotas", "", EMPTY_RULE));
        }
        warn_if_zero(&quotas);
        Ok(quotas)
    }

    /// Returns the quotas, in the order in which they were listed.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Quota> {
        self.0.quotas.iter()
    }

    /// Returns the number of quotas.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.quotas.len()
    }

    /// Returns whether the list is empty, so that every check is admitted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.quotas.is_empty()
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[Quota] {
        &self.0.quotas
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = &Quota> {
        self.iter().filter(|quota| quota.is_in_flight())
    }

    pub(crate) fn rates(&self) -> impl Iterator<Item = &Quota> {
        self.iter().filter(|quota| !quota.is_in_flight())
    }

    #[inline]
    pub(crate) fn has_slots(&self) -> bool {
        self.iter().any(Quota::is_in_flight)
    }

    /// The most slots that a request of this share can ever hold. `None` without a quota in flight.
    pub(crate) fn min_slots(&self, share: Option<ShareId>) -> Option<u32> {
        self.slots().map(|quota| quota.ceiling(share)).min()
    }

    /// The highest cost that a request of this share can ever be admitted with. Without a rate that refuses, that is any cost.
    /// `None` without quotas.
    pub(crate) fn min_limit(&self, share: Option<ShareId>) -> Option<u32> {
        self.iter()
            .map(|quota| {
                if quota.is_in_flight() || quota.is_soft() {
                    u32::MAX
                } else {
                    quota.ceiling(share)
                }
            })
            .min()
    }

    /// The highest cost of a request of this share that these quotas can admit at once: the lowest limit of a rate that
    /// refuses, or the highest cost of its algorithm. Without such a rate, that is any cost.
    pub(crate) fn max_admissible_cost(&self, share: Option<ShareId>) -> u32 {
        self.iter()
            .filter(|quota| !quota.is_soft())
            .map(|quota| quota.algorithm().max_cost())
            .chain(self.min_limit(share))
            .min()
            .unwrap_or(u32::MAX)
    }

    #[cold]
    pub(crate) fn lowest_bound(&self, is_in_flight: bool, share: Option<ShareId>) -> String {
        self.iter()
            .filter(|quota| quota.is_in_flight() == is_in_flight && !quota.is_soft())
            .min_by_key(|quota| quota.ceiling(share))
            .map_or_else(String::new, |quota| quota.bound(share))
    }

    #[inline]
    pub(crate) fn max_cost(&self) -> u32 {
        self.0.max_cost
    }

    /// Returns whether a check of this cost may be charged as it is: all limits and algorithms accept it, there are no slots
    /// to take, and every quota refuses.
    #[inline]
    pub(crate) fn is_usual(&self, cost: u32) -> bool {
        cost < self.0.unusual_cost
    }

    #[inline]
    pub(crate) fn has_soft(&self) -> bool {
        self.iter().any(Quota::is_soft)
    }

    #[inline]
    pub(crate) fn single(&self) -> Option<&Quota> {
        match &*self.0.quotas {
            [quota] => Some(quota),
            _ => None,
        }
    }

    /// The one quota that charges each stored count of a rate, with its index in the list.
    pub(crate) fn charging(&self, lease: u64) -> impl Iterator<Item = (usize, &Quota)> {
        self.iter()
            .enumerate()
            .filter(|(_, quota)| !quota.is_in_flight())
            .filter(move |(index, quota)| self.charges_count(*index, quota, lease))
    }

    fn charges_count(&self, index: usize, quota: &Quota, lease: u64) -> bool {
        !self
            .iter()
            .enumerate()
            .filter(|(_, other)| other.is_same_count(lease, quota, lease))
            .any(|(other_index, other)| {
                let is_earlier = other_index < index && !quota.charges_before(other);
                is_earlier || other.charges_before(quota)
            })
    }
}

/// Warns if a quota from outside the program refuses everything: a limit of 0 may be meant as none.
///
/// Not for plans, which are looked up again and again: an ended plan may have the limit 0.
pub(super) fn warn_if_zero(quotas: &Quotas) {
    static WARNED: AtomicU64 = AtomicU64::new(0);
    let refusing = quotas
        .iter()
        .find(|quota| !quota.is_soft() && quota.limit() == 0);
    if let Some(quota) = refusing
        && WARNED.fetch_add(1, Ordering::Relaxed) < MAX_ZERO_WARNINGS
    {
        tracing::warn!(target: "tollgate::diagnostics",
            code = warning::LIMIT_OF_ZERO,
            "the configured quota \"{quota}\" refuses every request: for no limit, leave it out, or `disable` the layer"
        );
    }
}

/// Gives a quota a count of its own if an earlier quota has another calendar of the same unit. They would
/// share the number that stands for their windows.
fn with_own_calendar_count(mut quota: Quota, before: &[Quota]) -> Quota {
    let Some(calendar) = &quota.calendar else {
        return quota;
    };
    let mut ordinal = 0_u8;
    for other in before.iter().filter_map(Quota::calendar) {
        if other == calendar {
            ordinal = other.ordinal();
            break;
        }
        if other.unit() == calendar.unit() {
            ordinal = ordinal.max(other.ordinal().saturating_add(1));
        }
    }
    quota.calendar = quota
        .calendar
        .map(|calendar| calendar.counted_after(ordinal));
    quota
}

impl PartialEq for Quotas {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || self.0.quotas == other.0.quotas && self.0.held == other.0.held
    }
}

impl Eq for Quotas {}

impl From<Quota> for Quotas {
    fn from(quota: Quota) -> Self {
        Self::new([quota])
    }
}

impl<const N: usize> From<[Quota; N]> for Quotas {
    fn from(quotas: [Quota; N]) -> Self {
        Self::new(quotas)
    }
}

impl From<Vec<Quota>> for Quotas {
    fn from(quotas: Vec<Quota>) -> Self {
        Self::new(quotas)
    }
}

impl From<&[Quota]> for Quotas {
    fn from(quotas: &[Quota]) -> Self {
        Self::new(quotas.iter().cloned())
    }
}

impl<const N: usize> From<&[Quota; N]> for Quotas {
    fn from(quotas: &[Quota; N]) -> Self {
        Self::from(quotas.as_slice())
    }
}

impl From<&Self> for Quotas {
    fn from(quotas: &Self) -> Self {
        quotas.clone()
    }
}

/// Parses the text, as [`FromStr`](#impl-FromStr-for-Quotas) does.
impl TryFrom<&str> for Quotas {
    type Error = ConfigError;

    fn try_from(text: &str) -> Result<Self, ConfigError> {
        text.parse()
    }
}

/// Parses the text, as [`FromStr`](#impl-FromStr-for-Quotas) does.
impl TryFrom<String> for Quotas {
    type Error = ConfigError;

    fn try_from(text: String) -> Result<Self, ConfigError> {
        text.parse()
    }
}

/// Parses the text, as [`FromStr`](#impl-FromStr-for-Quotas) does.
impl TryFrom<&String> for Quotas {
    type Error = ConfigError;

    fn try_from(text: &String) -> Result<Self, ConfigError> {
        text.parse()
    }
}

/// Values that are quotas: all that convert `Into<Quotas>`, such as one [`Quota`], an array, a slice or a `Vec`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a quota or a list of quotas",
    label = "expected quotas, such as `Quota::per_minute(100)`",
    note = "for text like \"100/minute\", write `RateLimitLayer::try_new(store, \"100/minute\")?`, \
            `RateLimiter::try_new(store, \"100/minute\")?`, or `text.parse::<Quotas>()?`"
)]
pub trait IntoQuotas: Sized {
    /// Converts to a list of quotas.
    fn into_quotas(self) -> Quotas;
}

#[diagnostic::do_not_recommend]
impl<Q: Into<Quotas>> IntoQuotas for Q {
    fn into_quotas(self) -> Quotas {
        self.into()
    }
}

impl FromIterator<Quota> for Quotas {
    fn from_iter<I: IntoIterator<Item = Quota>>(iter: I) -> Self {
        Self::new(iter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stored_count_is_charged_by_one_quota() {
        // A log is charged by the longest window; then by the highest limit.
        let logs = [
            Quota::per_minute(5),
            Quota::per_second(2),
            Quota::per_minute(9),
        ];
        assert_eq!(charging(&Quotas::from(&logs), 0), [(2, 9)]);
        // A counter is charged by the lowest limit.
        let counters = logs.map(|quota| quota.with_algorithm(Algorithm::FixedWindow));
        assert_eq!(charging(&Quotas::from(&counters), 0), [(0, 5), (1, 2)]);
    }

    fn charging(quotas: &Quotas, lease: u64) -> Vec<(usize, u32)> {
        quotas
            .charging(lease)
            .map(|(index, quota)| (index, quota.limit()))
            .collect()
    }

    #[test]
    fn buckets_share_a_count_if_they_have_one_length_with_the_lease() {
        let quotas: Quotas = "9/60s sliding-buckets:6, 9/30s sliding-buckets:3"
            .parse()
            .unwrap();
        // 10 s each, but 10.5 and 11 s with the lease.
        assert_eq!(charging(&quotas, 0), [(0, 9)]);
        assert_eq!(charging(&quotas, 3_000_000), [(0, 9), (1, 9)]);
    }

    #[test]
    fn each_soft_quota_has_a_count_of_its_own() {
        let text = "9/minute, 5/minute soft, 4/minute soft, 3/second soft, 5/minute gcra soft, 9/minute gcra, \
            8/minute sliding-buckets:4 soft, 8/30s sliding-buckets:2 soft";
        let quotas: Quotas = text.parse().unwrap();
        let mut counts: Vec<_> = quotas.iter().map(|quota| quota.stored_count(0)).collect();
        assert_eq!(quotas.charging(0).count(), counts.len());
        counts.sort_unstable_by_key(|count| format!("{count:?}"));
        counts.dedup();
        assert_eq!(counts.len(), quotas.len());
        let mut soft: Vec<_> = quotas.iter().filter_map(Quota::soft_count).collect();
        soft.sort_unstable();
        soft.dedup();
        assert_eq!(soft.len(), quotas.len() - 2);
        // A list of its quotas is the same list, and the limit of a soft quota bounds no cost.
        assert_eq!(quotas.iter().cloned().collect::<Quotas>(), quotas);
        assert_eq!(quotas.min_limit(None), Some(9));
        // The count does not depend on the other quotas, unless they would share it.
        for (index, alone) in [(1, "7/minute soft"), (3, "3/second soft")] {
            let alone: Quota = alone.parse().unwrap();
            let alone = Quotas::from(alone);
            assert_eq!(
                quotas.as_slice()[index].soft_count(),
                alone.as_slice()[0].soft_count()
            );
        }
    }

    #[cfg(feature = "calendar")]
    #[test]
    fn each_calendar_of_a_list_has_a_count_of_its_own() {
        let texts = "5/day@UTC, 6/day@Europe/Berlin, 7/day@UTC, 8/day@Asia/Tokyo, 9/month@UTC, 4/day@Europe/Berlin";
        let quotas: Quotas = texts.parse().unwrap();
        let mut counted: Vec<_> = quotas
            .charging(0)
            .map(|(_, quota)| quota.counted_micros(0))
            .collect();
        counted.sort_unstable();
        counted.dedup();
        assert_eq!(counted.len(), 4);
        // The count of a calendar does not depend on its zone or billing day, so that a change keeps it.
        assert_eq!(
            counted_micros("9/month@UTC"),
            counted_micros("5/month:17@Asia/Tokyo")
        );
        assert_ne!(counted_micros("9/month@UTC"), counted_micros("9/week@UTC"));
        assert_ne!(
            counted_micros("9/day@UTC"),
            counted_micros("9/day fixed-window")
        );
    }

    #[cfg(feature = "calendar")]
    fn counted_micros(text: &str) -> u64 {
        let quota: Quota = text.parse().unwrap();
        Quotas::from(quota).single().unwrap().counted_micros(0)
    }
}
