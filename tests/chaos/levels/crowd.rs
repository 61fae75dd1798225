//! Several processes that check the same trees.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::hammer::{Load, Told};
use super::notes::Notes;
use crate::suite::{PATIENCE, child, patient, until};
use crate::support::process::Process;

/// Processes that run, and the notes of all that ever ran.
pub(super) struct Crowd {
    /// The test that the processes run.
    test: &'static str,
    load: Load,
    processes: Vec<Process>,
    started: u64,
    directory: tempfile::TempDir,
}

impl Crowd {
    pub(super) fn start(test: &'static str, load: Load, processes: u64) -> Self {
        let mut crowd = Self {
            test,
            load,
            processes: Vec::new(),
            started: 0,
            directory: tempfile::tempdir().expect("a directory"),
        };
        for _ in 0..processes {
            crowd.add();
        }
        crowd
    }

    fn add(&mut self) {
        let told = Told {
            load: self.load.clone(),
            seed: self.started,
            notes: self.notes_of(self.started),
            end: self.directory.path().join("end"),
        };
        let told = serde_json::to_string(&told).expect("text");
        let mut command = child(self.test, &told);
        self.processes.push(Process::start(&mut command));
        self.started += 1;
    }

    fn notes_of(&self, process: u64) -> PathBuf {
        self.directory.path().join(process.to_string())
    }

    /// Kills the oldest process, and starts another one.
    pub(super) fn replace_one(&mut self) {
        self.processes.remove(0).kill();
        self.add();
    }

    /// Stops all processes for a time, each at a moment of its own.
    pub(super) async fn stop_each(&self, time: Duration) {
        for process in &self.processes {
            process.signal("STOP");
            tokio::time::sleep(time / 20).await;
        }
        tokio::time::sleep(time).await;
        for process in &self.processes {
            process.signal("CONT");
        }
    }

    fn notes(&self) -> Vec<Notes> {
        let files = (0..self.started).map(|process| self.notes_of(process));
        Notes::read(files, &self.load.trees)
    }

    /// Waits until the notes of the trees say something.
    pub(super) async fn until(&self, what: &str, say: impl Fn(&[Notes]) -> bool) {
        until(PATIENCE, what, async || {
            tokio::time::sleep(Duration::from_millis(20)).await;
            say(&self.notes())
        })
        .await;
    }

    /// Waits until so many more units of each tree are admitted.
    pub(super) async fn admits(&self, units: u32) {
        let before: Vec<_> = self.notes().iter().map(Notes::total).collect();
        self.until("units are admitted", |all| {
            let mut all = all.iter().zip(&before);
            all.all(|(notes, before)| notes.total() >= before + units)
        })
        .await;
    }

    /// Waits until more checks of each tree have failed.
    pub(super) async fn fails(&self) {
        let before: Vec<_> = self.notes().iter().map(|notes| notes.failed).collect();
        self.until("checks fail", |all| {
            let mut all = all.iter().zip(&before);
            all.all(|(notes, before)| notes.failed > *before)
        })
        .await;
    }

    /// Ends all processes. Returns the notes of each tree.
    pub(super) fn end_load(&mut self) -> Vec<Notes> {
        fs::write(self.directory.path().join("end"), "").expect("a file");
        for process in &mut self.processes {
            process.wait();
        }
        self.notes()
    }

    /// Ends all processes. Returns the notes of each tree, with the units of its keys.
    pub(super) async fn end(mut self) -> Vec<(Notes, Vec<Vec<u32>>)> {
        let notes = self.end_load();
        let mut all = Vec::new();
        for (tree, notes) in self.load.trees.iter().zip(notes) {
            let limiters = tree.limiters(&patient(&self.load.url));
            let counted = limiters.counted().await.expect("the servers answer");
            all.push((notes, counted));
        }
        all
    }
}
