//! Operators peek at, reset, credit and block keys in each store; the response to a blocked request.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use crate::support::calls::{ok, request, stores};
use crate::support::fakes::fake_store::FakeStore;
use crate::support::redis_server::RedisServer;
use axum::http::{Request, Response, StatusCode};

use tollgate::store::TestClock;
use tollgate::{
    Admin, ErrorKind, FailurePolicy, Key, MemoryStore, Plan, Quota, Quotas, RateLimitLayer,
    RateLimiter, Source, WouldReject, key,
};
use tower::{Layer, ServiceExt, service_fn};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Three units an hour, on each store.
fn limiters(server: &RedisServer) -> [RateLimiter; 2] {
    stores(server).map(|store| RateLimiter::new(store, Quota::per_hour(3)).name("reports"))
}

async fn blocked(admin: &Admin) -> Vec<(String, u64)> {
    let blocked = admin.blocked().await.unwrap().into_iter();
    let blocked = blocked.map(|(key, left)| (key.as_str().to_owned(), left.as_secs()));
    blocked.collect()
}

#[tokio::test]
async fn a_look_tells_what_is_used_and_when_it_returns_and_charges_nothing() {
    let server = RedisServer::start();
    for limiter in limiters(&server) {
        let admin = limiter.admin();
        assert_eq!(admin.status("ada").await.unwrap().view.remaining(), 3);
        let _ = limiter.check_n("ada", 2).await.unwrap();
        for _ in 0..5 {
            let standing = admin.status("ada").await.unwrap();
            assert_eq!((standing.view.used(), standing.view.remaining()), (2, 1));
            assert_eq!(standing.blocked_for, None);
            let left = standing.view.reset_after();
            assert!(left > HOUR - 10 * SECOND && left <= HOUR, "{left:?}");
            let each: Vec<_> = standing.view.quotas().map(|of| of.remaining()).collect();
            assert_eq!(each, [1]);
        }
    }
}

#[tokio::test]
async fn a_status_has_the_numbers_of_its_view() {
    let quotas = [Quota::per_hour(9), Quota::per_day(7)];
    let limiter = RateLimiter::new(MemoryStore::new(), quotas);
    let _ = limiter.check_n("ada", 4).await.unwrap();
    let status = limiter.admin().status("ada").await.unwrap();
    let view = status.view;
    assert_eq!((view.limit(), view.used(), view.remaining()), (7, 4, 3));
    assert!(view.reset_after() > HOUR);
    assert_eq!(view.source(), Source::Memory);
    let left: Vec<_> = view.quotas().map(|quota| quota.remaining()).collect();
    assert_eq!(left, [5, 3]);
    assert_eq!(view.quotas().len(), 2);
    assert!(view.is_allowed());
}

#[tokio::test]
async fn what_is_reset_has_its_whole_quotas_and_what_is_given_has_so_much_more() {
    let server = RedisServer::start();
    for limiter in limiters(&server) {
        let admin = limiter.admin();
        let _ = limiter.check_n("ada", 3).await.unwrap();
        assert!(!limiter.check("ada").await.unwrap().is_allowed());

        admin.credit("ada", 2).await.unwrap();
        assert_eq!(admin.status("ada").await.unwrap().view.remaining(), 2);
        assert!(limiter.check("ada").await.unwrap().is_allowed());
        // The units left never exceed the limit.
        admin.credit("ada", 1_000).await.unwrap();
        assert_eq!(admin.status("ada").await.unwrap().view.remaining(), 3);

        let _ = limiter.check_n("ada", 3).await.unwrap();
        admin.reset("ada").await.unwrap();
        assert_eq!(admin.status("ada").await.unwrap().view.used(), 0);
        assert!(limiter.check("ada").await.unwrap().is_allowed());
    }
}

