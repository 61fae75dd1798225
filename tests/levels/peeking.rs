//! `RateLimiter::peek_all`: all levels of a request are read at once, and what customers see of them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::store::TestClock;
use tollgate::{
    Acquired, FailurePolicy, Key, KeyStatus, MemoryStore, Quota, QuotaDecision, RateLimiter, Share,
    Source, Store,
};

use crate::support::calls::stores;
use crate::support::fakes::moody::Moody;
use crate::support::redis_server::RedisServer;

fn limiter(store: &Arc<dyn Store>, name: &str, limit: u32) -> RateLimiter {
    RateLimiter::new(Arc::clone(store), Quota::per_hour(limit)).name(name)
}

fn left(status: &KeyStatus) -> Vec<u32> {
    let quotas = status.view.quotas();
    quotas.map(|quota| quota.remaining()).collect()
}

fn memory() -> MemoryStore {
    MemoryStore::with_clock(TestClock::new())
}

#[tokio::test]
async fn all_levels_are_read_without_a_charge_or_a_slot() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let user = limiter(&store, "user", 60);
        let quotas = [Quota::per_hour(100), Quota::in_flight(2)];
        let tenant = RateLimiter::new(Arc::clone(&store), quotas).name("tenant");
        assert!(user.check_n("ada", 3).await.unwrap().is_allowed());
        let Acquired::Permit(permit) = tenant.try_acquire("acme").await.unwrap() else {
            panic!("a slot is free");
        };
        let levels = [user.level("ada").cost(9), tenant.level("acme").cost(9)];
        for _ in 0..3 {
            let status = RateLimiter::peek_all(levels.clone()).await.unwrap();
            assert_eq!(left(&status), [57, 99, 1]);
            assert!(status.view.is_allowed());
            assert_eq!(status.blocked_for, None);
        }
        // Without a slot, a check of cost 0 through a layer would be refused.
        let Acquired::Permit(other) = tenant.try_acquire("acme").await.unwrap() else {
            panic!("a slot is free");
        };
        let status = RateLimiter::peek_all(levels).await.unwrap();
        assert_eq!(left(&status), [57, 98, 0]);
        drop((permit, other));
    }
}

#[tokio::test]
async fn no_level_has_no_quotas() {
    let status = RateLimiter::peek_all([]).await.unwrap();
    assert_eq!(left(&status), [0; 0]);
    assert!(status.view.is_allowed());
}

#[tokio::test]
async fn a_level_over_its_limit_does_not_keep_the_others_from_being_read() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let before = limiter(&store, "user", 60);
        assert!(before.check_n("ada", 50).await.unwrap().is_allowed());
        // The limit was lowered since.
        let user = limiter(&store, "user", 20);
        let tenant = limiter(&store, "tenant", 100);
        assert!(tenant.check("acme").await.unwrap().is_allowed());
        let levels = [user.level("ada"), tenant.level("acme")];
        let status = RateLimiter::peek_all(levels).await.unwrap();
        let used: Vec<_> = status.view.quotas().map(|quota| quota.used()).collect();
        assert_eq!((used, left(&status)), (vec![50, 1], vec![0, 99]));
    }
}

#[tokio::test]
async fn a_level_is_read_by_its_plan_and_its_share() {
    let store: Arc<dyn Store> = Arc::new(memory());
    let tenant = limiter(&store, "tenant", 10);
    let plan = Quota::per_hour(100).shares([Share::of("batch").at_most(40)]);
    let level = || tenant.level("acme").quotas(plan.clone());
    let levels = [level(), level().share("batch")];
    let status = RateLimiter::peek_all(levels).await.unwrap();
    assert_eq!(left(&status), [100, 40]);
}

