//! Calls that wait for slots in vain: each is refused, and by the level that lacks room.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{sleep, timeout};
use tollgate::{
    Acquired, Error, ErrorKind, LevelCheck, MemoryStore, Permit, Plan, Quota, Quotas,
    RateLimitLayer, RateLimiter, Rejection, Store, key,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::redis_server::RedisServer;
use crate::support::store_on;

const MILLI: Duration = Duration::from_millis(1);

/// Longer than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The attempts of each kind.
const ATTEMPTS: usize = 500;

/// In memory, and in Redis.
fn stores(server: &RedisServer) -> [Arc<dyn Store>; 2] {
    let redis = store_on(server).deadline(PATIENCE);
    [Arc::new(MemoryStore::new()), Arc::new(redis)]
}

/// A level that limits nothing, or that has room.
#[derive(Clone, Copy, Debug, PartialEq)]
enum First {
    WithoutQuotas,
    EmptyPlan,
    WithRoom,
}

impl First {
    const ALL: [Self; 3] = [Self::WithoutQuotas, Self::EmptyPlan, Self::WithRoom];

    fn limiter(self, store: &Arc<dyn Store>) -> RateLimiter {
        let quotas = match self {
            Self::WithoutQuotas => Vec::new(),
            Self::EmptyPlan | Self::WithRoom => vec![Quota::per_minute(100_000)],
        };
        RateLimiter::new(Arc::clone(store), quotas).name(format!("{self:?}"))
    }

    fn check(self, limiter: &RateLimiter) -> LevelCheck<'_> {
        let check = limiter.level("ada");
        match self {
            Self::EmptyPlan => check.quotas(Vec::<Quota>::new()),
            Self::WithoutQuotas | Self::WithRoom => check,
        }
    }
}

/// Asks for both levels again and again. Returns how many calls were admitted, and the errors of the others.
async fn attempts(first: First, limiter: &RateLimiter, jobs: &RateLimiter) -> (usize, Vec<Error>) {
    let mut admitted = 0;
    let mut errors = Vec::new();
    for _ in 0..ATTEMPTS {
        match RateLimiter::acquire_all([first.check(limiter), jobs.level("acme")]).await {
            Ok(_) => admitted += 1,
            Err(error) => errors.push(error),
        }
    }
    (admitted, errors)
}

fn names(errors: &[Error], limiter: &str) -> bool {
    let named = format!("limiter {limiter:?}");
    errors
        .iter()
        .all(|error| error.kind() == ErrorKind::MaxWait && error.to_string().contains(&named))
}

#[tokio::test]
async fn a_call_that_waits_in_vain_is_refused_by_the_level_without_room_whatever_comes_first() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let jobs = RateLimiter::new(Arc::clone(&store), Quota::in_flight(1)).name("jobs");
        let jobs = jobs.max_wait(MILLI);
        let _held = jobs.acquire("acme").await.unwrap();
        for first in First::ALL {
            let limiter = first.limiter(&store).max_wait(MILLI);
            let (admitted, errors) = attempts(first, &limiter, &jobs).await;
            assert_eq!(
                admitted, 0,
                "of {ATTEMPTS} calls beside the holder, {first:?}"
            );
            assert!(names(&errors, "jobs"), "{first:?}: {:?}", errors.first());
        }
    }
}

#[tokio::test]
async fn a_call_beyond_the_queue_is_refused_at_once_by_the_level_without_room() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let jobs = RateLimiter::new(Arc::clone(&store), Quota::in_flight(1)).name("jobs");
        let jobs = jobs.max_wait(PATIENCE).queue(1);
        let held = jobs.acquire("acme").await.unwrap();
        let waiting = tokio::spawn({
            let jobs = jobs.clone();
            async move { jobs.acquire("acme").await }
        });
        sleep(500 * MILLI).await;
        for first in First::ALL {
            let limiter = first.limiter(&store).max_wait(PATIENCE);
            let attempts = timeout(PATIENCE, attempts(first, &limiter, &jobs)).await;
            let (admitted, errors) = attempts.expect("refused at once");
            assert_eq!(
                admitted, 0,
                "of {ATTEMPTS} calls beside the holder, {first:?}"
            );
            assert!(names(&errors, "jobs"), "{first:?}: {:?}", errors.first());
        }
        drop(held);
        drop(waiting.await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_request_that_waits_in_vain_is_rejected_by_the_level_without_room() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let jobs = RateLimiter::new(Arc::clone(&store), Quota::in_flight(1)).name("jobs");
        let _held = jobs.acquire(tollgate::Key::global()).await.unwrap();
        for first in First::ALL {
            let layer = RateLimitLayer::from(first.limiter(&store)).key(key::global());
            let layer = match first {
                First::EmptyPlan => {
                    layer.quotas_for(|_, _| async { Plan::Quotas(Quotas::from(Vec::new())) })
                }
                First::WithoutQuotas | First::WithRoom => layer,
            };
            let layer = layer.and(jobs.clone(), key::global()).wait_up_to(MILLI);
            for _ in 0..ATTEMPTS {
                let response = answer(&layer).await;
                assert_eq!(
                    response.status(),
                    StatusCode::TOO_MANY_REQUESTS,
                    "{first:?}"
                );
                let rejection = response.extensions().get::<Rejection>().unwrap();
                assert_eq!(rejection.limiter(), "jobs", "{first:?}");
            }
        }
    }
}

