//! Checks of several groups whose task ends, whose caller leaves, or that have no runtime.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};
use tollgate::{Decision, Error, ErrorKind, Quota, RateLimiter};

use crate::groups::Tree;
use crate::used;

const PATIENCE: Duration = Duration::from_secs(5);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls a future until it is ready, outside of any runtime.
fn drive<F: Future>(future: F) -> F::Output {
    let (mut future, until) = (pin!(future), Instant::now() + PATIENCE);
    loop {
        if let Poll::Ready(output) = poll(future.as_mut()) {
            return output;
        }
        assert!(Instant::now() < until, "no answer");
        std::thread::yield_now();
    }
}

/// Verifies that a check has failed without an answer.
fn assert_task_ended(checked: Result<Decision, Error>) {
    let error = checked.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.code(), "tollgate::E013");
    let text = error.to_string();
    assert!(text.contains("may or may not have been charged"), "{text}");
}

#[tokio::test]
async fn a_store_that_panics_while_groups_are_asked_in_turn_fails_the_check() {
    let tree = Tree::new();
    tree.store.break_group(2);
    assert_task_ended(RateLimiter::check_all(tree.levels(1)).await);
    tree.store.find();
    assert_eq!(tree.used().await, [1, 0, 0]);
}

#[test]
fn a_check_fails_if_the_runtime_that_asks_its_groups_ends() {
    let tree = Tree::new();
    tree.store.hold(2);
    let mut check = Box::pin(RateLimiter::check_all(tree.levels(1)));
    let first = runtime();
    first.block_on(async {
        assert!(poll(check.as_mut()).is_pending());
        while tree.store.take_log().last().map(String::as_str) != Some("check tenant2") {
            tokio::task::yield_now().await;
        }
    });
    drop(first);
    tree.store.release();
    let second = runtime();
    assert_task_ended(second.block_on(async { timeout(PATIENCE, check).await.unwrap() }));
    assert_eq!(second.block_on(tree.used())[0], 1);
}

#[test]
fn without_a_runtime_groups_are_asked_in_turn_until_the_caller_leaves() {
    let tree = Tree::new();
    let decision = drive(RateLimiter::check_all(tree.levels(1))).unwrap();
    assert!(decision.is_allowed());
    assert_eq!(drive(tree.used()), [1, 1, 1]);

    tree.store.take_log();
    tree.store.hold(2);
    let mut check = Box::pin(RateLimiter::check_all(tree.levels(1)));
    for _ in 0..100 {
        assert!(poll(check.as_mut()).is_pending());
    }
    drop(check);
    tree.store.release();
    std::thread::sleep(Duration::from_millis(20));
    // Nobody goes on: nothing is refunded, and the last group is not asked.
    assert_eq!(tree.store.take_log(), ["check user1", "check tenant2"]);
}

#[tokio::test]
async fn an_admission_that_its_caller_does_not_take_stays_charged() {
    let tree = Tree::new();
    tree.store.hold(3);
    let mut check = Box::pin(RateLimiter::check_all(tree.levels(1)));
    assert!(poll(check.as_mut()).is_pending());
    tree.store.release();
    // The task ends while the caller does not look.
    sleep(Duration::from_millis(50)).await;
    drop(check);
    sleep(Duration::from_millis(50)).await;
    assert_eq!(tree.used().await, [1, 1, 1]);
    let calls = ["check user1", "check tenant2", "check service3"];
    assert_eq!(tree.store.take_log(), calls);
}

#[tokio::test]
async fn slots_of_an_admission_that_its_caller_does_not_take_return() {
    let tree = Tree::new();
    let jobs = RateLimiter::new(tree.store.clone(), Quota::in_flight(1)).name("jobs2");
    let mut check = Box::pin(RateLimiter::acquire_all([
        tree.user.level("ada"),
        jobs.level("ada"),
    ]));
    assert!(poll(check.as_mut()).is_pending());
    let until_taken = async {
        while used(&jobs, "ada").await == 0 || tree.used().await[0] == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, until_taken).await.expect("slots");
    drop(check);
    let until_free = async {
        while used(&jobs, "ada").await > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, until_free)
        .await
        .expect("no slot is held");
    assert_eq!(tree.used().await[0], 1, "the rate stays charged");
}