#[tokio::test]
async fn a_blocked_key_is_refused_whatever_it_has_left_and_charged_nothing() {
    let server = RedisServer::start();
    for limiter in limiters(&server) {
        let admin = limiter.admin();
        let _ = limiter.check("ada").await.unwrap();
        admin.block("ada", HOUR).await.unwrap();
        for cost in [1, 0, 3] {
            let refused = limiter.check_n("ada", cost).await.unwrap();
            assert!(!refused.is_allowed(), "{cost}");
            assert_eq!(refused.source(), Source::Block);
            assert_eq!(refused.remaining(), 0);
            let wait = refused.retry_after().unwrap();
            assert!(wait > HOUR - 10 * SECOND && wait <= HOUR, "{wait:?}");
        }
        let standing = admin.status("ada").await.unwrap();
        assert_eq!((standing.view.used(), standing.view.remaining()), (1, 2));
        let left = standing.blocked_for.unwrap();
        assert!(left > HOUR - 10 * SECOND && left <= HOUR, "{left:?}");

        // Others are not, nor is this key where another limiter counts it.
        assert!(limiter.check("bob").await.unwrap().is_allowed());
        let other = limiter.clone().name("other");
        assert!(other.check("ada").await.unwrap().is_allowed());
        assert_eq!(other.admin().status("ada").await.unwrap().blocked_for, None);

        admin.unblock("ada").await.unwrap();
        assert_eq!(admin.status("ada").await.unwrap().blocked_for, None);
        assert_eq!(limiter.check("ada").await.unwrap().used(), 2);
        // Unblocking a key that is not blocked is not an error.
        admin.unblock("nobody").await.unwrap();
    }
}

#[tokio::test]
async fn a_look_and_a_peek_say_what_a_blocked_key_has_left_and_reset_and_give_do_not_unblock() {
    let server = RedisServer::start();
    for limiter in limiters(&server) {
        let admin = limiter.admin();
        let _ = limiter.check_n("ada", 3).await.unwrap();
        admin.block("ada", HOUR).await.unwrap();
        assert_eq!(limiter.peek("ada").await.unwrap().used(), 3);
        admin.credit("ada", 1).await.unwrap();
        assert_eq!(limiter.peek("ada").await.unwrap().remaining(), 1);
        admin.reset("ada").await.unwrap();
        let peeked = limiter.peek("ada").await.unwrap();
        assert!(peeked.is_allowed() && peeked.remaining() == 3);
        assert_eq!(limiter.check("ada").await.unwrap().source(), Source::Block);
    }
}

#[tokio::test]
async fn what_was_charged_before_a_block_is_refunded_and_settled_all_the_same() {
    let server = RedisServer::start();
    for limiter in limiters(&server) {
        let mut one = limiter.check("ada").await.unwrap();
        let other = limiter.check("ada").await.unwrap();
        limiter.admin().block("ada", HOUR).await.unwrap();
        one.refund(1).await.unwrap();
        assert_eq!(limiter.peek("ada").await.unwrap().used(), 1);
        // The work is done, so it counts.
        other.settle(3).await.unwrap();
        assert_eq!(limiter.peek("ada").await.unwrap().used(), 3);
        // A refusal holds nothing.
        let mut refused = limiter.check("ada").await.unwrap();
        assert_eq!(refused.held(), 0);
        refused.refund(1).await.unwrap();
        refused.settle(0).await.unwrap();
        assert_eq!(limiter.peek("ada").await.unwrap().used(), 3);
    }
}

#[tokio::test]
async fn who_is_blocked_is_listed_longest_first_by_limiter() {
    let server = RedisServer::start();
    for limiter in limiters(&server) {
        let (admin, other) = (limiter.admin(), limiter.clone().name("other").admin());
        admin.block("ada", 90 * SECOND).await.unwrap();
        admin.block("bob", HOUR).await.unwrap();
        other.block("eve", HOUR).await.unwrap();
        // Blocked again, it lasts as long as said last, longer or shorter.
        admin.block("ada", 2 * HOUR).await.unwrap();
        admin.block("bob", 60 * SECOND).await.unwrap();
        assert_eq!(
            blocked(&admin).await,
            [("ada".to_owned(), 7_199), ("bob".to_owned(), 59)]
        );
        assert_eq!(blocked(&other).await, [("eve".to_owned(), 3_599)]);
        // Names of limiters and keys may be of any text.
        let hostile = limiter.clone().name("a,b{c}#");
        let key = Key::from("\0,{}#").and(key::header("x-api-key").of("secret"));
        hostile.admin().block(&key, HOUR).await.unwrap();
        assert_eq!(hostile.admin().blocked().await.unwrap()[0].0, key);
        assert!(!hostile.check(&key).await.unwrap().is_allowed());
        assert_eq!(blocked(&admin).await.len(), 2);
    }
}

