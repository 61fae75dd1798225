//! `Decision::settle`: each level of a decision becomes the actual cost.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use tollgate::store::protocol::StoreFuture;
use tollgate::store::{TestClock, TestStore};
use tollgate::{
    Algorithm, Decision, Error, ErrorKind, FailurePolicy, Key, MemoryStore, Quota, RateLimiter,
    Source, Store,
};

use crate::groups::Tree;
use crate::support::algorithms::algorithms;
use crate::support::block_on;
use crate::support::fakes::fake_store::FakeStore;
use crate::support::log;
use crate::used;

const ADA: [&str; 2] = ["ada", "192.0.2.1"];

/// The limits of a login, by account and by address.
fn login(store: &(impl Store + Clone)) -> [RateLimiter; 2] {
    [("account", 5), ("address", 20)].map(|(name, limit)| {
        let limiter = RateLimiter::new(store.clone(), Quota::per_hour(limit));
        limiter.name(name)
    })
}

async fn attempt([account, address]: &[RateLimiter; 2]) -> Decision {
    let levels = [account.level(ADA[0]), address.level(ADA[1])];
    RateLimiter::check_all(levels).await.unwrap()
}

async fn counts([account, address]: &[RateLimiter; 2]) -> [u32; 2] {
    [used(account, ADA[0]).await, used(address, ADA[1]).await]
}

#[tokio::test]
async fn a_login_that_succeeds_is_free_for_its_account_and_its_address() {
    let limiters = login(&MemoryStore::new());
    for number in 1..=30 {
        let decision = attempt(&limiters).await;
        assert!(decision.is_allowed(), "login {number}");
        decision.settle(0).await.unwrap();
    }
    assert_eq!(counts(&limiters).await, [0, 0]);
    drop(attempt(&limiters).await);
    attempt(&limiters).await.settle(0).await.unwrap();
    assert_eq!(counts(&limiters).await, [1, 1]);
}

/// A level: its algorithm, its cost, and the units of others before and after it.
type LevelCase = (Algorithm, u32, u32, u32);

fn level_case() -> impl Strategy<Value = LevelCase> {
    let algorithms: Vec<_> = algorithms(10).collect();
    let algorithm = prop::sample::select(algorithms);
    (algorithm, 0..20_u32, 0..20_u32, 0..30_u32)
}

