//! Rows that break a rule of the trait.

use std::time::Duration;

use tollgate::store::StoreOn;
use tollgate::{Error, ErrorKind, Quota, RateLimiter};

use super::scripted::{Plan, Scripted};

fn limiter(rows: &Scripted) -> RateLimiter {
    let store = StoreOn::new(rows.clone()).deadline(Duration::from_secs(20));
    RateLimiter::new(store, Quota::per_day(9)).name("own")
}

/// Returns the error of a check, after which nothing is stored.
async fn error_of(plan: Plan) -> Error {
    let rows = Scripted::new([plan]);
    let limiter = limiter(&rows);
    let error = limiter.check("ada").await.unwrap_err();
    assert_eq!(rows.attempts(), [0], "{plan:?}");
    assert!(rows.state().rows.is_empty() || plan == Plan::UnknownGroup);
    error
}

#[tokio::test]
async fn a_wrong_number_of_values_fails_the_checks_and_writes_nothing() {
    let error = error_of(Plan::ReadTooFew).await;
    assert_eq!(error.kind(), ErrorKind::InvalidReply);
    assert!(error.to_string().contains("0 values for 1 rows"), "{error}");
}

#[tokio::test]
async fn a_change_that_does_not_decide_fails_its_checks() {
    let error = error_of(Plan::SkipDecision).await;
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("`Batch::decide`"), "{error}");
}

/// Otherwise a lost check would pass as written.
#[tokio::test]
async fn a_group_that_the_batch_does_not_have_fails_its_checks() {
    let error = error_of(Plan::UnknownGroup).await;
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("group 1000"), "{error}");
}

#[tokio::test]
async fn a_change_that_waits_although_its_rows_answer_at_once_fails_its_check() {
    let mut rows = Scripted::new([Plan::Wait]);
    rows.answers_at_once = true;
    let limiter = limiter(&rows);
    let error = limiter.check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("answers_at_once"), "{error}");
    assert!(limiter.check("ada").await.unwrap().is_allowed());
}

#[tokio::test]
async fn bytes_of_another_program_fail_their_own_checks_and_stay() {
    let rows = Scripted::new([Plan::Wait]);
    let foreign = b"of another program".to_vec();
    rows.state()
        .rows
        .insert("own|ada".to_owned(), foreign.clone());
    let limiter = limiter(&rows);
    let first = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.check("first").await }
    });
    rows.waits.notified().await;
    let both = RateLimiter::check_all([limiter.level("bob"), limiter.level("ada")]);
    let (ada, both, bob, ()) =
        tokio::join!(limiter.check("ada"), both, limiter.check("bob"), async {
            rows.gate.notify_one();
        },);
    let _ = first.await.unwrap().unwrap();
    for error in [ada.unwrap_err(), both.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidReply);
    }
    // The check of both keys has charged neither.
    assert_eq!(bob.unwrap().used(), 1);
    assert_eq!(rows.count_calls().len(), 2);
    assert_eq!(rows.state().rows["own|ada"], foreign);
}