#[tokio::test]
async fn a_block_ends_by_itself_to_the_microsecond() {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let limiter = RateLimiter::new(store, Quota::per_hour(3));
    let admin = limiter.admin();
    admin.block("ada", SECOND).await.unwrap();
    admin.block("bob", 2 * SECOND).await.unwrap();
    clock.advance(SECOND - Duration::from_micros(1));
    let refused = limiter.check("ada").await.unwrap();
    assert_eq!(refused.retry_after(), Some(Duration::from_micros(1)));
    clock.advance(Duration::from_micros(1));
    assert!(limiter.check("ada").await.unwrap().is_allowed());
    assert!(!limiter.check("bob").await.unwrap().is_allowed());
    assert_eq!(blocked(&admin).await.len(), 1);
    clock.advance(SECOND);
    assert!(limiter.check("bob").await.unwrap().is_allowed());
    assert!(blocked(&admin).await.is_empty());
    // And another one begins.
    admin.block("bob", SECOND).await.unwrap();
    assert!(!limiter.check("bob").await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_block_for_good_holds_on_each_store() {
    let server = RedisServer::start();
    for limiter in limiters(&server) {
        limiter.admin().block("ada", Duration::MAX).await.unwrap();
        for _ in 0..2 {
            let refused = limiter.check("ada").await.unwrap();
            assert_eq!(refused.source(), Source::Block);
            let years = refused.retry_after().unwrap().as_secs() / 86_400 / 365;
            assert!(years > 100, "{years}");
            // What Redis says of it is looked at.
            let standing = limiter.admin().status("ada").await.unwrap();
            assert!(standing.blocked_for.is_some());
        }
        let layer = RateLimitLayer::from(limiter.clone()).key(key::from_fn(|_| "ada"));
        assert_eq!(ask(&layer).await.status(), 429);
    }
}

#[tokio::test]
async fn a_wait_for_room_ends_with_the_block_and_is_not_begun_where_that_is_too_late() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(3));
    let admin = limiter.admin();
    admin.block("ada", HOUR).await.unwrap();
    let refused = limiter.until_ready("ada", 1, SECOND).await.unwrap();
    assert_eq!(refused.source(), Source::Block);
    admin.block("ada", Duration::from_millis(30)).await.unwrap();
    let ready = limiter.until_ready("ada", 1, 10 * SECOND).await.unwrap();
    assert!(ready.is_allowed());
}

#[tokio::test]
async fn a_plan_is_looked_at_and_reset_by_its_own_quotas_and_blocked_whatever_they_are() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let plan = Quotas::from([Quota::per_day(100), Quota::per_minute(10)]);
        let planned = plan.clone();
        let layer = RateLimitLayer::new(store, Quota::per_hour(3))
            .name("tenants")
            .key(key::from_fn(|_| "acme"))
            .quotas_for(move |_, _| {
                let plan = planned.clone();
                async move { plan }
            });
        for _ in 0..4 {
            assert_eq!(ask(&layer).await.status(), 200);
        }
        let admin = layer.limiter().admin();
        let of_plan = admin.clone().quotas(plan);
        // All windows of a log share its units.
        assert_eq!(admin.status("acme").await.unwrap().view.used(), 4);
        let used = of_plan.status("acme").await.unwrap();
        let used: Vec<_> = used
            .view
            .quotas()
            .map(|of| (of.limit(), of.used()))
            .collect();
        assert_eq!(used, [(100, 4), (10, 4)]);
        of_plan.credit("acme", 1).await.unwrap();
        assert_eq!(of_plan.status("acme").await.unwrap().view.used(), 3);
        of_plan.reset("acme").await.unwrap();
        assert_eq!(of_plan.status("acme").await.unwrap().view.used(), 0);
        assert_eq!(admin.status("acme").await.unwrap().view.used(), 0);

        admin.block("acme", HOUR).await.unwrap();
        assert_eq!(ask(&layer).await.status(), 429);
        assert!(of_plan.status("acme").await.unwrap().blocked_for.is_some());
        assert_eq!(of_plan.status("acme").await.unwrap().view.used(), 0);
        of_plan.unblock("acme").await.unwrap();
        assert_eq!(ask(&layer).await.status(), 200);
    }
}