/// Checks all levels and settles them. Returns the numbers of each limiter afterwards.
async fn settled(
    cases: &[LevelCase],
    refunded: u32,
    wait: u64,
    settle: impl AsyncFnOnce(&[RateLimiter], Decision),
) -> Vec<(u32, Duration)> {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let limiters = cases.iter().enumerate().map(|(index, (algorithm, ..))| {
        let quota = Quota::new(50, Duration::from_millis(1)).with_algorithm(*algorithm);
        RateLimiter::new(store.clone(), quota).name(format!("level {index}"))
    });
    let limiters: Vec<_> = limiters.collect();
    for (limiter, (_, _, before, _)) in limiters.iter().zip(cases) {
        let _ = limiter.check_n("ada", *before).await.unwrap();
    }
    clock.advance(Duration::from_micros(7));
    let levels = limiters.iter().zip(cases);
    let levels = levels.map(|(limiter, (_, cost, ..))| limiter.level("ada").cost(*cost));
    let mut decision = RateLimiter::check_all(levels).await.unwrap();
    decision.refund(refunded).await.unwrap();
    clock.advance(Duration::from_micros(wait));
    for (limiter, (.., after)) in limiters.iter().zip(cases) {
        let room = limiter.peek("ada").await.unwrap().remaining();
        let _ = limiter.check_n("ada", room.min(*after)).await.unwrap();
    }
    settle(&limiters, decision).await;
    let mut numbers = Vec::new();
    for limiter in &limiters {
        let looked = limiter.peek("ada").await.unwrap();
        numbers.push((looked.used(), looked.reset_after()));
    }
    numbers
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_decision_settles_all_levels_as_each_is_settled_alone(
        cases in prop::collection::vec(level_case(), 1..5),
        refunded in 0..5_u32,
        first in prop::option::of((0..4_usize, 0..30_u32)),
        wait in prop_oneof![Just(0), 0..1_500_u64],
        units in prop_oneof![Just(0), 0..60_u32],
    ) {
        block_on(async {
            let settle_first = async |limiters: &[RateLimiter], decision: &mut Decision| {
                if let Some((level, units)) = first {
                    let level = &limiters[level % limiters.len()];
                    decision.settle_level(level, units).await.unwrap();
                }
            };
            let each = settled(&cases, refunded, wait, async |limiters, decision| {
                let mut decision = decision;
                settle_first(limiters, &mut decision).await;
                for limiter in limiters {
                    decision.settle_level(limiter, units).await.unwrap();
                }
            });
            let all = settled(&cases, refunded, wait, async |limiters, decision| {
                let mut decision = decision;
                settle_first(limiters, &mut decision).await;
                decision.settle(units).await.unwrap();
            });
            prop_assert_eq!(all.await, each.await);
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn levels_of_one_limiter_and_of_plans_are_settled_too() {
    let store = MemoryStore::new();
    let [account, address] = login(&store);
    let plan = Quota::per_minute(100).with_algorithm(Algorithm::Gcra);
    let levels = [
        account.level("ada").cost(3),
        account.level("bob").cost(3),
        address.level(Key::global()).cost(50).quotas(plan.clone()),
    ];
    let decision = RateLimiter::check_all(levels).await.unwrap();
    decision.settle(2).await.unwrap();
    let look = [address.level(Key::global()).cost(0).quotas(plan)];
    let look = RateLimiter::check_all(look).await.unwrap();
    assert_eq!(
        [
            used(&account, "ada").await,
            used(&account, "bob").await,
            look.used()
        ],
        [2, 2, 2]
    );
}

#[tokio::test]
async fn a_limiter_settles_no_decision_of_others_and_a_refusal_holds_nothing() {
    let store = MemoryStore::new();
    let limiters = login(&store);
    let other = limiters[0].clone().name("other");
    let mut decision = attempt(&limiters).await;
    let error = decision.settle_level(&other, 0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert_eq!(error.code(), "tollgate::E015");
    assert_eq!(counts(&limiters).await, [1, 1]);
    // The decision needs no limiter, so it cannot be told a wrong one.
    decision.settle(0).await.unwrap();
    assert_eq!(counts(&limiters).await, [0, 0]);
    drop(attempt(&limiters).await);
    for _ in 0..4 {
        drop(attempt(&limiters).await);
    }
    let refused = attempt(&limiters).await;
    assert!(!refused.is_allowed());
    refused.settle(9).await.unwrap();
    assert_eq!(counts(&limiters).await, [5, 5]);
    let nothing = RateLimiter::check_all([]).await.unwrap();
    nothing.settle(9).await.unwrap();
}

/// Returns a store in memory that refunds nothing to limiters of these names.
fn without_refunds(names: &'static [&'static str]) -> FakeStore {
    FakeStore::in_memory().adjusts_by(move |counts, adjust| {
        if names.contains(&adjust.limiter.as_str()) {
            let error = Error::new(ErrorKind::Unavailable, "out of reach");
            return StoreFuture::boxed(async { Err(error) });
        }
        counts.adjust(adjust)
    })
}

#[tokio::test]
async fn each_level_is_settled_though_others_fail_and_the_error_names_those() {
    for (failing, left, text) in [
        (
            &["account"][..],
            [1, 0],
            r#"failed to settle the levels ["account"]: out of reach [tollgate::E005]"#,
        ),
        (
            &["address"],
            [0, 1],
            r#"failed to settle the levels ["address"]: out of reach [tollgate::E005]"#,
        ),
        (
            &["address", "account"],
            [1, 1],
            r#"failed to settle the levels ["account", "address"]: out of reach [tollgate::E005]"#,
        ),
    ] {
        let limiters = login(&without_refunds(failing));
        for _ in &limiters {
            let decision = attempt(&limiters).await;
            let error = decision.settle(0).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert_eq!(error.to_string(), text);
        }
        assert_eq!(counts(&limiters).await, left.map(|units| 2 * units));
    }
}

#[tokio::test]
async fn levels_in_several_groups_are_refunded_in_each() {
    let tree = Tree::new();
    let decision = RateLimiter::check_all(tree.levels(6)).await.unwrap();
    tree.store.take_log();
    decision.settle(2).await.unwrap();
    assert_eq!(tree.used().await, [2, 2, 2]);
    let mut refunds = tree.store.take_log();
    refunds.sort();
    let expected = ["refund service3 4", "refund tenant2 4", "refund user1 4"];
    assert_eq!(refunds, expected);
}

#[tokio::test]
async fn a_level_that_fell_back_is_settled_in_the_fallback_counts() {
    let tree = Tree::new();
    tree.store.lose(2);
    let tenant = tree.tenant.clone().on_failure(FailurePolicy::fall_back());
    let tree = Tree { tenant, ..tree };
    let decision = RateLimiter::check_all(tree.levels(6)).await.unwrap();
    let sources: Vec<_> = decision.levels().map(|level| level.source()).collect();
    assert_eq!(sources, [Source::Memory, Source::Fallback, Source::Memory]);
    decision.settle(1).await.unwrap();
    assert_eq!(tree.used().await, [1, 1, 1]);
    // More is charged where each level was decided.
    let decision = RateLimiter::check_all(tree.levels(2)).await.unwrap();
    decision.settle(4).await.unwrap();
    assert_eq!(tree.used().await, [5, 5, 5]);
    tree.store.find();
    tree.store.clock.advance(Duration::from_millis(500));
    assert_eq!(used(&tree.tenant, "acme").await, 0);
}

#[tokio::test]
async fn all_levels_that_fell_back_are_refunded_in_the_fallback_counts() {
    let store = TestStore::new();
    let limiters = login(&store).map(|limiter| limiter.on_failure(FailurePolicy::fall_back()));
    store.fail_all(ErrorKind::Unavailable);
    for _ in 0..30 {
        let decision = attempt(&limiters).await;
        assert!(decision.is_allowed());
        decision.settle(0).await.unwrap();
    }
    assert_eq!(counts(&limiters).await, [0, 0]);
    store.recover();
    assert_eq!(counts(&limiters).await, [0, 0]);
}

#[tokio::test]
async fn slots_stay_with_their_permits_while_the_rates_of_a_permit_are_settled() {
    let store = MemoryStore::new();
    let jobs = RateLimiter::new(store.clone(), Quota::in_flight(5)).name("jobs");
    let both = RateLimiter::new(store.clone(), [Quota::in_flight(5), Quota::per_hour(50)]);
    let both = both.name("both");
    let rate = RateLimiter::new(store, Quota::per_hour(50)).name("rate");
    let acquire = async || {
        let levels = [jobs.level("ada"), both.level("ada"), rate.level("ada")];
        RateLimiter::acquire_all(levels).await.unwrap()
    };
    let _held = acquire().await;
    let permit = acquire().await;
    log::keep();
    permit.into_decision().settle(0).await.unwrap();
    assert_eq!(used(&rate, "ada").await, 1);
    let of_both = async || {
        let looked = both.peek("ada").await.unwrap();
        looked
            .quotas()
            .map(|quota| quota.used())
            .collect::<Vec<_>>()
    };
    assert_eq!(of_both().await.last(), Some(&1));
    // The store learns of the slots of the permit soon.
    let patience = Instant::now() + Duration::from_secs(10);
    while of_both().await != [1, 1] || used(&jobs, "ada").await != 1 {
        assert!(Instant::now() < patience, "{:?}", of_both().await);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Slots that were given back do not stay charged.
    let levels = [jobs.level("ada"), rate.level("ada")];
    let permit = RateLimiter::acquire_all(levels).await.unwrap();
    permit.into_decision().settle(0).await.unwrap();
    assert_eq!(log::kept(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_that_are_settled_at_the_same_time_return_each_unit_once() {
    let store = MemoryStore::new();
    let limiters = ["account", "address"]
        .map(|name| RateLimiter::new(store.clone(), Quota::per_hour(1_000)).name(name));
    let mut settling = Vec::new();
    for number in 0..100_u32 {
        let limiters = limiters.clone();
        settling.push(tokio::spawn(async move {
            let decision = attempt(&limiters).await;
            decision.settle(number % 3).await.unwrap();
        }));
    }
    for settled in settling {
        settled.await.unwrap();
    }
    let units: u32 = (0..100).map(|number| number % 3).sum();
    assert_eq!(counts(&limiters).await, [units, units]);
}
