//! The units of a log as runs of eight bytes, one for each microsecond in which units were charged.
//!
//! A run is one integer: its time since a common base, and its number of units. Ten units at ten times take
//! 80 bytes, and 100 000 units at one time take eight. Units that do not fit into a run go into another run of
//! the same time.

use super::super::arithmetic::saturate;

/// The bits of a run for its number of units. The other 45 bits are its time: 2^45 microseconds are 407 days,
/// and no window is longer than 366 days.
const UNIT_BITS: u32 = 19;
const MAX_UNITS: u64 = (1 << UNIT_BITS) - 1;
const MAX_TIME: u64 = u64::MAX >> UNIT_BITS;

/// The capacity below which a buffer does not shrink, because intermittent traffic would free and allocate it
/// repeatedly.
const MIN_CAPACITY: usize = 16;

/// The length up to which a full log moves its runs in place of growing.
const FEW_RUNS: usize = 64;

/// The charged units, oldest first.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(
    feature = "serde",
    serde(from = "Vec<(u64, u32)>", into = "Vec<(u64, u32)>")
)]
pub(super) struct Runs {
    packed: Vec<u64>,
    /// The index of the first run that counts, as of the last call of `skip_expired`.
    start: u32,
    /// The units of the runs that count.
    units: u32,
    base: u64,
}

/// The units charged at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) time: u64,
    pub(super) units: u32,
}

#[cfg(feature = "serde")]
impl From<Runs> for Vec<(u64, u32)> {
    fn from(runs: Runs) -> Self {
        runs.iter().map(|run| (run.time, run.units)).collect()
    }
}

#[cfg(feature = "serde")]
impl From<Vec<(u64, u32)>> for Runs {
    /// Expects the times in ascending order, as they were serialized.
    fn from(list: Vec<(u64, u32)>) -> Self {
        let mut runs = Self::default();
        for (time, units) in list {
            let latest = runs.newest().map_or(0, |run| run.time);
            runs.push(time.max(latest), units, u32::MAX);
        }
        runs
    }
}

