//! The times of units, for the exact sliding window and for the sliding window in steps.
//!
//! The same rule in Redis: `lua/log.lua`. A log is a list of runs: the units that were charged at one time. A quota is
//! a window over the log, so all quotas of a log share its units. A unit that is charged at *t* counts in
//! [*t*, *t* + window). A window that is longer than any that charged counts like the longest of these: what that one
//! does not need may be gone. With buckets, units are charged at the last moment of the bucket: none returns early, and
//! none more than a bucket late.
//!
//! The position of a run is the number of units charged up to and with it, modulo 2^32. So the units of any runs in a
//! row are one subtraction, and a check of one unit reads only the ends of the log. A refusal changes nothing. Charges
//! drop the runs that no window needs once these are half of all, so a run is moved about once.

use super::super::algorithm_state::AlgorithmState;
use super::super::arithmetic::saturate;
use super::super::bytes::{Bytes, impl_bytes};
use super::super::quota_check::{Changes, Charge, QuotaCheck, QuotaOutcome};
use super::super::share_room::share_room;
use super::entries::{LogEntries, Run};
use crate::decision::{Receipt, Wait};
use crate::quota::ShareId;

/// The capacity below which the runs do not shrink, because intermittent traffic would free and allocate repeatedly.
const MIN_CAPACITY: usize = 16;

/// The charged units, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// The longest window that charged, and the largest limit that charged with it, or the units beyond it.
    longest: u64,
    largest: u32,
    /// How many runs had expired at the newest charge, from which a search begins.
    hint: u32,
    /// The time of the start is the generation of buckets: when the log began, or was credited or moved. Its position is
    /// that before the first run.
    entries: LogEntries,
}

// A search without the hint takes longer, and finds the same.
impl_bytes!(Log {
    longest,
    largest,
    entries;
    Self::default()
});

impl AlgorithmState for Log {
    fn evaluate(&mut self, check: &QuotaCheck<'_>) -> QuotaOutcome {
        let changes = self.rewind(check);
        let outcome = self.decide(check, self.expired(check.window, check.now));
        QuotaOutcome { changes, ..outcome }
    }

    /// Moves units in the future to now, so that none counts for longer than a window. There are such units after the
    /// clock has stepped back. Units that had expired when the newest bucket began, or at the newest charge, do not count
    /// again.
    #[inline]
    fn rewind(&mut self, check: &QuotaCheck<'_>) -> Changes {
        let time = check.charge_time();
        let newest = self.newest().filter(|newest| newest.time() > time);
        if let Some(newest) = newest {
            self.move_back(newest, time, check);
        }
        Changes::RENEWED.only_if(newest.is_some())
    }

    #[inline]
    fn check(&mut self, check: &QuotaCheck<'_>, expires: u64) -> QuotaOutcome {
        let expired = self.expired(check.window, check.now);
        let used = self.units_after(expired).checked_add(check.cost);
        match used.filter(|used| *used <= check.limit) {
            Some(used) if check.cost > 0 && check.shares.is_none() => {
                let oldest = self.run_time(expired);
                let changes = self.push(expired, check, expires);
                let oldest = oldest.unwrap_or_else(|| check.charge_time());
                QuotaOutcome {
                    used,
                    wait: Wait::Zero,
                    // The log is within the limit, so more units are left as soon as the first one returns.
                    reset: oldest + check.window - check.now,
                    changes,
                    receipt: self.receipt(check),
                }
            }
            _ => self.check_room(check, expired, expires),
        }
    }

    fn charge(&mut self, check: &QuotaCheck<'_>, expires: u64) -> Changes {
        let expired = self.expired(check.window, check.now);
        let used = self.units_after(expired);
        // Positions count modulo 2^32.
        let cost = check.cost.min(u32::MAX - used);
        if cost == 0 {
            return Changes::NONE;
        }
        // Units that were charged beyond the limit are kept as those of a limit are.
        let limit = check.limit.max(used + cost);
        let check = QuotaCheck {
            cost,
            limit,
            ..*check
        };
        self.push(expired, &check, expires)
    }

