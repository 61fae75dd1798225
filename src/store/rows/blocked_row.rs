//! The rows of blocked keys, and the operations on them.
//!
//! A row is a text: a header, and a line for each blocked key, with the limiter, the key and the end of the block in
//! microseconds since 1970. The keys of one row have the same hash, so that a block writes one row.

use std::fmt::Write as _;
use std::time::Duration;

use super::call::Operation;
use super::requests::{RowValue, ToWrite};
use super::row_name::RowName;
use crate::clock::micros_rounded_up;
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::quota::fnv_1a;
use crate::store::block_list::{BlockList, SharedReading, has_room};
use crate::store::requests::Block;

/// A row of a full list has about 50 KB, and all of them are read once a second.
const ROWS: u32 = 16;

/// The first line of a row.
const HEADER: &str = "tollgate blocks 1";

/// The blocked keys of one row. Keys are parsed only where they are needed, because a list may have 10 000.
#[derive(Default)]
pub(super) struct BlockedRow {
    lines: Vec<BlockedLine>,
}

struct BlockedLine {
    /// The limiter and the key, with a space between.
    names: String,
    /// In microseconds of the store's clock.
    until: u64,
}

impl BlockedLine {
    fn parse(line: &str) -> Option<Self> {
        let (names, until) = line.rsplit_once(' ')?;
        Some(Self {
            names: names.to_owned(),
            until: until.parse().ok()?,
        })
    }

    fn keys(&self, now: u64) -> Option<(Key, Key, Duration)> {
        let (limiter, key) = self.names.split_once(' ')?;
        let left = Duration::from_micros(self.until.saturating_sub(now));
        Some((Key::from_stored(limiter)?, Key::from_stored(key)?, left))
    }

    fn belongs_to(&self, limiter: &str) -> bool {
        let rest = self.names.strip_prefix(limiter);
        rest.is_some_and(|rest| rest.starts_with(' '))
    }
}

impl BlockedRow {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(bytes).ok()?.lines();
        if lines.next() != Some(HEADER) {
            return None;
        }
        let lines: Option<Vec<_>> = lines.map(BlockedLine::parse).collect();
        lines.map(|lines| Self { lines })
    }

    fn blocked(&self, now: u64) -> impl Iterator<Item = &BlockedLine> {
        self.lines.iter().filter(move |line| line.until > now)
    }
}

impl RowValue for BlockedRow {
    fn read(bytes: &[u8]) -> Result<Self, Error> {
        Self::parse(bytes).ok_or_else(foreign)
    }

    fn write(&self) -> Option<(Vec<u8>, u64)> {
        let expires_at = self.lines.iter().map(|line| line.until).max()?;
        let mut text = format!("{HEADER}\n");
        for line in &self.lines {
            // Writing to a text does not fail.
            let _ = writeln!(text, "{} {}", line.names, line.until);
        }
        Some((text.into_bytes(), expires_at))
    }
}

fn foreign() -> Error {
    let text = "the stored bytes are no blocked keys of this version: remove them";
    Error::new(ErrorKind::InvalidReply, text).for_one_check()
}

fn names() -> Vec<RowName> {
    (0..ROWS).map(RowName::blocks).collect()
}

fn row_number(key: &Key) -> usize {
    let number = fnv_1a(key.as_str().as_bytes()) % ROWS;
    usize::try_from(number).unwrap_or(0)
}

/// Blocks or unblocks a key. The answer is whether it took effect.
pub(super) struct BlockKey {
    limiter: Key,
    key: Key,
    duration: Duration,
    is_automatic: bool,
    /// The list of this process, and its time at the call.
    list: BlockList,
    asked_at: u64,
}

impl BlockKey {
    pub(super) fn new(block: Block<'_>, list: BlockList) -> Self {
        Self {
            limiter: block.limiter.clone(),
            key: block.key.clone(),
            duration: block.duration,
            is_automatic: block.is_automatic,
            asked_at: list.clock().now(),
            list,
        }
    }

    fn has_room(&self, rows: &[BlockedRow], now: u64) -> bool {
        let blocked = || rows.iter().flat_map(|row| row.blocked(now));
        let of_limiter = blocked().filter(|line| line.belongs_to(self.limiter.as_str()));
        has_room(self.is_automatic, blocked().count(), || of_limiter.count())
    }
}

impl Operation for BlockKey {
    type Value = BlockedRow;
    type Answer = bool;

    fn names(&self) -> Vec<RowName> {
        names()
    }

    fn run(&mut self, values: &mut [BlockedRow], now: u64) -> (Result<bool, Error>, ToWrite) {
        let position = row_number(&self.key);
        let has_room = self.has_room(values, now);
        let Some(row) = values.get_mut(position) else {
            return (Err(foreign()), ToWrite::Nothing);
        };
        let names = format!("{} {}", self.limiter.as_str(), self.key.as_str());
        let is_blocked = row.blocked(now).any(|line| line.names == names);
        if self.is_automatic && is_blocked && !self.duration.is_zero() {
            return (Ok(false), ToWrite::Nothing);
        }
        if !is_blocked && !has_room && !self.duration.is_zero() {
            return (Err(BlockList::full()), ToWrite::Nothing);
        }
        row.lines
            .retain(|line| line.until > now && line.names != names);
        if !self.duration.is_zero() {
            let until = now.saturating_add(micros_rounded_up(self.duration));
            row.lines.push(BlockedLine { names, until });
        }
        (Ok(true), ToWrite::Only(position))
    }

    fn take_effect(self, answer: &bool) {
        if *answer {
            // The database has decided, so that the list of this process does not.
            let block = Block::new(&self.limiter, &self.key, self.duration);
            let _ = self.list.put_shared(block, self.asked_at);
        }
    }
}

/// Reads all blocked keys into the list of this process.
pub(super) struct RefreshBlocks {
    list: BlockList,
    reading: SharedReading,
}

impl RefreshBlocks {
    pub(super) fn new(list: BlockList) -> Self {
        let reading = SharedReading {
            blocks: Vec::new(),
            read_at: 0,
            asked_at: list.clock().now(),
            may_be_lost: false,
        };
        Self { list, reading }
    }
}

impl Operation for RefreshBlocks {
    type Value = BlockedRow;
    type Answer = ();

    fn names(&self) -> Vec<RowName> {
        names()
    }

    fn run(&mut self, values: &mut [BlockedRow], now: u64) -> (Result<(), Error>, ToWrite) {
        let blocked = values.iter().flat_map(|row| row.blocked(now));
        let keys: Option<Vec<_>> = blocked.map(|line| line.keys(now)).collect();
        let is_read = keys.is_some();
        self.reading.blocks = keys.unwrap_or_default();
        self.reading.read_at = now;
        let read = if is_read { Ok(()) } else { Err(foreign()) };
        (read, ToWrite::Nothing)
    }

    fn take_effect(self, (): &()) {
        self.list.replace_shared(self.reading);
    }
}
