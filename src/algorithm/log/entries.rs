//! The runs of a log, with the columns of its shares.

use std::mem;
use std::ops::{Deref, DerefMut, Range};

use super::super::bytes::Bytes;
use super::columns::Columns;
use crate::quota::ShareId;

/// The units of one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// The upper and the lower half of the time, so that a run takes 12 bytes.
    time: [u32; 2],
    pub(super) position: u32,
}

/// The start of a log, and then its runs. Nothing if there are no runs.
///
/// A log without shares has no room for columns, as most have none.
#[derive(Clone, Debug)]
pub(super) enum LogEntries {
    Plain(Vec<Run>),
    WithColumns(Box<(Vec<Run>, Columns)>),
}

/// Each run as the difference to the one before, which is small for most.
impl Bytes for LogEntries {
    fn write(&self, bytes: &mut Vec<u8>) {
        (self.len() as u64).write(bytes);
        let mut last = Run::new(0, 0);
        for run in self.iter() {
            run.time().wrapping_sub(last.time()).write(bytes);
            run.position.wrapping_sub(last.position).write(bytes);
            last = *run;
        }
        u8::from(self.columns().is_some()).write(bytes);
        if let Some(columns) = self.columns() {
            columns.write(bytes);
        }
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let length = usize::try_from(u64::read(bytes)?).ok()?;
        // Each run takes two bytes or more, so that a length of foreign bytes reserves no memory.
        if length > bytes.len() / 2 {
            return None;
        }
        let mut last = Run::new(0, 0);
        let mut runs = Vec::with_capacity(length);
        for _ in 0..length {
            let time = last.time().wrapping_add(u64::read(bytes)?);
            last = Run::new(time, last.position.wrapping_add(u32::read(bytes)?));
            runs.push(last);
        }
        Some(Self::from((runs, Option::read(bytes)?)))
    }
}

impl Run {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the halves of a number")]
    pub(super) fn new(time: u64, position: u32) -> Self {
        let time = [(time >> 32) as u32, time as u32];
        Self { time, position }
    }

    #[inline]
    pub(super) fn time(self) -> u64 {
        let [upper, lower] = self.time;
        u64::from(upper) << 32 | u64::from(lower)
    }
}

impl LogEntries {
    #[inline]
    pub(super) fn columns(&self) -> Option<&Columns> {
        match self {
            Self::Plain(_) => None,
            Self::WithColumns(entries) => Some(&entries.1),
        }
    }

    #[inline]
    pub(super) fn columns_mut(&mut self) -> Option<&mut Columns> {
        match self {
            Self::Plain(_) => None,
            Self::WithColumns(entries) => Some(&mut entries.1),
        }
    }

    /// Adds an entry, with the positions of the last one in all columns.
    #[inline]
    pub(super) fn push(&mut self, run: Run) {
        Vec::push(self, run);
        if let Some(columns) = self.columns_mut() {
            columns.repeat_last();
        }
    }

    /// Removes entries, if there are so many.
    pub(super) fn drain(&mut self, entries: Range<usize>) {
        if entries.start < entries.end && entries.end <= self.len() {
            Vec::drain(self, entries.clone());
            if let Some(columns) = self.columns_mut() {
                columns.drain(entries);
            }
        }
    }

    /// Adds a column for a share that is charged, and drops those without units.
    pub(super) fn replace_columns(&mut self, added: Option<ShareId>) {
        let (runs, mut columns) = match mem::take(self) {
            Self::Plain(runs) => (runs, Columns::default()),
            Self::WithColumns(entries) => *entries,
        };
        columns.replace(runs.len(), added);
        *self = Self::from((runs, Some(columns)));
    }
}

impl From<(Vec<Run>, Option<Columns>)> for LogEntries {
    fn from((runs, columns): (Vec<Run>, Option<Columns>)) -> Self {
        match columns.filter(|columns| !columns.is_empty()) {
            None => Self::Plain(runs),
            Some(columns) => Self::WithColumns(Box::new((runs, columns))),
        }
    }
}

impl Default for LogEntries {
    fn default() -> Self {
        Self::Plain(Vec::new())
    }
}

impl Deref for LogEntries {
    type Target = Vec<Run>;

    #[inline]
    fn deref(&self) -> &Vec<Run> {
        match self {
            Self::Plain(runs) => runs,
            Self::WithColumns(entries) => &entries.0,
        }
    }
}

impl DerefMut for LogEntries {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<Run> {
        match self {
            Self::Plain(runs) => runs,
            Self::WithColumns(entries) => &mut entries.0,
        }
    }
}
