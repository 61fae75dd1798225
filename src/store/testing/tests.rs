use std::sync::Arc;
use std::time::Duration;

use super::TestStore;
use crate::decision::Source;
use crate::error::ErrorKind;
use crate::key::Key;
use crate::limiter::Decision;
use crate::limiter::{FailurePolicy, RateLimiter};
use crate::quota::Quota;
use crate::store::Store;

const MINUTE: Duration = Duration::from_secs(60);

fn limiter(store: &TestStore) -> RateLimiter {
    RateLimiter::new(store.clone(), Quota::per_minute(2)).name("search")
}

async fn check(limiter: &RateLimiter) -> Result<Decision, ErrorKind> {
    let checked = limiter.check("ada").await;
    checked.map_err(|error| error.kind())
}

async fn used(limiter: &RateLimiter) -> u32 {
    limiter.peek("ada").await.unwrap().used()
}

#[tokio::test]
async fn it_counts_by_default() {
    let store = TestStore::new();
    let limiter = limiter(&store);
    for remaining in [1, 0] {
        assert_eq!(check(&limiter).await.unwrap().remaining(), remaining);
    }
    let refused = check(&limiter).await.unwrap();
    assert_eq!(refused.retry_after(), Some(MINUTE));
    store.clock().advance(MINUTE);
    assert!(check(&limiter).await.unwrap().is_allowed());
}

#[tokio::test]
async fn it_refuses_the_given_number_of_checks_and_charges_none() {
    let store = TestStore::new();
    let limiter = limiter(&store);
    let wait = Duration::from_millis(1_500);
    store.refuse_next(2, wait);
    for _ in 0..2 {
        let refused = check(&limiter).await.unwrap();
        assert!(!refused.is_allowed());
        assert_eq!((refused.used(), refused.remaining()), (2, 0));
        assert_eq!(refused.retry_after(), Some(wait));
        assert_eq!(refused.reset_after(), wait);
    }
    assert_eq!(check(&limiter).await.unwrap().used(), 1);
}

#[tokio::test]
async fn a_refusal_without_a_wait_has_no_retry_after() {
    let store = TestStore::new();
    store.refuse_all(None);
    let refused = check(&limiter(&store)).await.unwrap();
    assert!(!refused.is_allowed());
    assert_eq!(refused.retry_after(), None);
}

#[tokio::test]
async fn a_peek_sees_no_units_left_and_uses_up_no_refusal() {
    let store = TestStore::new();
    let limiter = limiter(&store);
    store.refuse_next(1, MINUTE);
    for _ in 0..2 {
        assert_eq!(limiter.peek("ada").await.unwrap().remaining(), 0);
    }
    assert!(!check(&limiter).await.unwrap().is_allowed());
    assert_eq!(limiter.peek("ada").await.unwrap().remaining(), 2);
}

