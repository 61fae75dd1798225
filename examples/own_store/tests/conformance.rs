//! The store passes the conformance kit and works with every method of a limiter.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use killed_processes::{Fleet, Orders, hold_slots_while_processes_are_killed, take_slots};
use own_store::{SqliteRows, SqliteStore};
use several_processes::{block_together, returns_units, share_slots};
use tollgate::store::TestClock;
use tollgate::{Quota, RateLimiter, Source};
use tollgate_conformance::{Conformance, RowsConformance};

#[path = "../../../tests/support/killed_processes.rs"]
mod killed_processes;
#[path = "../../../tests/support/notes.rs"]
mod notes;
#[path = "../../../tests/support/process.rs"]
mod process;
#[path = "../../../tests/support/running.rs"]
mod running;
#[path = "../../../tests/support/several_processes.rs"]
mod several_processes;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rows_conform() {
    let directory = tempfile::tempdir().unwrap();
    let clock = TestClock::new();
    let rows = [0, 1].map(|_| {
        let clock = clock.clone();
        let now = move || i64::try_from(clock.now_micros()).unwrap();
        SqliteRows::open(directory.path().join("limits.db"), now).unwrap()
    });
    let report = RowsConformance::new(rows).run().await;
    println!("{report}");
    report.assert_complete();
}

fn open(directory: &tempfile::TempDir) -> (SqliteStore, TestClock) {
    let clock = TestClock::new();
    let now = clock.clone();
    let store = own_store::open_at(directory.path().join("limits.db"), move || {
        i64::try_from(now.now_micros()).unwrap()
    });
    (store.unwrap(), clock)
}

#[tokio::test]
async fn the_store_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let (store, clock) = open(&directory);
    let kit = Conformance::new(store).clock(move |step| clock.advance(step));
    let report = kit.run().await;
    println!("{report}");
    report.assert_complete();
}

#[tokio::test]
async fn a_limiter_refunds_settles_credits_and_resets() {
    let directory = tempfile::tempdir().unwrap();
    returns_units(open(&directory).0).await;
}

#[tokio::test]
async fn two_processes_see_and_lift_blocks_of_each_other() {
    let directory = tempfile::tempdir().unwrap();
    block_together([open(&directory).0, open(&directory).0]).await;
}

/// Two connections stand for two processes.
#[tokio::test]
async fn stores_on_one_file_count_together() {
    let directory = tempfile::tempdir().unwrap();
    let stores = [open(&directory).0, open(&directory).0];
    let limiters = stores.map(|store| RateLimiter::new(store, Quota::per_hour(50)));
    let limiters = Arc::new(limiters);
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let limiters = Arc::clone(&limiters);
            thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread();
                let runtime = { runtime }.enable_all().build().unwrap();
                runtime.block_on(async {
                    let mut admitted = 0;
                    for _ in 0..40 {
                        let decision = limiters[thread % 2].check("ada").await.unwrap();
                        assert_eq!(decision.source(), Source::Other);
                        admitted += u32::from(decision.is_allowed());
                    }
                    admitted
                })
            })
        })
        .collect();
    let admitted: u32 = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .sum();
    assert_eq!(admitted, 50);
}

#[tokio::test]
async fn stores_on_one_file_share_slots_in_flight() {
    let directory = tempfile::tempdir().unwrap();
    share_slots([open(&directory).0, open(&directory).0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_hold_no_more_slots_than_the_limit_and_return_them_within_a_lease() {
    const TEST: &str =
        "killed_processes_hold_no_more_slots_than_the_limit_and_return_them_within_a_lease";
    if let Some(orders) = Orders::of_this_process() {
        return take_slots(own_store::open(&orders.url).unwrap(), orders).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("limits.db");
    let look = own_store::open(&file).unwrap();
    let fleet = Fleet::start(TEST, file.display().to_string());
    hold_slots_while_processes_are_killed(fleet, look).await;
}

#[tokio::test]
async fn expired_keys_leave_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let (store, clock) = open(&directory);
    let limiter = RateLimiter::new(store, Quota::per_second(5));
    for key in 0..100 {
        let _ = limiter.check(format!("{key}")).await.unwrap();
    }
    clock.advance(Duration::from_secs(10));
    for _ in 0..60 {
        let _ = limiter.check("ada").await.unwrap();
    }
    let file = rusqlite::Connection::open(directory.path().join("limits.db")).unwrap();
    let keys = file.query_row("SELECT count(*) FROM tollgate", [], |row| {
        row.get::<_, u32>(0)
    });
    assert_eq!(keys.unwrap(), 1 + 90);
}
