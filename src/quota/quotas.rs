//! The quotas of one limiter.

use std::sync::Arc;

use super::quota::Quota;

/// The quotas that one check is held against: all of them, or none is charged.
///
/// Cheap to clone. Made from one [`Quota`], an array, a slice or a `Vec` wherever quotas are asked
/// for. An empty list admits everything without asking the store.
///
/// Two quotas of the same algorithm and window share one stored count, which a check charges once
/// and each of the two judges by its own limit.
///
/// # Examples
///
/// ```
/// use tollgate::{Quota, Quotas};
///
/// let quotas = Quotas::from([Quota::per_second(5), Quota::per_day(2_000)]);
/// assert_eq!(quotas.iter().map(Quota::limit).max(), Some(2_000));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quotas {
    list: Arc<[ListedQuota]>,
    /// Of each stored count, the index of its strictest quota.
    charging: Arc<[usize]>,
    /// Above this, a cost fits into one of the limits never.
    least_limit: Option<u32>,
    /// Above this, a cost is too large for one of the algorithms.
    most_cost: u32,
}

/// A quota and the stored count that it judges.
#[derive(Debug, PartialEq, Eq)]
struct ListedQuota {
    quota: Quota,
    counter: usize,
}

impl Quotas {
    fn new(quotas: impl IntoIterator<Item = Quota>) -> Self {
        let mut list: Vec<ListedQuota> = Vec::new();
        let mut charging: Vec<usize> = Vec::new();
        for (index, quota) in quotas.into_iter().enumerate() {
            let counter = list.iter().find_map(|other| {
                let shared = other.quota.counts_as(&quota);
                shared.then_some(other.counter)
            });
            let counter = counter.unwrap_or(charging.len());
            match charging.get_mut(counter) {
                None => charging.push(index),
                Some(strictest) => {
                    if list
                        .get(*strictest)
                        .is_some_and(|held| quota.limit() < held.quota.limit())
                    {
                        *strictest = index;
                    }
                }
            }
            list.push(ListedQuota { quota, counter });
        }
        let quotas = list.iter().map(|held| &held.quota);
        let costs = quotas
            .clone()
            .map(|quota| quota.counted_by().facts().max_cost);
        Self {
            least_limit: quotas.map(Quota::limit).min(),
            most_cost: costs.min().unwrap_or(u32::MAX),
            list: list.into(),
            charging: charging.into(),
        }
    }

    /// The quotas, in the order in which they were given.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Quota> {
        self.list.iter().map(|held| &held.quota)
    }

    /// How many quotas there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether these are the quotas of a list.
    #[inline]
    pub(crate) fn are(&self, quotas: &[Quota]) -> bool {
        match (&*self.list, quotas) {
            ([held], [quota]) => held.quota == *quota,
            _ => self.iter().eq(quotas),
        }
    }

    /// Whether there is none, so that everything is admitted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The strictest limit, unless nothing limits.
    pub(crate) fn least_limit(&self) -> Option<u32> {
        self.least_limit
    }

    /// The highest cost that all algorithms take.
    pub(crate) fn most_cost(&self) -> u32 {
        self.most_cost
    }

    /// The quota, if there is one only.
    #[inline]
    pub(crate) fn only(&self) -> Option<&Quota> {
        match &*self.list {
            [held] => Some(&held.quota),
            _ => None,
        }
    }

    /// Each quota with the number of its stored count; the counts are numbered from 0 in the order
    /// of their first quota.
    pub(crate) fn counted(&self) -> impl ExactSizeIterator<Item = (&Quota, usize)> {
        self.list.iter().map(|held| (&held.quota, held.counter))
    }

    /// The strictest quota of each stored count, in the order of the counts: it is the one that
    /// charges, where how a count drains depends on the limit.
    pub(crate) fn counters(&self) -> impl Iterator<Item = &Quota> {
        self.charging().map(|(_, quota)| quota)
    }

    /// The same with where in the list each stands.
    pub(crate) fn charging(&self) -> impl Iterator<Item = (usize, &Quota)> {
        let indices = self.charging.iter();
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
    fn quotas_of_one_window_share_a_count() {
        let quotas = Quotas::from([
            Quota::per_minute(5),
            Quota::per_second(2),
            Quota::per_minute(9),
        ]);
        let counters: Vec<_> = quotas.counted().map(|(_, counter)| counter).collect();
        assert_eq!(counters, [0, 1, 0]);
        let limits: Vec<_> = quotas.counters().map(Quota::limit).collect();
        assert_eq!(limits, [5, 2]);
        let quotas = Quotas::from([9, 5, 7].map(Quota::per_minute));
        let limits: Vec<_> = quotas.counters().map(Quota::limit).collect();
        assert_eq!(limits, [5]);
    }
}