    fn refund(&mut self, check: &QuotaCheck<'_>, charge: Charge, units: u32) -> Changes {
        let changes = self.rewind(check);
        let receipt = charge.receipt;
        let has_buckets = check.bucket > 0;
        let time = if has_buckets {
            receipt.position
        } else {
            charge.time
        };
        let is_same_generation = self
            .entries
            .first()
            .is_some_and(|start| start.time() == receipt.generation);
        let counts = time.saturating_add(self.reach(check.window)) > check.now;
        if counts && (is_same_generation || !has_buckets) {
            self.take(time, units, check.share);
        }
        changes | Changes::EMPTIED.only_if(self.is_empty())
    }

    /// Removes up to `units` units that count in the window of the check, the newest first: these count in every window.
    fn credit(&mut self, check: &QuotaCheck<'_>, units: u32) -> Changes {
        let changes = self.rewind(check);
        let used = self.units_after(self.expired(check.window, check.now));
        let taken = units.min(used);
        if taken == 0 {
            return changes;
        }
        let start = self.end_position(0);
        let end = self.end_position(self.len()).wrapping_sub(taken);
        let left = end.wrapping_sub(start);
        let kept = self
            .entries
            .partition_point(|run| run.position.wrapping_sub(start) < left);
        self.entries.drain(kept + 1..self.entries.len());
        let last_units = end.wrapping_sub(self.end_position(kept.saturating_sub(1)));
        if let Some(columns) = self.entries.columns_mut() {
            columns.limit_last(kept + 1, last_units);
        }
        if let Some(newest) = self.entries.last_mut() {
            newest.position = end;
        }
        self.begin_generation(check);
        changes | Changes::EMPTIED.only_if(self.is_idle(check))
    }

    fn is_idle(&self, check: &QuotaCheck<'_>) -> bool {
        self.expired(self.longest, check.now) == self.len()
    }

    fn longest_window(&self) -> Option<u64> {
        Some(self.longest)
    }
}

// Runs are counted from the oldest. So the first `n` runs end at `entries[n]`, and the next run is `entries[n + 1]`.
impl Log {
    fn check_room(&mut self, check: &QuotaCheck<'_>, expired: usize, expires: u64) -> QuotaOutcome {
        let outcome = self.decide(check, expired);
        if outcome.wait != Wait::Zero || check.cost == 0 {
            return outcome;
        }
        let changes = self.push(expired, check, expires);
        let outcome = self.evaluate(&QuotaCheck { cost: 0, ..*check });
        QuotaOutcome { changes, ..outcome }
    }

    fn decide(&self, check: &QuotaCheck<'_>, expired: usize) -> QuotaOutcome {
        let room = self.room(check, expired);
        let most = self.room(check, self.len());
        QuotaOutcome::new(check, room, most, self.receipt(check), |units| {
            self.has_room_in(check, expired, units)
        })
    }

    /// Returns the units that the share that asks may charge when so many of the oldest runs have expired.
    fn room(&self, check: &QuotaCheck<'_>, expired: usize) -> i64 {
        share_room(check, self.units_after(expired).into(), |share| {
            self.share_units(share, expired)
        })
    }

    fn share_units(&self, share: ShareId, expired: usize) -> u64 {
        let Some(columns) = self.entries.columns() else {
            return 0;
        };
        match columns.find(Some(share)) {
            Some(column) => columns.units(column, expired, self.len()).into(),
            None => 0,
        }
    }

    /// As time passes, no share uses more.
    fn has_room_in(&self, check: &QuotaCheck<'_>, expired: usize, units: i64) -> u64 {
        let mut from = expired + 1;
        let mut to = self.len();
        if self.room(check, from) >= units {
            // Most callers ask for the first unit.
            to = from;
        }
        while from < to {
            let middle = usize::midpoint(from, to);
            if self.room(check, middle) >= units {
                to = middle;
            } else {
                from = middle + 1;
            }
        }
        match self.run_time(from - 1) {
            Some(time) => time + self.reach(check.window) - check.now,
            None => 0,
        }
    }

    #[inline]
    fn push(&mut self, expired: usize, check: &QuotaCheck<'_>, expires: u64) -> Changes {
        let time = check.charge_time();
        let is_wider = (check.window, check.limit) > (self.longest, self.largest);
        if is_wider {
            self.longest = check.window;
            self.largest = check.limit;
        }
        let is_due = expires < time + self.longest;
        let unneeded = if self.longest == check.window {
            expired
        } else {
            self.unneeded(expired, check)
        };
        // A difference of positions tells the units of all runs only if these are fewer than 2^32.
        let is_full = self.units_after(0).checked_add(check.cost).is_none();
        let is_new_share = self.is_new(check.share);
        if is_wider || is_due || is_full || is_new_share || 2 * unneeded >= self.len() {
            self.drop_first(unneeded);
            self.replace_columns(check.share);
            self.hint = saturate(expired.saturating_sub(unneeded) as u64);
        } else {
            self.hint = saturate(expired as u64);
        }
        self.add(time, check);
        Changes::CHARGED | Changes::RENEWED.only_if(is_due)
    }

