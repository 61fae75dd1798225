//! Slots of levels in several slots of a Redis Cluster.

use std::time::{Duration, Instant};

use tollgate::{Acquired, Permit, Quota, RateLimiter, RedisStore};

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
    let levels = [user.on(name), tenant.on("acme")];
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
        async move { RateLimiter::acquire_all([user.on("erin"), tenant.on("acme")]).await }
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
        let levels = [user.on("frank"), tenant.on("acme")];
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