impl Runs {
    /// Returns whether no run is stored, neither one that counts nor an expired one.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.packed.is_empty()
    }

    /// Returns the number of units that count.
    #[inline]
    pub(super) fn units(&self) -> u32 {
        self.units
    }

    /// Returns the oldest run that counts.
    #[inline]
    pub(super) fn first(&self) -> Option<Run> {
        self.counting().first().map(|run| self.unpack(*run))
    }

    /// Returns the newest run, which may have expired.
    #[inline]
    pub(super) fn newest(&self) -> Option<Run> {
        self.packed.last().map(|run| self.unpack(*run))
    }

    /// Returns the newest run that was skipped.
    #[inline]
    pub(super) fn last_skipped(&self) -> Option<Run> {
        let index = self.start.checked_sub(1)?;
        self.packed.get(index as usize).map(|run| self.unpack(*run))
    }

    /// Returns the runs that count.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = Run> {
        self.counting().iter().map(|run| self.unpack(*run))
    }

    /// Skips the oldest runs, as long as `is_expired` returns true for their time. The others count, also those that
    /// an earlier call has skipped.
    #[inline]
    pub(super) fn skip_expired(&mut self, is_expired: impl Fn(u64) -> bool) {
        while let Some(run) = self.last_skipped()
            && !is_expired(run.time)
        {
            self.start -= 1;
            self.units += run.units;
        }
        while let Some(run) = self.first()
            && is_expired(run.time)
        {
            self.start += 1;
            self.units -= run.units;
        }
    }

    /// Returns the time at which the unit at `index` was charged. The oldest unit has index 0.
    ///
    /// If each run is one unit, this is one lookup. Otherwise it walks from the nearer end. To find when a cost
    /// fits, it visits at most as many runs as the cost, unless the limit was lowered.
    pub(super) fn time_of(&self, index: u32) -> u64 {
        let counting = self.counting();
        if counting.len() == self.units as usize {
            return counting
                .get(index as usize)
                .map_or(0, |run| self.unpack(*run).time);
        }
        let found = if index < self.units / 2 {
            let mut before = 0;
            self.iter().find(|run| {
                before += run.units;
                before > index
            })
        } else {
            let mut first = self.units;
            self.iter().rev().find(|run| {
                first -= run.units;
                first <= index
            })
        };
        found.map_or(0, |run| run.time)
    }

    /// Adds units at a time that is not before the newest run. Grows the buffer to about `limit` runs at most.
    ///
    /// The skipped runs no longer matter, because they have expired before the newest run. Their memory is used
    /// again.
    #[inline]
    pub(super) fn push(&mut self, time: u64, units: u32, limit: u32) {
        if self.start > 0 {
            self.shrink();
        }
        if self.is_empty() {
            self.base = time;
        }
        if time - self.base > MAX_TIME {
            self.rebase();
        }
        let time = (time - self.base).min(MAX_TIME);
        let mut left = u64::from(units);
        if let Some(last) = self.packed.last_mut()
            && *last >> UNIT_BITS == time
        {
            let more = left.min(MAX_UNITS - (*last & MAX_UNITS));
            *last += more;
            left -= more;
        }
        while left > 0 {
            let more = left.min(MAX_UNITS);
            self.make_room(limit);
            self.packed.push(time << UNIT_BITS | more);
            left -= more;
        }
        self.units += units;
    }

    /// Drops up to `units` units that count, the oldest first, and all skipped runs.
    pub(super) fn drop_first(&mut self, units: u32) {
        let mut left = units;
        while let Some(run) = self.first()
            && run.units <= left
        {
            self.start += 1;
            self.units -= run.units;
            left -= run.units;
        }
        if let Some(first) = self.packed.get_mut(self.start as usize) {
            *first -= u64::from(left);
            self.units -= left;
        }
        self.drop_skipped();
        self.shrink();
    }

    /// Drops the runs after `time`, and all skipped runs. Returns the number of units after `time`.
    pub(super) fn drop_after(&mut self, time: u64) -> u32 {
        self.drop_skipped();
        let mut dropped = 0;
        while let Some(run) = self.newest()
            && run.time > time
        {
            self.packed.pop();
            self.units -= run.units;
            dropped += run.units;
        }
        dropped
    }

    /// Removes up to `units` units of one time, and all skipped runs. Returns the number of removed units.
    pub(super) fn take(&mut self, time: u64, units: u32) -> u32 {
        self.drop_skipped();
        let Some(time) = time.checked_sub(self.base) else {
            return 0;
        };
        let at = self.packed.partition_point(|run| run >> UNIT_BITS < time);
        let mut taken = 0;
        for run in self.packed.iter_mut().skip(at) {
            if *run >> UNIT_BITS != time || taken == u64::from(units) {
                break;
            }
            let more = (*run & MAX_UNITS).min(u64::from(units) - taken);
            *run -= more;
            taken += more;
        }
        self.packed.retain(|run| run & MAX_UNITS > 0);
        let taken = saturate(taken);
        self.units -= taken;
        taken
    }

    #[inline]
    fn counting(&self) -> &[u64] {
        self.packed.get(self.start as usize..).unwrap_or_default()
    }

    #[inline]
    fn unpack(&self, run: u64) -> Run {
        Run {
            time: self.base + (run >> UNIT_BITS),
            units: saturate(run & MAX_UNITS),
        }
    }

    /// Sets the base to the time of the oldest run.
    fn rebase(&mut self) {
        self.drop_skipped();
        let Some(first) = self.packed.first().map(|run| run >> UNIT_BITS) else {
            return;
        };
        for run in &mut self.packed {
            *run -= first << UNIT_BITS;
        }
        self.base += first;
    }

    /// Makes room for one more run.
    ///
    /// If skipped runs take a fifth of the buffer, or if the log is full and short, it moves the runs to reuse
    /// their space. Otherwise the buffer grows by half, but beyond the limit only by a quarter. So a run is
    /// moved only a few times.
    #[inline]
    fn make_room(&mut self, limit: u32) {
        let (length, start) = (self.packed.len(), self.start as usize);
        if length < self.packed.capacity() {
            return;
        }
        let is_full = length >= limit as usize;
        if start > 0 && (start * 5 >= length || is_full && length <= FEW_RUNS) {
            self.drop_skipped();
        } else {
            let max_growth = (limit as usize)
                .saturating_sub(length)
                .max(length / 4)
                .max(1);
            self.packed
                .reserve_exact((length / 2).max(5).min(max_growth));
        }
    }

    /// Drops the skipped runs if no others are stored. Frees memory if less than a quarter of it is used.
    #[inline]
    fn shrink(&mut self) {
        let capacity = self.packed.capacity();
        if self.counting().is_empty() {
            self.packed.clear();
            self.start = 0;
        }
        if capacity > MIN_CAPACITY && self.counting().len() < capacity / 4 {
            self.drop_skipped();
            let capacity = (self.packed.len() * 2).max(MIN_CAPACITY);
            self.packed.shrink_to(capacity);
        }
    }

    /// Drops the skipped runs, and moves the others to the start of the buffer.
    fn drop_skipped(&mut self) {
        self.packed.drain(..self.start as usize);
        self.start = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: u64 = 366 * 86_400_000_000;

    fn times_and_units(runs: &Runs) -> Vec<(u64, u32)> {
        runs.iter().map(|run| (run.time, run.units)).collect()
    }

    #[test]
    fn units_of_one_time_may_take_several_runs_and_are_removed_from_all() {
        let mut runs = Runs::default();
        runs.push(7, u32::MAX, u32::MAX);
        assert_eq!(runs.units(), u32::MAX);
        assert!(runs.iter().all(|run| run.time == 7));
        assert_eq!(runs.time_of(u32::MAX - 1), 7);
        assert_eq!(runs.take(7, u32::MAX - 3), u32::MAX - 3);
        assert_eq!(times_and_units(&runs), [(7, 3)]);
    }

    #[test]
    fn the_base_moves_when_times_no_longer_fit_into_a_run() {
        let mut runs = Runs::default();
        for year in 1..10 {
            let now = year * YEAR;
            runs.skip_expired(|time| time + YEAR < now);
            runs.push(now, 2, 100);
            let kept = (year - 1).max(1)..=year;
            let expected: Vec<_> = kept.map(|year| (year * YEAR, 2)).collect();
            assert_eq!(times_and_units(&runs), expected);
        }
    }

    #[test]
    fn a_buffer_is_reused_and_does_not_exceed_the_limit() {
        let mut runs = Runs::default();
        for now in 0..1_000 {
            runs.skip_expired(|time| time + 10 <= now);
            runs.push(now, 1, 10);
        }
        assert_eq!((runs.units(), runs.packed.capacity()), (10, 10));
    }

    #[test]
    fn a_long_log_at_its_limit_is_rarely_moved() {
        let (mut runs, mut moved) = (Runs::default(), 0);
        for now in 0..20_000 {
            let start = runs.start;
            runs.skip_expired(|time| time + 1_000 <= now);
            runs.push(now, 1, 1_000);
            moved += u32::from(runs.start < start);
        }
        assert!(moved <= 100, "{moved}");
        assert!(
            runs.packed.capacity() <= 1_300,
            "{}",
            runs.packed.capacity()
        );
    }

    #[test]
    fn a_large_buffer_is_freed_when_little_is_left() {
        let mut runs = Runs::default();
        for now in 0..10_000 {
            runs.push(now, 1, u32::MAX);
        }
        runs.skip_expired(|time| time < 9_991);
        runs.push(10_000, 1, u32::MAX);
        assert!(runs.packed.capacity() <= 20, "{}", runs.packed.capacity());
        assert_eq!(runs.units(), 10);
        assert_eq!(runs.time_of(3), 9_994);
    }

    #[test]
    fn whole_runs_and_part_of_one_are_dropped_oldest_first() {
        let mut runs = Runs::default();
        for (time, units) in [(1, 3), (2, 1), (5, 4)] {
            runs.push(time, units, 100);
        }
        runs.drop_first(2);
        assert_eq!(times_and_units(&runs), [(1, 1), (2, 1), (5, 4)]);
        runs.drop_first(2);
        assert_eq!(times_and_units(&runs), [(5, 4)]);
        runs.drop_first(3);
        assert_eq!((times_and_units(&runs), runs.units()), (vec![(5, 1)], 1));
        runs.drop_first(u32::MAX);
        assert!(runs.is_empty() && runs.units() == 0);
    }

    #[test]
    fn a_unit_is_found_by_its_index_from_both_ends() {
        let mut runs = Runs::default();
        for (time, units) in [(1, 3), (2, 1), (5, 4)] {
            runs.push(time, units, 100);
        }
        let times: Vec<_> = (0..8).map(|index| runs.time_of(index)).collect();
        assert_eq!(times, [1, 1, 1, 2, 5, 5, 5, 5]);
    }
}
