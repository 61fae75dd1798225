//! `RateLimiter::check_all`, and what its decision tells and holds.

use std::error::Error as _;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tollgate::store::{TestClock, TestStore};
use tollgate::{
    ConfigError, ConfigErrorKind, ErrorKind, FailurePolicy, Key, MemoryStore, Quota, Quotas,
    RateLimiter, Source, Store,
};

use crate::{not_asked, refusing, used};

fn limiter(store: &MemoryStore, name: &'static str, limit: u32) -> RateLimiter {
    RateLimiter::new(store.clone(), Quota::per_hour(limit)).name(name)
}

#[tokio::test]
async fn no_level_admits_and_counts_nothing() {
    let decision = RateLimiter::check_all([]).await.unwrap();
    assert!(decision.is_allowed());
    assert_eq!(
        (decision.source(), decision.limit()),
        (Source::None, u32::MAX)
    );
    assert_eq!(decision.held(), 0);
}

#[tokio::test]
async fn one_level_is_checked_as_one_key() {
    let user = limiter(&MemoryStore::new(), "user", 5);
    let decision = RateLimiter::check_all([user.level("ada").cost(3)])
        .await
        .unwrap();
    assert_eq!(
        (decision.remaining(), decision.held(), decision.cost()),
        (2, 3, 3)
    );
    let level = decision.levels().next().unwrap();
    assert_eq!((level.limiter(), level.cost()), ("user", 3));
    assert_eq!(level.key(), &Key::from("ada"));
    let error = RateLimiter::check_all([user.level("ada").cost(6)])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CostExceedsLimit);
    let plan = [user.level("ada").cost(6).quotas(Quota::per_hour(9))];
    assert!(RateLimiter::check_all(plan).await.unwrap().is_allowed());
}

#[tokio::test]
async fn each_level_has_its_name_key_cost_and_quotas() {
    let store = MemoryStore::new();
    let user =
        RateLimiter::new(store.clone(), [Quota::per_hour(5), Quota::per_day(9)]).name("user");
    let tenant = limiter(&store, "tenant", 100);
    let levels = [user.level("ada"), tenant.level("acme").cost(40)];
    let decision = RateLimiter::check_all(levels).await.unwrap();
    let quotas: Vec<_> = decision
        .quotas()
        .map(|quota| {
            (
                quota.limiter(),
                quota.key().as_str(),
                quota.cost(),
                quota.used(),
            )
        })
        .collect();
    let expected = [
        ("user", "ada", 1, 1),
        ("user", "ada", 1, 1),
        ("tenant", "acme", 40, 40),
    ];
    assert_eq!(quotas, expected);
    assert_eq!(
        (decision.limit(), decision.remaining(), decision.cost()),
        (5, 4, 1)
    );
    let left: Vec<_> = decision.levels().map(|level| level.remaining()).collect();
    assert_eq!(left, [4, 60]);
}

#[tokio::test]
async fn levels_of_different_stores_are_an_error_that_names_them_and_the_remedy() {
    let user = limiter(&MemoryStore::new(), "user", 5).on_failure(FailurePolicy::open());
    let tenant = limiter(&MemoryStore::new(), "tenant", 5).on_failure(FailurePolicy::open());
    let levels = [user.level("ada"), tenant.level("acme")];
    let error = RateLimiter::check_all(levels).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    let text = error.to_string();
    for part in ["\"user\"", "\"tenant\"", "clones of one store"] {
        assert!(text.contains(part), "{text}");
    }
    let source = error
        .source()
        .unwrap()
        .downcast_ref::<ConfigError>()
        .unwrap();
    assert_eq!(source.kind(), ConfigErrorKind::Levels);
    assert_eq!(
        (used(&user, "ada").await, used(&tenant, "acme").await),
        (0, 0)
    );
}

#[tokio::test]
async fn two_levels_of_one_count_are_an_error() {
    let store = MemoryStore::new();
    let user = limiter(&store, "user", 5);
    let again = limiter(&store, "user", 9);
    let other = limiter(&store, "other", 5);
    let levels = [user.level("ada"), other.level("ada"), again.level("ada")];
    let error = RateLimiter::check_all(levels).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(
        error.to_string().contains("give each limiter its own name"),
        "{error}"
    );
    assert_eq!(used(&other, "ada").await, 0);
    // Two keys of one limiter are two counts.
    let levels = [user.level("ada"), user.level("bob").cost(2)];
    assert!(RateLimiter::check_all(levels).await.unwrap().is_allowed());
    assert_eq!((used(&user, "ada").await, used(&user, "bob").await), (1, 2));
}

