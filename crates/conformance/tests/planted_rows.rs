//! The kit of rows finds planted faults.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tollgate::Error;
use tollgate::store::{Batch, RowName, Rows, Write, Written};
use tollgate_conformance::{ConformanceReport, RowsConformance, RuleOutcome};

/// A flaw of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// Writes rows that others have written meanwhile.
    NoIsolation,
    /// Finds that others were faster, and does not say so.
    HidesLostGroups,
    /// Writes the rows of a group that were not lost.
    TornGroups,
    /// Does not delete rows.
    KeepsDeleted,
    /// Cuts long values.
    CutsValues,
    /// Stops a value at the first byte of 0, as a text does.
    StopsAtZero,
    /// Cuts the longest names.
    CutsNames,
    /// Does not tell upper case from lower case.
    FoldsCase,
    /// Takes `%` and `_` for patterns.
    MatchesPatterns,
    /// Reads rows in another order.
    ReversesValues,
    /// Each process has its own clock.
    TwoClocks,
    /// Keeps its lock if a change is dropped.
    KeepsLock,
    /// Removes rows that have not expired.
    RemovesAll,
    /// Other processes do not see the blocked keys.
    OwnBlocks,
}

/// A version and the bytes of a row.
type VersionedRow = (u64, Vec<u8>);

#[derive(Default)]
struct Shared {
    rows: Mutex<BTreeMap<String, VersionedRow>>,
    writes: AtomicU64,
    now: AtomicI64,
    is_locked: AtomicBool,
}

/// Rows in memory, without locks: a change writes the rows that are as it has read them.
struct Flawed {
    flaw: Flaw,
    process: usize,
    shared: Arc<Shared>,
}

impl Flawed {
    fn stored_name(&self, name: &RowName) -> String {
        let mut name = name.as_str().to_owned();
        match self.flaw {
            Flaw::CutsNames => name.truncate(128),
            Flaw::FoldsCase => name.make_ascii_lowercase(),
            Flaw::MatchesPatterns => name = name.replace("%4", "%_"),
            Flaw::OwnBlocks if name.starts_with("blocks||") => {
                name = format!("{}{name}", self.process);
            }
            _ => {}
        }
        name
    }

    fn read(&self, name: &str) -> Option<VersionedRow> {
        self.shared.rows.lock().unwrap().get(name).cloned()
    }

    /// Each reading is later than the one before, but for processes with two clocks.
    fn now(&self) -> i64 {
        let now = self.shared.now.fetch_add(1, Ordering::SeqCst) + 1_000_000_000;
        match (self.flaw, self.process) {
            (Flaw::TwoClocks, 1) => now - 5_000,
            _ => now,
        }
    }

    fn write(&self, write: Write<'_>) {
        let name = self.stored_name(write.name);
        let mut rows = self.shared.rows.lock().unwrap();
        let version = self.shared.writes.fetch_add(1, Ordering::SeqCst) + 1;
        match write.value {
            Some(value) => {
                let length = match self.flaw {
                    Flaw::CutsValues => value.len().min(65_535),
                    Flaw::StopsAtZero => {
                        let zero = value.iter().skip(1).position(|byte| *byte == 0);
                        zero.map_or(value.len(), |zero| zero + 1)
                    }
                    _ => value.len(),
                };
                rows.insert(name, (version, value[..length].to_vec()));
            }
            None if self.flaw == Flaw::KeepsDeleted => {}
            None => {
                rows.remove(&name);
            }
        }
    }

    async fn lock(&self) {
        while self.shared.is_locked.swap(true, Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
    }
}

impl Rows for Flawed {
    async fn change(&self, batch: &mut Batch) -> Result<Written, Error> {
        if self.flaw == Flaw::KeepsLock {
            self.lock().await;
        }
        let names: Vec<_> = batch.names().map(|name| self.stored_name(name)).collect();
        let read: Vec<_> = names.iter().map(|name| self.read(name)).collect();
        tokio::task::yield_now().await;
        let mut values: Vec<_> = read
            .iter()
            .map(|row| row.clone().map(|(_, value)| value))
            .collect();
        if self.flaw == Flaw::ReversesValues && values.len() > 100 {
            values.reverse();
        }
        let now = self.now();
        let writes = batch.decide(now, values);
        tokio::task::yield_now().await;
        let is_lost = |write: &Write<'_>| {
            let now = self.read(&names[write.index]);
            now.map(|(version, _)| version) != read[write.index].clone().map(|(version, _)| version)
        };
        let lost_rows: Vec<_> = writes.iter().map(is_lost).collect();
        let lost = writes.iter().zip(&lost_rows);
        let mut lost: Vec<_> = lost
            .filter(|(_, is_lost)| **is_lost && self.flaw != Flaw::NoIsolation)
            .map(|(write, _)| write.group)
            .collect();
        for (write, is_lost) in writes.into_iter().zip(lost_rows) {
            let is_torn = self.flaw == Flaw::TornGroups && !is_lost;
            if is_torn || !lost.contains(&write.group) {
                self.write(write);
            }
        }
        if self.flaw == Flaw::HidesLostGroups {
            lost.clear();
        }
        self.shared.is_locked.store(false, Ordering::SeqCst);
        Ok(Written::Except(lost))
    }

    async fn remove_expired(&self) -> Result<bool, Error> {
        if self.flaw == Flaw::RemovesAll {
            self.shared.rows.lock().unwrap().clear();
        }
        Ok(false)
    }
}

async fn report_on(flaw: Flaw) -> ConformanceReport {
    let shared = Arc::new(Shared::default());
    let rows = [0, 1].map(|process| Flawed {
        flaw,
        process,
        shared: Arc::clone(&shared),
    });
    RowsConformance::new(rows).run().await
}

fn failed(report: &ConformanceReport) -> Vec<&str> {
    let outcomes = report.outcomes();
    let failed = outcomes.filter(|(_, outcome)| matches!(outcome, RuleOutcome::Failed(_)));
    failed.map(|(rule, _)| rule).collect()
}

/// On one thread, so that each await of a change lets another one in.
#[tokio::test]
async fn rows_without_a_flaw_pass() {
    report_on(Flaw::None).await.assert_complete();
}

#[tokio::test]
async fn each_flaw_fails_its_rule() {
    for (flaw, rule) in [
        (Flaw::NoIsolation, "races lose nothing"),
        (Flaw::HidesLostGroups, "races lose nothing"),
        (Flaw::TornGroups, "groups are whole"),
        (Flaw::KeepsDeleted, "a deleted row is missing"),
        (Flaw::CutsValues, "bytes come back"),
        (Flaw::StopsAtZero, "bytes come back"),
        (Flaw::CutsNames, "each name is a row"),
        (Flaw::FoldsCase, "each name is a row"),
        (Flaw::MatchesPatterns, "each name is a row"),
        (Flaw::ReversesValues, "values are in order"),
        (Flaw::TwoClocks, "the time does not step back"),
        (Flaw::KeepsLock, "a dropped change leaves no lock"),
        (Flaw::RemovesAll, "rows stay until their end"),
        (Flaw::OwnBlocks, "a block reaches the other limiter"),
    ] {
        let report = report_on(flaw).await;
        let failed = failed(&report);
        println!("{flaw:?}: {failed:?}");
        assert!(failed.contains(&rule), "{flaw:?}\n{report}");
    }
}