/// What a request is answered, where the service behind says ok.
async fn ask(layer: &RateLimitLayer) -> Response<()> {
    ask_with(layer, request(())).await
}

async fn ask_with(layer: &RateLimitLayer, request: Request<()>) -> Response<()> {
    let service = layer.layer(service_fn(ok::<()>));
    service.oneshot(request).await.unwrap().map(drop)
}

fn peer() -> Key {
    key::peer_ip().of([192, 0, 2, 1].into())
}

#[tokio::test]
async fn a_blocked_request_is_told_how_long_unless_it_could_never_pass() {
    let server = RedisServer::start();
    for store in stores(&server) {
        for cost in [1, 0, 4] {
            let layer = RateLimitLayer::new(Arc::clone(&store), Quota::per_hour(3))
                .name(format!("cost {cost}"))
                .cost(move |_| cost);
            layer
                .limiter()
                .admin()
                .block(peer(), 90 * SECOND)
                .await
                .unwrap();
            let refused = ask(&layer).await;
            assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS, "{cost}");
            let headers = refused.headers();
            let wait = headers
                .get("retry-after")
                .map(|wait| wait.to_str().unwrap());
            assert_eq!(wait, (cost <= 3).then_some("90"), "{cost}");
            assert_eq!(headers["x-ratelimit-remaining"], "0");
            assert_eq!(headers["x-ratelimit-limit"], "3");
            layer.limiter().admin().unblock(peer()).await.unwrap();
            let expected = if cost > 3 { 429 } else { 200 };
            assert_eq!(ask(&layer).await.status(), expected);
        }
    }
}

#[tokio::test]
async fn a_dry_run_lets_a_blocked_request_go_on_and_tells() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(3)).dry_run();
    layer.limiter().admin().block(peer(), HOUR).await.unwrap();
    let spared = ask(&layer).await;
    assert_eq!(spared.status(), 200);
    assert!(spared.headers().is_empty());
    let told = spared.extensions().get::<WouldReject>().unwrap();
    let wait = told.rejection().retry_after().unwrap();
    assert!(wait > HOUR - 10 * SECOND, "{wait:?}");
}

#[tokio::test]
async fn what_is_not_counted_is_not_blocked() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(3));
    let skipping = layer.clone().skip(|_| true);
    let exempting = layer.clone().quotas_for(|_, _| async { Plan::Exempt });
    let admin = layer.limiter().admin();
    admin.block(peer(), HOUR).await.unwrap();
    assert_eq!(ask(&layer).await.status(), 429);
    assert_eq!(ask(&skipping).await.status(), 200);
    assert_eq!(ask(&exempting).await.status(), 200);

    let unlimited = RateLimiter::new(MemoryStore::new(), Quotas::from([]));
    unlimited.admin().block("ada", HOUR).await.unwrap();
    assert!(unlimited.check("ada").await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_block_of_a_layer_that_waits_is_waited_for_and_no_longer() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(3)).wait_up_to(10 * SECOND);
    let admin = layer.limiter().admin();
    admin
        .block(peer(), Duration::from_millis(30))
        .await
        .unwrap();
    assert_eq!(ask(&layer).await.status(), 200);
    admin.block(peer(), HOUR).await.unwrap();
    assert_eq!(ask(&layer).await.status(), 429);
}

#[tokio::test]
async fn the_keys_that_are_refused_most_are_told_blocked_or_not_if_that_was_asked_for() {
    let many = NonZeroUsize::new(10).unwrap();
    let limiter =
        RateLimiter::new(MemoryStore::new(), Quota::per_hour(1)).track_rejected_keys(many);
    let admin = limiter.admin();
    assert!(admin.top_rejected_keys(10).is_empty());
    admin.block("eve", HOUR).await.unwrap();
    for (key, checks) in [("ada", 1), ("bob", 3), ("eve", 4)] {
        for _ in 0..checks {
            let _ = limiter.check(key).await.unwrap();
        }
    }
    let told = |most| {
        let told = admin.top_rejected_keys(most).into_iter();
        let told = told.map(|busy| (busy.key.as_str().to_owned(), busy.refused, busy.error));
        told.collect::<Vec<_>>()
    };
    assert_eq!(told(10), [("eve".into(), 4, 0), ("bob".into(), 2, 0)]);
    assert_eq!(told(1), [("eve".into(), 4, 0)]);
    // Peeks do not count as refusals.
    let _ = admin.status("eve").await.unwrap();
    assert_eq!(told(1), [("eve".into(), 4, 0)]);

    let untold = RateLimiter::new(MemoryStore::new(), Quota::per_hour(1));
    for _ in 0..2 {
        let _ = untold.check("ada").await.unwrap();
    }
    assert!(untold.admin().top_rejected_keys(10).is_empty());
}