#[tokio::test]
async fn a_blocked_key_refuses_and_the_others_are_not_asked() {
    let store = MemoryStore::new();
    let (user, tenant) = (limiter(&store, "user", 5), limiter(&store, "tenant", 5));
    let minute = Duration::from_secs(60);
    tenant.admin().block("acme", minute).await.unwrap();
    let levels = [user.level("ada"), tenant.level("acme")];
    let decision = RateLimiter::check_all(levels).await.unwrap();
    assert_eq!(
        (decision.is_allowed(), decision.source()),
        (false, Source::Block)
    );
    assert_eq!(
        (refusing(&decision), not_asked(&decision)),
        (vec!["tenant"], vec!["user"])
    );
    assert!(decision.retry_after().unwrap() <= minute);
    assert_eq!(used(&user, "ada").await, 0);
}

#[tokio::test]
async fn a_level_without_quotas_admits_without_the_store() {
    let store = TestStore::new();
    let user = RateLimiter::new(store.clone(), Quotas::from([])).name("user");
    let tenant = RateLimiter::new(store.clone(), Quota::per_hour(1)).name("tenant");
    let levels = || [user.level("ada"), tenant.level("acme")];
    let decision = RateLimiter::check_all(levels()).await.unwrap();
    assert!(decision.is_allowed());
    let held: Vec<_> = decision
        .levels()
        .map(|level| (level.is_asked(), level.source()))
        .collect();
    assert_eq!(held, [(true, Source::None), (true, Source::Memory)]);
    assert_eq!((decision.limit(), decision.held()), (1, 0));
    assert_eq!(store.take_checks().len(), 1);
    assert!(!RateLimiter::check_all(levels()).await.unwrap().is_allowed());
    let exempt = [
        user.level("ada"),
        tenant.level("acme").quotas(Quotas::from([])),
    ];
    assert!(RateLimiter::check_all(exempt).await.unwrap().is_allowed());
}

#[tokio::test]
async fn each_limiter_settles_its_own_level() {
    let store = MemoryStore::new();
    let requests = limiter(&store, "requests", 10);
    let tokens = limiter(&store, "tokens", 1_000);
    let levels = || [requests.level("ada"), tokens.level("ada").cost(300)];
    let counted = async || (used(&requests, "ada").await, used(&tokens, "ada").await);

    let mut decision = RateLimiter::check_all(levels()).await.unwrap();
    let view = decision.view().clone();
    decision.settle_level(&tokens, 0).await.unwrap();
    assert_eq!(counted().await, (1, 0));
    decision.settle_level(&requests, 0).await.unwrap();
    assert_eq!(counted().await, (0, 0));
    assert_eq!(view.quotas().map(|quota| quota.used()).max(), Some(300));

    let mut decision = RateLimiter::check_all(levels()).await.unwrap();
    decision.settle_level(&tokens, 120).await.unwrap();
    assert_eq!(counted().await, (1, 120));
    // A level is settled once.
    decision.settle_level(&tokens, 500).await.unwrap();
    assert_eq!(counted().await, (1, 120));
    decision.settle(0).await.unwrap();
    assert_eq!(counted().await, (0, 120));

    let mut decision = RateLimiter::check_all(levels()).await.unwrap();
    decision.settle_level(&tokens, 450).await.unwrap();
    assert_eq!(counted().await, (1, 570));
    let other = limiter(&store, "other", 10);
    assert!(decision.settle_level(&other, 0).await.is_err());
    // The other levels stay charged.
    drop(decision);
    assert_eq!(counted().await, (1, 570));
}

#[tokio::test]
async fn a_refund_takes_at_most_so_many_units_of_each_level() {
    let store = MemoryStore::new();
    let requests = limiter(&store, "requests", 10);
    let tokens = limiter(&store, "tokens", 1_000);
    let levels = [requests.level("ada"), tokens.level("ada").cost(300)];
    let counted = async || (used(&requests, "ada").await, used(&tokens, "ada").await);
    let mut decision = RateLimiter::check_all(levels).await.unwrap();
    decision.refund(100).await.unwrap();
    assert_eq!(counted().await, (0, 200));
    decision.refund(0).await.unwrap();
    decision.settle_level(&requests, 2).await.unwrap();
    decision.refund(1_000).await.unwrap();
    assert_eq!(counted().await, (2, 0));
}

#[tokio::test]
async fn two_levels_of_one_limiter_are_settled_one_after_the_other() {
    let user = limiter(&MemoryStore::new(), "user", 10);
    let levels = [user.level("ada").cost(4), user.level("bob").cost(5)];
    let mut decision = RateLimiter::check_all(levels).await.unwrap();
    decision.settle_level(&user, 1).await.unwrap();
    assert_eq!((used(&user, "ada").await, used(&user, "bob").await), (1, 5));
    decision.settle_level(&user, 2).await.unwrap();
    assert_eq!((used(&user, "ada").await, used(&user, "bob").await), (1, 2));
}

