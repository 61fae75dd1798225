//! A list of quotas that apply together.

use std::sync::Arc;

use super::quota::Quota;

/// A list of quotas that apply together: a check is charged to all of them or to none.
///
/// Functions that take quotas take `impl Into<Quotas>`: one [`Quota`], an array, a slice or a `Vec`. The list
/// also parses from text, such as `100/minute, 5/10s`. Cloning is cheap.
///
/// An empty list admits every check, and the store is not asked. Empty text is an error, and so is an empty
/// list in a configuration, because a missing setting would disable the limiter.
///
/// Two quotas with the same algorithm and window share one stored count. A check charges that count
/// once, and each of the two quotas compares it with its own limit.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quotas {
    list: Arc<[ListedQuota]>,
    /// The index of the quota with the lowest limit of each stored count.
    strictest: Arc<[usize]>,
    /// The lowest limit. A higher cost is never admitted.
    min_limit: Option<u32>,
    /// The highest cost that all algorithms accept.
    max_cost: u32,
}

/// A quota, and the number of the stored count that it uses.
#[derive(Debug, PartialEq, Eq)]
struct ListedQuota {
    quota: Quota,
    counter: usize,
}

impl Quotas {
    fn new(quotas: impl IntoIterator<Item = Quota>) -> Self {
        let mut list: Vec<ListedQuota> = Vec::new();
        let mut strictest: Vec<usize> = Vec::new();
        for (index, quota) in quotas.into_iter().enumerate() {
            let shared = list.iter().find(|other| other.quota.counts_as(&quota));
            let counter = shared.map_or(strictest.len(), |other| other.counter);
            match strictest.get_mut(counter) {
                None => strictest.push(index),
                Some(strictest) => {
                    let other = list.get(*strictest);
                    if other.is_some_and(|other| quota.limit() < other.quota.limit()) {
                        *strictest = index;
                    }
                }
            }
            list.push(ListedQuota { quota, counter });
        }
        let quotas = list.iter().map(|listed| &listed.quota);
        let max_costs = quotas
            .clone()
            .map(|quota| quota.counted_by().facts().max_cost);
        Self {
            min_limit: quotas.map(Quota::limit).min(),
            max_cost: max_costs.min().unwrap_or(u32::MAX),
            list: list.into(),
            strictest: strictest.into(),
        }
    }

    /// Returns the quotas, in the order in which they were listed.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Quota> {
        self.list.iter().map(|listed| &listed.quota)
    }

    /// Returns the number of quotas.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns whether the list is empty, so that every check is admitted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns whether this list has the same quotas as a slice, in the same order.
    #[inline]
    pub(crate) fn equals(&self, quotas: &[Quota]) -> bool {
        match (&*self.list, quotas) {
            ([listed], [quota]) => listed.quota == *quota,
            _ => self.iter().eq(quotas),
        }
    }

    /// Returns the lowest limit, if there is any quota.
    pub(crate) fn min_limit(&self) -> Option<u32> {
        self.min_limit
    }

    /// Returns the highest cost that all algorithms accept.
    pub(crate) fn max_cost(&self) -> u32 {
        self.max_cost
    }

    /// Returns the quota, if there is exactly one.
    #[inline]
    pub(crate) fn single(&self) -> Option<&Quota> {
        match &*self.list {
            [listed] => Some(&listed.quota),
            _ => None,
        }
    }

    /// Returns each quota with the number of its stored count. The counts are numbered from 0, in the
    /// order of their first quota.
    #[cfg(any(feature = "redis", test))]
    pub(crate) fn with_counters(&self) -> impl ExactSizeIterator<Item = (&Quota, usize)> {
        self.list
            .iter()
            .map(|listed| (&listed.quota, listed.counter))
    }

    /// Returns the quota with the lowest limit of each stored count, in the order of the counts.
    ///
    /// This quota charges the count. `Gcra` drains at the rate of the limit that charged it.
    pub(crate) fn strictest(&self) -> impl Iterator<Item = &Quota> {
        self.strictest_with_index().map(|(_, quota)| quota)
    }

    /// Returns the quota with the lowest limit of each stored count, with its index in the list.
    pub(crate) fn strictest_with_index(&self) -> impl Iterator<Item = (usize, &Quota)> {
        let indices = self.strictest.iter();
        indices.filter_map(|index| Some((*index, &self.list.get(*index)?.quota)))
    }
}

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

impl FromIterator<Quota> for Quotas {
    fn from_iter<I: IntoIterator<Item = Quota>>(iter: I) -> Self {
        Self::new(iter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_with_the_same_window_share_a_count() {
        let quotas = Quotas::from([
            Quota::per_minute(5),
            Quota::per_second(2),
            Quota::per_minute(9),
        ]);
        let counters: Vec<_> = quotas.with_counters().map(|(_, counter)| counter).collect();
        assert_eq!(counters, [0, 1, 0]);
        let limits: Vec<_> = quotas.strictest().map(Quota::limit).collect();
        assert_eq!(limits, [5, 2]);
        let quotas = Quotas::from([9, 5, 7].map(Quota::per_minute));
        let limits: Vec<_> = quotas.strictest().map(Quota::limit).collect();
        assert_eq!(limits, [5]);
    }
}
