//! The whole kit on rows that fail as databases do: lost races, transactions that were rolled back, connections that were cut
//! before anything was written.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tollgate::store::{Batch, Rows, StoreOn, TestClock, Written};
use tollgate::{Error, ErrorKind, Quota, RateLimiter};
use tollgate_conformance::{Conformance, RowsConformance};

type VersionedRow = (u64, Option<Vec<u8>>);

/// A version and bytes for each row. Writes only rows that have the version that was read.
struct Optimistic {
    rows: Mutex<HashMap<String, VersionedRow>>,
    clock: TestClock,
    calls: AtomicU64,
    /// The fault of one call in so many.
    faults: u64,
}

impl Optimistic {
    fn new(clock: &TestClock, faults: u64) -> Self {
        Self {
            rows: Mutex::default(),
            clock: clock.clone(),
            calls: AtomicU64::new(1),
            faults,
        }
    }
}

impl Rows for Optimistic {
    async fn change(&self, batch: &mut Batch) -> Result<Written, Error> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let names: Vec<_> = batch.names().map(|name| name.to_string()).collect();
        assert!(names.is_sorted());
        let is_due = |fault| self.faults > 0 && call % self.faults == fault;
        if is_due(1) && batch.attempt() == 0 {
            return Err(Error::new(ErrorKind::Unavailable, "the connection was cut"));
        }
        let read: Vec<_> = {
            let rows = self.rows.lock().unwrap();
            let read = names
                .iter()
                .map(|name| rows.get(name).cloned().unwrap_or_default());
            read.collect()
        };
        tokio::task::yield_now().await;
        let values = read.iter().map(|(_, value)| value.clone()).collect();
        let now = i64::try_from(self.clock.now_micros()).unwrap();
        let writes = batch.decide(now, values);
        tokio::task::yield_now().await;
        if is_due(2) {
            return Ok(Written::Nothing);
        }
        let mut rows = self.rows.lock().unwrap();
        let version = |name: &str| rows.get(name).map_or(0, |row| row.0);
        let mut lost: Vec<_> = writes
            .iter()
            .filter(|write| version(write.name.as_str()) != read[write.index].0)
            .map(|write| write.group)
            .collect();
        lost.extend(
            writes
                .first()
                .map(|write| write.group)
                .filter(|_| is_due(3)),
        );
        for write in writes {
            if !lost.contains(&write.group) {
                rows.insert(write.name.to_string(), (call, write.value));
            }
        }
        Ok(Written::Except(lost))
    }
}

async fn run_kit(faults: u64) {
    let clock = TestClock::new();
    let store = StoreOn::new(Optimistic::new(&clock, faults));
    let report = Conformance::new(store)
        .clock(move |step| clock.advance(step))
        .run()
        .await;
    println!("{report}");
    report.assert_complete();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn optimistic_rows_conform() {
    run_kit(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_fail_now_and_then_conform() {
    run_kit(7).await;
}

/// Two stores lose rows to each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_that_compete_admit_the_limit() {
    let clock = TestClock::new();
    let rows = Arc::new(Optimistic::new(&clock, 7));
    let store = || StoreOn::new(rows.clone()).deadline(std::time::Duration::from_secs(20));
    let limiters =
        [store(), store(), store()].map(|store| RateLimiter::new(store, Quota::per_day(500)));
    let mut tasks = Vec::new();
    for task in 0..12 {
        let limiter = limiters[task % 3].clone();
        tasks.push(tokio::spawn(async move {
            let mut admitted = 0;
            for _ in 0..60 {
                admitted += u32::from(limiter.check("ada").await.unwrap().is_allowed());
            }
            admitted
        }));
    }
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    assert_eq!(admitted, 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_fail_now_and_then_pass_the_kit_of_rows() {
    let rows = Arc::new(Optimistic::new(&TestClock::new(), 7));
    let report = RowsConformance::new([Arc::clone(&rows), rows]).run().await;
    println!("{report}");
    report.assert_complete();
}
