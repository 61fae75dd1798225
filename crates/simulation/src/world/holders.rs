//! The holders of slots and of units, as the server knows them.
//!
//! A process that was killed returns what it holds within a lease. A message that comes late takes nothing that its holder has
//! given back, unless it is more than a lease late.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use redis::Script;
use tollgate::RedisStore;

use super::limits::SLOT_LEASE;
use crate::server::{Keyspace, StoredKey};

/// How much longer than a lease a killed process may hold any, in milliseconds: the last one who asks then sees the entry.
const LATE: u64 = 50;

/// How long an entry with something spent is kept after its lease, in microseconds.
const KEPT: i64 = 3_600_000_000;

/// The text and the hash of the script that lists holders.
static LIST: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let list = RedisStore::scripts().filter(|(name, _)| *name == "holders");
    let names = list.flat_map(|(_, text)| [text.into(), Script::new(text).get_hash().into()]);
    names.collect()
});

/// The random bytes of a holder.
pub(super) type HolderId = [u8; 16];

/// A process, and which of its lives.
pub(crate) type Life = (usize, u64);

/// The entry of a holder. `lua/holds.lua` describes the bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct HolderEntry {
    pub(super) holder: HolderId,
    pub(super) sequence: i64,
    /// The slots or units that it holds.
    pub(super) held: u32,
    pub(super) has_spent: bool,
    /// By the clock of the server, in microseconds.
    pub(super) ends: i64,
}

impl HolderEntry {
    /// Returns the entries of a key. None if it has no holders.
    pub(super) fn read_all(stored: &StoredKey<'_>) -> Vec<Self> {
        let has_holders = stored.name.ends_with(b":slots") || stored.name.ends_with(b":held");
        let text = stored.text.filter(|_| has_holders);
        let entries = text.and_then(|text| text.get(1..)).unwrap_or_default();
        let entries = entries.chunks_exact(48);
        entries.filter_map(Self::read).collect()
    }

    /// Returns whether it has ended so long ago that the next command forgets what it has spent.
    pub(super) const fn is_forgotten(&self, server_time: i64) -> bool {
        self.has_spent && self.ends + KEPT <= server_time
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            holder: bytes.get(..16)?.try_into().ok()?,
            sequence: number_at(bytes, 16)?,
            held: u32::from_be_bytes(bytes.get(24..28)?.try_into().ok()?),
            has_spent: number_at(bytes, 32)? > 0,
            ends: number_at(bytes, 40)?,
        })
    }
}

fn number_at(bytes: &[u8], at: usize) -> Option<i64> {
    let bytes = bytes.get(at..at + 8)?.try_into().ok()?;
    Some(f64::from_be_bytes(bytes) as i64)
}

/// Returns what a key has holders of.
fn held_of(key: &[u8]) -> &'static str {
    if key.ends_with(b":held") {
        "units"
    } else {
        "slots"
    }
}

/// The entries of the keys that a command is about.
#[derive(Debug, Default)]
pub(super) struct HolderEntries(Vec<(Vec<u8>, HolderEntry)>, usize);

impl HolderEntries {
    pub(super) fn from_command(command: &[Vec<u8>], keys: &Keyspace) -> Self {
        let mut entries = Self::default();
        // The list leaves out what has ended, and writes nothing. That was forgotten.
        if command.get(1).is_some_and(|script| LIST.contains(script)) {
            return entries;
        }
        let names = command
            .iter()
            .filter(|arg| arg.ends_with(b":slots") || arg.ends_with(b":held"));
        for name in names {
            entries.1 += 1;
            let stored = keys.keys_with(name).find(|stored| stored.name == name);
            let of_key = stored.iter().flat_map(HolderEntry::read_all);
            entries.0.extend(of_key.map(|entry| (name.clone(), entry)));
        }
        entries
    }

    /// Returns whether the command is about no holders.
    pub(super) const fn is_empty(&self) -> bool {
        self.1 == 0
    }

    fn find(&self, key: &[u8], holder: HolderId) -> Option<&HolderEntry> {
        let mut entries = self.0.iter();
        let found = entries.find(|(name, entry)| name == key && entry.holder == holder);
        found.map(|(_, entry)| entry)
    }

    fn has(&self, key: &[u8], holder: HolderId) -> bool {
        self.find(key, holder).is_some()
    }
}