#[tokio::test]
async fn a_reused_decision_has_no_level_of_an_earlier_one() {
    let store = MemoryStore::new();
    let user = limiter(&store, "user", 1_000);
    let names: Vec<_> = (0..5).map(|n| format!("level{n}")).collect();
    let limiters = names.iter().map(|name| user.clone().name(name.as_str()));
    let limiters: Vec<_> = limiters.collect();
    for count in [5, 1, 3, 0, 2, 4, 1, 2] {
        let levels = limiters
            .iter()
            .take(count)
            .map(|limiter| limiter.level("ada"));
        let mut decision = RateLimiter::check_all(levels).await.unwrap();
        let found: Vec<_> = decision
            .levels()
            .map(|level| level.limiter().to_owned())
            .collect();
        if count > 0 {
            assert_eq!(found, names[..count]);
            for limiter in &limiters[..count] {
                decision.settle_level(limiter, 0).await.unwrap();
                assert_eq!(used(limiter, "ada").await, 0);
            }
        }
        assert_eq!(decision.quotas().len(), count);
        assert_eq!(user.check("bob").await.unwrap().levels().len(), 1);
    }
}

#[tokio::test]
async fn a_decision_of_fewer_levels_has_none_of_the_decision_before() {
    let user = limiter(&MemoryStore::new(), "user", 1_000);
    for keys in [
        &["a", "b", "c", "d"][..],
        &["a", "b"],
        &["a", "b", "c"],
        &["c", "d"],
    ] {
        let levels = keys.iter().map(|key| user.level(*key));
        let decision = RateLimiter::check_all(levels).await.unwrap();
        let found = decision.levels().map(|level| level.key().as_str());
        assert!(found.eq(keys.iter().copied()), "{decision:?}");
    }
}

#[tokio::test]
async fn a_refusal_is_recorded_at_the_limiter_that_refused() {
    let store = MemoryStore::new();
    let keys = NonZeroUsize::new(10).unwrap();
    let user = limiter(&store, "user", 5).track_rejected_keys(keys);
    let tenant = limiter(&store, "tenant", 1).track_rejected_keys(keys);
    for _ in 0..3 {
        let levels = [user.level("ada"), tenant.level("acme")];
        let _ = RateLimiter::check_all(levels).await.unwrap();
    }
    assert!(user.admin().top_rejected_keys(10).is_empty());
    let refused = tenant.admin().top_rejected_keys(10);
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].key.as_str(), "acme");
}

#[tokio::test]
async fn a_store_behind_a_pointer_decides_levels_together() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let user = RateLimiter::new(store.clone(), Quota::per_hour(5)).name("user");
    let tenant = RateLimiter::new(Box::new(store), Quota::per_hour(1)).name("tenant");
    for admitted in [true, false] {
        let levels = [user.level("ada"), tenant.level("acme")];
        assert_eq!(
            RateLimiter::check_all(levels).await.unwrap().is_allowed(),
            admitted
        );
    }
    assert_eq!(used(&user, "ada").await, 1);
}

#[tokio::test(start_paused = true)]
async fn until_all_ready_waits_for_the_longest_level() {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let second = Duration::from_secs(1);
    let user = RateLimiter::new(store.clone(), Quota::new(1, second / 2)).name("user");
    let tenant = RateLimiter::new(store, Quota::new(1, second)).name("tenant");
    let levels = || [user.level("ada"), tenant.level("acme")];
    let _ = RateLimiter::check_all(levels()).await.unwrap();
    let refused = RateLimiter::until_all_ready(levels(), second / 2)
        .await
        .unwrap();
    assert_eq!(
        (refused.is_allowed(), refused.retry_after()),
        (false, Some(second))
    );
    let ticking = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            clock.advance(Duration::from_millis(1));
        }
    });
    let started_at = tokio::time::Instant::now();
    let ready = RateLimiter::until_all_ready(levels(), 2 * second)
        .await
        .unwrap();
    assert!(ready.is_allowed());
    let waited = started_at.elapsed();
    assert!(
        (second..second + second / 100).contains(&waited),
        "{waited:?}"
    );
    ticking.abort();
}

#[test]
fn a_check_of_several_keys_can_be_spawned() {
    fn is_send<T: Send>(_: T) {}
    let user = limiter(&MemoryStore::new(), "user", 5);
    is_send(RateLimiter::check_all([
        user.level("ada"),
        user.level(Key::global()),
    ]));
    is_send(RateLimiter::until_all_ready(
        [user.level("ada")],
        Duration::ZERO,
    ));
}
