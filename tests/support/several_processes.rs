//! Promises of every store to several processes, each with a store of its own on the same data.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate::{
    Acquired, BlockReason, BlockRule, Decision, Key, Quota, RateLimiter, Source, Store,
};

use super::running::Running;

const HOUR: Duration = Duration::from_secs(3_600);
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until a condition holds, and returns the time taken.
pub(crate) async fn until(what: &str, holds: impl AsyncFn() -> bool) -> Duration {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}

/// Returns the units that count against a key.
pub(crate) async fn used(limiter: &RateLimiter, key: impl Into<Key>) -> u32 {
    limiter.peek(key).await.unwrap().used()
}

/// One process charges, refunds, settles, credits and resets.
pub(crate) async fn returns_units(store: impl Store) {
    let limiter = RateLimiter::new(store, Quota::per_hour(10));
    let mut decision = limiter.check_n("ada", 8).await.unwrap();
    decision.refund(3).await.unwrap();
    assert_eq!(used(&limiter, "ada").await, 5);
    decision.settle(1).await.unwrap();
    assert_eq!(used(&limiter, "ada").await, 1);
    let decision = limiter.check_n("ada", 2).await.unwrap();
    decision.settle(6).await.unwrap();
    assert_eq!(used(&limiter, "ada").await, 7);
    limiter.admin().credit("ada", 5).await.unwrap();
    assert_eq!(used(&limiter, "ada").await, 2);
    limiter.admin().reset("ada").await.unwrap();
    assert_eq!(used(&limiter, "ada").await, 0);
}

/// Many tasks of two processes check some keys, and give some units back: each key admits its limit, and has as many
/// units as were admitted and not given back. A third process, which remembers no refusal, looks.
pub(crate) async fn count_each_key_exactly<S: Store>(stores: [S; 3]) {
    const KEYS: usize = 20;
    const LIMIT: u32 = 30;
    let [first, second, look] = stores.map(|store| RateLimiter::new(store, Quota::per_hour(LIMIT)));
    let mut tasks = Vec::new();
    for (process, limiter) in [first, second].iter().enumerate() {
        for task in 0..32 {
            let limiter = limiter.clone();
            tasks.push(tokio::spawn(async move {
                let mut kept = [0_i64; KEYS];
                for check in 0..40 {
                    let key = (check * 7 + task * 3 + process) % KEYS;
                    let name = format!("key:{key}");
                    let mut decision = limiter.check(name.as_str()).await.unwrap();
                    if decision.is_allowed() {
                        kept[key] += 1;
                        if check % 5 == 0 {
                            decision.refund(1).await.unwrap();
                            kept[key] -= 1;
                        }
                    }
                }
                kept
            }));
        }
    }
    let mut kept = [0; KEYS];
    for task in tasks {
        for (sum, of_task) in kept.iter_mut().zip(task.await.unwrap()) {
            *sum += of_task;
        }
    }
    for (key, kept) in kept.iter_mut().enumerate() {
        let key = format!("key:{key}");
        assert_eq!(i64::from(used(&look, key.as_str()).await), *kept, "{key}");
        // Units that were given back at the end are there.
        while look.check(key.as_str()).await.unwrap().is_allowed() {
            *kept += 1;
        }
        assert_eq!(*kept, i64::from(LIMIT), "{key}");
    }
}

/// A user, a tenant and the whole service.
pub(crate) struct Tree([RateLimiter; 3]);

impl Tree {
    pub(crate) fn new(store: &(impl Store + Clone), limits: [u32; 3]) -> Self {
        let [user, tenant, service] = limits;
        let limiter = |name: &'static str, limit| {
            RateLimiter::new(store.clone(), Quota::per_hour(limit)).name(name)
        };
        Self([
            limiter("user", user),
            limiter("tenant", tenant),
            limiter("service", service),
        ])
    }

    /// Checks the levels of one request, in any order.
    pub(crate) async fn check(&self, number: usize) -> Decision {
        let Self([user, tenant, service]) = self;
        let mut levels = [
            user.level(format!("user:{}", number % 8)),
            tenant.level(format!("tenant:{}", number % 3)),
            service.level(Key::global()),
        ];
        levels.rotate_left(number / 3 % 3);
        RateLimiter::check_all(levels).await.unwrap()
    }

    /// The units of all users, all tenants and the service.
    pub(crate) async fn used(&self) -> [u32; 3] {
        let Self([user, tenant, service]) = self;
        let mut units = [0, 0, used(service, Key::global()).await];
        for number in 0..8 {
            units[0] += used(user, format!("user:{number}")).await;
        }
        for number in 0..3 {
            units[1] += used(tenant, format!("tenant:{number}")).await;
        }
        units
    }
}

