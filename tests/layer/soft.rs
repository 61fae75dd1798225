//! Soft quotas in a layer: requests pass, the handler learns of them, and clients do not.

use std::sync::{Arc, Mutex};

use axum::http::Request;
use tollgate::{
    DecisionView, Headers, IetfDraft, MemoryStore, Quota, RateLimitLayer, RateLimiter, key,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::calls::{ok, stores};
use crate::support::cases::some_or_all;
use crate::support::log;
use crate::support::redis_server::RedisServer;
use crate::{ask, by_path, to, told};

fn quotas() -> [Quota; 2] {
    [Quota::per_hour(4).warn_at(75), Quota::per_hour(2).soft()]
}

#[tokio::test]
async fn the_handler_finds_the_marks_and_clients_see_the_hard_quota() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let layer = RateLimitLayer::new(store, quotas())
            .name("search")
            .key(by_path());
        let marks: Arc<Mutex<Vec<(bool, bool)>>> = Arc::default();
        let handler = {
            let marks = Arc::clone(&marks);
            service_fn(move |request: Request<()>| {
                let view = request.extensions().get::<DecisionView>().unwrap();
                marks
                    .lock()
                    .unwrap()
                    .push((view.is_exceeded(), view.is_warned()));
                ok(request)
            })
        };
        let service = layer.layer(handler);
        for request in 1..=6_u32 {
            let response = service.clone().oneshot(to("/ada")).await.unwrap();
            assert_eq!(response.status(), if request <= 4 { 200 } else { 429 });
            assert_eq!(response.headers().contains_key("retry-after"), request > 4);
            assert_eq!(told(&response, "x-ratelimit-limit"), "4");
            let left = 4_u32.saturating_sub(request).to_string();
            assert_eq!(told(&response, "x-ratelimit-remaining"), left);
        }
        let expected = [(false, false), (false, false), (true, true), (true, true)];
        assert_eq!(*marks.lock().unwrap(), expected);
    }
}

#[tokio::test]
async fn no_dialect_lists_a_soft_quota_beside_a_hard_one() {
    for (draft, policies, limits) in [
        (
            IetfDraft::Draft11,
            r#""search";q=4;w=3600"#,
            r#""search";r=3;t="#,
        ),
        (
            IetfDraft::Draft07,
            "4;w=3600",
            "limit=4, remaining=3, reset=",
        ),
        (IetfDraft::Draft06, "4;w=3600", ""),
    ] {
        let layer = RateLimitLayer::new(MemoryStore::new(), quotas()).name("search");
        let layer = layer.key(by_path()).headers(Headers::ietf(draft));
        let response = ask(&layer, "/ada").await;
        assert_eq!(told(&response, "ratelimit-policy"), policies);
        if !limits.is_empty() {
            let told = told(&response, "ratelimit");
            assert!(told.starts_with(limits) && !told.contains(", \""), "{told}");
        }
    }
    // If all are soft, they are told: here a client has nothing left, and passes.
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(1).soft()).name("search");
    let layer = layer
        .key(by_path())
        .headers(Headers::ietf(IetfDraft::Draft11));
    for _ in 0..3 {
        let response = ask(&layer, "/ada").await;
        assert_eq!(response.status(), 200);
        assert!(!response.headers().contains_key("retry-after"));
        assert_eq!(
            told(&response, "ratelimit-policy"),
            r#""search";q=1;w=3600"#
        );
        assert!(told(&response, "ratelimit").starts_with(r#""search";r=0"#));
    }
}

#[tokio::test]
async fn a_soft_quota_of_an_outer_layer_lengthens_no_wait() {
    let inner = RateLimitLayer::new(MemoryStore::new(), Quota::per_second(0)).key(by_path());
    let outer = RateLimitLayer::new(
        MemoryStore::new(),
        [Quota::per_hour(9), Quota::per_hour(1).soft()],
    );
    let outer = outer.key(by_path());
    let service = outer.layer(inner.layer(service_fn(ok::<()>)));
    for _ in 0..3 {
        let response = service.clone().oneshot(to("/ada")).await.unwrap();
        assert_eq!(response.status(), 429);
        assert!(!response.headers().contains_key("retry-after"));
    }
}

#[tokio::test]
async fn a_soft_quota_of_a_level_is_charged_only_if_all_levels_admit() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let user = RateLimiter::new(Arc::clone(&store), quotas()).name("user");
        let tenant = RateLimiter::new(store, [Quota::per_hour(3), Quota::per_hour(1).soft()]);
        let tenant = tenant.name("tenant");
        let layer = RateLimitLayer::from(user.clone())
            .key(by_path())
            .and(tenant.clone(), key::global());
        for request in 1..=5 {
            let response = ask(&layer, "/ada").await;
            assert_eq!(response.status(), if request <= 3 { 200 } else { 429 });
        }
        let used = |decision: &DecisionView| -> Vec<u32> {
            decision.quotas().map(|quota| quota.used()).collect()
        };
        let user = user.peek("/ada").await.unwrap();
        assert_eq!(used(user.view()), [3, 2]);
        let tenant = tenant.peek(tollgate::Key::global()).await.unwrap();
        assert_eq!(used(tenant.view()), [3, 1]);
    }
}

#[tokio::test]
async fn marks_are_logged_once_per_key_and_window_and_in_bounds_under_a_flood() {
    log::keep();
    let started = std::time::Instant::now();
    let layer = RateLimitLayer::new(MemoryStore::new(), quotas())
        .name("search")
        .key(by_path());
    for _ in 0..4 {
        let _ = ask(&layer, "/ada").await;
    }
    let lines = log::kept();
    let marks = lines.iter().filter(|line| line.contains("tollgate::quota"));
    let marks: Vec<_> = marks.collect();
    assert_eq!(marks.len(), 2, "{lines:#?}");
    assert!(marks[0].contains("quota exceeded") && marks[0].contains("2/hour soft"));
    assert!(marks[1].contains("quota warned") && marks[1].contains("4/hour warn:75%"));
    assert!(!marks[0].contains("ada"));

    for key in 0..some_or_all(5_000, 20_000) {
        for _ in 0..4 {
            let _ = ask(&layer, &format!("/{key}")).await;
        }
    }
    let lines = log::kept();
    let seconds = started.elapsed().as_secs() + 2;
    let marks = lines.iter().filter(|line| line.contains("tollgate::quota"));
    let marks = u64::try_from(marks.count()).unwrap();
    assert!(
        (2..=10 * seconds).contains(&marks),
        "{marks} lines in {seconds} s"
    );
}
