//! Levels in several groups, which are asked in turn.

use std::time::Duration;

use tollgate::{Key, LevelCheck, Quota, RateLimiter, Source};

use crate::grouped::Grouped;
use crate::{not_asked, refusing, used};

const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) struct Tree {
    pub(crate) store: Grouped,
    pub(crate) user: RateLimiter,
    pub(crate) tenant: RateLimiter,
    pub(crate) service: RateLimiter,
}

impl Tree {
    pub(crate) fn new() -> Self {
        Self::on(Grouped::new())
    }

    fn on(store: Grouped) -> Self {
        let limiter =
            |name: &'static str| RateLimiter::new(store.clone(), Quota::per_hour(10)).name(name);
        Self {
            user: limiter("user1"),
            tenant: limiter("tenant2"),
            service: limiter("service3"),
            store,
        }
    }

    pub(crate) fn levels(&self, cost: u32) -> [LevelCheck<'_>; 3] {
        [
            self.user.level("ada").cost(cost),
            self.tenant.level("acme").cost(cost),
            self.service.level(Key::global()).cost(cost),
        ]
    }

    /// The units of user, tenant and service.
    pub(crate) async fn used(&self) -> [u32; 3] {
        [
            used(&self.user, "ada").await,
            used(&self.tenant, "acme").await,
            used(&self.service, Key::global()).await,
        ]
    }
}

#[tokio::test]
async fn groups_are_asked_in_the_order_of_their_first_level_with_one_call_each() {
    let tree = Tree::new();
    let plan = tree.user.clone().name("plan1");
    let [user, tenant, service] = tree.levels(2);
    let levels = [user, tenant, plan.level("gold"), service];
    assert!(RateLimiter::check_all(levels).await.unwrap().is_allowed());
    let calls = ["check user1+plan1", "check tenant2", "check service3"];
    assert_eq!(tree.store.take_log(), calls);
    assert_eq!(tree.used().await, [2, 2, 2]);
}

#[tokio::test]
async fn a_store_that_learns_of_its_groups_from_a_check_is_asked_again_by_groups() {
    for fails_at_once in [false, true] {
        let tree = Tree::on(Grouped::unaware(fails_at_once));
        for (used, calls) in [
            (
                2,
                &[
                    "check user1+tenant2+service3",
                    "check user1",
                    "check tenant2",
                    "check service3",
                ][..],
            ),
            (4, &["check user1", "check tenant2", "check service3"]),
        ] {
            let decision = RateLimiter::check_all(tree.levels(2)).await.unwrap();
            assert!(decision.is_allowed());
            assert_eq!(
                decision.levels().filter(|level| level.is_asked()).count(),
                3
            );
            assert_eq!(tree.store.take_log(), calls);
            assert_eq!(tree.used().await, [used; 3]);
        }
    }
}

#[tokio::test]
async fn what_earlier_groups_charged_is_refunded_when_a_later_one_refuses() {
    let tree = Tree::new();
    let _ = tree.tenant.check_n("acme", 9).await.unwrap();
    tree.store.take_log();
    let decision = RateLimiter::check_all(tree.levels(3)).await.unwrap();
    assert!(!decision.is_allowed());
    assert_eq!(
        (refusing(&decision), not_asked(&decision)),
        (vec!["tenant2"], vec!["service3"])
    );
    assert_eq!(decision.limit() - decision.used(), 1);
    assert_eq!(
        tree.store.take_log(),
        ["check user1", "check tenant2", "refund user1 3"]
    );
    assert_eq!(tree.used().await, [0, 9, 0]);
    // The answers tell what is used now.
    let counted: Vec<_> = decision.quotas().map(|quota| quota.used()).collect();
    assert_eq!(counted, [0, 9]);
    assert_eq!(decision.held(), 0);
}

