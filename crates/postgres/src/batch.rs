//! One batch: the statement that reads its rows, the decisions, and the statement that writes them.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::mem;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Executor, Row as _, raw_sql};
use tollgate::Error;
use tollgate::store::Counters;

use crate::error::{failed, malformed, not_locked};
use crate::names::{Names, RowName, Swap};
use crate::request::Request;

/// How a batch reads its rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Without a lock. Loses the groups of which another process has written a row meanwhile.
    Optimistic,
    /// Under locks that are held until the rows are written. Loses none.
    Locked,
}

/// A row as it was read, and what the requests have made of it.
struct Row {
    name: RowName,
    version: i64,
    counters: Result<Counters, Error>,
    is_changed: bool,
    /// The index of another row of the same group, or its own.
    parent: usize,
}

/// The rows of a batch. Rows that a request has in common are in one group, which is written as a whole or not at all.
struct Rows(Vec<Row>);

/// The rows of one request, as indexes.
type Indexes = Vec<usize>;

/// Runs the requests, and answers and removes those that were decided. Those that are left lost their rows to another
/// process, and have not happened. After an error, it is unknown whether those that are left have happened.
///
/// Every statement is a simple query, so that the server may be behind a pooler that changes the connection between two
/// statements. The server keeps the plans, since the statements only call functions.
pub(crate) async fn run(
    names: &Names,
    connection: &mut PgConnection,
    requests: &mut Vec<Box<dyn Request>>,
    mode: Mode,
) -> Result<(), Error> {
    let (mut rows, indexes) = Rows::of(requests);
    let row_names = rows.0.iter().map(|row| &row.name);
    let sql = match mode {
        Mode::Optimistic => names.read(row_names),
        Mode::Locked => names.lock(row_names),
    };
    let read = connection.fetch_all(raw_sql(&sql)).await;
    let now = rows.fill(&read.map_err(failed)?)?;
    let each = requests.iter_mut().zip(&indexes);
    let outcomes: Vec<_> = each
        .map(|(request, indexes)| rows.run(request.as_mut(), indexes, now))
        .collect();
    let swaps = rows.swaps();
    let mut sql = String::new();
    if !swaps.is_empty() {
        sql = names.swap(&swaps, new_version());
    }
    if mode == Mode::Locked {
        sql.push_str("; COMMIT");
    }
    let mut lost = Vec::new();
    if !sql.is_empty() {
        let groups = connection.fetch_all(raw_sql(&sql)).await;
        for group in groups.map_err(failed)? {
            let group: i32 = group.try_get(0).map_err(failed)?;
            lost.push(usize::try_from(group).map_err(|_| malformed())?);
        }
    }
    if mode == Mode::Locked && !lost.is_empty() {
        return Err(not_locked());
    }
    let decided = mem::take(requests).into_iter().zip(indexes).zip(outcomes);
    for ((request, indexes), outcome) in decided {
        let group = indexes.first().map(|index| rows.group(*index));
        if group.is_some_and(|group| lost.contains(&group)) {
            requests.push(request);
        } else {
            request.finish(outcome);
        }
    }
    Ok(())
}

impl Rows {
    /// Returns the rows of the requests, each once, and which of them each request has.
    fn of(requests: &[Box<dyn Request>]) -> (Self, Vec<Indexes>) {
        let mut rows = Self(Vec::new());
        let mut known = HashMap::new();
        let indexes = requests.iter().map(|request| {
            let names = request.names().iter();
            let indexes = names.map(|name| {
                *known.entry(name.clone()).or_insert_with(|| {
                    rows.0.push(Row {
                        name: name.clone(),
                        version: 0,
                        counters: Ok(Counters::new()),
                        is_changed: false,
                        parent: rows.0.len(),
                    });
                    rows.0.len() - 1
                })
            });
            let indexes: Indexes = indexes.collect();
            rows.join(&indexes);
            indexes
        });
        let indexes = indexes.collect();
        (rows, indexes)
    }

    /// Makes one group of the groups of these rows.
    fn join(&mut self, indexes: &[usize]) {
        let groups: Vec<_> = indexes.iter().map(|index| self.group(*index)).collect();
        if let Some((first, others)) = groups.split_first() {
            for group in others {
                if let Some(row) = self.0.get_mut(*group) {
                    row.parent = *first;
                }
            }
        }
    }

    /// Returns the row that stands for the group of a row.
    fn group(&self, mut index: usize) -> usize {
        while let Some(row) = self.0.get(index).filter(|row| row.parent != index) {
            index = row.parent;
        }
        index
    }

    /// Fills in what the server has replied. Returns its time.
    fn fill(&mut self, read: &[PgRow]) -> Result<u64, Error> {
        if read.len() != self.0.len() {
            return Err(malformed());
        }
        let mut now = 0;
        for (row, read) in self.0.iter_mut().zip(read) {
            row.version = read.try_get(0).map_err(failed)?;
            let value: Option<Vec<u8>> = read.try_get(1).map_err(failed)?;
            if let Some(value) = value {
                row.counters = Counters::from_bytes(&value);
            }
            let time: i64 = read.try_get(2).map_err(failed)?;
            now = now.max(u64::try_from(time).unwrap_or(0));
        }
        Ok(now)
    }

    /// Runs a request on its rows. Fails if one of them has foreign bytes, which then stay.
    fn run(&mut self, request: &mut dyn Request, indexes: &[usize], now: u64) -> Result<(), Error> {
        let own = || indexes.iter().filter_map(|index| self.0.get(*index));
        if let Some(error) = own().find_map(|row| row.counters.as_ref().err()) {
            return Err(error.clone());
        }
        let mut counters = Vec::with_capacity(indexes.len());
        for index in indexes {
            if let Some(Ok(own)) = self.0.get_mut(*index).map(|row| &mut row.counters) {
                counters.push(mem::take(own));
            }
        }
        let is_changed = request.run(&mut counters, now);
        for (index, counters) in indexes.iter().zip(counters) {
            if let Some(row) = self.0.get_mut(*index) {
                row.counters = Ok(counters);
                row.is_changed |= is_changed;
            }
        }
        Ok(())
    }

    /// Returns what has to be written of the rows.
    fn swaps(&self) -> Vec<Swap<'_>> {
        let rows = self.0.iter().enumerate();
        let changed = rows.filter_map(|(index, row)| {
            let counters = row.counters.as_ref().ok().filter(|_| row.is_changed)?;
            // Without an end, there is nothing to keep.
            let (value, expires_at) = match counters.expires_at() {
                Some(expires_at) => (counters.to_bytes(), expires_at),
                None => (Vec::new(), 0),
            };
            Some(Swap {
                group: self.group(index),
                name: &row.name,
                version: row.version,
                value,
                expires_at: i64::try_from(expires_at).unwrap_or(i64::MAX),
            })
        });
        changed.collect()
    }
}

/// Returns a version that no row has had: 62 random bits. 0 is no row.
fn new_version() -> i64 {
    let random = RandomState::new().hash_one(0);
    i64::try_from(random >> 2).unwrap_or(i64::MAX).max(1)
}