#[tokio::test]
async fn a_block_is_told_and_changes_no_number() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let [user, tenant] = ["user", "tenant"].map(|name| limiter(&store, name, 60));
        let hour = Duration::from_secs(3_600);
        user.admin().block("ada", hour / 2).await.unwrap();
        tenant.admin().block("acme", hour).await.unwrap();
        let levels = [user.level("ada"), tenant.level("acme")];
        let status = RateLimiter::peek_all(levels).await.unwrap();
        assert_eq!(left(&status), [60, 60]);
        let blocked_for = status.blocked_for.unwrap();
        assert!(
            blocked_for > hour / 2 && blocked_for <= hour,
            "{blocked_for:?}"
        );
    }
}

#[tokio::test]
async fn each_level_follows_the_policy_of_its_limiter_if_the_store_fails() {
    let store: Arc<dyn Store> = Arc::new(Moody::unavailable());
    let of = |name, policy| limiter(&store, name, 60).on_failure(policy);
    let falls_back = of("falls-back", FailurePolicy::fall_back());
    let open = of("open", FailurePolicy::open());
    let levels = [falls_back.level("ada"), open.level("ada")];
    let status = RateLimiter::peek_all(levels).await.unwrap();
    let sources = status.view.levels().map(|level| level.source());
    assert!(sources.eq([Source::Fallback, Source::None]));
    // What nothing counts is not shown as a limit.
    let shown = serde_json::to_value(&status).unwrap();
    assert_eq!(shown["quotas"].as_array().unwrap().len(), 1, "{shown}");

    let closed = limiter(&store, "closed", 60);
    let levels = [falls_back.level("ada"), closed.level("ada")];
    assert!(RateLimiter::peek_all(levels).await.is_err());
}

#[tokio::test]
async fn a_customer_sees_numbers_and_neither_keys_holders_reasons_nor_hidden_levels() {
    let store = memory();
    let quotas = [
        Quota::per_day(1_000).with_name("daily"),
        Quota::new(100, Duration::from_secs(90)),
        Quota::per_hour(5).soft(),
        Quota::in_flight(4),
    ];
    let tokens = RateLimiter::new(store.clone(), quotas).name("tokens");
    let service = RateLimiter::new(store, Quota::per_second(31_337)).name("service");
    let Acquired::Permit(permit) = tokens.try_acquire("acme-key").await.unwrap() else {
        panic!("a slot is free");
    };
    let levels = [
        tokens.level("acme-key"),
        service.level(Key::global()).hidden(),
    ];
    let status = RateLimiter::peek_all(levels).await.unwrap();
    let expected = json!({
        "quotas": [
            {"limiter": "tokens", "name": "daily", "limit": 1_000, "window": "day", "used": 1, "remaining": 999,
             "reset_after": 86_400.0},
            {"limiter": "tokens", "name": null, "limit": 100, "window": "90s", "used": 1, "remaining": 99,
             "reset_after": 90.0},
            {"limiter": "tokens", "name": null, "limit": 4, "window": null, "used": 1, "remaining": 3,
             "reset_after": null},
        ],
        "blocked_for": null,
    });
    assert_eq!(serde_json::to_value(&status).unwrap(), expected);

    // The status for an operator has more, and shows a customer no more.
    let admin = tokens.admin();
    admin
        .block("acme-key", Duration::from_secs(60))
        .await
        .unwrap();
    let status = admin.status("acme-key").await.unwrap();
    assert!(status.block_reason.is_some() && status.own_holder.is_some());
    let shown = serde_json::to_value(&status).unwrap();
    assert_eq!(shown["quotas"], expected["quotas"]);
    assert_eq!(shown["blocked_for"], 60.0);
    let names: Vec<_> = shown.as_object().unwrap().keys().collect();
    assert_eq!(names, ["blocked_for", "quotas"]);
    let text = shown.to_string();
    assert!(
        !text.contains("acme-key") && !text.contains("31337"),
        "{text}"
    );
    drop(permit);

    // Each quota serializes on its own, too.
    let first: Option<QuotaDecision<'_>> = status.view.quotas().next();
    let first: Value = serde_json::to_value(first).unwrap();
    assert_eq!(first, expected["quotas"][0]);
}
