//! The calls that stand in a line, in the order of their arrival.

use std::collections::BTreeMap;

/// The number of a call, in the order of arrival.
pub(in crate::limiter) type Ticket = u64;

/// The calls that stand in a line with the units that they want, and the sum of these: no arrival adds them up.
#[derive(Default)]
pub(super) struct Standing {
    calls: BTreeMap<Ticket, u32>,
    units: u64,
}

impl Standing {
    pub(super) fn insert(&mut self, ticket: Ticket, units: u32) {
        let before = self.calls.insert(ticket, units);
        self.units += u64::from(units);
        self.units -= u64::from(before.unwrap_or(0));
    }

    pub(super) fn remove(&mut self, ticket: Ticket) -> bool {
        let units = self.calls.remove(&ticket);
        self.units -= u64::from(units.unwrap_or(0));
        units.is_some()
    }

    pub(super) fn contains(&self, ticket: Ticket) -> bool {
        self.calls.contains_key(&ticket)
    }

    pub(super) fn first(&self) -> Option<Ticket> {
        self.calls.keys().next().copied()
    }

    pub(super) fn last(&self) -> Option<Ticket> {
        self.calls.keys().next_back().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Ticket, u32)> {
        self.calls.iter().map(|(ticket, units)| (*ticket, *units))
    }

    pub(super) fn has_earlier(&self, ticket: Ticket) -> bool {
        self.first().is_some_and(|first| first < ticket)
    }

    /// 0 if the call does not stand here.
    pub(super) fn wanted_units(&self, ticket: Ticket) -> u32 {
        self.calls.get(&ticket).copied().unwrap_or(0)
    }

    /// Returns the units of the calls before the last one if it is this one. For others, that would take the time to add them up.
    pub(super) fn units_before_last(&self, ticket: Ticket) -> Option<u64> {
        let is_last = self.last() == Some(ticket);
        is_last.then(|| self.units - u64::from(self.wanted_units(ticket)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_the_calls_which_stand_here() {
        let mut standing = Standing::default();
        for (ticket, units) in [(5, 3), (2, 7), (9, 1), (5, 4), (9, u32::MAX)] {
            standing.insert(ticket, units);
        }
        assert_eq!(standing.units_before_last(9), Some(11));
        assert_eq!(standing.units_before_last(5), None);
        assert!(standing.remove(2) && !standing.remove(2));
        assert_eq!(standing.units_before_last(9), Some(4));
        assert!(standing.remove(9));
        assert_eq!(standing.units_before_last(5), Some(0));
        assert_eq!((standing.first(), standing.len()), (Some(5), 1));
    }
}
