//! Checks that wait at the same time share a call and get the same decisions as in separate calls.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::{Decision, Error, ErrorKind, Quota, RateLimiter};

use crate::support::costs::{algorithms, calls, forget_calls};
use crate::support::redis_server::{RedisServer, run, signal};
use crate::support::store_on;

/// A limiter, after the server has loaded the script.
async fn limiter(server: &RedisServer, quota: Quota) -> RateLimiter {
    let limiter = RateLimiter::new(store_on(server), quota);
    let _ = limiter.peek("nobody").await.unwrap();
    limiter
}

/// Checks at once, in the order of the keys.
async fn check_all(
    limiter: &RateLimiter,
    keys: impl IntoIterator<Item = String>,
) -> Vec<Result<Decision, Error>> {
    let mut checks = Vec::new();
    for key in keys {
        let limiter = limiter.clone();
        checks.push(tokio::spawn(async move { limiter.check(key).await }));
    }
    let mut decisions = Vec::new();
    for check in checks {
        decisions.push(check.await.unwrap());
    }
    decisions
}

/// The EVALSHA calls that the server has run since `forget_calls`.
fn scripts_called(connection: &mut redis::Connection) -> u64 {
    let calls = calls(connection);
    calls.get("evalsha").copied().unwrap_or(0)
}

/// An entry asks for at most 100 000 units, so these checks of one key are several entries of a call.
#[tokio::test]
async fn large_checks_of_one_key_in_one_call_see_what_the_others_charged() {
    let server = RedisServer::start();
    for (name, algorithm) in algorithms() {
        if algorithm == tollgate::Algorithm::SortedSetLog {
            // It stores each unit.
            continue;
        }
        let quota = Quota::per_day(200_000).with_algorithm(algorithm);
        let limiter = limiter(&server, quota).await.name(name);
        let checks = (0..20).map(|_| limiter.check_n("ada", 60_000));
        let mut waiting: Vec<_> = checks.map(Box::pin).collect();
        // All wait before the first reply is read.
        let mut cx = Context::from_waker(Waker::noop());
        for check in &mut waiting {
            assert!(check.as_mut().poll(&mut cx).is_pending());
        }
        let mut admitted = 0;
        for check in waiting {
            admitted += u32::from(check.await.unwrap().is_allowed());
        }
        assert_eq!(admitted, 3, "{name}");
        assert_eq!(limiter.peek("ada").await.unwrap().used(), 180_000, "{name}");
    }
}

#[tokio::test]
async fn checks_of_one_key_share_an_entry_and_are_decided_in_order() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    for (_, algorithm) in algorithms() {
        run(&mut connection, &["FLUSHALL"]);
        let quota = Quota::per_day(90).with_algorithm(algorithm);
        let limiter = limiter(&server, quota).await;
        forget_calls(&mut connection);
        let keys = std::iter::repeat_n("ada".to_owned(), 100);
        let decisions = check_all(&limiter, keys).await;
        for (place, decision) in (1..).zip(decisions) {
            let decision = decision.unwrap();
            assert_eq!(decision.is_allowed(), place <= 90, "{algorithm:?}: {place}");
            assert_eq!(decision.used(), place.min(90), "{algorithm:?}: {place}");
            assert_eq!(decision.retry_after().is_some(), place > 90);
        }
        // All of them queue before the task sends.
        assert_eq!(scripts_called(&mut connection), 1, "{algorithm:?}");
    }
}

#[tokio::test]
async fn checks_of_many_keys_share_calls_of_bounded_length() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let limiter = limiter(&server, Quota::per_hour(5)).await;
    forget_calls(&mut connection);
    let keys = (0..1_000).map(|key| format!("key:{key}"));
    for decision in check_all(&limiter, keys).await {
        assert_eq!(decision.unwrap().used(), 1);
    }
    let called = scripts_called(&mut connection);
    assert!((12..=20).contains(&called), "{called} calls");
}

#[tokio::test]
async fn a_single_check_is_sent_at_once() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let limiter = limiter(&server, Quota::per_hour(50)).await;
    forget_calls(&mut connection);
    for used in 1..=20 {
        assert_eq!(limiter.check("ada").await.unwrap().used(), used);
    }
    assert_eq!(scripts_called(&mut connection), 20);
}

