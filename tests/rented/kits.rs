//! The promises of every store, on each offer: by the kit for stores, and by processes that begin at the same time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate::store::Conformance;
use tollgate::{
    Acquired, Algorithm, BlockRule, Decision, Key, Quota, RateLimiter, RedisStore, Source,
};

use crate::adversary::{Traffic, Wait, is_kept};
use crate::offer::Offer;
use crate::support::running::Running;

const HOUR: Duration = Duration::from_secs(3_600);
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until a condition holds.
async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn used(limiter: &RateLimiter, key: impl Into<Key>) -> u32 {
    limiter.peek(key).await.unwrap().used()
}

/// The kit for stores. A store that divides its keys is asked about keys of one slot together.
async fn conforms(offer: &Offer) {
    let kit = match offer.time() {
        Some(mut time) => {
            Conformance::new(time.redis.clone()).clock(move |step| time.advance(step))
        }
        None => Conformance::new(offer.process().await),
    };
    let report = kit.run().await;
    println!("{report}");
    report.assert_complete();
}

/// Many tasks of two processes check some keys, and give some units back: each key admits its limit, and has as many
/// units as were admitted and not given back.
async fn counts_each_key_exactly(offer: &Offer) {
    const KEYS: usize = 20;
    const LIMIT: u32 = 30;
    let mut tasks = Vec::new();
    for process in 0..2 {
        let limiter = RateLimiter::new(offer.process().await, Quota::per_hour(LIMIT));
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
                            limiter.refund(&mut decision, 1).await.unwrap();
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
    let limiter = RateLimiter::new(offer.process().await, Quota::per_hour(LIMIT));
    for (key, kept) in kept.iter_mut().enumerate() {
        let key = format!("key:{key}");
        assert_eq!(
            i64::from(used(&limiter, key.as_str()).await),
            *kept,
            "{key}"
        );
        // Units that were given back at the end are there.
        while limiter.check(key.as_str()).await.unwrap().is_allowed() {
            *kept += 1;
        }
        assert_eq!(*kept, i64::from(LIMIT), "{key}");
    }
}

/// A user, a tenant and the whole service.
struct Tree([RateLimiter; 3]);

impl Tree {
    fn new(store: &RedisStore, limits: [u32; 3]) -> Self {
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

    async fn check(&self, number: usize) -> Decision {
        let Self([user, tenant, service]) = self;
        let (of_user, of_tenant) = (
            format!("user:{}", number % 8),
            format!("tenant:{}", number % 3),
        );
        let levels = [
            user.on(of_user.as_str()),
            tenant.on(of_tenant.as_str()),
            service.on(Key::global()),
        ];
        RateLimiter::check_all(levels).await.unwrap()
    }

    /// The units of all users, all tenants and the service.
    async fn used(&self) -> [u32; 3] {
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

/// The first checks of each process are of several levels and of one, at the same time: each is decided by the server,
/// charged once to each level, and none is lost.
async fn decides_the_first_checks(offer: &Offer) {
    const ROUNDS: u32 = 12;
    const CHECKS: u32 = 24;
    for round in 0..ROUNDS {
        // A process does not know yet how the server divides its keys. Every third sends each check alone.
        let store = match round % 3 {
            0 => offer.process().await.without_batches(),
            _ => offer.process().await,
        };
        let tree = Arc::new(Tree::new(&store, [100_000; 3]));
        let single = RateLimiter::new(store, Quota::per_hour(100_000)).name("single");
        let checks: Vec<_> = (0..CHECKS as usize)
            .map(|number| {
                let (tree, single) = (Arc::clone(&tree), single.clone());
                tokio::spawn(async move {
                    let alone = single.check(format!("key:{number}"));
                    let (levels, alone) = tokio::join!(tree.check(number), alone);
                    let sources = levels.levels().map(|level| level.source());
                    let sources: Vec<_> = sources.chain([alone.unwrap().source()]).collect();
                    assert_eq!(sources, [Source::Redis; 4]);
                    assert!(levels.is_allowed());
                })
            })
            .collect();
        for check in checks {
            check.await.unwrap();
        }
        assert_eq!(tree.used().await, [(round + 1) * CHECKS; 3]);
        assert_eq!(used(&single, "key:0").await, round + 1);
    }
}

/// Several processes check levels until none passes: no limit is exceeded, and what was refused is charged nowhere.
async fn keeps_every_level(offer: &Offer) {
    let mut tasks = Vec::new();
    let mut trees = Vec::new();
    for _ in 0..3 {
        let store = offer.process().await;
        trees.push(Arc::new(Tree::new(&store, [20, 60, 100])));
    }
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

/// Three processes lease units of some keys: no key exceeds its limit, and what is left returns.
async fn leases_what_it_has(offer: &Offer) {
    const LIMIT: u32 = 600;
    let mut limiters = Vec::new();
    for _ in 0..3 {
        let limiter = RateLimiter::new(offer.process().await, Quota::per_hour(LIMIT));
        limiters.push(limiter.lease(Duration::from_millis(500)));
    }
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

/// A block of an operator and an automatic one are seen by another process, and lifted there.
async fn blocks_in_all_processes(offer: &Offer) {
    let rule = BlockRule::refusals(20).block_for(HOUR);
    let limiter = |store: RedisStore| RateLimiter::new(store, Quota::per_day(1)).block_after(rule);
    let refresh = Duration::from_millis(50);
    let here = limiter(offer.process().await.fork().block_list_refresh(refresh));
    let there = limiter(offer.process().await.fork().block_list_refresh(refresh));
    let is_blocked = async |limiter: &RateLimiter, key: &str| {
        let decision = limiter.check(key).await.unwrap();
        decision.source() == Source::Block
    };
    here.admin().block("ada", HOUR).await.unwrap();
    until("another process blocks ada", async || {
        is_blocked(&there, "ada").await
    })
    .await;
    there.admin().unblock("ada").await.unwrap();
    until("ada is unblocked", async || !is_blocked(&here, "ada").await).await;
    until("bob is blocked after 20 refusals", async || {
        is_blocked(&here, "bob").await
    })
    .await;
    until("another process blocks bob", async || {
        is_blocked(&there, "bob").await
    })
    .await;
    let listed = there.admin().blocked().await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
}

/// Processes take slots of a user and of a tenant together, and never hold more than the limit. Some give up.
async fn holds_no_more_slots_than_the_limit(offer: &Offer) {
    const LIMIT: u32 = 4;
    let running = Running::default();
    let mut processes = Vec::new();
    for _ in 0..3 {
        let store = offer.process().await;
        let tenant = RateLimiter::new(store.clone(), Quota::in_flight(LIMIT)).name("tenant");
        let user = [Quota::in_flight(3), Quota::per_hour(100_000)];
        processes.push([RateLimiter::new(store, user).name("user"), tenant]);
    }
    let mut tasks = Vec::new();
    for process in &processes {
        for task in 0..6_u64 {
            let [user, tenant] = process.clone();
            let running = running.clone();
            tasks.push(tokio::spawn(async move {
                let (name, mut acquired) = (format!("user:{task}"), 0);
                for round in 0..25_u64 {
                    let levels = [user.on(name.as_str()), tenant.on("acme")];
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
    let first = tenant.try_acquire("acme").await.unwrap();
    assert!(matches!(first, Acquired::Permit(_)));
}

/// A runtime for each thread, and so a connection for each.
struct Runtime(tokio::runtime::Runtime);

impl Wait for Runtime {
    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.0.block_on(future)
    }
}

/// Threads check one key as fast as they can, with callers of two limits and refunds, by every algorithm.
fn keeps_its_promise_under_threads(offer: &Offer) {
    let traffic = Traffic {
        threads: 8,
        limits: &[60, 10],
        window: Duration::from_millis(80),
        duration: Duration::from_millis(1_200),
        work: Duration::from_micros(20),
        rest: Duration::from_millis(10),
        refunds: true,
    };
    let broken: Vec<_> = Algorithm::ALL
        .iter()
        .filter_map(|algorithm| {
            let store = offer.store().prefix(format!("{algorithm:?}"));
            let outcome = traffic.run(*algorithm, &store, |_| {
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                Runtime(runtime.enable_all().build().unwrap())
            });
            is_kept(*algorithm, &traffic, &outcome).err()
        })
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

macro_rules! on_each_offer {
    ($($offer:ident)*) => {
        $(
            mod $offer {
                use super::*;

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn the_kit_for_stores_passes() {
                    conforms(&Offer::$offer()).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn each_key_is_counted_exactly() {
                    counts_each_key_exactly(&Offer::$offer()).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn the_first_checks_of_a_process_are_decided_and_charged_once() {
                    decides_the_first_checks(&Offer::$offer()).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn every_level_is_charged_or_none() {
                    keeps_every_level(&Offer::$offer()).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn leases_exceed_no_limit_and_return() {
                    leases_what_it_has(&Offer::$offer()).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn a_block_is_seen_and_lifted_by_another_process() {
                    blocks_in_all_processes(&Offer::$offer()).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn processes_hold_no_more_slots_than_the_limit() {
                    holds_no_more_slots_than_the_limit(&Offer::$offer()).await;
                }

                #[test]
                fn no_span_has_more_than_the_promise_under_threads() {
                    keeps_its_promise_under_threads(&Offer::$offer());
                }
            }
        )*
    };
}

on_each_offer! { one_endpoint one_endpoint_by_slot memorystore serverless }