/// The holders of a world.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    owners: BTreeMap<HolderId, Life>,
    /// Until when the server keeps an entry, by its clock.
    kept_until: BTreeMap<(Vec<u8>, HolderId), i64>,
    /// Until when a killed process may hold any, by the time of the world.
    due: BTreeMap<(Vec<u8>, HolderId), u64>,
    /// The keys of which a command has clamped the ends since the server's clock has stepped.
    clamped: BTreeSet<Vec<u8>>,
    /// When a holder last took any, by the time of the world.
    taken_at: BTreeMap<(Vec<u8>, HolderId), u64>,
}

impl Holders {
    /// Returns the process of a holder, if a message of it has come in time.
    pub(super) fn owner(&self, holder: HolderId) -> Option<Life> {
        self.owners.get(&holder).copied()
    }

    /// Takes in a message of a process that runs. Returns a violation: a killed process holds some for longer than a lease.
    ///
    /// From the first message on that saw its entry after it was killed, or after the server's clock stepped: only that
    /// clamps the end of the entry.
    pub(super) fn take_in(
        &mut self,
        sender: Life,
        lives: &[u64],
        now: u64,
        before: &HolderEntries,
        after: &HolderEntries,
    ) -> Option<String> {
        for (key, entry) in &after.0 {
            // A late message has written it. Its sender is not known.
            if before.has(key, entry.holder) && !self.owners.contains_key(&entry.holder) {
                continue;
            }
            let (process, life) = *self.owners.entry(entry.holder).or_insert(sender);
            if lives[process] == life || entry.held == 0 {
                continue;
            }
            let due = self.due.entry((key.clone(), entry.holder));
            if now > *due.or_insert(now + SLOT_LEASE + LATE) {
                let held = entry.held;
                let what = held_of(key);
                let key = String::from_utf8_lossy(key);
                return Some(format!(
                    "{held} {what} of {key} are held by process {process}, which was killed more than a lease ago"
                ));
            }
        }
        None
    }

    /// Takes in a message that is late, or of a killed process. Returns a violation: it takes some that were given back.
    pub(super) fn take_in_late(
        &mut self,
        before: &HolderEntries,
        after: &HolderEntries,
        server_time: i64,
    ) -> Option<String> {
        self.due
            .retain(|(name, _), _| !after.0.iter().any(|(key, _)| key == name));
        let (key, entry) = after
            .0
            .iter()
            .filter(|(key, entry)| entry.held > 0 && !before.has(key, entry.holder))
            .find(|(key, entry)| {
                let kept_until = self.kept_until.get(&(key.clone(), entry.holder));
                kept_until.is_some_and(|until| *until > server_time)
            })?;
        let held = entry.held;
        let what = held_of(key);
        let key = String::from_utf8_lossy(key);
        Some(format!(
            "a late message takes {held} {what} of {key}, which its holder has given back"
        ))
    }

    /// Remembers which holders have taken any.
    pub(super) fn remember_taken(
        &mut self,
        before: &HolderEntries,
        after: &HolderEntries,
        now: u64,
    ) {
        for (key, entry) in &after.0 {
            let held = before.find(key, entry.holder).map_or(0, |entry| entry.held);
            if entry.held > held {
                self.taken_at.insert((key.clone(), entry.holder), now);
            }
        }
    }

    /// Returns whether another process has taken slots of a limiter and key since a time.
    pub(super) fn have_others_taken(
        &self,
        limiter: &str,
        key: &str,
        own: Life,
        since: u64,
    ) -> bool {
        let name = format!("tollgate:v3:{{{limiter},{key}}}:slots");
        self.taken_at.iter().any(|((key, holder), at)| {
            key == name.as_bytes() && self.owners.get(holder) != Some(&own) && *at >= since
        })
    }

    /// Remembers until when the entries are kept.
    pub(super) fn remember(&mut self, after: HolderEntries) {
        for (key, entry) in after.0 {
            let kept = if entry.has_spent { KEPT } else { 0 };
            self.clamped.insert(key.clone());
            self.kept_until
                .insert((key, entry.holder), entry.ends + kept);
        }
    }

    /// Forgets all times, as the server has lost data or its clock has stepped.
    pub(super) fn forget_times(&mut self) {
        self.kept_until.clear();
        self.due.clear();
        self.clamped.clear();
    }

    /// Returns the slots or units of a key whose lease goes on. None if nobody has asked since the server's clock stepped.
    pub(super) fn still_held(&self, stored: &StoredKey<'_>, server_time: i64) -> u32 {
        if !self.clamped.contains(stored.name) {
            return 0;
        }
        let entries = HolderEntry::read_all(stored);
        let held = entries.iter().filter(|entry| entry.ends > server_time);
        held.map(|entry| entry.held).sum()
    }
}
