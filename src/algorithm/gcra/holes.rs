//! The refunded units of a [`Gcra`](super::gcra::Gcra), by their position in its inflow. `lua/gcra_refund.lua` does
//! the same in Redis.

#![allow(
    clippy::indexing_slicing,
    reason = "the indexes of holes are found in the same list"
)]

use super::super::bytes::{Bytes, impl_bytes};

/// The most holes of a key. One more hole merges the two neighbours with the fewest units. A refund of a
/// charge between those two may then take fewer units, by the units of the holes, but never more.
const MAX_HOLES: usize = 32;

/// The ranges of positions in which units were refunded, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Holes(Vec<Hole>);

/// Adjacent charges of which units were refunded. All but the last one are closed: no later refund can take
/// more of their units.
#[derive(Clone, Copy, Debug)]
struct Hole {
    /// The start of the first charge.
    start: u64,
    /// The end of the last charge. One less if that charge is open, so that no later hole joins this one: a
    /// later refund of the open charge has to count the holes after it.
    end: u64,
    /// The refunded units of these charges.
    units: u64,
}

impl_bytes!(Hole { start, end, units });
impl_bytes!(Holes { 0 });

impl Holes {
    pub(super) fn units_after(&self, position: u64) -> u64 {
        self.0
            .iter()
            .rev()
            .take_while(|hole| hole.start >= position)
            .map(|hole| hole.units)
            .sum()
    }

    /// Adds refunded units of one charge. An open charge may be refunded again.
    pub(super) fn add(&mut self, start: u64, end: u64, units: u64, is_open: bool) {
        let index = self.0.partition_point(|hole| hole.end <= start);
        let until = end.saturating_sub(is_open.into());
        match self.0.get_mut(index) {
            // Part of the charge was refunded before.
            Some(hole) if hole.start < end => {
                hole.units += units;
                hole.end = hole.end.max(until);
            }
            _ => {
                let hole = Hole {
                    start,
                    end: until,
                    units,
                };
                self.0.insert(index, hole);
            }
        }
        self.join(index);
        if let Some(before) = index.checked_sub(1) {
            self.join(before);
        }
        if self.0.len() > MAX_HOLES {
            self.merge(self.smallest_pair());
        }
    }

    /// Merges a hole with the next one if they touch. Then no charge between them is open.
    fn join(&mut self, index: usize) {
        if let [one, next, ..] = self.0[index..]
            && one.end == next.start
        {
            self.merge(index);
        }
    }

    fn smallest_pair(&self) -> usize {
        self.0
            .iter()
            .zip(self.0.iter().skip(1))
            .map(|(one, next)| one.units + next.units)
            .enumerate()
            .min_by_key(|(_, units)| *units)
            .map_or(0, |(index, _)| index)
    }

    /// Merges a hole with the next one.
    fn merge(&mut self, index: usize) {
        let next = self.0.remove(index + 1);
        let hole = &mut self.0[index];
        hole.end = next.end;
        hole.units += next.units;
    }

    /// Drops the holes whose earlier units have all drained. `level` is the whole units of the level.
    pub(super) fn drop_drained(&mut self, inflow: u64, level: u64) {
        let mut refunded = 0;
        let kept = self.0.iter().rev().take_while(|hole| {
            refunded += hole.units;
            level >= inflow.saturating_sub(hole.start + refunded)
        });
        let drained = self.0.len() - kept.count();
        self.0.drain(..drained);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(holes: &Holes) -> Vec<(u64, u64, u64)> {
        holes
            .0
            .iter()
            .map(|hole| (hole.start, hole.end, hole.units))
            .collect()
    }

    #[test]
    fn refunds_of_adjacent_charges_make_one_hole_in_any_order() {
        for order in [[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 2, 0]] {
            let mut holes = Holes::default();
            for charge in order {
                holes.add(5 * charge, 5 * charge + 5, 3, false);
            }
            assert_eq!(shown(&holes), [(0, 15, 9)]);
        }
    }

    #[test]
    fn an_open_charge_does_not_join_the_hole_after_it() {
        let mut holes = Holes::default();
        holes.add(0, 5, 2, true);
        holes.add(5, 10, 5, false);
        assert_eq!(shown(&holes), [(0, 4, 2), (5, 10, 5)]);
        assert_eq!(holes.units_after(5), 5);
        holes.add(0, 5, 1, false);
        assert_eq!(shown(&holes), [(0, 10, 8)]);
    }

    #[test]
    fn an_open_charge_counts_only_the_holes_after_it() {
        let mut holes = Holes::default();
        holes.add(0, 5, 5, false);
        holes.add(10, 15, 2, true);
        holes.add(10, 15, 1, false);
        assert_eq!(shown(&holes), [(0, 5, 5), (10, 15, 3)]);
        assert_eq!([5, 10].map(|end| holes.units_after(end)), [3, 3]);
        assert_eq!([0, 15, 20].map(|end| holes.units_after(end)), [8, 0, 0]);
    }

    #[test]
    fn too_many_holes_merge_the_two_smallest_and_no_refund_takes_more() {
        let mut holes = Holes::default();
        for charge in 0..=MAX_HOLES as u64 {
            let units = if charge < 7 { 3 } else { 1 };
            holes.add(10 * charge, 10 * charge + 5, units, false);
        }
        assert_eq!(holes.0.len(), MAX_HOLES);
        assert_eq!(shown(&holes)[7], (70, 85, 2));
        assert_eq!(holes.units_after(0), MAX_HOLES as u64 + 1 + 7 * 2);
        // The hole at 80 to 85 was merged with the one before. A refund of the charge at 75 to 80 no longer
        // counts it.
        assert_eq!(holes.units_after(80), MAX_HOLES as u64 - 8);
        assert_eq!(holes.units_after(90), MAX_HOLES as u64 - 8);
    }

    #[test]
    fn a_hole_is_dropped_once_all_earlier_units_have_drained() {
        let mut holes = Holes::default();
        holes.add(5, 10, 5, false);
        holes.add(15, 20, 5, false);
        // 20 units were charged and 10 refunded. One of the first five is left, and all of the middle
        // five.
        holes.drop_drained(20, 6);
        assert_eq!(shown(&holes).len(), 2);
        holes.drop_drained(20, 4);
        assert_eq!(shown(&holes), [(15, 20, 5)]);
    }
}
