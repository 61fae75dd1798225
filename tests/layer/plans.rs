//! `quotas_for`: each key has the quotas of its plan.

use std::convert::Infallible;
use std::error::Error as _;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::{Request, Response};
use http_body_util::Empty;
use tokio::sync::oneshot;
use tollgate::{
    DecisionView, FailurePolicy, Headers, IntoPlan, MemoryStore, Plan, Quota, Quotas,
    RateLimitLayer, RateLimiter, Rejection, RejectionReason, Source, Store,
};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::calls::{ok, stores};
use crate::support::fakes::moody::{Mood, Moody};
use crate::support::log;
use crate::support::redis_server::RedisServer;
use crate::{ask, by_hand, by_path, status, to, told, used};

const HOUR: Duration = Duration::from_secs(3_600);

/// A layer with a default limit of 3 per hour.
fn layer(store: impl Store) -> RateLimitLayer {
    RateLimitLayer::new(store, Quota::per_hour(3)).key(by_path())
}

/// The limit that a key has by such a plan.
async fn limit_by<P>(plan: impl Fn() -> P + Clone + Send + Sync + 'static) -> String
where
    P: IntoPlan + Send + 'static,
{
    let layer = layer(MemoryStore::new()).quotas_for(move |_, _| {
        let plan = plan.clone();
        async move { plan() }
    });
    told(&ask(&layer, "/ada").await, "x-ratelimit-limit").to_owned()
}

#[tokio::test]
async fn a_plan_is_whatever_can_be_made_one() {
    let quota = || Quota::per_hour(7);
    assert_eq!(limit_by(quota).await, "7");
    assert_eq!(limit_by(move || [quota(), Quota::per_day(5)]).await, "5");
    assert_eq!(limit_by(move || vec![quota()]).await, "7");
    assert_eq!(limit_by(move || Quotas::from(quota())).await, "7");
    assert_eq!(limit_by(move || Plan::Quotas(quota().into())).await, "7");
    assert_eq!(limit_by(move || Some(quota())).await, "7");
    assert_eq!(
        limit_by(move || Ok::<_, io::Error>(Some(quota()))).await,
        "7"
    );
    static LISTED: [Quota; 1] = [Quota::per_hour(7)];
    assert_eq!(limit_by(|| &LISTED[..]).await, "7");
}

#[tokio::test]
async fn without_a_plan_the_quotas_of_the_layer_hold() {
    assert_eq!(limit_by(|| None::<Quota>).await, "3");
    assert_eq!(limit_by(|| Plan::Default).await, "3");
    assert_eq!(limit_by(|| Ok::<_, io::Error>(Plan::default())).await, "3");
}

#[tokio::test]
async fn who_is_exempt_is_neither_counted_nor_told_of_a_limit() {
    let store = MemoryStore::new();
    let free = layer(store.clone()).quotas_for(|_, _| async { Plan::Exempt });
    for _ in 0..9 {
        let response = ask(&free, "/ada").await;
        assert_eq!(response.status(), 200);
        assert!(response.headers().is_empty(), "{:?}", response.headers());
    }
    assert_eq!(
        used(&RateLimiter::new(store, Quota::per_hour(3)), "/ada").await,
        0
    );
}

#[tokio::test]
async fn a_plan_without_quotas_admits_everything() {
    let free = layer(Moody::unavailable()).quotas_for(|_, _| async { Quotas::from([]) });
    for _ in 0..9 {
        let response = ask(&free, "/ada").await;
        assert_eq!(response.status(), 200);
        assert_eq!(told(&response, "x-ratelimit-limit"), "-");
    }
}

#[tokio::test]
async fn each_key_has_its_own_quotas_and_is_told_them_whatever_the_store() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let layer = layer(store).quotas_for(|key, parts| {
            assert_eq!(key.as_str(), parts.uri.path());
            let limit = if parts.uri.path() == "/ada" { 5 } else { 1 };
            async move { Quota::per_hour(limit) }
        });
        for left in ["4", "3", "2", "1", "0"] {
            let response = ask(&layer, "/ada").await;
            assert_eq!(response.status(), 200);
            assert_eq!(told(&response, "x-ratelimit-limit"), "5");
            assert_eq!(told(&response, "x-ratelimit-remaining"), left);
        }
        let refused = ask(&layer, "/ada").await;
        assert_eq!(
            (
                refused.status().as_u16(),
                told(&refused, "x-ratelimit-limit")
            ),
            (429, "5")
        );
        assert_eq!(
            (status(&layer, "/bob").await, status(&layer, "/bob").await),
            (200, 429)
        );
    }
}

