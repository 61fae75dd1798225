//! Groups of a store that fail, under each failure policy.

use std::time::Duration;

use tollgate::store::TestStore;
use tollgate::store::protocol::StoreFuture;
use tollgate::{Error, ErrorKind, FailurePolicy, Key, Quota, RateLimiter, Source};

use crate::grouped::Grouped;
use crate::groups::Tree;
use crate::support::fakes::fake_store::FakeStore;
use crate::{not_asked, refusing};

impl Tree {
    /// Group 2 is lost, and the tenant has this policy.
    fn without_tenants(policy: Option<FailurePolicy>) -> Self {
        let tree = Self::new();
        tree.store.lose(2);
        match policy {
            None => tree,
            Some(policy) => Self {
                tenant: tree.tenant.on_failure(policy),
                ..tree
            },
        }
    }

    async fn counted(&self) -> [u32; 2] {
        [
            crate::used(&self.user, "ada").await,
            crate::used(&self.service, Key::global()).await,
        ]
    }
}

#[tokio::test]
async fn a_closed_level_fails_the_check_and_charges_nothing() {
    for policy in [None, Some(FailurePolicy::closed())] {
        let tree = Tree::without_tenants(policy);
        let error = RateLimiter::check_all(tree.levels(2)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let calls = ["check user1", "check tenant2", "refund user1 2"];
        assert_eq!(tree.store.take_log(), calls, "{policy:?}");
        assert_eq!(tree.counted().await, [0, 0]);
    }
}

#[tokio::test]
async fn an_open_level_admits_and_is_not_counted() {
    let tree = Tree::without_tenants(Some(FailurePolicy::open()));
    let [user, tenant, service] = tree.levels(2);
    // Fewer units are left in the quota of the plan than in any other.
    let levels = [user, tenant.quotas(Quota::per_hour(2)), service];
    let decision = RateLimiter::check_all(levels).await.unwrap();
    assert!(decision.is_allowed());
    let sources: Vec<_> = decision.levels().map(|level| level.source()).collect();
    assert_eq!(sources, [Source::Memory, Source::None, Source::Memory]);
    // The level that fails is not reported.
    assert_eq!((decision.source(), decision.used()), (Source::Memory, 2));
    assert_eq!(tree.counted().await, [2, 2]);
}

#[tokio::test]
async fn a_level_that_falls_back_is_charged_in_this_process() {
    let tree = Tree::without_tenants(Some(FailurePolicy::fall_back()));
    let mut decision = RateLimiter::check_all(tree.levels(6)).await.unwrap();
    assert!(decision.is_allowed());
    let sources: Vec<_> = decision.levels().map(|level| level.source()).collect();
    assert_eq!(sources, [Source::Memory, Source::Fallback, Source::Memory]);
    assert_eq!(crate::used(&tree.tenant, "acme").await, 6);
    decision.settle_level(&tree.tenant, 2).await.unwrap();
    assert_eq!(crate::used(&tree.tenant, "acme").await, 2);
    assert_eq!(tree.counted().await, [6, 6]);
}

#[tokio::test]
async fn what_groups_charged_is_refunded_when_a_fallback_level_refuses() {
    let tree = Tree::without_tenants(Some(FailurePolicy::fall_back().replicas(2)));
    assert!(tree.tenant.check_n("acme", 3).await.unwrap().is_allowed());
    let decision = RateLimiter::check_all(tree.levels(3)).await.unwrap();
    assert!(!decision.is_allowed());
    assert_eq!(refusing(&decision), ["tenant2"]);
    assert_eq!((decision.limit(), decision.source()), (5, Source::Fallback));
    assert_eq!(tree.counted().await, [0, 0]);
    assert_eq!(crate::used(&tree.tenant, "acme").await, 3);
    // A cost above the share, but within the limit: this process cannot decide.
    let error = RateLimiter::check_all(tree.levels(6)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(tree.counted().await, [0, 0]);
}

#[tokio::test]
async fn a_refusal_of_a_later_group_leaves_the_fallback_uncharged() {
    let tree = Tree::without_tenants(Some(FailurePolicy::fall_back()));
    let _ = tree.service.check_n(Key::global(), 9).await.unwrap();
    let decision = RateLimiter::check_all(tree.levels(2)).await.unwrap();
    assert_eq!(refusing(&decision), ["service3"]);
    assert_eq!(not_asked(&decision), ["tenant2"]);
    assert_eq!(tree.counted().await, [0, 9]);
    assert_eq!(crate::used(&tree.tenant, "acme").await, 0);
}

#[tokio::test]
async fn levels_of_two_lost_groups_fall_back_together() {
    let tree = Tree::without_tenants(Some(FailurePolicy::fall_back()));
    tree.store.lose(3);
    let service = tree.service.clone().on_failure(FailurePolicy::fall_back());
    let tree = Tree { service, ..tree };
    assert!(
        tree.service
            .check_n(Key::global(), 9)
            .await
            .unwrap()
            .is_allowed()
    );
    let decision = RateLimiter::check_all(tree.levels(2)).await.unwrap();
    assert_eq!(refusing(&decision), ["service3"]);
    assert_eq!(tree.used().await, [0, 0, 9]);
    assert!(
        RateLimiter::check_all(tree.levels(1))
            .await
            .unwrap()
            .is_allowed()
    );
    assert_eq!(tree.used().await, [1, 1, 10]);
}

#[tokio::test]
async fn a_closed_level_wins_over_levels_that_fall_back() {
    let tree = Tree::without_tenants(Some(FailurePolicy::fall_back()));
    tree.store.lose(3);
    let error = RateLimiter::check_all(tree.levels(2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(crate::used(&tree.tenant, "acme").await, 0);
    assert_eq!(crate::used(&tree.user, "ada").await, 0);
}

#[tokio::test]
async fn the_levels_of_one_lost_group_follow_their_own_policies() {
    let store = Grouped::new();
    store.lose(1);
    let limiter = |name: &'static str, policy| {
        let limiter = RateLimiter::new(store.clone(), Quota::per_hour(2)).name(name);
        limiter.on_failure(policy)
    };
    let user = limiter("user1", FailurePolicy::fall_back());
    let tenant = limiter("tenant1", FailurePolicy::fall_back());
    let open = limiter("open1", FailurePolicy::open());
    let levels = |key: &'static str| [user.level(key), tenant.level("acme"), open.level("any")];
    for key in ["ada", "bob"] {
        assert!(
            RateLimiter::check_all(levels(key))
                .await
                .unwrap()
                .is_allowed()
        );
    }
    let refused = RateLimiter::check_all(levels("cem")).await.unwrap();
    assert_eq!(refusing(&refused), ["tenant1"]);
    assert_eq!(crate::used(&user, "cem").await, 0);
    let closed = limiter("closed1", FailurePolicy::closed());
    let levels = [user.level("dan"), closed.level("any")];
    assert!(RateLimiter::check_all(levels).await.is_err());
    assert_eq!(crate::used(&user, "dan").await, 0);
}

#[tokio::test]
async fn an_open_circuit_breaker_spares_the_store_until_a_probe_in_the_background_is_answered() {
    let store = TestStore::new();
    let limiter =
        |name: &'static str| RateLimiter::new(store.clone(), Quota::per_hour(100)).name(name);
    let (user, tenant) = (limiter("user"), limiter("tenant"));
    let check = || RateLimiter::check_all([user.level("ada"), tenant.level("acme")]);
    store.fail_all(ErrorKind::Unavailable);
    for _ in 0..5 {
        check().await.unwrap_err();
    }
    let _ = store.take_checks();
    check().await.unwrap_err();
    assert!(store.take_checks().is_empty());
    store.recover();
    store.clock().advance(Duration::from_secs(1));
    check().await.unwrap_err();
    tokio::task::yield_now().await;
    let probes = store.take_checks();
    assert_eq!(probes.len(), 1);
    assert_eq!(probes[0].cost(), 0);
    assert!(check().await.unwrap().is_allowed());
    assert_eq!(crate::used(&user, "ada").await, 1);
}

#[tokio::test]
async fn levels_with_fallback_counts_of_their_own_are_charged_together_too() {
    // Each limiter has a circuit breaker, and so fallback counts, of its own.
    let store = FakeStore::in_memory().checks_by(|_, _| {
        let error = Error::new(ErrorKind::Unavailable, "always");
        StoreFuture::ready(Err(error))
    });
    let limiter = |name: &'static str, limit| {
        let limiter = RateLimiter::new(store.clone(), Quota::per_hour(limit)).name(name);
        limiter.on_failure(FailurePolicy::fall_back())
    };
    let (user, tenant, other) = (
        limiter("user", 5),
        limiter("tenant", 1),
        limiter("other", 5),
    );
    for admitted in [true, false, false] {
        let levels = [user.level("ada"), tenant.level("acme"), other.level("any")];
        let decision = RateLimiter::check_all(levels).await.unwrap();
        assert_eq!(decision.is_allowed(), admitted);
        assert_eq!(decision.source(), Source::Fallback);
    }
    assert_eq!(crate::used(&user, "ada").await, 1);
    assert_eq!(crate::used(&tenant, "acme").await, 1);
    assert_eq!(crate::used(&other, "any").await, 1);
}
