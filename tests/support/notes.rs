//! The notes of processes that may be killed: each writes a line for what it does, and the test reads them.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollgate::Permit;

/// The time in microseconds, which all processes of the machine share.
#[expect(
    clippy::disallowed_methods,
    reason = "processes have no other clock in common"
)]
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap().as_micros()).unwrap()
}

/// Opens a file of notes, for a process that writes them.
pub(crate) fn open_notes(path: &Path) -> Arc<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    Arc::new(file.unwrap())
}

/// Writes one line with the time behind it, at once.
pub(crate) fn note(mut file: &File, words: fmt::Arguments<'_>) {
    let line = format!("{words} {}\n", now());
    file.write_all(line.as_bytes()).unwrap();
}

/// Holds a permit while the work lasts. Notes the beginning after the permit was taken, and the end before it is given back.
pub(crate) async fn hold(file: &File, permit: Permit, (number, key): (u64, u64), work: Duration) {
    note(file, format_args!("B {number} {key}"));
    let is_lost = tokio::time::timeout(work, permit.lost()).await.is_ok();
    let what = if is_lost { 'L' } else { 'E' };
    note(file, format_args!("{what} {number} {key}"));
    drop(permit);
}

/// The notes of a process, as they grow.
pub(crate) struct Notes {
    pub(crate) path: PathBuf,
    /// The bytes that were read, and the permits that begin in them.
    read: u64,
    begun: usize,
}

impl Notes {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            read: 0,
            begun: 0,
        }
    }

    /// Returns how many permits the process has taken so far. Reads only what was written since the last time.
    pub(crate) fn begun(&mut self) -> usize {
        let mut bytes = Vec::new();
        if let Ok(mut file) = File::open(&self.path) {
            file.seek(SeekFrom::Start(self.read)).unwrap();
            self.read += file.read_to_end(&mut bytes).unwrap() as u64;
        }
        self.begun += bytes.iter().filter(|byte| **byte == b'B').count();
        self.begun
    }
}

/// Waits until so many permits have begun.
pub(crate) async fn until_begun(mut begun: impl FnMut() -> usize, permits: usize) {
    while begun() < permits {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The permits that processes have noted.
#[derive(Default)]
pub(crate) struct Noted {
    /// The beginnings and the ends of permits: time, key, and what they add.
    events: Vec<(u64, u64, i32)>,
    pub(crate) acquired: u64,
    pub(crate) refused: u64,
    pub(crate) cancelled: u64,
    pub(crate) failed: u64,
    pub(crate) lost: u64,
    /// The permits that a killed process held.
    pub(crate) killed: u64,
    /// The longest time for which a permit was held and not lost.
    pub(crate) longest: Duration,
}

impl Noted {
    /// Adds the notes of a process, which was killed at that time or ran to its end.
    pub(crate) fn add(&mut self, file: &Path, killed_at: Option<u64>) {
        let text = fs::read_to_string(file).unwrap_or_default();
        let mut open = HashMap::new();
        for line in text.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let [what, permit, key, time] = words[..] else {
                continue; // cut off by the kill
            };
            let (permit, key, time): (u64, u64, u64) = (
                permit.parse().unwrap(),
                key.parse().unwrap(),
                time.parse().unwrap_or(u64::MAX),
            );
            match what {
                "B" => {
                    self.acquired += 1;
                    open.insert(permit, (key, time));
                    self.events.push((time, key, 1));
                }
                "R" => self.refused += 1,
                "C" => self.cancelled += 1,
                "F" => self.failed += 1,
                "L" => {
                    self.lost += 1;
                    if open.remove(&permit).is_some() {
                        self.events.push((time, key, -1));
                    }
                }
                _ => {
                    if let Some((_, began)) = open.remove(&permit) {
                        self.end(key, began, time);
                    }
                }
            }
        }
        for (key, began) in open.into_values() {
            self.killed += 1;
            self.end(key, began, killed_at.unwrap());
        }
    }

    fn end(&mut self, key: u64, began: u64, ended: u64) {
        self.events.push((ended, key, -1));
        let held_for = Duration::from_micros(ended.saturating_sub(began));
        self.longest = self.longest.max(held_for);
    }

    /// Returns the most permits of a key at the same time.
    pub(crate) fn most(&mut self) -> i32 {
        // An end comes before a beginning of the same microsecond.
        self.events.sort_unstable();
        let (mut running, mut most) = (HashMap::<u64, i32>::new(), 0);
        for (_, key, change) in &self.events {
            let running = running.entry(*key).or_default();
            *running += change;
            most = most.max(*running);
        }
        most
    }
}

/// A xorshift generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
