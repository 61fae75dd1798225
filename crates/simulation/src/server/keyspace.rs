//! The keys of the server, their values and their times to live.

use std::collections::BTreeMap;

use super::reply::Reply;

/// The members of a sorted set, with their scores.
pub(super) type Scores = BTreeMap<Vec<u8>, f64>;

/// The value of a key.
#[derive(Clone, Debug)]
pub(super) enum Data {
    Text(Vec<u8>),
    Set(Scores),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) data: Data,
    /// In milliseconds since 1970. `None` if the key never expires.
    pub(super) expires: Option<i64>,
}

impl Entry {
    pub(super) fn lasting(data: Data) -> Self {
        Self {
            data,
            expires: None,
        }
    }
}

/// The keys, and the clock by which they expire.
#[derive(Debug, Default)]
pub struct Keyspace {
    pub(super) entries: BTreeMap<Vec<u8>, Entry>,
    /// The server's time, in microseconds since 1970.
    pub now: i64,
    /// Whether the server has as much memory as `maxmemory`: then a script may not begin its writes by one that needs more.
    pub is_full: bool,
    /// Whether the script that runs has written.
    pub(super) has_written: bool,
    /// The commands that ran, and how often.
    pub calls: BTreeMap<String, u64>,
}

/// A key that has not expired.
#[derive(Clone, Copy, Debug)]
pub struct StoredKey<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The bytes, if the value is a string.
    pub text: Option<&'a [u8]>,
    /// The time to live, in milliseconds. `None` if the key never expires.
    pub lives: Option<i64>,
}

impl Keyspace {
    pub(super) fn millis(&self) -> i64 {
        self.now / 1_000
    }

    /// Returns an entry that has not expired.
    pub(super) fn live(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let now = self.millis();
        let expires = self.entries.get(key).and_then(|entry| entry.expires);
        if expires.is_some_and(|end| end <= now) {
            self.entries.remove(key);
        }
        self.entries.get_mut(key)
    }

    /// Returns an entry that has not expired, after it has been added if it was missing.
    pub(super) fn live_or(&mut self, key: &[u8], data: Data) -> &mut Data {
        if self.live(key).is_none() {
            self.entries.remove(key);
        }
        let entry = self.entries.entry(key.to_vec());
        let entry = entry.or_insert_with(|| Entry::lasting(data));
        &mut entry.data
    }

    pub(super) fn text(&mut self, key: &[u8]) -> Result<Option<&mut Vec<u8>>, Reply> {
        match self.live(key).map(|entry| &mut entry.data) {
            None => Ok(None),
            Some(Data::Text(text)) => Ok(Some(text)),
            Some(Data::Set(_) | Data::Hash(_)) => Err(wrong_type()),
        }
    }

    pub(super) fn set(&mut self, key: &[u8]) -> Result<Option<&mut Scores>, Reply> {
        match self.live(key).map(|entry| &mut entry.data) {
            None => Ok(None),
            Some(Data::Set(set)) => Ok(Some(set)),
            Some(Data::Text(_) | Data::Hash(_)) => Err(wrong_type()),
        }
    }

    /// Removes a set or a hash without members.
    pub(super) fn remove_if_empty(&mut self, key: &[u8]) {
        let is_empty = match self.entries.get(key).map(|entry| &entry.data) {
            Some(Data::Set(set)) => set.is_empty(),
            Some(Data::Hash(hash)) => hash.is_empty(),
            Some(Data::Text(_)) | None => false,
        };
        if is_empty {
            self.entries.remove(key);
        }
    }

    /// Returns the keys that have not expired.
    pub fn keys(&self) -> impl Iterator<Item = StoredKey<'_>> {
        self.keys_with(b"")
    }

    /// Returns the keys that have not expired and begin with a prefix.
    pub fn keys_with<'a>(&'a self, prefix: &'a [u8]) -> impl Iterator<Item = StoredKey<'a>> {
        let now = self.millis();
        let live = self
            .entries
            .range(prefix.to_vec()..)
            .take_while(move |(name, _)| name.starts_with(prefix))
            .filter(move |(_, entry)| entry.expires.is_none_or(|end| end > now));
        live.map(move |(name, entry)| StoredKey {
            name,
            text: match &entry.data {
                Data::Text(text) => Some(text),
                Data::Set(_) | Data::Hash(_) => None,
            },
            lives: entry.expires.map(|end| end - now),
        })
    }

    /// Loses all keys, as a server that restarts without its data.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}

pub(super) fn wrong_type() -> Reply {
    Reply::error("WRONGTYPE Operation against a key holding the wrong kind of value")
}
