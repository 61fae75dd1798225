//! The units of a meter that were given back, by their position among all that flowed in. Twin of
//! `lua/holes.lua`.

/// How many holes a meter remembers. Where there are more, the two neighbours with the fewest units
/// become one. A charge between them then gets up to so many units less back, never more.
const MAX_HOLES: usize = 32;

/// Ranges of positions in which units were given back, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Holes(Vec<Hole>);

/// Charges in a row that gave back units. All but the last are closed: their holders can give back no
/// more.
#[derive(Clone, Copy, Debug)]
struct Hole {
    /// The start of the first charge.
    start: u64,
    /// The end of the last charge. If it is open, one less, so that no hole joins behind it: it will count
    /// the holes behind itself.
    end: u64,
    /// How many of their units were given back.
    units: u64,
}

impl Holes {
    /// How many units were given back of what flowed in after a position.
    pub(super) fn after(&self, position: u64) -> u64 {
        let after = self.0.iter().rev();
        let after = after.take_while(|hole| hole.start >= position);
        after.map(|hole| hole.units).sum()
    }

    /// Notes that units of one charge were given back, and whether more of them may be.
    pub(super) fn add(&mut self, start: u64, end: u64, units: u64, is_open: bool) {
        let index = self.0.partition_point(|hole| hole.end <= start);
        let until = end.saturating_sub(is_open.into());
        match self.0.get_mut(index) {
            // Part of it was given back before.
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

    /// Makes a hole and the next one into one, if no charge between them is open.
    fn join(&mut self, index: usize) {
        if let Some([one, next]) = self.0.get(index..).and_then(|holes| holes.first_chunk())
            && one.end == next.start
        {
            self.merge(index);
        }
    }

    /// Returns the first of the two neighbours with the fewest units.
    fn smallest_pair(&self) -> usize {
        let pairs = self.0.iter().zip(self.0.iter().skip(1));
        let units = pairs.map(|(one, next)| one.units + next.units);
        let smallest = units.enumerate().min_by_key(|(_, units)| *units);
        smallest.map_or(0, |(index, _)| index)
    }

    fn merge(&mut self, index: usize) {
        if index + 1 < self.0.len() {
            let next = self.0.remove(index + 1);
            if let Some(hole) = self.0.get_mut(index) {
                hole.end = next.end;
                hole.units += next.units;
            }
        }
    }

    /// Forgets holes before which no unit stands any more, of so many that have flowed in and so many
    /// whole ones that stand.
    pub(super) fn forget_drained(&mut self, poured: u64, standing: u64) {
        let mut given_back = 0;
        let kept = self.0.iter().rev().take_while(|hole| {
            given_back += hole.units;
            standing >= poured.saturating_sub(hole.start + given_back)
        });
        let drained = self.0.len() - kept.count();
        self.0.drain(..drained);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(holes: &Holes) -> Vec<(u64, u64, u64)> {
        let holes = holes.0.iter();
        holes
            .map(|hole| (hole.start, hole.end, hole.units))
            .collect()
    }

    #[test]
    fn charges_in_a_row_are_one_hole_in_whatever_order_they_are_given_back() {
        for order in [[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 2, 0]] {
            let mut holes = Holes::default();
            for charge in order {
                holes.add(5 * charge, 5 * charge + 5, 3, false);
            }
            assert_eq!(shown(&holes), [(0, 15, 9)]);
        }
    }

    #[test]
    fn a_charge_that_may_give_back_more_counts_the_hole_behind_it() {
        let mut holes = Holes::default();
        holes.add(0, 5, 2, true);
        holes.add(5, 10, 5, false);
        assert_eq!(shown(&holes), [(0, 4, 2), (5, 10, 5)]);
        assert_eq!(holes.after(5), 5);
        holes.add(0, 5, 1, false);
        assert_eq!(shown(&holes), [(0, 10, 8)]);
    }

    #[test]
    fn an_open_charge_counts_the_holes_behind_it_alone() {
        let mut holes = Holes::default();
        holes.add(0, 5, 5, false);
        holes.add(10, 15, 2, true);
        holes.add(10, 15, 1, false);
        assert_eq!(shown(&holes), [(0, 5, 5), (10, 15, 3)]);
        assert_eq!([5, 10].map(|end| holes.after(end)), [3, 3]);
        assert_eq!([0, 15, 20].map(|end| holes.after(end)), [8, 0, 0]);
    }

    #[test]
    fn where_there_are_too_many_the_two_smallest_become_one_and_no_charge_gets_more() {
        let mut holes = Holes::default();
        for charge in 0..=MAX_HOLES as u64 {
            let units = if charge < 7 { 3 } else { 1 };
            holes.add(10 * charge, 10 * charge + 5, units, false);
        }
        assert_eq!(holes.0.len(), MAX_HOLES);
        assert_eq!(shown(&holes)[7], (70, 85, 2));
        assert_eq!(holes.after(0), MAX_HOLES as u64 + 1 + 7 * 2);
        // The hole at 80 is behind the charge at 75 to 80, and is not counted there any more.
        assert_eq!(holes.after(80), MAX_HOLES as u64 - 8);
        assert_eq!(holes.after(90), MAX_HOLES as u64 - 8);
    }

    #[test]
    fn a_hole_is_forgotten_once_nothing_stands_before_it() {
        let mut holes = Holes::default();
        holes.add(5, 10, 5, false);
        holes.add(15, 20, 5, false);
        // 5 to 20 of 0 to 20: of the first five one stands, and of the middle five all.
        holes.forget_drained(20, 6);
        assert_eq!(shown(&holes).len(), 2);
        holes.forget_drained(20, 4);
        assert_eq!(shown(&holes), [(15, 20, 5)]);
    }
}