    #[inline]
    fn is_new(&self, share: Option<ShareId>) -> bool {
        share.is_some()
            && self
                .entries
                .columns()
                .is_none_or(|columns| columns.find(share).is_none())
    }

    #[inline]
    fn replace_columns(&mut self, share: Option<ShareId>) {
        if share.is_none() && self.entries.columns().is_none() {
            return;
        }
        self.entries.replace_columns(share);
    }

    /// Returns how many of the oldest runs are not needed, if a longer window was asked before.
    ///
    /// The newest runs are kept of those that have expired in all windows that are asked now, with as many units as
    /// the largest limit: enough to refuse what the longest window refuses, and to tell the wait.
    fn unneeded(&self, expired: usize, check: &QuotaCheck<'_>) -> usize {
        let unneeded = self.expired(self.longest, check.now);
        let end = self.end_position(expired);
        let starts = self.entries.get(unneeded..=expired).unwrap_or_default();
        let full = starts.partition_point(|start| end.wrapping_sub(start.position) >= self.largest);
        let unneeded = unneeded + full.saturating_sub(1);
        let end = self.end_position(self.len());
        let most = u32::MAX - check.cost;
        let starts = self.entries.get(unneeded..).unwrap_or_default();
        unneeded + starts.partition_point(|start| end.wrapping_sub(start.position) > most)
    }

    #[inline]
    fn add(&mut self, time: u64, check: &QuotaCheck<'_>) {
        if self.entries.is_empty() {
            let generation = if check.bucket > 0 { check.now } else { 0 };
            self.entries.reserve_exact(4);
            self.entries.push(Run::new(generation, 0));
        }
        let position = match self.entries.as_mut_slice() {
            [_, .., newest] if newest.time() == time => {
                newest.position = newest.position.wrapping_add(check.cost);
                return self.charge_share(check);
            }
            entries => entries.last().map_or(0, |newest| newest.position),
        };
        let length = self.entries.len();
        if length == self.entries.capacity() {
            // By half, but a log rarely has more than twice as many runs as the limit.
            let most = (self.largest as usize)
                .saturating_mul(2)
                .saturating_sub(length - 1);
            let growth = (length / 2).max(4).min(most.max(length / 8)).max(1);
            self.entries.reserve_exact(growth);
        }
        self.entries
            .push(Run::new(time, position.wrapping_add(check.cost)));
        self.charge_share(check);
    }

    #[inline]
    fn charge_share(&mut self, check: &QuotaCheck<'_>) {
        if let Some(columns) = self.entries.columns_mut()
            && let Some(column) = columns.find(check.share)
        {
            columns.charge(column, check.cost);
        }
    }

    #[cold]
    fn move_back(&mut self, newest: Run, time: u64, check: &QuotaCheck<'_>) {
        // In buckets, units were charged before the time of the run.
        let latest = newest.time() - check.bucket.saturating_sub(1);
        let expired = self.expired(self.longest, latest);
        let earlier = self.runs().partition_point(|run| run.time() < time);
        self.entries.drain(earlier.max(expired) + 1..self.len());
        if let Some(newest) = self.entries.last_mut() {
            *newest = Run::new(time, newest.position);
        }
        self.drop_first(expired);
        self.begin_generation(check);
    }

    /// Removes up to `units` units of one time and share. Returns whether it removed any.
    pub(in crate::algorithm) fn take(
        &mut self,
        time: u64,
        units: u32,
        share: Option<ShareId>,
    ) -> bool {
        let before = self.runs().partition_point(|run| run.time() < time);
        let Some(run) = self.nth_run(before).filter(|run| run.time() == time) else {
            return false;
        };
        let own = run.position.wrapping_sub(self.end_position(before));
        let mut share_units = own;
        if let Some(columns) = self.entries.columns_mut() {
            match columns.find(share) {
                Some(column) => {
                    share_units = columns.units(column, before, before + 1);
                    columns.take(column, before + 1, share_units.min(units));
                }
                None => {
                    let named = columns.all_units(before, before + 1);
                    share_units = saturate(u64::from(own).saturating_sub(named));
                }
            }
        }
        let taken = share_units.min(units);
        for run in self.entries.iter_mut().skip(before + 1) {
            run.position = run.position.wrapping_sub(taken);
        }
        if taken == own {
            self.entries.drain(before + 1..before + 2);
        }
        taken > 0
    }

