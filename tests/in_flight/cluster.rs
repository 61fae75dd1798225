//! Slots of levels in several slots of a Redis Cluster.

use std::time::{Duration, Instant};

use tollgate::{Acquired, ErrorKind, Permit, Quota, RateLimiter, RedisStore};

use crate::support::cluster::Cluster;

async fn used(limiter: &RateLimiter, key: &str) -> Vec<u32> {
    let decision = limiter.peek(key).await.unwrap();
    decision.quotas().map(|quota| quota.used()).collect()
}

async fn until_used(limiter: &RateLimiter, key: &str, expected: &[u32]) {
    let began = Instant::now();
    loop {
        let used = used(limiter, key).await;
        if used == expected {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(5), "{key}: {used:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A limiter of users, which also have a rate, and one of tenants.
fn process(cluster: &Cluster) -> [RateLimiter; 2] {
    let store = RedisStore::open(&cluster.url()).unwrap();
    let store = store.deadline(Duration::from_secs(5));
    let quotas = [Quota::in_flight(3), Quota::per_hour(100)];
    let user = RateLimiter::new(store.clone(), quotas).name("user");
    [
        user,
        RateLimiter::new(store, Quota::in_flight(2)).name("tenant"),
    ]
}

async fn take([user, tenant]: &[RateLimiter; 2], name: &str) -> Option<Permit> {
    let levels = [user.level(name), tenant.level("acme")];
    match RateLimiter::try_acquire_all(levels).await.unwrap() {
        Acquired::Permit(permit) => Some(permit),
        Acquired::Refused(_) => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_refusal_gives_back_the_slots_of_earlier_levels() {
    let cluster = Cluster::of_masters(3, &[]);
    let processes = [(); 2].map(|()| process(&cluster));
    let [one, other] = &processes;
    let [user, tenant] = one;
    let first = take(one, "ada").await.unwrap();
    let second = take(other, "bob").await.unwrap();
    // The tenant refuses after the user has admitted: its slot and its unit return.
    for name in ["ada", "carol", "dave", "erin"] {
        let before = used(user, name).await;
        for process in &processes {
            assert!(take(process, name).await.is_none());
        }
        until_used(user, name, &before).await;
    }
    until_used(tenant, "acme", &[2]).await;
    drop(first);
    until_used(tenant, "acme", &[1]).await;
    until_used(user, "ada", &[0, 1]).await;
    // A refusal is repeated for up to 20 ms.
    let began = Instant::now();
    let third = loop {
        if let Some(permit) = take(other, "ada").await {
            break permit;
        }
        assert!(began.elapsed() < Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    drop((second, third));
    until_used(tenant, "acme", &[0]).await;
    until_used(user, "ada", &[0, 2]).await;

    // One that waits gets all levels when they are free.
    let open = [
        take(one, "ada").await.unwrap(),
        take(other, "bob").await.unwrap(),
    ];
    let waiting = tokio::spawn({
        let [user, tenant] = one.clone();
        async move { RateLimiter::acquire_all([user.level("erin"), tenant.level("acme")]).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    drop(open);
    let permit = waiting.await.unwrap().unwrap();
    until_used(tenant, "acme", &[1]).await;
    permit.release().await.unwrap();
    until_used(tenant, "acme", &[0]).await;
    until_used(user, "erin", &[0, 1]).await;

    // A caller that goes away while its levels are asked in turn leaves nothing.
    for micros in 0..60 {
        let levels = [user.level("frank"), tenant.level("acme")];
        let wait = Duration::from_micros(micros * 40);
        let taken = tokio::time::timeout(wait, RateLimiter::try_acquire_all(levels)).await;
        drop(taken);
    }
    until_used(tenant, "acme", &[0]).await;
    let slots = used(user, "frank").await[0];
    println!("{slots} slots of frank");
    let began = Instant::now();
    while used(user, "frank").await[0] > 0 {
        assert!(began.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_up_a_wait_for_a_later_level_holds_nothing() {
    let cluster = Cluster::of_masters(3, &[]);
    let [user, tenant] = process(&cluster);
    let _full = [
        tenant.acquire("acme").await.unwrap(),
        tenant.acquire("acme").await.unwrap(),
    ];
    // The level of the tenant is asked first for some of them.
    let names: Vec<_> = (0..8).map(|number| format!("user-{number}")).collect();
    for name in &names {
        let levels = [user.level(name.as_str()), tenant.level("acme")];
        let waited =
            tokio::time::timeout(Duration::from_millis(100), RateLimiter::acquire_all(levels));
        assert!(waited.await.is_err());
    }
    for name in &names {
        until_used(&user, name, &[0, 0]).await;
    }
    assert_eq!(used(&tenant, "acme").await, [2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_that_wait_for_levels_in_another_order_do_not_wait_for_each_other() {
    let cluster = Cluster::of_masters(3, &[]);
    let processes = [(); 2].map(|()| {
        let store = RedisStore::open(&cluster.url()).unwrap();
        let store = store.deadline(Duration::from_secs(5));
        RateLimiter::new(store, Quota::in_flight(1)).name("exports")
    });
    let tasks = (0..8_usize).map(|task| {
        let limiter = processes[task % 2].clone();
        tokio::spawn(async move {
            let keys = ["ada", "bob", "cem", "dot"];
            for round in 0..10 {
                let [first, second] =
                    [task + round, task / 2 + 2 * round + 1].map(|at| keys[at % 4]);
                if first != second {
                    let levels = [limiter.level(first), limiter.level(second)];
                    let permit = RateLimiter::acquire_all(levels).await.unwrap();
                    tokio::time::sleep(Duration::from_micros(300)).await;
                    drop(permit);
                }
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let began = Instant::now();
    for task in tasks {
        let ended = tokio::time::timeout(Duration::from_secs(30), task).await;
        ended.expect("they wait for each other").unwrap();
    }
    println!("after {:?}", began.elapsed());
}

#[tokio::test]
async fn the_longest_wait_is_that_for_all_levels_together() {
    let cluster = Cluster::of_masters(3, &[]);
    let store = RedisStore::open(&cluster.url()).unwrap();
    let store = store.deadline(Duration::from_secs(5));
    let limiter = RateLimiter::new(store, Quota::in_flight(1)).max_wait(Duration::from_secs(1));
    let keys = ["ada", "bob"];
    // One of them is asked first.
    for released in keys {
        let mut held = Vec::new();
        for key in keys {
            held.push((key, limiter.acquire(key).await.unwrap()));
        }
        let began = Instant::now();
        let levels = keys.map(|key| limiter.level(key));
        let (waited, ()) = tokio::join!(RateLimiter::acquire_all(levels), async {
            tokio::time::sleep(Duration::from_millis(800)).await;
            held.retain(|(key, _)| *key != released);
        });
        assert_eq!(waited.unwrap_err().kind(), ErrorKind::MaxWait);
        let took = began.elapsed();
        assert!(took < Duration::from_millis(1_600), "{took:?}");
        held.clear();
        for key in keys {
            until_used(&limiter, key, &[0]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_of_rates_alone_in_another_slot_is_asked_and_waited_for() {
    let cluster = Cluster::of_masters(3, &[]);
    let store = RedisStore::open(&cluster.url()).unwrap();
    let store = store.deadline(Duration::from_secs(5));
    let slots = RateLimiter::new(store.clone(), Quota::in_flight(2)).name("slots");
    let rate = RateLimiter::new(store, Quota::per_second(2)).name("rate");
    // One of the levels is asked first for some of them.
    for user in (0..8).map(|number| format!("user-{number}")) {
        let levels = || [slots.level(&user), rate.level("acme")];
        let ended = tokio::time::timeout(Duration::from_secs(10), async {
            let first = RateLimiter::acquire_all(levels()).await.unwrap();
            until_used(&slots, &user, &[1]).await;
            drop(first);
            let second = RateLimiter::acquire_all(levels()).await.unwrap();
            // The rate refuses: the slot of this attempt returns.
            while let Acquired::Permit(permit) =
                RateLimiter::try_acquire_all(levels()).await.unwrap()
            {
                drop(permit);
            }
            until_used(&slots, &user, &[1]).await;
            drop(second);
            until_used(&slots, &user, &[0]).await;
        });
        assert!(ended.await.is_ok(), "{user}: no answer");
    }
}
