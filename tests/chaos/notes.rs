//! The notes of processes that may be killed: each writes a line for what it does, and the test reads them.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