#[tokio::test]
async fn a_plan_that_changes_takes_effect_with_the_next_request_and_keeps_the_history() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limit = Arc::new(AtomicU32::new(2));
        let asked = Arc::clone(&limit);
        let layer = layer(store).quotas_for(move |_, _| {
            let limit = asked.load(Ordering::SeqCst);
            async move { Quota::per_hour(limit) }
        });
        let statuses = async || [status(&layer, "/ada").await, status(&layer, "/ada").await];
        assert_eq!(statuses().await, [200, 200]);
        assert_eq!(status(&layer, "/ada").await, 429);
        limit.store(4, Ordering::SeqCst);
        assert_eq!(statuses().await, [200, 200]);
        limit.store(3, Ordering::SeqCst);
        let response = ask(&layer, "/ada").await;
        assert_eq!(
            (
                response.status().as_u16(),
                told(&response, "x-ratelimit-limit")
            ),
            (429, "3")
        );
    }
}

/// Asks under a policy, while plans cannot be found: who decides, and what is answered.
async fn while_plans_fail(layer: &RateLimitLayer) -> (u16, Option<Source>, Option<String>) {
    let seen = Arc::new(Mutex::new(None));
    let saw = Arc::clone(&seen);
    let service = layer.layer(service_fn(move |request: Request<()>| {
        let view = request.extensions().get::<DecisionView>();
        *saw.lock().unwrap() = view.map(|view| view.source());
        ok(request)
    }));
    let response = service.oneshot(to("/ada")).await.unwrap();
    let rejection = response.extensions().get::<Rejection>();
    let error = rejection.and_then(|rejection| match rejection.reason() {
        RejectionReason::Failed(error) => error.source().map(ToString::to_string),
        _ => None,
    });
    let source = *seen.lock().unwrap();
    (response.status().as_u16(), source, error)
}

fn failing(store: impl Store) -> RateLimitLayer {
    layer(store).quotas_for(|_, _| async { Err::<Quota, _>(io::Error::other("no database")) })
}

#[tokio::test]
async fn while_plans_fail_this_process_counts_by_the_quotas_of_the_layer() {
    let store = Moody::new(Mood::Fine);
    let failing = failing(store.clone());
    for _ in 0..3 {
        assert_eq!(
            while_plans_fail(&failing).await,
            (200, Some(Source::Fallback), None)
        );
    }
    let refused = ask(&failing, "/ada").await;
    assert_eq!(
        (
            refused.status().as_u16(),
            told(&refused, "x-ratelimit-limit")
        ),
        (429, "3")
    );
    assert_eq!(store.times_asked(), 0);
}

#[tokio::test]
async fn in_memory_while_plans_fail_the_store_counts_by_the_quotas_of_the_layer() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(3));
    let failing = RateLimitLayer::from(limiter.clone()).key(by_path());
    let failing = failing.quotas_for(|_, _| async { Err::<Quota, _>("no database") });
    for used_before in 0..3 {
        assert_eq!(used(&limiter, "/ada").await, used_before);
        assert_eq!(
            while_plans_fail(&failing).await,
            (200, Some(Source::Memory), None)
        );
    }
    let refused = ask(&failing, "/ada").await;
    assert_eq!(
        (
            refused.status().as_u16(),
            told(&refused, "x-ratelimit-limit")
        ),
        (429, "3")
    );
    // What it charged is given back there.
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(3));
    let failing = RateLimitLayer::from(limiter.clone())
        .key(by_path())
        .settle(|_, _, _| 0);
    let failing = failing.quotas_for(|_, _| async { Err::<Quota, _>("no database") });
    assert_eq!(status(&failing, "/ada").await, 200);
    assert_eq!(used(&limiter, "/ada").await, 0);
}