#[tokio::test]
async fn behaviours_apply_in_order() {
    let store = TestStore::new();
    let limiter = limiter(&store);
    store.fail_next(1, ErrorKind::Full);
    store.refuse_next(0, MINUTE);
    store.fail_next(2, ErrorKind::Misconfigured);
    store.refuse_next(1, MINUTE);
    for kind in [
        ErrorKind::Full,
        ErrorKind::Misconfigured,
        ErrorKind::Misconfigured,
    ] {
        assert_eq!(check(&limiter).await.unwrap_err(), kind);
    }
    assert!(!check(&limiter).await.unwrap().is_allowed());
    assert!(check(&limiter).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_lasting_behaviour_replaces_those_of_the_next_checks() {
    let store = TestStore::new();
    let limiter = limiter(&store);
    store.refuse_next(3, MINUTE);
    store.fail_all(ErrorKind::Full);
    for _ in 0..3 {
        assert_eq!(check(&limiter).await.unwrap_err(), ErrorKind::Full);
    }
    store.recover();
    assert!(check(&limiter).await.unwrap().is_allowed());
}

#[tokio::test]
async fn fail_all_fails_refunds_resets_credits_and_blocks() {
    let store = TestStore::new();
    let limiter = limiter(&store);
    let mut decision = check(&limiter).await.unwrap();
    store.fail_all(ErrorKind::Full);
    let refund = decision.refund(1).await.unwrap_err();
    let reset = limiter.admin().reset("ada").await.unwrap_err();
    let block = limiter.admin().block("ada", MINUTE).await.unwrap_err();
    let credit = limiter.admin().credit("ada", 1).await.unwrap_err();
    let kinds = [refund.kind(), reset.kind(), block.kind(), credit.kind()];
    assert_eq!(kinds, [ErrorKind::Full; 4]);

    store.recover();
    assert_eq!(used(&limiter).await, 1);
    limiter.admin().reset("ada").await.unwrap();
    assert_eq!(used(&limiter).await, 0);
}

#[tokio::test]
async fn a_blocked_key_does_not_reach_the_store() {
    let store = TestStore::new();
    let limiter = limiter(&store);
    limiter.admin().block("ada", MINUTE).await.unwrap();
    assert_eq!(check(&limiter).await.unwrap().source(), Source::Block);
    assert!(store.take_checks().is_empty());
    store.clock().advance(MINUTE);
    assert!(check(&limiter).await.unwrap().is_allowed());
}

#[tokio::test]
async fn fail_next_does_not_fail_refunds_and_credits() {
    let store = TestStore::new();
    let limiter = limiter(&store);
    let mut decision = check(&limiter).await.unwrap();
    store.fail_next(1, ErrorKind::Full);
    decision.refund(1).await.unwrap();
    assert_eq!(check(&limiter).await.unwrap_err(), ErrorKind::Full);
    assert_eq!(check(&limiter).await.unwrap().used(), 1);
    store.fail_next(1, ErrorKind::Full);
    limiter.admin().credit("ada", 1).await.unwrap();
    assert_eq!(check(&limiter).await.unwrap_err(), ErrorKind::Full);
    assert_eq!(used(&limiter).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_check_without_an_answer_fails_at_the_deadline() {
    let deadline = Duration::from_millis(40);
    let store = TestStore::new().deadline(deadline);
    store.hang_next(1);
    let began = tokio::time::Instant::now();
    let limiter = limiter(&store);
    assert_eq!(check(&limiter).await.unwrap_err(), ErrorKind::Timeout);
    let waited = began.elapsed();
    assert!(
        waited >= deadline && waited < deadline + Duration::from_millis(5),
        "{waited:?}"
    );
    assert!(check(&limiter).await.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn hang_all_applies_to_resets() {
    let store = TestStore::new();
    store.hang_all();
    let reset = limiter(&store).admin().reset("ada").await.unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::Timeout);
}

#[tokio::test]
async fn its_circuit_breaker_follows_its_clock() {
    let store = TestStore::new();
    let limiter = limiter(&store).on_failure(FailurePolicy::fall_back());
    store.fail_all(ErrorKind::Unavailable);
    for _ in 0..6 {
        let decision = check(&limiter).await.unwrap();
        assert_eq!(decision.source(), Source::Fallback);
    }
    assert_eq!(store.take_checks().len(), 5);

    store.recover();
    let source = async || check(&limiter).await.unwrap().source();
    assert_eq!(source().await, Source::Fallback);
    store.clock().advance(Duration::from_millis(500));
    assert_eq!(source().await, Source::Fallback);
    // The probe runs in the background.
    tokio::task::yield_now().await;
    assert_eq!(source().await, Source::Memory);
}

#[tokio::test]
async fn take_checks_returns_each_check_once() {
    let store = TestStore::new();
    let limiter = limiter(&store);
    for (key, cost) in [("ada", 2), ("ada", 1), ("bob", 0)] {
        assert!(limiter.check_n(key, cost).await.is_ok());
    }

    let received = store.clone().take_checks();
    let asked = received
        .iter()
        .map(|check| (check.key().as_str(), check.cost()));
    assert_eq!(
        asked.collect::<Vec<_>>(),
        [("ada", 2), ("ada", 1), ("bob", 0)]
    );
    let mut checks = received.iter();
    assert!(
        checks
            .all(|check| *check.limiter() == Key::from("search")
                && check.quotas() == limiter.quotas())
    );
    assert!(store.take_checks().is_empty());
}

#[tokio::test]
async fn it_is_a_store_behind_a_pointer() {
    let store: Arc<dyn Store> = Arc::new(TestStore::default());
    let limiter = RateLimiter::new(store, Quota::per_minute(1));
    assert!(check(&limiter).await.unwrap().is_allowed());
}
