//! `wait_up_to`: a request waits until it is admitted, unless that takes too long.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{Request, Response};
use http_body_util::Empty;
use tollgate::{
    DecisionView, ErrorKind, FailurePolicy, MemoryStore, Quota, RateLimitLayer, RateLimiter,
    Source, Store,
};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::calls::{ok, stores};
use crate::support::fakes::moody::{DEADLINE, Mood, Moody};
use crate::support::redis_server::RedisServer;
use crate::{ask, by_path, status, to, told, used};

const WINDOW: Duration = Duration::from_millis(100);
const HOUR: Duration = Duration::from_secs(3_600);

/// Longer than any machine stands still, and shorter than what is waited for in vain.
const SOON: Duration = Duration::from_secs(10);

/// A limit of one per hour, and requests that wait for up to two hours.
fn patient(store: impl Store) -> RateLimitLayer {
    let layer = RateLimitLayer::new(store, Quota::new(1, HOUR)).key(by_path());
    layer.wait_up_to(2 * HOUR)
}

#[tokio::test]
async fn a_request_waits_for_its_turn_and_passes() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let layer = RateLimitLayer::new(store, Quota::new(1, WINDOW)).key(by_path());
        let layer = layer.wait_up_to(SOON);
        let begin = Instant::now();
        for turn in 0..4 {
            assert_eq!(status(&layer, "/ada").await, 200);
            // However long the machine stood still, no sooner.
            let least = (WINDOW * turn).saturating_sub(Duration::from_millis(2));
            assert!(begin.elapsed() >= least, "{turn}: {:?}", begin.elapsed());
        }
    }
}

#[tokio::test]
async fn all_who_wait_pass_each_in_a_turn_of_its_own() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let quota = Quota::new(2, WINDOW);
        let layer = RateLimitLayer::new(store, quota)
            .key(by_path())
            .wait_up_to(SOON);
        let begin = Instant::now();
        let waiting: Vec<_> = (0..6)
            .map(|_| {
                let layer = layer.clone();
                tokio::spawn(async move { status(&layer, "/ada").await })
            })
            .collect();
        for waited in waiting {
            assert_eq!(waited.await.unwrap(), 200);
        }
        assert!(begin.elapsed() >= WINDOW * 2 - Duration::from_millis(2));
    }
}

