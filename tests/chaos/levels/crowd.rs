//! Several processes that check the same trees.

use std::fs;
use std::time::Duration;

use super::hammer::{Load, Told, unix_time};
use super::notes::Notes;
use crate::suite::{child, patient, until};
use crate::support::process::Process;

/// Processes that run, and the notes of all that ever ran.
pub(super) struct Crowd {
    /// The test that the processes run.
    test: &'static str,
    load: Load,
    until: Duration,
    processes: Vec<Process>,
    started: u64,
    notes: tempfile::TempDir,
}

impl Crowd {
    pub(super) async fn start(test: &'static str, load: Load, processes: u64) -> Self {
        let mut crowd = Self {
            test,
            until: unix_time() + load.duration,
            load,
            processes: Vec::new(),
            started: 0,
            notes: tempfile::tempdir().expect("a directory"),
        };
        for _ in 0..processes {
            crowd.add();
        }
        let has_begun = |process: u64| {
            let notes = fs::metadata(crowd.notes.path().join(process.to_string()));
            notes.is_ok_and(|notes| notes.len() > 0)
        };
        until(Duration::from_secs(10), "all processes check", async || {
            (0..processes).all(has_begun)
        })
        .await;
        crowd
    }

    fn add(&mut self) {
        let told = Told {
            load: self.load.clone(),
            until: self.until,
            seed: self.started,
            notes: self.notes.path().join(self.started.to_string()),
        };
        let told = serde_json::to_string(&told).expect("text");
        let mut command = child(self.test, &told);
        self.processes.push(Process::start(&mut command));
        self.started += 1;
    }

    /// Kills the oldest process, and starts another one.
    pub(super) fn replace_one(&mut self) {
        self.processes.remove(0).kill();
        self.add();
    }

    /// Waits for all processes. Returns the notes of each tree, with the units of its keys.
    pub(super) async fn end(mut self) -> Vec<(Notes, Vec<Vec<u32>>)> {
        for process in &mut self.processes {
            process.wait();
        }
        let notes = Notes::read(self.notes.path(), &self.load.trees);
        let mut all = Vec::new();
        for (tree, notes) in self.load.trees.iter().zip(notes) {
            let limiters = tree.limiters(&patient(&self.load.url));
            let mut counted = None;
            // A master that was restarted answers after a while.
            until(Duration::from_secs(10), "the servers answer", async || {
                counted = limiters.counted().await.ok();
                counted.is_some()
            })
            .await;
            all.push((notes, counted.expect("all counts")));
        }
        all
    }
}