#[tokio::test]
async fn a_key_of_a_log_is_the_key_that_was_logged() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(3));
    let api_key = key::header("x-api-key").of("secret");
    let _ = limiter.check(&api_key).await.unwrap();
    let read = Key::from_stored(api_key.as_str()).unwrap();
    assert_eq!(limiter.admin().status(read).await.unwrap().view.used(), 1);
}

#[tokio::test]
async fn a_store_that_only_decides_says_that_it_can_do_no_more() {
    let layer = RateLimitLayer::new(FakeStore::in_memory(), Quota::per_hour(3))
        .on_failure(FailurePolicy::open());
    let admin = layer.limiter().admin();
    assert_eq!(admin.status("ada").await.unwrap().view.remaining(), 3);
    assert!(admin.blocked().await.unwrap().is_empty());
    for outcome in [
        admin.reset("ada").await,
        admin.credit("ada", 1).await,
        admin.block("ada", HOUR).await,
        admin.unblock("ada").await,
    ] {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

#[tokio::test]
async fn a_blocked_key_stays_out_while_its_plan_cannot_be_found() {
    for policy in [
        FailurePolicy::open(),
        FailurePolicy::fall_back(),
        FailurePolicy::closed(),
    ] {
        let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(5))
            .on_failure(policy)
            .quotas_for(|_, _| async { Err::<Plan, _>(std::io::Error::other("no database")) });
        let free = ask(&layer).await.status();
        layer.limiter().admin().block(peer(), HOUR).await.unwrap();
        let blocked = ask(&layer).await;
        assert_ne!(free, StatusCode::TOO_MANY_REQUESTS, "{policy:?}");
        assert_eq!(
            blocked.status(),
            StatusCode::TOO_MANY_REQUESTS,
            "{policy:?}"
        );
        assert_eq!(blocked.headers()["retry-after"], "3600", "{policy:?}");
    }
}

#[tokio::test]
async fn who_asks_for_more_than_the_limit_is_told_no_wait_blocked_or_not() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(5)).cost(|_| 6);
    for _ in 0..2 {
        let refused = ask(&layer).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(!refused.headers().contains_key("retry-after"));
        layer.limiter().admin().block(peer(), HOUR).await.unwrap();
    }
}

#[tokio::test]
async fn memory_blocks_as_many_keys_as_redis_does_and_soon_has_room_again() {
    let clock = TestClock::new();
    let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()), Quota::per_hour(5));
    let admin = limiter.admin();
    for number in 0..10_000 {
        let time = if number == 7 { SECOND } else { HOUR };
        admin.block(format!("{number}"), time).await.unwrap();
    }
    let error = admin.block("ada", HOUR).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    // A key that is blocked already needs no more space.
    admin.block("8", 2 * HOUR).await.unwrap();
    clock.advance(SECOND);
    admin.block("ada", HOUR).await.unwrap();
    assert_eq!(limiter.check("ada").await.unwrap().source(), Source::Block);
    assert_eq!(limiter.check("7").await.unwrap().source(), Source::Memory);
    admin.unblock("9").await.unwrap();
    assert_eq!(limiter.check("9").await.unwrap().source(), Source::Memory);
}

#[tokio::test]
async fn the_shortest_block_is_a_block() {
    let clock = TestClock::new();
    let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()), Quota::per_hour(5));
    limiter
        .admin()
        .block("ada", Duration::from_nanos(1))
        .await
        .unwrap();
    assert!(!limiter.check("ada").await.unwrap().is_allowed());
    clock.advance(Duration::from_micros(1));
    assert!(limiter.check("ada").await.unwrap().is_allowed());
}