#[tokio::test]
async fn a_turn_that_comes_too_late_is_refused_at_once() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let layer = patient(store).wait_up_to(HOUR / 2);
        assert_eq!(status(&layer, "/ada").await, 200);
        let refused = tokio::time::timeout(SOON, ask(&layer, "/ada"))
            .await
            .unwrap();
        assert_eq!(refused.status(), 429);
        assert_eq!(told(&refused, "retry-after"), "3600");
        // Nor is what can never pass.
        let dear = layer.cost(|_| 2);
        let refused = tokio::time::timeout(SOON, ask(&dear, "/ada"))
            .await
            .unwrap();
        assert_eq!(
            (refused.status().as_u16(), told(&refused, "retry-after")),
            (429, "-")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn patience_is_for_all_waits_together() {
    // Time stands still at this store: each wait is as long as the one before.
    let store = Moody::new(Mood::Fine);
    let layer = RateLimitLayer::new(store, Quota::new(1, Duration::from_secs(10))).key(by_path());
    let layer = layer.wait_up_to(Duration::from_secs(35));
    assert_eq!(status(&layer, "/ada").await, 200);
    let begin = tokio::time::Instant::now();
    let refused = tokio::time::timeout(HOUR, status(&layer, "/ada")).await;
    assert_eq!(refused, Ok(429));
    // Asked each second, until less is left than the ten of the next turn.
    assert_eq!(begin.elapsed().as_secs(), 26);
}

#[tokio::test(start_paused = true)]
async fn a_request_in_line_is_rejected_as_soon_as_its_turn_certainly_comes_too_late() {
    // Time stands still at this store, so that the first request of the line is never admitted: its turn is always in 10 s.
    let store = Moody::new(Mood::Fine);
    let layer = RateLimitLayer::new(store, Quota::new(1, Duration::from_secs(10))).key(by_path());
    assert_eq!(status(&layer, "/ada").await, 200);
    let (first, second) = (layer.clone(), layer.wait_up_to(Duration::from_secs(15)));
    let first = first.wait_up_to(HOUR);
    let first = tokio::spawn(async move { status(&first, "/ada").await });
    tokio::task::yield_now().await;
    let begin = tokio::time::Instant::now();
    let rejected = tokio::time::timeout(HOUR / 2, ask(&second, "/ada")).await;
    let rejected = rejected.unwrap();
    assert_eq!(rejected.status(), 429);
    // From then on, the turn of the first one is later than the 15 s of the second.
    assert_eq!(begin.elapsed().as_secs(), 6);
    let wait: u64 = told(&rejected, "retry-after").parse().unwrap();
    assert!((1..=10).contains(&wait), "{wait}");
    first.abort();
}

/// A check that is under way when `max_wait` ends has the deadline of the store.
#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_most_one_deadline_of_the_store_after_max_wait() {
    const MAX_WAIT: Duration = Duration::from_millis(10);
    let hangs = || Moody::new(Mood::Hangs);
    let begin = tokio::time::Instant::now();
    let layer = RateLimitLayer::new(hangs(), Quota::new(1, WINDOW)).key(by_path());
    let layer = layer.on_failure(FailurePolicy::closed());
    assert_eq!(status(&layer.wait_up_to(MAX_WAIT), "/ada").await, 503);
    assert_eq!(begin.elapsed(), DEADLINE);

    let begin = tokio::time::Instant::now();
    let limiter = RateLimiter::new(hangs(), Quota::new(1, WINDOW));
    let waited = limiter.until_ready("ada", 1, MAX_WAIT).await;
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(begin.elapsed(), DEADLINE);

    // The thread that sends messages about slots has real time.
    let begin = Instant::now();
    let slots = RateLimiter::new(hangs(), Quota::in_flight(1)).max_wait(MAX_WAIT);
    let waited = slots.acquire("ada").await;
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::Timeout);
    let took = begin.elapsed();
    assert!(took >= DEADLINE && took < 100 * DEADLINE, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_given_back_meanwhile_is_for_who_waits() {
    let store = MemoryStore::new();
    let limiter = RateLimiter::new(store.clone(), Quota::new(1, HOUR));
    let mut taken = limiter.check("/ada").await.unwrap();
    let layer = patient(store);
    let begin = tokio::time::Instant::now();
    let gives_back = async {
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        taken.refund(1).await.unwrap();
    };
    let (answered, ()) = tokio::join!(status(&layer, "/ada"), gives_back);
    assert_eq!(answered, 200);
    assert_eq!(begin.elapsed().as_millis() / 10, 250);
}

#[tokio::test(start_paused = true)]
async fn who_has_no_plan_is_not_asked_about_by_other_quotas_while_he_waits() {
    let store = Moody::new(Mood::Fine);
    let layer = patient(store.clone());
    let layer = layer.quotas_for(|_, _| async { Err::<Quota, _>("no database") });
    // By the counts of this process, of which there are none yet.
    assert_eq!(status(&layer, "/ada").await, 200);
    assert_eq!(status(&layer, "/ada").await, 429);
    assert_eq!(store.times_asked(), 0);
}

#[tokio::test]
async fn patience_may_be_without_end() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::new(1, WINDOW)).key(by_path());
    let layer = layer.wait_up_to(Duration::MAX);
    for _ in 0..3 {
        assert_eq!(status(&layer, "/ada").await, 200);
    }
}

