//! The failure policies of a limiter, with a test store that fails. `tests/chaos` tests failures of real
//! servers.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::support::fakes::fake_store::FakeStore;
use crate::support::fakes::moody::{DEADLINE, Mood, Moody};
use crate::support::runtime;
use http::{HeaderMap, Request, Response, StatusCode};
use tollgate::key;
use tollgate::store::TestClock;
use tollgate::store::protocol::{CircuitBreaker, StoreFuture};
use tollgate::{
    Acquired, Algorithm, DecisionView, ErrorKind, FailurePolicy, MemoryStore, Permit, Quota,
    RateLimitLayer, RateLimiter, Share, Source, Store,
};
use tower::{Layer, ServiceExt, service_fn};

fn limiter(store: &Moody, limit: u32) -> RateLimiter {
    RateLimiter::new(store.clone(), Quota::per_hour(limit))
}

fn falling_back(store: &Moody, limit: u32) -> RateLimiter {
    limiter(store, limit).on_failure(FailurePolicy::fall_back())
}

async fn source(limiter: &RateLimiter) -> Source {
    limiter.check("ada").await.unwrap().source()
}

async fn kind(limiter: &RateLimiter) -> ErrorKind {
    limiter.check("ada").await.unwrap_err().kind()
}

/// Fails often enough for the breaker to open.
async fn open_breaker(limiter: &RateLimiter) {
    for _ in 0..5 {
        let _ = limiter.check("nobody").await;
    }
}

