//! The store passes the conformance kit and works with every method of a limiter.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use own_store::SqliteStore;
use tollgate::store::{Conformance, TestClock};
use tollgate::{Acquired, BlockReason, BlockRule, Quota, RateLimiter, Source};

fn open(directory: &tempfile::TempDir) -> (SqliteStore, TestClock) {
    let clock = TestClock::new();
    let now = clock.clone();
    let store = SqliteStore::open_at(directory.path().join("limits.db"), move || now.now_micros());
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
async fn a_limiter_refunds_settles_and_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(&directory);
    let limiter = RateLimiter::new(store, Quota::per_hour(10));
    let mut decision = limiter.check_n("ada", 8).await.unwrap();
    limiter.refund(&mut decision, 3).await.unwrap();
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 5);
    limiter.settle(decision, 1).await.unwrap();
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 1);
    let decision = limiter.check_n("ada", 2).await.unwrap();
    limiter.settle(decision, 6).await.unwrap();
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 7);
    let admin = limiter.admin();
    admin.credit("ada", 5).await.unwrap();
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 2);
    admin.block("ada", Duration::from_secs(9)).await.unwrap();
    let blocked = limiter.check("ada").await.unwrap();
    assert_eq!(blocked.source(), Source::Block);
    admin.unblock("ada").await.unwrap();
    assert!(limiter.check("ada").await.unwrap().is_allowed());
    limiter.reset("ada").await.unwrap();
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 0);
}

#[tokio::test]
async fn two_processes_block_a_key_that_they_refuse_too_often_together() {
    let directory = tempfile::tempdir().unwrap();
    let stores = [open(&directory).0, open(&directory).0];
    let limiters = stores.map(|store| {
        RateLimiter::new(store, Quota::per_hour(1)).block_after(BlockRule::refusals(4))
    });
    assert!(limiters[0].check("ada").await.unwrap().is_allowed());
    for limiter in [&limiters, &limiters].into_iter().flatten() {
        let refused = limiter.check("ada").await.unwrap();
        assert_eq!(refused.source(), Source::Other);
    }
    for limiter in &limiters {
        let status = limiter.admin().peek("ada").await.unwrap();
        let by_refusals = BlockReason::Refusals { blocks: 1 };
        assert_eq!(status.block_reason, Some(by_refusals));
    }
    limiters[0].admin().unblock("ada").await.unwrap();
    assert_eq!(
        limiters[0].admin().peek("ada").await.unwrap().block_reason,
        None
    );
}

/// Two connections stand for two processes.
#[tokio::test]
async fn stores_on_one_file_count_together_and_share_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let stores = [open(&directory).0, open(&directory).0];
    let limiters: Vec<_> = stores
        .iter()
        .map(|store| RateLimiter::new(store.clone(), Quota::per_hour(50)))
        .collect();
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
                        let checked = limiters[thread % 2].check("ada").await;
                        admitted += u32::from(checked.unwrap().is_allowed());
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
    let block = Duration::from_secs(60);
    limiters[0].admin().block("bob", block).await.unwrap();
    let listed = limiters[1].admin().blocked().await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert!(!limiters[1].check("bob").await.unwrap().is_allowed());
}

#[tokio::test]
async fn stores_on_one_file_share_slots_in_flight() {
    let directory = tempfile::tempdir().unwrap();
    let [one, other] = [open(&directory).0, open(&directory).0]
        .map(|store| RateLimiter::new(store, [Quota::in_flight(2), Quota::per_hour(9)]));
    let permits = [
        one.acquire("ada").await.unwrap(),
        other.acquire("ada").await.unwrap(),
    ];
    for limiter in [&one, &other] {
        let refused = limiter.try_acquire("ada").await.unwrap();
        assert!(matches!(refused, Acquired::Refused(_)));
    }
    for (permit, left) in permits.into_iter().zip([1, 0]) {
        permit.release().await.unwrap();
        let decision = one.peek("ada").await.unwrap();
        let used: Vec<_> = decision.quotas().map(|quota| quota.used()).collect();
        assert_eq!(used, [left, 2]);
    }
    assert!(other.acquire("ada").await.is_ok());
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
    let keys = file.query_row("SELECT count(*) FROM counts", [], |row| {
        row.get::<_, u32>(0)
    });
    assert_eq!(keys.unwrap(), 1 + 90);
}