#[tokio::test]
async fn while_plans_fail_an_open_layer_lets_everything_pass() {
    let open = failing(MemoryStore::new()).on_failure(FailurePolicy::open());
    for _ in 0..9 {
        assert_eq!(
            while_plans_fail(&open).await,
            (200, Some(Source::None), None)
        );
    }
}

#[tokio::test]
async fn while_plans_fail_a_closed_layer_answers_503() {
    let closed = failing(MemoryStore::new()).on_failure(FailurePolicy::closed());
    let (status, source, error) = while_plans_fail(&closed).await;
    assert_eq!((status, source), (503, None));
    assert!(error.unwrap().contains("no database"));
    assert_eq!(told(&ask(&closed, "/ada").await, "retry-after"), "1");
}

#[tokio::test]
async fn a_layer_without_quotas_of_its_own_admits_everything_while_plans_fail() {
    let failing = RateLimitLayer::new(MemoryStore::new(), []).key(by_path());
    let failing = failing.quotas_for(|_, _| async { Err::<Quota, _>("no database") });
    for _ in 0..3 {
        let (status, ..) = while_plans_fail(&failing).await;
        assert_eq!(status, 200);
    }
}

#[tokio::test]
async fn plans_that_fail_for_some_keys_are_one_line() {
    let layer = layer(MemoryStore::new())
        .name("search")
        .quotas_for(|_, parts| {
            let fails = parts.uri.path() == "/ada";
            async move {
                if fails {
                    Err("no database")
                } else {
                    Ok(Plan::Exempt)
                }
            }
        });
    log::keep();
    for round in 0..3 {
        for path in ["/ada", "/bob", "/ada"] {
            let _ = status(&layer, path).await;
        }
        if round == 0 {
            // As long as a store must answer for it to be back.
            tokio::time::sleep(Duration::from_millis(1_100)).await;
        }
    }
    let log = log::kept();
    assert_eq!(log.len(), 1, "{log:?}");
    for text in ["WARN", "search", "no database", "quotas of a key"] {
        assert!(log[0].contains(text), "{log:?}");
    }
}

#[tokio::test]
async fn a_store_that_answers_does_not_say_that_plans_are_back() {
    let store = Moody::new(Mood::Fine);
    let failing = failing(store);
    log::keep();
    for _ in 0..3 {
        let _ = status(&failing, "/ada").await;
    }
    assert_eq!(log::kept().len(), 1);
}

#[tokio::test]
async fn a_plan_is_waited_for_and_the_service_that_was_ready_is_called() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let (tell, told_plan) = oneshot::channel::<Quota>();
        let plan = Mutex::new(Some(told_plan));
        let layer = layer(store).quotas_for(move |_, _| {
            let plan = plan.lock().unwrap().take().unwrap();
            async move { plan.await.ok() }
        });
        let handler = |_: Request<()>| async {
            Ok::<_, Infallible>(Response::new(Empty::<bytes::Bytes>::new()))
        };
        // There is one permit: the service that was polled ready has it.
        let mut service = layer.layer(ConcurrencyLimitLayer::new(1).layer(service_fn(handler)));
        service.ready().await.unwrap();
        let mut response = by_hand(service.call(to("/ada")));
        assert!(response.poll().is_pending());
        tell.send(Quota::new(9, HOUR)).unwrap();
        let response = response.end().await.unwrap();
        assert_eq!(
            (
                response.status().as_u16(),
                told(&response, "x-ratelimit-limit")
            ),
            (200, "9")
        );
    }
}

#[tokio::test]
async fn a_plan_changes_nothing_about_who_is_told_nothing() {
    let quiet = layer(MemoryStore::new()).headers(Headers::none());
    let quiet = quiet.quotas_for(|_, _| async { Quota::per_hour(1) });
    assert!(ask(&quiet, "/ada").await.headers().is_empty());
    assert_eq!(status(&quiet, "/ada").await, 429);
}