/// What a future comes to that is polled once, and dropped if it has to wait: after that.
fn polled_once<T>(future: impl Future<Output = T>, after: impl FnOnce()) -> Option<T> {
    let mut future = pin!(future);
    let polled = future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    after();
    match polled {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

/// What one request is answered: its status, its headers, and who decided.
async fn request(layer: &RateLimitLayer) -> (StatusCode, HeaderMap, Option<Source>) {
    let service =
        layer
            .clone()
            .key(key::global())
            .layer(service_fn(async |request: Request<()>| {
                let view = request.extensions().get::<DecisionView>().cloned();
                let mut response = Response::new(http_body_util::Empty::<bytes::Bytes>::new());
                response
                    .extensions_mut()
                    .insert(view.map(|view| view.source()));
                Ok::<_, Infallible>(response)
            }));
    let response = service.oneshot(Request::new(())).await.unwrap();
    let source = response.extensions().get::<Option<Source>>().copied();
    (
        response.status(),
        response.headers().clone(),
        source.flatten(),
    )
}

#[tokio::test]
async fn a_layer_falls_back_on_the_counts_of_this_process() {
    let layer = RateLimitLayer::new(Moody::unavailable(), Quota::per_hour(3));
    for remaining in ["2", "1", "0"] {
        let (status, headers, source) = request(&layer).await;
        assert_eq!((status, source), (StatusCode::OK, Some(Source::Fallback)));
        assert_eq!(headers["x-ratelimit-remaining"], remaining);
    }
    let (status, headers, _) = request(&layer).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(headers["retry-after"], "3600");
}

#[tokio::test]
async fn an_open_layer_lets_everything_pass_and_tells_no_numbers() {
    let layer = RateLimitLayer::new(Moody::unavailable(), Quota::per_hour(3))
        .on_failure(FailurePolicy::open());
    for _ in 0..10 {
        let (status, headers, source) = request(&layer).await;
        assert_eq!((status, source), (StatusCode::OK, Some(Source::None)));
        assert!(headers.is_empty(), "{headers:?}");
    }
}

#[tokio::test]
async fn a_closed_layer_lets_nothing_pass_and_says_when_to_come_back() {
    let layer = RateLimitLayer::new(Moody::unavailable(), Quota::per_hour(3))
        .on_failure(FailurePolicy::closed());
    for _ in 0..10 {
        let (status, headers, _) = request(&layer).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(headers["retry-after"], "1");
    }
}

#[tokio::test]
async fn a_bare_limiter_answers_the_error() {
    let limiter = limiter(&Moody::unavailable(), 3);
    assert_eq!(kind(&limiter).await, ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_layer_keeps_the_policy_of_the_limiter_that_it_is_made_of() {
    let closed = limiter(&Moody::unavailable(), 3).on_failure(FailurePolicy::closed());
    let (status, ..) = request(&RateLimitLayer::from(closed)).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn handles_of_one_limiter_differ_in_policy_and_count_together() {
    let store = Moody::unavailable();
    let expensive = limiter(&store, 3).on_failure(FailurePolicy::closed());
    let cheap = expensive.clone().on_failure(FailurePolicy::open());
    assert_eq!(source(&cheap).await, Source::None);
    assert_eq!(kind(&expensive).await, ErrorKind::Unavailable);
    store.becomes(Mood::Fine);
    assert_eq!(cheap.check("ada").await.unwrap().used(), 1);
    assert_eq!(expensive.check("ada").await.unwrap().used(), 2);
}

#[tokio::test]
async fn a_policy_outlives_a_new_name() {
    let open = limiter(&Moody::unavailable(), 3).on_failure(FailurePolicy::open());
    assert_eq!(source(&open.name("search")).await, Source::None);
}

#[tokio::test]
async fn replicas_share_the_limit_while_they_count_alone() {
    for (limit, share) in [(100, 25), (7, 1), (3, 1), (0, 0)] {
        let limiter = limiter(&Moody::unavailable(), limit)
            .on_failure(FailurePolicy::fall_back().replicas(4));
        for used in 1..=share {
            let decision = limiter.check("ada").await.unwrap();
            assert_eq!((decision.used(), decision.limit()), (used, share));
        }
        // Of a limit of 0, no cost is ever admitted.
        match limiter.check("ada").await {
            Ok(decision) => assert!(!decision.is_allowed(), "{limit}"),
            Err(error) => assert_eq!((error.kind(), limit), (ErrorKind::CostExceedsLimit, 0)),
        }
    }
}

#[tokio::test]
async fn replicas_divide_the_reserves_and_the_bounds_too() {
    let shares = [
        Share::of("critical").reserve(8),
        Share::of("batch").at_most(12),
    ];
    for quota in [
        Quota::per_hour(40).shares(shares.clone()),
        Quota::in_flight(40).shares(shares),
    ] {
        let limiter = RateLimiter::new(Moody::unavailable(), quota)
            .on_failure(FailurePolicy::fall_back().replicas(4));
        let mut permits = Vec::new();
        // Of 10 units of this process, 2 are kept, and a batch may use 3.
        for (share, expected) in [
            ("batch", 3),
            ("", 5),
            ("batch", 0),
            ("critical", 2),
            ("critical", 0),
        ] {
            let mut admitted = 0;
            while let Some(permit) = admitted_as(&limiter, share).await {
                permits.extend(permit);
                admitted += 1;
            }
            assert_eq!(admitted, expected, "{share:?} of {limiter:?}");
        }
    }
}

#[tokio::test]
async fn replicas_leave_one_unit_to_a_bounded_share() {
    for quota in [Quota::per_hour(10), Quota::in_flight(10)] {
        let quota = quota.shares([Share::of("batch").at_most(2)]);
        let limiter = RateLimiter::new(Moody::unavailable(), quota)
            .on_failure(FailurePolicy::fall_back().replicas(8));
        let permit = admitted_as(&limiter, "batch").await;
        assert!(permit.is_some(), "{limiter:?}");
        assert!(admitted_as(&limiter, "batch").await.is_none());
    }
}

/// Checks for a share, with a permit if there are slots. `None` if the check is refused.
async fn admitted_as(limiter: &RateLimiter, share: &str) -> Option<Option<Permit>> {
    let level = [limiter.level("ada").share(share)];
    if limiter
        .quotas()
        .iter()
        .all(|quota| quota.algorithm() != Algorithm::InFlight)
    {
        let decision = RateLimiter::check_all(level).await.unwrap();
        return decision.is_allowed().then_some(None);
    }
    match RateLimiter::try_acquire_all(level).await.unwrap() {
        Acquired::Permit(permit) => Some(Some(permit)),
        Acquired::Refused(_) => None,
    }
}

#[tokio::test]
async fn what_is_above_the_share_is_not_refused_for_good() {
    let limiter =
        limiter(&Moody::unavailable(), 100).on_failure(FailurePolicy::fall_back().replicas(10));
    assert!(limiter.check_n("ada", 10).await.unwrap().is_allowed());
    let error = limiter.check_n("bob", 11).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

/// Returns how many of 1 000 new keys a limit of 1 admits. Each is decided by `source`.
async fn new_keys_admitted(limiter: &RateLimiter, source: Source) -> u32 {
    let mut admitted = 0;
    for key in 0..1_000 {
        let decision = limiter.check(format!("new {key}")).await.unwrap();
        assert_eq!(decision.source(), source);
        admitted += u32::from(decision.is_allowed());
    }
    admitted
}

#[tokio::test]
async fn a_fallback_that_is_full_has_new_keys_share_its_few_counts() {
    let mut store = Moody::unavailable();
    store.circuit_breaker = CircuitBreaker::new().fallback_keys(1);
    let limiter = falling_back(&store, 1);
    assert!(limiter.check("ada").await.unwrap().is_allowed());
    assert_eq!(new_keys_admitted(&limiter, Source::Fallback).await, 64);
}

#[tokio::test]
async fn a_store_that_comes_and_goes_gives_no_fresh_quota() {
    let store = Moody::new(Mood::Fine);
    let limiter = falling_back(&store, 4);
    let (mut by_store, mut by_fallback) = (0, 0);
    for _ in 0..20 {
        store.becomes(Mood::Fails(ErrorKind::Timeout));
        by_fallback += u32::from(limiter.check("ada").await.unwrap().is_allowed());
        store.becomes(Mood::Fine);
        by_store += u32::from(limiter.check("ada").await.unwrap().is_allowed());
    }
    assert_eq!((by_store, by_fallback), (4, 4));
}

#[tokio::test]
async fn limiters_of_one_store_and_name_fall_back_on_one_count() {
    let store = Moody::unavailable();
    let _ = falling_back(&store, 9).check("ada").await.unwrap();
    assert_eq!(
        falling_back(&store, 9).check("ada").await.unwrap().used(),
        2
    );
    let other = falling_back(&store, 9).name("search");
    assert_eq!(other.check("ada").await.unwrap().used(), 1);
}

#[tokio::test]
async fn what_the_fallback_charged_is_given_back_to_it_and_reset_there() {
    let store = Moody::unavailable();
    let limiter = falling_back(&store, 9);
    let mut decision = limiter.check_n("ada", 5).await.unwrap();
    decision.refund(3).await.unwrap();
    assert_eq!(decision.held(), 2);
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 2);
    // What is kept here is forgotten, though the store fails.
    let error = limiter.admin().reset("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 0);
}

#[tokio::test]
async fn what_is_given_is_given_to_the_counts_of_this_process_too() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::Gcra] {
        let store = Moody::unavailable();
        let quota = Quota::per_minute(90).with_algorithm(algorithm);
        let policy = FailurePolicy::fall_back().replicas(3);
        let limiter = RateLimiter::new(store.clone(), quota).on_failure(policy);
        let _ = limiter.check_n("ada", 20).await.unwrap();
        let error = limiter.admin().credit("ada", 6).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let looked = limiter.peek("ada").await.unwrap();
        assert_eq!((looked.limit(), looked.used()), (30, 14));
    }
}

#[tokio::test]
async fn a_store_that_cannot_give_says_so() {
    let limiter = RateLimiter::new(FakeStore::in_memory(), Quota::per_minute(9));
    let error = limiter.admin().credit("ada", 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    // The same store behind a pointer gives what it can give.
    let stores: [Arc<dyn Store>; 2] = [
        Arc::new(MemoryStore::new()),
        Arc::new(Box::new(MemoryStore::new()) as Box<dyn Store>),
    ];
    for store in stores {
        let limiter = RateLimiter::new(store, Quota::per_minute(9));
        let _ = limiter.check_n("ada", 5).await.unwrap();
        limiter.admin().credit("ada", 2).await.unwrap();
        assert_eq!(limiter.peek("ada").await.unwrap().used(), 3);
    }
}

#[tokio::test]
async fn an_open_limiter_holds_nothing_to_give_back() {
    let limiter = limiter(&Moody::unavailable(), 9).on_failure(FailurePolicy::open());
    let mut decision = limiter.check_n("ada", 5).await.unwrap();
    assert_eq!(decision.held(), 0);
    decision.refund(5).await.unwrap();
}

#[tokio::test]
async fn a_store_that_failed_five_times_is_left_alone() {
    let store = Moody::unavailable();
    let limiter = limiter(&store, 9);
    for _ in 0..20 {
        assert_eq!(kind(&limiter).await, ErrorKind::Unavailable);
    }
    assert_eq!(store.times_asked(), 5);
    let text = limiter.check("ada").await.unwrap_err().to_string();
    assert!(
        text.contains("not asked") && text.contains("in no mood"),
        "{text}"
    );
}

#[tokio::test]
async fn what_one_limiter_learns_spares_the_others_of_its_store() {
    let store = Moody::unavailable();
    open_breaker(&limiter(&store, 9)).await;
    store.times_asked();
    assert_eq!(source(&falling_back(&store, 9)).await, Source::Fallback);
    assert_eq!(store.times_asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_look_asks_whether_the_store_is_back_and_nobody_waits_for_it() {
    let store = Moody::unavailable();
    let limiter = falling_back(&store, 9);
    open_breaker(&limiter).await;
    store.becomes(Mood::Hangs);
    store.let_breaker_probe();
    store.times_asked();
    let begin = tokio::time::Instant::now();
    for _ in 0..100 {
        assert_eq!(
            limiter.check("ada").await.unwrap().source(),
            Source::Fallback
        );
    }
    assert_eq!(begin.elapsed(), Duration::ZERO);
    assert_eq!(store.times_asked(), 1);
}

#[tokio::test]
async fn all_ask_again_when_the_look_was_answered() {
    let store = Moody::unavailable();
    let limiter = falling_back(&store, 9);
    open_breaker(&limiter).await;
    store.becomes(Mood::Fine);
    assert_eq!(source(&limiter).await, Source::Fallback);
    store.let_breaker_probe();
    assert_eq!(source(&limiter).await, Source::Fallback);
    tokio::task::yield_now().await;
    // The look was not charged.
    let decision = limiter.check("ada").await.unwrap();
    assert_eq!((decision.source(), decision.used()), (Source::Memory, 1));
}

#[test]
fn without_a_runtime_a_check_finds_out_whether_the_store_is_back() {
    let store = Moody::unavailable();
    let limiter = limiter(&store, 9);
    let runtime = runtime();
    runtime.block_on(open_breaker(&limiter));
    store.becomes(Mood::Fine);
    store.let_breaker_probe();
    let decision = polled_once(limiter.check("ada"), || ()).unwrap();
    assert_eq!(decision.unwrap().used(), 1);
}

/// Charges all units of a key, and has a further check refused by the store.
async fn use_up(limiter: &RateLimiter, key: &str, units: u32) {
    let _ = limiter.check_n(key, units).await.unwrap();
    assert!(!limiter.check(key).await.unwrap().is_allowed());
}

#[tokio::test]
async fn any_store_can_have_a_refusal_cache() {
    let store = Moody::remembering();
    let limiter = limiter(&store, 9);
    let mut charged = limiter.check_n("ada", 9).await.unwrap();
    assert!(!limiter.check("ada").await.unwrap().is_allowed());
    store.times_asked();
    // Another handle of the store has the same cache.
    let other = RateLimiter::new(store.clone(), Quota::per_hour(9));
    for limiter in [&limiter, &other] {
        let repeated = limiter.check("ada").await.unwrap();
        assert_eq!(repeated.source(), Source::RefusalCache);
        assert!(!repeated.is_allowed());
    }
    assert_eq!(store.times_asked(), 0);
    // Another cost, or a change of the counts, is a question to the store.
    assert!(!limiter.check_n("ada", 2).await.unwrap().is_allowed());
    assert_eq!(store.times_asked(), 1);
    charged.refund(1).await.unwrap();
    assert!(limiter.check("ada").await.unwrap().is_allowed());
}

#[test]
fn a_probe_asks_the_store_though_the_refusal_is_remembered() {
    let store = Moody::remembering();
    let limiter = limiter(&store, 9);
    let runtime = runtime();
    runtime.block_on(use_up(&limiter, "ada", 9));
    store.becomes(Mood::Fails(ErrorKind::Unavailable));
    runtime.block_on(open_breaker(&limiter));
    store.becomes(Mood::Fine);
    store.let_breaker_probe();
    store.times_asked();
    // Without a runtime, the check itself is the probe.
    let probe = polled_once(limiter.check("ada"), || ()).unwrap().unwrap();
    assert_eq!(store.times_asked(), 1);
    assert_ne!(probe.source(), Source::RefusalCache);
    let after = polled_once(limiter.check("ada"), || ()).unwrap().unwrap();
    assert_eq!(after.source(), Source::RefusalCache);
}

#[tokio::test]
async fn a_wrong_setup_and_a_full_store_are_answers_and_are_asked_again() {
    for kind in [ErrorKind::Misconfigured, ErrorKind::Full] {
        let store = Moody::new(Mood::Fails(kind));
        let limiter = falling_back(&store, 99);
        for _ in 0..50 {
            assert_eq!(source(&limiter).await, Source::Fallback);
        }
        assert_eq!(store.times_asked(), 50, "{kind:?}");
    }
}

#[tokio::test]
async fn what_no_store_would_admit_is_an_error_under_any_policy() {
    let store = Moody::unavailable();
    let policies = [
        FailurePolicy::fall_back(),
        FailurePolicy::open(),
        FailurePolicy::closed(),
    ];
    for policy in policies {
        let small = limiter(&store, 9).on_failure(policy);
        let error = small.check_n("ada", 10).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::CostExceedsLimit);
        let large = limiter(&store, 1_000_000).on_failure(policy);
        let error = large.check_n("ada", 100_001).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::CostTooLarge);
    }
    assert_eq!(store.times_asked(), 0);
}

#[tokio::test]
async fn remembered_refusals_do_not_hide_a_store_that_fails() {
    let store = Moody::remembering();
    let limiter = limiter(&store, 9);
    use_up(&limiter, "bob", 9).await;
    store.becomes(Mood::Fails(ErrorKind::Timeout));
    for _ in 0..5 {
        for _ in 0..10 {
            let repeated = limiter.check("bob").await.unwrap();
            assert_eq!(repeated.source(), Source::RefusalCache);
        }
        assert_eq!(kind(&limiter).await, ErrorKind::Timeout);
    }
    store.times_asked();
    assert_eq!(kind(&limiter).await, ErrorKind::Unavailable);
    assert_eq!(store.times_asked(), 0);
}

#[tokio::test]
async fn checks_that_waited_in_this_process_do_not_open_the_circuit_breaker() {
    let store = Moody::new(Mood::Fails(ErrorKind::QueueTimeout));
    let limiter = limiter(&store, 9);
    for _ in 0..50 {
        assert_eq!(kind(&limiter).await, ErrorKind::QueueTimeout);
    }
    // They do not hide a store that hangs, either.
    for _ in 0..5 {
        store.becomes(Mood::Fails(ErrorKind::Timeout));
        assert_eq!(kind(&limiter).await, ErrorKind::Timeout);
        store.becomes(Mood::Fails(ErrorKind::QueueTimeout));
        let _ = kind(&limiter).await;
    }
    assert_eq!(kind(&limiter).await, ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_waited_for_until_the_deadline() {
    let limiter = limiter(&Moody::new(Mood::Hangs), 9);
    let begin = tokio::time::Instant::now();
    assert_eq!(kind(&limiter).await, ErrorKind::Timeout);
    assert_eq!(begin.elapsed(), DEADLINE);
}

/// Returns a store that answers after a time by the system's clock, or never.
fn remote(answers_after: Option<Duration>) -> FakeStore {
    FakeStore::in_memory().checks_by(move |counts, checks| {
        let answers = counts.check(checks).try_ready();
        let answers = answers.expect("an answer at once").expect("no error");
        let (sender, reply) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            std::thread::sleep(answers_after?);
            sender.send(answers).ok()
        });
        StoreFuture::boxed(async move {
            match answers_after {
                Some(_) => Ok(reply.await.unwrap()),
                None => std::future::pending().await,
            }
        })
    })
}

#[tokio::test(start_paused = true)]
async fn a_paused_clock_of_tokio_ends_no_call_unless_a_test_moves_the_time_of_the_store() {
    let deadline = Duration::from_secs(30);
    let real = CircuitBreaker::new().deadline(deadline);
    let moved = real.clone().with_clock(TestClock::new());
    for (circuit_breaker, answers_after) in [(real, Some(deadline / 500)), (moved, None)] {
        let store = remote(answers_after).circuit_breaker(circuit_breaker);
        let limiter = RateLimiter::new(store, Quota::per_hour(9));
        let (begin, began) = (tokio::time::Instant::now(), Instant::now());
        let checked = limiter.check("ada").await;
        match answers_after {
            Some(_) => assert!(checked.unwrap().is_allowed()),
            None => assert_eq!(checked.unwrap_err().kind(), ErrorKind::Timeout),
        }
        assert!(begin.elapsed() <= deadline && began.elapsed() < deadline);
    }
}

#[tokio::test]
async fn callers_less_patient_than_the_deadline_do_not_hide_a_store_that_hangs() {
    let store = Moody::new(Mood::Hangs);
    let limiter = limiter(&store, 9);
    let mut given_up = 0;
    let error = loop {
        match polled_once(limiter.check("ada"), || store.clock.advance(DEADLINE / 3)) {
            None => given_up += 1,
            Some(outcome) => break outcome.unwrap_err(),
        }
        assert!(given_up < 100, "nobody noticed");
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(given_up >= 5, "{given_up}");
}

#[tokio::test]
async fn callers_that_leave_at_once_do_not_switch_a_store_off() {
    let store = Moody::new(Mood::Hangs);
    let limiter = falling_back(&store, 9);
    for _ in 0..1_000 {
        assert!(polled_once(limiter.check("ada"), || ()).is_none());
        store.clock.advance(Duration::from_millis(1));
    }
    store.becomes(Mood::Fine);
    assert_eq!(source(&limiter).await, Source::Memory);
}

#[tokio::test]
async fn a_store_that_is_left_alone_is_not_asked_to_forget_either() {
    let store = Moody::unavailable();
    let limiter = limiter(&store, 9);
    open_breaker(&limiter).await;
    store.times_asked();
    let error = limiter.admin().reset("ada").await.unwrap_err();
    assert_eq!(
        (error.kind(), store.times_asked()),
        (ErrorKind::Unavailable, 0)
    );
    let error = limiter.admin().credit("ada", 1).await.unwrap_err();
    assert_eq!(
        (error.kind(), store.times_asked()),
        (ErrorKind::Unavailable, 0)
    );
}

#[tokio::test]
async fn a_store_that_hangs_is_waited_for_no_longer_when_it_is_to_forget() {
    let limiter = limiter(&Moody::new(Mood::Hangs), 9);
    let error = limiter.admin().reset("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let error = limiter.admin().credit("ada", 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_room_asks_the_store_as_soon_as_it_is_back() {
    let store = Moody::unavailable();
    let limiter = falling_back(&store, 1);
    assert!(limiter.check("ada").await.unwrap().is_allowed());
    let begin = tokio::time::Instant::now();
    let comes_back = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        store.becomes(Mood::Fine);
    };
    let patience = Duration::from_secs(86_400);
    let (decision, ()) = tokio::join!(limiter.until_ready("ada", 1, patience), comes_back);
    assert_eq!(decision.unwrap().source(), Source::Memory);
    assert_eq!(begin.elapsed().as_secs(), 1);
}

#[tokio::test]
async fn a_memory_that_is_full_does_not_fall_back_on_another() {
    let store = MemoryStore::with_max_keys(1);
    let limiter =
        RateLimiter::new(store, Quota::per_hour(1)).on_failure(FailurePolicy::fall_back());
    assert!(limiter.check("ada").await.unwrap().is_allowed());
    assert_eq!(new_keys_admitted(&limiter, Source::Memory).await, 64);
}
