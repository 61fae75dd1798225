//! The columns of a log with shares: one position for each share, beside the total position of each run.

use std::ops::Range;

use super::super::bytes::{Bytes, impl_bytes};
use crate::quota::ShareId;

/// The most columns of a log. A further share is counted as a request without one, until a column has no units.
const MAX_COLUMNS: usize = 64;

/// The positions of shares. A row belongs to each entry of the log: to its start, and to each run.
#[derive(Clone, Debug, Default)]
pub(super) struct Columns {
    shares: Vec<ShareId>,
    /// Row by row, each with a position for each share.
    positions: Vec<u32>,
}

impl_bytes!(Columns { shares, positions });

impl Columns {
    pub(super) fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }

    pub(super) fn find(&self, share: Option<ShareId>) -> Option<usize> {
        let share = share?;
        self.shares.iter().position(|own| *own == share)
    }

    pub(super) fn units(&self, column: usize, from: usize, to: usize) -> u32 {
        self.at(to, column).wrapping_sub(self.at(from, column))
    }

    pub(super) fn all_units(&self, from: usize, to: usize) -> u64 {
        (0..self.shares.len())
            .map(|column| u64::from(self.units(column, from, to)))
            .sum()
    }

    fn at(&self, row: usize, column: usize) -> u32 {
        let index = row * self.shares.len() + column;
        self.positions.get(index).copied().unwrap_or(0)
    }

    /// Drops the columns without units in so many rows, and adds one for a share. A row is one entry of the log.
    pub(super) fn replace(&mut self, rows: usize, added: Option<ShareId>) {
        let last = rows.saturating_sub(1);
        let mut kept: Vec<_> = self
            .shares
            .iter()
            .enumerate()
            .filter(|(column, share)| Some(**share) == added || self.units(*column, 0, last) > 0)
            .map(|(column, share)| (Some(column), *share))
            .collect();
        if let Some(share) = added
            && !kept.iter().any(|(_, own)| *own == share)
            && kept.len() < MAX_COLUMNS
        {
            kept.push((None, share));
        }
        let mut positions = Vec::with_capacity(rows * kept.len());
        for row in 0..rows {
            for (column, _) in &kept {
                positions.push(column.map_or(0, |column| self.at(row, column)));
            }
        }
        *self = Self {
            shares: kept.iter().map(|(_, share)| *share).collect(),
            positions,
        };
    }

    /// Adds a row with the positions of the last one, or of 0.
    pub(super) fn repeat_last(&mut self) {
        match self.positions.len().checked_sub(self.shares.len()) {
            Some(from) => self.positions.extend_from_within(from..),
            None => self.positions.resize(self.shares.len(), 0),
        }
    }

    /// Adds units of a share to the last row.
    pub(super) fn charge(&mut self, column: usize, units: u32) {
        if let Some(row) = self.positions.len().checked_sub(self.shares.len())
            && let Some(position) = self.positions.get_mut(row + column)
        {
            *position = position.wrapping_add(units);
        }
    }

    /// Takes units of a share from all rows from this one on.
    pub(super) fn take(&mut self, column: usize, row: usize, units: u32) {
        let width = self.shares.len().max(1);
        for row in self.positions.chunks_mut(width).skip(row) {
            if let Some(position) = row.get_mut(column) {
                *position = position.wrapping_sub(units);
            }
        }
    }

    /// Leaves so many units of all shares in the last row, beyond the row before it.
    pub(super) fn limit_last(&mut self, rows: usize, mut left: u32) {
        let last = rows.saturating_sub(1);
        for column in 0..self.shares.len() {
            let own = self.units(column, last.saturating_sub(1), last);
            let taken = own.saturating_sub(left);
            left -= own - taken;
            self.take(column, last, taken);
        }
    }

    pub(super) fn drain(&mut self, rows: Range<usize>) {
        let width = self.shares.len();
        if rows.end * width <= self.positions.len() {
            self.positions.drain(rows.start * width..rows.end * width);
        }
    }
}
