//! Tasks that end before they have answered.

use std::time::Duration;

use tollgate::store::protocol::Subject;
use tollgate::store::{Store, StoreOn};
use tollgate::{ErrorKind, Key, Quota, Quotas, RateLimiter};

use super::scripted::{Plan, Scripted};

fn limiter(rows: &Scripted) -> RateLimiter {
    let store = StoreOn::new(rows.clone()).deadline(Duration::from_secs(20));
    RateLimiter::new(store, Quota::per_day(9)).name("own")
}

#[tokio::test]
async fn a_change_that_panics_fails_its_checks_and_the_next_one_is_decided() {
    let rows = Scripted::new([Plan::Panic]);
    let limiter = limiter(&rows);
    let error = limiter.check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("E013"), "{error}");
    let decision = limiter.check("ada").await.unwrap();
    assert_eq!(decision.used(), 1);
}

/// The store was created in a runtime that ends while the server has not answered.
#[test]
fn a_runtime_that_ends_in_a_batch_fails_its_checks_and_another_one_decides_the_next() {
    let rows = Scripted::new([Plan::Wait]);
    let build = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    };
    let first = build();
    let store = {
        let _guard = first.enter();
        StoreOn::new(rows.clone())
    };
    let other = build();
    other.block_on(async {
        let (limiter, quotas) = (Key::from("own"), Quotas::from(Quota::per_day(9)));
        let check = |key: &str| {
            let key = Key::from(key);
            store.check(&[Subject::new(&limiter, &key, &quotas).check(1)])
        };
        let under_way = check("ada");
        rows.waits.notified().await;
        let waits = check("bob");
        first.shutdown_background();
        for lost in [under_way, waits] {
            let error = lost.await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("E013"), "{error}");
        }
        let answers = check("ada").await.unwrap();
        assert!(answers.are_admitted());
    });
}

#[tokio::test]
async fn a_task_that_ended_since_nobody_asked_starts_again() {
    let rows = Scripted::new([]);
    let limiter = limiter(&rows);
    for used in 1..=2 {
        assert_eq!(limiter.check("ada").await.unwrap().used(), used);
        tokio::time::pause();
        tokio::time::sleep(Duration::from_secs(3)).await;
        tokio::time::resume();
    }
}

#[test]
fn a_store_outside_a_runtime_fails_with_the_remedy() {
    let rows = Scripted::new([]);
    let store = StoreOn::new(rows);
    let (limiter, quotas) = (Key::from("own"), Quotas::from(Quota::per_day(9)));
    let key = Key::from("ada");
    let asked = store.check(&[Subject::new(&limiter, &key, &quotas).check(1)]);
    let error = asked.try_ready().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("tokio runtime"), "{error}");
}

/// Tokio lets a task that has not waited for long see every future as pending.
#[tokio::test]
async fn rows_that_answer_at_once_do_so_for_a_task_that_never_waits() {
    let mut rows = Scripted::new([]);
    rows.answers_at_once = true;
    let store = StoreOn::new(rows);
    let limiter = RateLimiter::new(store, Quota::per_day(1_000));
    for used in 1..=500 {
        assert_eq!(limiter.check("ada").await.unwrap().used(), used);
    }
}
