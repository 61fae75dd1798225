//! The requests of a batch, and the rows that they change.
#![cfg_attr(
    not(test),
    expect(
        clippy::indexing_slicing,
        reason = "`begin` makes the rows and the indexes of the requests, and `decide` one value for each row"
    )
)]

use std::mem;

use smallvec::SmallVec;

use super::groups::Groups;
use super::row_name::RowName;
use crate::error::Error;

/// The content of a row, as requests change it.
pub(super) trait RowValue: Default + Send + Sync + 'static {
    /// Reads a row. Fails for the bytes of another program, which then stay.
    fn read(bytes: &[u8]) -> Result<Self, Error>;

    /// Returns the bytes and the time from which they may be removed. `None` if there is nothing to keep.
    fn write(&self) -> Option<(Vec<u8>, u64)>;
}

/// The request of a caller. It may run several times: only the last run has happened.
pub(super) trait Request<V>: Send + Sync {
    fn names(&self) -> &[RowName];

    fn is_abandoned(&self) -> bool;

    /// Changes the values, which are in the order of the names. Returns which of them are to be written.
    fn run(&mut self, values: &mut [V], now: u64) -> ToWrite;

    /// Sends the caller the answer of the last run, or an error.
    fn finish(self: Box<Self>, outcome: Result<(), Error>);
}

/// The rows of a request that are to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToWrite {
    Nothing,
    All,
    /// The row at this position among those of the request.
    Only(usize),
}

/// The requests of a batch, whatever the content of their rows.
pub(super) trait Requests: Send + Sync {
    /// Begins an attempt: drops the requests whose callers have given up, and returns the rows of the others.
    fn begin(&mut self) -> BatchRows;

    /// Decides the requests by one value for each row. Returns the changed rows.
    fn decide(&mut self, now: u64, values: Vec<Option<Vec<u8>>>) -> Vec<ChangedRow>;

    /// Answers the requests that have happened. Those that have lost a row stay.
    fn finish(&mut self, has_lost: &dyn Fn(usize) -> bool);

    /// Fails the requests that are left.
    fn fail(&mut self, error: &Error);

    fn count(&self) -> usize;
}

/// The rows of a batch.
#[derive(Default)]
pub(super) struct BatchRows {
    /// Distinct, in ascending order.
    pub(super) names: Vec<RowName>,
    pub(super) groups: Groups,
}

/// A row that a batch has changed.
pub(super) struct ChangedRow {
    pub(super) index: usize,
    pub(super) value: Option<Vec<u8>>,
    pub(super) expires_at: u64,
}

/// Requests for rows of one kind.
pub(super) struct RequestsFor<V> {
    requests: Vec<PlacedRequest<V>>,
    rows: Vec<Row<V>>,
}

/// A request and the indexes of its rows.
struct PlacedRequest<V> {
    request: Box<dyn Request<V>>,
    rows: SmallVec<[usize; 1]>,
}

struct Row<V> {
    /// The error of foreign bytes, which stay.
    value: Result<V, Error>,
    is_changed: bool,
}

impl<V: RowValue> RequestsFor<V> {
    pub(super) fn new(requests: Vec<Box<dyn Request<V>>>) -> Self {
        let requests = requests.into_iter().map(|request| PlacedRequest {
            request,
            rows: SmallVec::new(),
        });
        Self {
            requests: requests.collect(),
            rows: Vec::new(),
        }
    }
}

impl<V: RowValue> Requests for RequestsFor<V> {
    fn begin(&mut self) -> BatchRows {
        self.requests
            .retain(|placed| !placed.request.is_abandoned());
        let all = self.requests.iter();
        let mut names: Vec<_> = all
            .flat_map(|placed| placed.request.names())
            .cloned()
            .collect();
        names.sort_unstable();
        names.dedup();
        let mut groups = Groups::single_rows(names.len());
        for placed in &mut self.requests {
            let own = placed.request.names().iter();
            placed.rows = own
                .map(|name| names.partition_point(|other| other < name))
                .collect();
            groups.join(&placed.rows);
        }
        BatchRows { names, groups }
    }

    fn decide(&mut self, now: u64, values: Vec<Option<Vec<u8>>>) -> Vec<ChangedRow> {
        let rows = values.into_iter().map(Row::read);
        self.rows = rows.collect();
        for placed in &mut self.requests {
            placed.run(&mut self.rows, now);
        }
        let rows = self.rows.iter().enumerate();
        rows.filter_map(|(index, row)| row.changed(index)).collect()
    }

    fn finish(&mut self, has_lost: &dyn Fn(usize) -> bool) {
        let mut left = Vec::new();
        for placed in mem::take(&mut self.requests) {
            if placed.rows.iter().any(|row| has_lost(*row)) {
                left.push(placed);
            } else {
                let outcome = placed.foreign_bytes(&self.rows).map_or(Ok(()), Err);
                placed.request.finish(outcome);
            }
        }
        self.requests = left;
    }

    fn fail(&mut self, error: &Error) {
        for placed in self.requests.drain(..) {
            placed.request.finish(Err(error.clone()));
        }
    }

    fn count(&self) -> usize {
        self.requests.len()
    }
}

impl<V: RowValue> PlacedRequest<V> {
    /// Runs the request on its rows, unless one of them has foreign bytes.
    fn run(&mut self, rows: &mut [Row<V>], now: u64) {
        if self.foreign_bytes(rows).is_some() {
            return;
        }
        let mut values: SmallVec<[V; 1]> = SmallVec::new();
        for row in &self.rows {
            values.extend(rows[*row].value.as_mut().ok().map(mem::take));
        }
        let to_write = self.request.run(&mut values, now);
        for (position, (row, value)) in self.rows.iter().zip(values).enumerate() {
            let row = &mut rows[*row];
            row.value = Ok(value);
            row.is_changed |= match to_write {
                ToWrite::Nothing => false,
                ToWrite::All => true,
                ToWrite::Only(changed) => changed == position,
            };
        }
    }

    fn foreign_bytes(&self, rows: &[Row<V>]) -> Option<Error> {
        let own = self.rows.iter();
        own.filter_map(|row| rows[*row].value.as_ref().err())
            .next()
            .cloned()
    }
}

impl<V: RowValue> Row<V> {
    fn read(bytes: Option<Vec<u8>>) -> Self {
        let bytes = bytes.filter(|bytes| !bytes.is_empty());
        Self {
            value: bytes.map_or_else(|| Ok(V::default()), |bytes| V::read(&bytes)),
            is_changed: false,
        }
    }

    fn changed(&self, index: usize) -> Option<ChangedRow> {
        let value = self.value.as_ref().ok().filter(|_| self.is_changed)?;
        let written = value.write();
        let expires_at = written.as_ref().map_or(0, |(_, expires_at)| *expires_at);
        Some(ChangedRow {
            index,
            value: written.map(|(bytes, _)| bytes),
            expires_at,
        })
    }
}
