//! Helpers of several tests.
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod algorithms;
#[cfg(all(feature = "redis", feature = "test-util"))]
pub(crate) mod both;
#[cfg(feature = "redis")]
pub(crate) mod calls;
pub(crate) mod cases;
pub(crate) mod cluster;
#[cfg(feature = "redis")]
pub(crate) mod costs;
pub(crate) mod example;
pub(crate) mod fakes;
pub(crate) mod files;
pub(crate) mod log;
pub(crate) mod malformed_urls;
pub(crate) mod node;
pub(crate) mod permissions;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod redis_server;
pub(crate) mod relay;
pub(crate) mod reply_proxy;
pub(crate) mod request;
pub(crate) mod running;
pub(crate) mod sentinel;
pub(crate) mod served;
pub(crate) mod several_processes;
pub(crate) mod standing_still;
#[cfg(feature = "redis")]
pub(crate) mod stored;
#[cfg(all(feature = "redis", feature = "test-util"))]
pub(crate) mod test_time;
pub(crate) mod timeless;
#[cfg(feature = "tls")]
pub(crate) mod tls;
pub(crate) mod watched;

use std::time::{Duration, Instant};

#[cfg(feature = "redis")]
use futures_util::future::{join, join_all};
use proptest::strategy::Strategy;
use proptest::test_runner::{TestCaseResult, TestRunner};
use tokio::runtime::{Builder, Runtime};
use tollgate::store::Store;
#[cfg(feature = "redis")]
use tollgate::store::protocol::{Answers, Subject};
use tollgate::store::protocol::{Check, StoreFuture};
use tollgate::{Decision, RateLimiter};
#[cfg(feature = "redis")]
use tollgate::{Key, Quota, Quotas, RedisStore};

/// A runtime with one thread.
pub(crate) fn runtime() -> Runtime {
    let mut runtime = Builder::new_current_thread();
    runtime.enable_all().build().expect("a runtime")
}

/// Runs a future on a runtime of its own.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    runtime().block_on(future)
}

/// Tests a law with random input, in this number of cases if [all](cases::cases) are asked for.
pub(crate) fn holds_for_any<S: Strategy>(
    all: u32,
    input: &S,
    law: impl Fn(S::Value) -> TestCaseResult,
) {
    TestRunner::new(cases::cases(all)).run(input, law).unwrap();
}

/// Asks a store to decide these checks together.
pub(crate) fn ask(store: &impl Store, checks: &[Check<'_>]) -> StoreFuture {
    store.check(checks)
}

/// Sends checks to Redis in one call, while a look at another key is in flight. Each entry is decided together.
#[cfg(feature = "redis")]
pub(crate) async fn ask_in_one_call(
    store: &RedisStore,
    entries: &[Vec<Check<'_>>],
) -> Vec<Answers> {
    let (other, quotas) = (Key::from("other"), Quotas::from(Quota::per_hour(1)));
    let look = ask(store, &[Subject::new(&other, &other, &quotas).check(0)]);
    let sent: Vec<_> = entries.iter().map(|checks| ask(store, checks)).collect();
    let (look, answers) = join(look, join_all(sent)).await;
    assert!(look.expect("an answer").are_admitted());
    let answers = answers.into_iter();
    answers.map(|answers| answers.expect("an answer")).collect()
}

/// A store on a server, patient with a slow machine.
#[cfg(feature = "redis")]
pub(crate) fn store_on(server: &redis_server::RedisServer) -> RedisStore {
    RedisStore::open(&server.url())
        .expect("a URL")
        .deadline(Duration::from_secs(60))
        // Calls are counted: none is to be for anything else.
        .block_list_refresh(Duration::ZERO)
}

/// Waits until a condition holds, and returns the time taken.
pub(crate) async fn until(holds: impl AsyncFn() -> bool) -> Duration {
    several_processes::until("it holds", holds).await
}

/// Checks until one is decided, which must be soon. An earlier one whose reply came too late may be counted, too.
pub(crate) async fn decided(limiter: &RateLimiter, key: &str) -> Decision {
    let patience = Instant::now() + Duration::from_secs(5);
    loop {
        match limiter.check(key).await {
            Ok(decision) => return decision,
            Err(error) => assert!(Instant::now() < patience, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
