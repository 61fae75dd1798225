//! Which calls are repeated.

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
async fn a_call_that_failed_before_it_read_is_repeated_once() {
    let rows = Scripted::new([Plan::FailBefore(ErrorKind::Unavailable)]);
    let decision = limiter(&rows).check("ada").await.unwrap();
    assert_eq!(decision.used(), 1);
    assert_eq!(rows.attempts(), [0, 1]);

    let rows = Scripted::new([Plan::FailBefore(ErrorKind::Unavailable); 2]);
    let error = limiter(&rows).check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(rows.attempts(), [0, 1]);
}

/// Whoever has no right, or has waited for the whole time already, gets no second call.
#[tokio::test]
async fn a_call_that_would_fail_again_is_not_repeated() {
    for kind in [
        ErrorKind::Misconfigured,
        ErrorKind::Timeout,
        ErrorKind::Full,
    ] {
        let rows = Scripted::new([Plan::FailBefore(kind)]);
        let error = limiter(&rows).check("ada").await.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert_eq!(rows.attempts(), [0], "{kind:?}");
    }
}

#[tokio::test]
async fn a_call_that_may_have_written_is_never_repeated() {
    let rows = Scripted::new([Plan::FailAfter(ErrorKind::Unavailable)]);
    let limiter = limiter(&rows);
    let error = limiter.check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(rows.attempts(), [0]);
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 1);
}

/// The attempt before was rolled back. What counts is what the last one has returned.
#[tokio::test]
async fn a_call_that_failed_after_a_rolled_back_one_is_repeated_if_it_has_not_written() {
    let plans = [
        Plan::RollBack,
        Plan::FailBefore(ErrorKind::Unavailable),
        Plan::RollBack,
    ];
    let rows = Scripted::new(plans);
    let decision = limiter(&rows).check("ada").await.unwrap();
    assert_eq!(decision.used(), 1);
    assert_eq!(rows.attempts(), [0, 1, 2, 3]);
}

#[tokio::test]
async fn a_rolled_back_check_is_charged_once() {
    let rows = Scripted::new([Plan::RollBack; 5]);
    let decision = limiter(&rows).check("ada").await.unwrap();
    assert_eq!(decision.used(), 1);
    assert_eq!(rows.attempts(), [0, 1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_check_that_always_loses_fails_without_a_charge() {
    let rows = Scripted::new([Plan::Lose("ada"); 200]);
    let limiter = limiter(&rows);
    let error = limiter.check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("not charged"), "{error}");
    rows.state().plans.clear();
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 0);
}

/// Three checks wait while a first one is under way: two levels that share a row with another check, and one alone.
#[tokio::test]
async fn checks_with_a_row_in_common_are_lost_together_and_others_are_not() {
    let rows = Scripted::new([Plan::Wait, Plan::Lose("eve")]);
    let limiter = limiter(&rows);
    let first = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.check("first").await }
    });
    rows.waits.notified().await;
    let both = RateLimiter::check_all([limiter.level("ada"), limiter.level("eve")]);
    let (both, ada, bob, ()) =
        tokio::join!(both, limiter.check("ada"), limiter.check("bob"), async {
            rows.gate.notify_one();
        },);
    let _ = first.await.unwrap().unwrap();
    let _ = both.unwrap();
    let _ = ada.unwrap();
    let _ = bob.unwrap();
    let calls = rows.count_calls();
    assert_eq!(calls.len(), 3, "{calls:#?}");
    assert_eq!(calls[1].written, ["own|ada", "own|bob", "own|eve"]);
    assert_eq!(calls[2].attempt, 1);
    assert_eq!(calls[2].written, ["own|ada", "own|eve"]);
    for (key, used) in [("ada", 2), ("bob", 1), ("eve", 1)] {
        assert_eq!(limiter.peek(key).await.unwrap().used(), used, "{key}");
    }
}

#[tokio::test]
async fn a_caller_that_has_given_up_leaves_before_the_next_attempt() {
    let rows = Scripted::new([Plan::Wait, Plan::FailBefore(ErrorKind::Unavailable)]);
    let store = StoreOn::new(rows.clone());
    let (limiter, quotas) = (Key::from("own"), Quotas::from(Quota::per_day(9)));
    let check = |key: &str| {
        let key = Key::from(key);
        store.check(&[Subject::new(&limiter, &key, &quotas).check(1)])
    };
    let first = check("first");
    rows.waits.notified().await;
    let (ada, bob) = (check("ada"), check("bob"));
    drop(first);
    // The first one is under way, so it is charged.
    rows.gate.notify_one();
    drop(ada);
    assert!(bob.await.unwrap().are_admitted());
    let names: Vec<_> = rows
        .count_calls()
        .into_iter()
        .map(|call| call.names)
        .collect();
    assert_eq!(names, [["own|first"], ["own|bob"], ["own|bob"]]);
    assert!(rows.state().rows.contains_key("own|first"));
    assert!(!rows.state().rows.contains_key("own|ada"));
}