#[tokio::test]
async fn who_leaves_while_waiting_is_not_charged_and_frees_what_was_set_aside() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(Arc::clone(&store), Quota::new(1, HOUR));
        let layer = patient(store);
        assert_eq!(status(&layer, "/ada").await, 200);

        let one_at_a_time = ConcurrencyLimitLayer::new(1).layer(service_fn(ok::<()>));
        let mut first = layer.layer(one_at_a_time);
        let mut second = first.clone();
        first.ready().await.unwrap();
        let mut waiting = Box::pin(first.call(to("/ada")));
        let a_while = Duration::from_millis(100);
        assert!(tokio::time::timeout(a_while, &mut waiting).await.is_err());
        // It holds its permit as long as it waits.
        assert!(tokio::time::timeout(a_while, second.ready()).await.is_err());
        drop(waiting);
        tokio::time::timeout(SOON, second.ready())
            .await
            .expect("the permit is free")
            .unwrap();
        assert_eq!(used(&limiter, "/ada").await, 1);
    }
}

#[tokio::test]
async fn who_waits_by_a_plan_asks_again_by_that_plan() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let plans = Arc::new(AtomicU32::new(0));
        let asked = Arc::clone(&plans);
        let layer = RateLimitLayer::new(store, Quota::new(0, HOUR)).key(by_path());
        let layer = layer.wait_up_to(SOON).quotas_for(move |_, _| {
            asked.fetch_add(1, Ordering::SeqCst);
            async { Quota::new(1, WINDOW) }
        });
        for _ in 0..3 {
            let response = ask(&layer, "/ada").await;
            assert_eq!(
                (
                    response.status().as_u16(),
                    told(&response, "x-ratelimit-limit")
                ),
                (200, "1")
            );
        }
        // The plan was looked for once for each request.
        assert_eq!(plans.load(Ordering::SeqCst), 3);
    }
}

/// Returns the status of a request and the source of its decision, if the store starts to fail while it waits.
async fn failing_while_waiting(policy: FailurePolicy) -> (u16, Option<Source>, Duration) {
    let store = Moody::new(Mood::Fine);
    let quota = Quota::new(1, Duration::from_secs(10));
    let layer = RateLimitLayer::new(store.clone(), quota)
        .key(by_path())
        .on_failure(policy);
    let layer = layer.wait_up_to(HOUR);
    assert_eq!(status(&layer, "/ada").await, 200);
    let service = layer.layer(service_fn(async |request: Request<()>| {
        let mut response = Response::new(Empty::<Bytes>::new());
        let view = request.extensions().get::<DecisionView>().cloned();
        response.extensions_mut().insert(view.unwrap().source());
        Ok::<_, Infallible>(response)
    }));
    let begin = tokio::time::Instant::now();
    let fails = async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        store.becomes(Mood::Fails(ErrorKind::Unavailable));
    };
    let (response, ()) = tokio::join!(service.oneshot(to("/ada")), fails);
    let response = response.unwrap();
    let source = response.extensions().get::<Source>().copied();
    (response.status().as_u16(), source, begin.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_meanwhile_is_for_the_policy_when_it_is_asked_again() {
    let two = Duration::from_secs(2);
    for (policy, status, source) in [
        (FailurePolicy::closed(), 503, None),
        (FailurePolicy::open(), 200, Some(Source::None)),
        (FailurePolicy::fall_back(), 200, Some(Source::Fallback)),
    ] {
        let (answered, decided, waited) = failing_while_waiting(policy).await;
        assert_eq!((answered, decided), (status, source));
        assert!(
            waited >= two && waited < two + Duration::from_secs(1),
            "{waited:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_refused_by_the_counts_of_this_process_asks_the_store_again_soon() {
    let store = Moody::unavailable();
    let layer = patient(store.clone());
    assert_eq!(status(&layer, "/ada").await, 200);
    let begin = tokio::time::Instant::now();
    let comes_back = async {
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        store.becomes(Mood::Fine);
    };
    let (answered, ()) = tokio::join!(status(&layer, "/ada"), comes_back);
    assert_eq!((answered, begin.elapsed().as_secs()), (200, 3));
}
