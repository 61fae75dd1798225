//! Requests that are decided together.

use std::fmt;

use super::groups::Groups;
use super::requests::{BatchRows, ChangedRow, Requests};
use super::row_name::RowName;
use crate::error::{Error, ErrorKind};

/// Requests that a [change](super::Rows::change) decides together.
pub struct Batch {
    requests: Box<dyn Requests>,
    kind: RowKind,
    names: Vec<RowName>,
    groups: Groups,
    attempt: u32,
    decision: BatchDecision,
    /// Whether a write was returned in this attempt.
    has_writes: bool,
}

/// The kind of the rows of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKind {
    Counts,
    Blocks,
}

/// The state of an attempt.
enum BatchDecision {
    Missing,
    /// There was not one value for each row.
    Failed(Error),
    Made,
}

/// A row to be written.
#[derive(Debug)]
#[non_exhaustive]
pub struct Write<'a> {
    /// The name of the row.
    pub name: &'a RowName,
    /// The position of the name in [`Batch::names`], for example to find the version that was read.
    pub index: usize,
    /// The new bytes. `None` to delete the row.
    pub value: Option<Vec<u8>>,
    /// The time from which the row may be removed, in microseconds since 1970.
    pub expires_at: i64,
    /// The number of the group. Rows of one group are all written or none of them. For a database that finds only when it
    /// writes that others were faster: see [`Written::Except`](super::Written::Except).
    pub group: usize,
}

impl Batch {
    pub(super) fn new(requests: impl Requests + 'static, kind: RowKind) -> Self {
        Self {
            requests: Box::new(requests),
            kind,
            names: Vec::new(),
            groups: Groups::default(),
            attempt: 0,
            decision: BatchDecision::Missing,
            has_writes: false,
        }
    }

    /// Returns the names of the rows, each once, in ascending order of their bytes.
    ///
    /// All are rows of counts, or all are rows of blocked keys. A batch has at most 500 requests, most of them with one row.
    #[must_use]
    pub fn names(&self) -> impl ExactSizeIterator<Item = &RowName> + Clone {
        self.names.iter()
    }

    /// Returns whether these are rows of blocked keys, which should outlive a crash of the database.
    ///
    /// There are 16 such rows, of at most 100 KB each.
    #[must_use]
    pub fn is_of_blocks(&self) -> bool {
        self.kind == RowKind::Blocks
    }

    /// Returns how often these requests were tried before: 0 for the first time.
    ///
    /// A database may first do without locks, and lock the rows of those that have lost.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Decides all requests by the values of their rows, and returns the rows to be written.
    ///
    /// `now` is the time of the database in microseconds since 1970. `values` are in the order of the [names](Self::names);
    /// a row that is missing is `None`.
    ///
    /// A value that another program wrote fails the requests of its row only, and stays. If there is not one value for each
    /// name, all requests fail, and nothing is to be written.
    pub fn decide(&mut self, now: i64, values: Vec<Option<Vec<u8>>>) -> Vec<Write<'_>> {
        let (found, wanted) = (values.len(), self.names.len());
        if found != wanted {
            self.decision = BatchDecision::Failed(miscounted(found, wanted));
            return Vec::new();
        }
        let now = u64::try_from(now).unwrap_or(0);
        let changed = self.requests.decide(now, values);
        self.decision = BatchDecision::Made;
        self.has_writes |= !changed.is_empty();
        let named = |row: ChangedRow| {
            Some(Write {
                name: self.names.get(row.index)?,
                index: row.index,
                value: row.value,
                expires_at: i64::try_from(row.expires_at).unwrap_or(i64::MAX),
                group: self.groups.find(row.index)?,
            })
        };
        changed.into_iter().filter_map(named).collect()
    }

    /// Begins an attempt for the requests whose callers still wait. Returns whether there are any.
    pub(super) fn begin(&mut self, attempt: u32) -> bool {
        let BatchRows { names, groups } = self.requests.begin();
        self.names = names;
        self.groups = groups;
        self.attempt = attempt;
        self.decision = BatchDecision::Missing;
        self.has_writes = false;
        !self.is_finished()
    }

    pub(super) fn is_finished(&self) -> bool {
        self.requests.count() == 0
    }

    /// Returns whether a row may have been written, if the attempt has failed.
    pub(super) fn may_be_written(&self) -> bool {
        self.has_writes
    }

    /// Answers the requests that have happened. The requests of lost groups stay.
    pub(super) fn finish(&mut self, lost: &[usize]) {
        let error = match &self.decision {
            BatchDecision::Missing => Some(undecided()),
            BatchDecision::Failed(error) => Some(error.clone()),
            BatchDecision::Made => lost.iter().find_map(|group| self.unknown_group(*group)),
        };
        if let Some(error) = error {
            return self.fail(&error);
        }
        // Any row of a group stands for it.
        let groups = &self.groups;
        let lost: Vec<_> = lost.iter().map(|row| groups.find(*row)).collect();
        self.requests
            .finish(&|row| lost.contains(&groups.find(row)));
    }

    fn unknown_group(&self, group: usize) -> Option<Error> {
        if self.groups.find(group).is_some() {
            return None;
        }
        let text =
            format!("`Rows::change` has returned the group {group}, which the batch does not have");
        Some(Error::new(ErrorKind::Misconfigured, text))
    }

    /// Fails the requests that are left.
    pub(super) fn fail(&mut self, error: &Error) {
        self.requests.fail(error);
    }
}

fn undecided() -> Error {
    let text = "`Rows::change` has not called `Batch::decide`";
    Error::new(ErrorKind::Misconfigured, text)
}

fn miscounted(found: usize, wanted: usize) -> Error {
    let text = format!("the database has returned {found} values for {wanted} rows");
    Error::new(ErrorKind::InvalidReply, text)
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("kind", &self.kind)
            .field("requests", &self.requests.count())
            .field("rows", &self.names.len())
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}