#[tokio::test]
async fn a_cost_between_two_of_another_keeps_its_place() {
    let server = RedisServer::start();
    let limiter = limiter(&server, Quota::per_hour(10)).await;
    let mut checks = JoinSet::new();
    for (place, cost) in [1, 1, 7, 1, 5, 1].into_iter().enumerate() {
        let limiter = limiter.clone();
        checks.spawn(async move { (place, limiter.check_n("ada", cost).await.unwrap()) });
    }
    let mut decisions = checks.join_all().await;
    decisions.sort_by_key(|(place, _)| *place);
    let used = decisions.iter().map(|(_, decision)| decision.used());
    assert_eq!(used.collect::<Vec<_>>(), [1, 2, 9, 10, 10, 10]);
    let allowed = decisions.iter().map(|(_, decision)| decision.is_allowed());
    let expected = [true, true, true, true, false, false];
    assert_eq!(allowed.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_check_whose_future_is_dropped_is_charged_only_if_it_was_sent() {
    let server = RedisServer::start();
    let limiter = limiter(&server, Quota::per_hour(9)).await;
    let mut context = Context::from_waker(Waker::noop());
    // Behind a check in flight, they are never sent.
    let mut first = pin!(limiter.check("bob"));
    assert!(first.as_mut().poll(&mut context).is_pending());
    for _ in 0..3 {
        let check = pin!(limiter.check("ada"));
        assert!(check.poll(&mut context).is_pending());
    }
    assert_eq!(first.await.unwrap().used(), 1);
    // A task finds that nobody waits.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(limiter.check("ada").await.unwrap().used(), 1);
    let mut sent = Box::pin(limiter.check("ada"));
    assert!(sent.as_mut().poll(&mut context).is_pending());
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    drop(sent);
    assert_eq!(limiter.check("ada").await.unwrap().used(), 3);
}

#[tokio::test]
async fn each_check_times_out_by_its_own_deadline() {
    let server = RedisServer::start();
    let deadline = Duration::from_millis(150);
    let store = store_on(&server).deadline(deadline);
    let limiter = RateLimiter::new(store, Quota::per_hour(900));
    let _ = limiter.peek("nobody").await.unwrap();
    signal(&server, "STOP");
    let mut checks = JoinSet::new();
    for place in 0..60 {
        let limiter = limiter.clone();
        checks.spawn(async move {
            // All of them start before the first times out: later ones would not be sent at all.
            tokio::time::sleep(Duration::from_millis(2 * place)).await;
            let begin = Instant::now();
            let outcome = limiter.check(format!("key:{}", place % 7)).await;
            (outcome.map_err(|error| error.kind()), begin.elapsed())
        });
    }
    let outcomes = checks.join_all().await;
    signal(&server, "CONT");
    for (outcome, waited) in outcomes {
        assert_eq!(outcome.unwrap_err(), ErrorKind::Timeout);
        assert!((deadline..deadline * 3).contains(&waited), "{waited:?}");
    }
}

#[tokio::test]
async fn a_batch_succeeds_after_a_script_flush_and_beside_a_bad_key() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let limiter = limiter(&server, Quota::per_hour(9)).await;
    run(&mut connection, &["SCRIPT", "FLUSH"]);
    let name = "tollgate:v3:{default,key:3}:log";
    run(&mut connection, &["SET", name, "somebody else's"]);
    let decisions = check_all(&limiter, (0..6).map(|key| format!("key:{key}"))).await;
    for (key, decision) in decisions.into_iter().enumerate() {
        match decision {
            Ok(decision) => assert_eq!((decision.used(), key == 3), (1, false)),
            Err(error) => assert_eq!((error.kind(), key), (ErrorKind::Misconfigured, 3)),
        }
    }
}

#[test]
fn a_runtime_that_shuts_down_with_checks_in_flight_does_not_hang() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(1_000_000));
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for round in 0..200 {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            for key in 0..40 {
                let limiter = limiter.clone();
                runtime.spawn(
                    async move { while limiter.check(format!("key:{key}")).await.is_ok() {} },
                );
            }
            std::thread::sleep(Duration::from_micros(20 * round));
        }
        done.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(60));
    assert!(ended.is_ok(), "the end of a runtime hangs");
}