async fn answer(layer: &RateLimitLayer) -> Response<()> {
    let handler = service_fn(async |_: Request<()>| {
        Ok::<_, std::convert::Infallible>(Response::new(Empty::<Bytes>::new()))
    });
    let response = layer.layer(handler).oneshot(Request::new(())).await;
    let (head, body) = response.unwrap().into_parts();
    body.collect().await.unwrap();
    Response::from_parts(head, ())
}

/// The call stands in both lines, and lacks only one key.
#[tokio::test]
async fn a_call_in_two_lines_is_refused_by_the_level_without_room() {
    let server = RedisServer::start();
    for store in stores(&server) {
        for order in [["full", "free"], ["free", "full"]] {
            let limiter = |name: &str| {
                let limiter = RateLimiter::new(Arc::clone(&store), Quota::in_flight(2));
                limiter.name(name).max_wait(PATIENCE)
            };
            let [full, free] = ["full", "free"].map(limiter);
            let all = RateLimiter::acquire_all([full.level("ada").slots(2)]).await;
            let one = free.acquire("ada").await.unwrap();
            let limiters = order.map(|name| limiter(name).max_wait(500 * MILLI));
            let both = tokio::spawn(async move {
                let levels = limiters.each_ref().map(|limiter| limiter.level("ada"));
                RateLimiter::acquire_all(levels).await.map(drop)
            });
            // Until it stands in line: a queue of one call then has no place for another.
            let next = full.queue(1);
            while timeout(20 * MILLI, next.acquire("ada")).await.is_err() {
                assert!(!both.is_finished(), "{order:?}");
            }
            let behind = later(&free, 2);
            let error = [both.await.unwrap().unwrap_err()];
            assert!(names(&error, "full"), "{order:?}: {error:?}");
            drop((all, one));
            drop(behind.await.unwrap().unwrap());
        }
    }
}

/// Acquires some slots in a task.
fn later(limiter: &RateLimiter, slots: u32) -> JoinHandle<Result<Permit, Error>> {
    let limiter = limiter.clone();
    tokio::spawn(async move { RateLimiter::acquire_all([limiter.level("ada").slots(slots)]).await })
}

#[tokio::test]
async fn a_wait_in_vain_suggests_the_time_for_which_permits_are_held_as_without_a_wait() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1)).name("jobs");
    let layer = RateLimitLayer::from(limiter.clone()).key(key::global());
    let layer = layer.wait_up_to(Duration::ZERO);
    let waiting = layer.clone().wait_up_to(20 * MILLI);
    let held = limiter.acquire(tollgate::Key::global()).await.unwrap();
    sleep(2_100 * MILLI).await;
    drop(held);
    let _held = limiter.acquire(tollgate::Key::global()).await.unwrap();
    let mut waits = Vec::new();
    for layer in [layer, waiting.clone(), waiting] {
        let response = answer(&layer).await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        let wait = response.headers().get("retry-after").unwrap();
        let wait: u64 = wait.to_str().unwrap().parse().unwrap();
        waits.push(wait);
    }
    assert!(waits[0] >= 3, "{waits:?}");
    assert_eq!(waits[1..], [waits[0]; 2]);
}

#[tokio::test]
async fn a_queue_of_nobody_lets_no_call_wait() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(store, Quota::in_flight(1)).name("jobs");
        let limiter = limiter.max_wait(PATIENCE).queue(0);
        let _held = limiter.acquire("ada").await.unwrap();
        for _ in 0..20 {
            let refused = timeout(PATIENCE / 2, limiter.acquire("ada")).await;
            let error = refused.expect("refused at once").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::MaxWait);
        }
    }
}

/// Between the moment when a call is told to ask and its next poll.
#[tokio::test]
async fn a_slot_is_for_the_call_that_was_told_to_ask_before_its_task_runs() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1));
    let mut taken = 0;
    for _ in 0..40 {
        let held = limiter.acquire("ada").await.unwrap();
        let waiting = later(&limiter, 1);
        sleep(MILLI).await;
        drop(held);
        if let Acquired::Permit(_) = limiter.try_acquire("ada").await.unwrap() {
            taken += 1;
        }
        drop(timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap());
    }
    assert_eq!(taken, 0, "slots of 40 calls that were told to ask");
}

/// A slot that no call waits for is free for a call that does not wait.
#[tokio::test]
async fn a_call_that_does_not_wait_gets_what_those_told_to_ask_leave_and_no_more() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(2));
    let held = [
        limiter.acquire("ada").await.unwrap(),
        limiter.acquire("ada").await.unwrap(),
    ];
    let waiting = later(&limiter, 1);
    sleep(MILLI).await;
    drop(held);
    let first = limiter.try_acquire("ada").await.unwrap();
    assert!(matches!(first, Acquired::Permit(_)));
    let second = limiter.try_acquire("ada").await.unwrap();
    assert!(matches!(second, Acquired::Refused(_)));
    drop(timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap());
}

#[tokio::test]
async fn calls_that_do_not_wait_and_try_again_and_again_starve_no_call_that_waits() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(store, Quota::in_flight(1)).max_wait(PATIENCE);
        let mut held = Some(limiter.acquire("ada").await.unwrap());
        let waiting = later(&limiter, 1);
        sleep(20 * MILLI).await;
        for turn in 0.. {
            // It gives the slot back, and takes it again at once if it can.
            drop(held.take());
            match limiter.try_acquire("ada").await.unwrap() {
                Acquired::Permit(permit) => held = Some(permit),
                Acquired::Refused(_) => yield_now().await,
            }
            if waiting.is_finished() {
                break;
            }
            assert!(turn < 2_000, "the call that waits was overtaken each time");
        }
        drop(waiting.await.unwrap().unwrap());
    }
}