/// Several processes check levels until none passes: no limit is exceeded, and what was refused is charged nowhere.
pub(crate) async fn keep_every_level<S: Store + Clone>(stores: [S; 3]) {
    let trees = stores.map(|store| Arc::new(Tree::new(&store, [20, 60, 100])));
    let mut tasks = Vec::new();
    for tree in &trees {
        for task in 0..8 {
            let tree = Arc::clone(tree);
            tasks.push(tokio::spawn(async move {
                let mut admitted = 0;
                for check in 0..12 {
                    admitted += u32::from(tree.check(task * 5 + check).await.is_allowed());
                }
                admitted
            }));
        }
    }
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    assert_eq!(trees[0].used().await, [admitted; 3]);
    // Alone, nothing is in passing: what the race left free is admitted, and no more.
    for number in 0..200 {
        admitted += u32::from(trees[1].check(number).await.is_allowed());
        // A transient refusal may be remembered for up to 100 ms.
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    assert_eq!((trees[2].used().await, admitted), ([100; 3], 100));
}

/// Processes lease units of some keys: no key exceeds its limit, and what is left returns.
pub(crate) async fn lease_no_more_than_the_limit<S: Store>(stores: [S; 3]) {
    const LIMIT: u32 = 600;
    let limiters = stores.map(|store| {
        // With both cores busy, a reply takes longer than a shorter lease.
        RateLimiter::new(store, Quota::per_hour(LIMIT)).lease(Duration::from_secs(5))
    });
    let mut tasks = Vec::new();
    for limiter in &limiters {
        for key in ["ada", "bob", "cem"] {
            let limiter = limiter.clone();
            tasks.push(tokio::spawn(async move {
                let (mut admitted, mut from_memory) = (0, 0);
                for _ in 0..500 {
                    let decision = limiter.check(key).await.unwrap();
                    admitted += u32::from(decision.is_allowed());
                    from_memory += u32::from(decision.source() == Source::Lease);
                    tokio::time::sleep(Duration::from_micros(300)).await;
                }
                (key, admitted, from_memory)
            }));
        }
    }
    let (mut of_keys, mut from_memory) = (BTreeMap::new(), 0);
    for task in tasks {
        let (key, admitted, of_task) = task.await.unwrap();
        *of_keys.entry(key).or_insert(0) += admitted;
        from_memory += of_task;
    }
    for limiter in &limiters {
        limiter.release().await.unwrap();
    }
    println!("{of_keys:?} admitted, {from_memory} from memory");
    assert!(from_memory > 100, "{from_memory}");
    for (key, admitted) in of_keys {
        assert!((500..=LIMIT).contains(&admitted), "{key}: {admitted}");
        until("all units return", async || {
            used(&limiters[0], key).await == admitted
        })
        .await;
    }
}

/// A block of an operator, and one after refusals of both processes together, hold in both and are lifted by the other one.
pub(crate) async fn block_together<S: Store + Clone>(stores: [S; 2]) {
    let limiters = stores
        .each_ref()
        .map(|store| RateLimiter::new(store.clone(), Quota::per_day(1)).name("operated"));
    let is_blocked = async |limiter: &RateLimiter, key: &str| {
        let decision = limiter.check(key).await.unwrap();
        decision.source() == Source::Block
    };
    let reason = async |limiter: &RateLimiter, key: &str| {
        let status = limiter.admin().status(key).await.unwrap();
        status.block_reason
    };
    let [here, there] = &limiters;
    here.admin().block("eve", HOUR).await.unwrap();
    assert!(is_blocked(here, "eve").await);
    let took = until("the other process blocks eve", async || {
        is_blocked(there, "eve").await
    });
    let took = took.await;
    assert!(took < Duration::from_secs(3), "{took:?}");
    there.admin().unblock("eve").await.unwrap();
    assert_eq!(reason(here, "eve").await, None);
    until("eve is unblocked", async || !is_blocked(here, "eve").await).await;

    let rule = BlockRule::refusals(4).block_for(HOUR);
    let limiters = stores.map(|store| RateLimiter::new(store, Quota::per_day(1)).block_after(rule));
    assert!(limiters[0].check("ada").await.unwrap().is_allowed());
    for limiter in [&limiters, &limiters].into_iter().flatten() {
        assert!(!limiter.check("ada").await.unwrap().is_allowed());
    }
    // A process may send its refusals once a second.
    let by_refusals = Some(BlockReason::Refusals { blocks: 1 });
    for limiter in &limiters {
        until("both block ada", async || {
            reason(limiter, "ada").await == by_refusals && is_blocked(limiter, "ada").await
        })
        .await;
        let listed = limiter.admin().blocked().await.unwrap();
        assert_eq!(listed.len(), 1, "{listed:?}");
    }
    limiters[0].admin().unblock("ada").await.unwrap();
    assert_eq!(reason(&limiters[1], "ada").await, None);
}

/// The limit of the tenant in [`hold_no_more_slots_than_the_limit`].
pub(crate) const SLOTS_OF_TENANT: u32 = 4;

/// Processes take slots of a user and of a tenant together, and never hold more than the limit. Some give up. Returns the
/// most slots that they held at the same time.
pub(crate) async fn hold_no_more_slots_than_the_limit<S: Store + Clone>(
    stores: impl IntoIterator<Item = S>,
) -> u32 {
    const LIMIT: u32 = SLOTS_OF_TENANT;
    let running = Running::default();
    let processes = stores.into_iter().map(|store| {
        let tenant = RateLimiter::new(store.clone(), Quota::in_flight(LIMIT)).name("tenant");
        let user = [Quota::in_flight(3), Quota::per_hour(100_000)];
        [RateLimiter::new(store, user).name("user"), tenant]
    });
    let processes: Vec<_> = processes.collect();
    let mut tasks = Vec::new();
    for process in &processes {
        for task in 0..6_u64 {
            let [user, tenant] = process.clone();
            let running = running.clone();
            tasks.push(tokio::spawn(async move {
                let (name, mut acquired) = (format!("user:{task}"), 0);
                for round in 0..25_u64 {
                    let levels = [user.level(name.as_str()), tenant.level("acme")];
                    let wait = match round % 3 {
                        0 => Duration::from_micros(700 + (task * 997 + round * 613) % 20_000),
                        _ => PATIENCE,
                    };
                    let taken = tokio::time::timeout(wait, RateLimiter::acquire_all(levels)).await;
                    let Ok(permit) = taken else { continue };
                    let permit = permit.unwrap();
                    running.run(Duration::from_micros(300)).await;
                    acquired += 1;
                    drop(permit);
                }
                acquired
            }));
        }
    }
    let mut acquired = 0;
    for task in tasks {
        acquired += task.await.unwrap();
    }
    let most = running.most();
    println!("{acquired} permits, at most {most} at the same time");
    assert!(
        acquired > 100 && most <= LIMIT,
        "{acquired} permits, {most} at the same time"
    );
    let [user, tenant] = &processes[0];
    until("nothing is left", async || {
        let mut left = used(tenant, "acme").await;
        for task in 0..6 {
            let decision = user.peek(format!("user:{task}")).await.unwrap();
            left += decision.quotas().next().map_or(0, |slots| slots.used());
        }
        left == 0
    })
    .await;
    // A process repeats its last refusal for up to 20 ms.
    until("a permit is free", async || {
        let taken = tenant.try_acquire("acme").await.unwrap();
        matches!(taken, Acquired::Permit(_))
    })
    .await;
    most
}

/// Two processes share the slots and the rate of a key.
pub(crate) async fn share_slots<S: Store>(stores: [S; 2]) {
    let [one, other] =
        stores.map(|store| RateLimiter::new(store, [Quota::in_flight(2), Quota::per_hour(9)]));
    let permits = [
        one.acquire("ada").await.unwrap(),
        other.acquire("ada").await.unwrap(),
    ];
    for limiter in [&one, &other] {
        let refused = limiter.try_acquire("ada").await.unwrap();
        assert!(matches!(refused, Acquired::Refused(_)));
    }
    for (permit, left) in permits.into_iter().zip([1, 0]) {
        permit.release().await.unwrap();
        let decision = one.peek("ada").await.unwrap();
        let used: Vec<_> = decision.quotas().map(|quota| quota.used()).collect();
        assert_eq!(used, [left, 2]);
    }
    assert!(other.acquire("ada").await.is_ok());
}