#[tokio::test]
async fn a_dropped_caller_does_not_stop_the_refunds() {
    let tree = Tree::new();
    let _ = tree.service.check_n(Key::global(), 10).await.unwrap();
    tree.store.take_log();
    tree.store.hold(2);
    let mut check = Box::pin(RateLimiter::check_all(tree.levels(1)));
    tokio::select! {
        _ = &mut check => panic!("the reply is held back"),
        () = tokio::time::sleep(Duration::from_millis(20)) => {}
    }
    assert_eq!(tree.store.take_log(), ["check user1", "check tenant2"]);
    drop(check);
    tree.store.release();
    let patience = std::time::Instant::now() + Duration::from_secs(5);
    while tree.used().await != [0, 0, 10] {
        assert!(
            std::time::Instant::now() < patience,
            "{:?}",
            tree.used().await
        );
        tokio::task::yield_now().await;
    }
    let calls = ["check service3", "refund user1 1", "refund tenant2 1"];
    assert_eq!(tree.store.take_log(), calls);
}

#[tokio::test]
async fn a_remembered_refusal_asks_no_group_and_is_remembered_for_100_ms() {
    let tree = Tree::new();
    let _ = tree.tenant.check_n("acme", 10).await.unwrap();
    tree.store.take_log();
    let asked = ["check user1", "check tenant2", "refund user1 1"];
    for _ in 0..3 {
        let decision = RateLimiter::check_all(tree.levels(1)).await.unwrap();
        assert_ne!(decision.source(), Source::RefusalCache);
        assert_eq!(tree.store.take_log(), asked);
        tree.store.clock.advance(Duration::from_micros(99_999));
        let decision = RateLimiter::check_all(tree.levels(1)).await.unwrap();
        assert_eq!(
            (decision.is_allowed(), decision.source()),
            (false, Source::RefusalCache)
        );
        assert_eq!(not_asked(&decision), ["user1", "service3"]);
        assert!(tree.store.take_log().is_empty());
        tree.store.clock.advance(Duration::from_micros(1));
    }
}

#[tokio::test]
async fn within_one_group_a_refusal_is_remembered_as_that_of_one_key() {
    let tree = Tree::new();
    let plan = tree.tenant.clone().name("plan2");
    let _ = tree.tenant.check_n("acme", 10).await.unwrap();
    let levels = || [tree.tenant.level("acme"), plan.level("gold")];
    let decision = RateLimiter::check_all(levels()).await.unwrap();
    assert_ne!(decision.source(), Source::RefusalCache);
    tree.store.clock.advance(Duration::from_micros(999_999));
    let decision = RateLimiter::check_all(levels()).await.unwrap();
    assert_eq!(decision.source(), Source::RefusalCache);
    let waited = Duration::from_micros(999_999);
    assert_eq!(decision.retry_after(), Some(HOUR - waited));
    // The tenant alone has the same limiter, key, quotas and cost.
    let alone = tree.tenant.check("acme").await.unwrap();
    assert_eq!(alone.source(), Source::RefusalCache);
    tree.store.clock.advance(Duration::from_micros(1));
    let decision = RateLimiter::check_all(levels()).await.unwrap();
    assert_ne!(decision.source(), Source::RefusalCache);
}

#[tokio::test]
async fn an_admitting_level_of_a_refused_check_keeps_its_remembered_refusals() {
    let tree = Tree::new();
    let plan = tree.tenant.clone().name("plan2");
    let _ = tree.tenant.check_n("acme", 6).await.unwrap();
    let _ = plan.check_n("gold", 10).await.unwrap();
    assert!(!tree.tenant.check_n("acme", 5).await.unwrap().is_allowed());
    let levels = [tree.tenant.level("acme"), plan.level("gold")];
    let decision = RateLimiter::check_all(levels).await.unwrap();
    assert_eq!(refusing(&decision), ["plan2"]);
    let remembered = tree.tenant.check_n("acme", 5).await.unwrap();
    assert_eq!(remembered.source(), Source::RefusalCache);
    // An admission removes them.
    let levels = [tree.tenant.level("acme"), plan.level("silver")];
    assert!(RateLimiter::check_all(levels).await.unwrap().is_allowed());
    let asked = tree.tenant.check_n("acme", 5).await.unwrap();
    assert_ne!(asked.source(), Source::RefusalCache);
}