    /// Drops the first `count` runs. Frees memory if less than a quarter of it is used then.
    pub(in crate::algorithm) fn drop_first(&mut self, count: usize) {
        let generation = self.entries.first().map_or(0, |start| start.time());
        if count == 0 || count > self.len() {
            return;
        }
        self.entries.drain(0..count);
        if let Some(start) = self.entries.first_mut() {
            *start = Run::new(generation, start.position);
        }
        let length = self.entries.len();
        let capacity = self.entries.capacity();
        if capacity > MIN_CAPACITY && length < capacity / 4 {
            self.entries.shrink_to((2 * length).max(MIN_CAPACITY));
        }
    }

    /// Begins a generation of buckets, in which refunds do not find earlier charges.
    fn begin_generation(&mut self, check: &QuotaCheck<'_>) {
        if check.bucket > 0
            && let Some(start) = self.entries.first_mut()
        {
            *start = Run::new(check.now, start.position);
        }
    }

    pub(in crate::algorithm) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A window counts not farther back than the longest that charged.
    #[inline]
    fn reach(&self, window: u64) -> u64 {
        window.min(self.longest)
    }

    #[inline]
    pub(in crate::algorithm) fn expired(&self, window: u64, now: u64) -> usize {
        let runs = self.runs();
        let Some(edge) = now.checked_sub(self.reach(window)) else {
            return 0;
        };
        // Usually as many as before, or one more.
        let known = self.hint as usize;
        for expired in [known, known + 1] {
            let oldest = runs.get(expired);
            let newest_expired = expired.checked_sub(1).and_then(|index| runs.get(index));
            if oldest.is_some_and(|run| run.time() > edge)
                && newest_expired.is_none_or(|run| run.time() <= edge)
            {
                return expired;
            }
        }
        runs.partition_point(|run| run.time() <= edge)
    }

    #[inline]
    pub(in crate::algorithm) fn units_after(&self, count: usize) -> u32 {
        let runs = self.entries.as_slice();
        let end = runs.last().map_or(0, |newest| newest.position);
        end.wrapping_sub(runs.get(count).map_or(0, |run| run.position))
    }

    /// Without buckets, a refund finds the units by their time.
    #[inline]
    fn receipt(&self, check: &QuotaCheck<'_>) -> Receipt {
        match self.entries.first() {
            Some(start) if check.bucket > 0 => Receipt::new(start.time(), check.charge_time()),
            _ => Receipt::default(),
        }
    }

    #[inline]
    fn runs(&self) -> &[Run] {
        self.entries.get(1..).unwrap_or_default()
    }

    #[inline]
    fn len(&self) -> usize {
        self.runs().len()
    }

    #[inline]
    fn nth_run(&self, count: usize) -> Option<Run> {
        self.runs().get(count).copied()
    }

    #[inline]
    fn end_position(&self, count: usize) -> u32 {
        self.entries.get(count).map_or(0, |run| run.position)
    }

    #[inline]
    fn newest(&self) -> Option<Run> {
        self.runs().last().copied()
    }

    pub(in crate::algorithm) fn run_time(&self, count: usize) -> Option<u64> {
        self.nth_run(count).map(Run::time)
    }

    /// 0 if there is none.
    pub(in crate::algorithm) fn newest_time(&self) -> u64 {
        self.newest().map_or(0, Run::time)
    }

    #[cfg(test)]
    pub(super) fn parts(&self) -> (u64, u32, u64, Vec<(u64, u64)>) {
        let generation = self.entries.first().map_or(0, |start| start.time());
        let runs = self
            .entries
            .iter()
            .zip(self.runs())
            .map(|(start, run)| {
                let units = run.position.wrapping_sub(start.position);
                (run.time(), units.into())
            })
            .collect();
        (self.longest, self.largest, generation, runs)
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Run>()
    }
}
