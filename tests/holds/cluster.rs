//! Held units of levels in several slots of a Redis Cluster.

use std::time::Duration;

use tollgate::{Acquired, Quota, RateLimiter, RedisStore};

use crate::support::cluster::Cluster;
use crate::{LEASE, until_key_used};

const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_refusal_gives_back_what_earlier_levels_hold_and_charges_none() {
    let cluster = Cluster::of_masters(3, &[]);
    let store = RedisStore::open(&cluster.url())
        .unwrap()
        .deadline(Duration::from_secs(5));
    let runs = RateLimiter::new(store.clone(), Quota::total(50, DAY))
        .name("run")
        .reserve_lease(LEASE);
    let sessions = RateLimiter::new(store, Quota::total(80, DAY))
        .name("session")
        .reserve_lease(LEASE);
    let reserve = async |run: &str| {
        let levels = [runs.level(run).cost(40), sessions.level("ada").cost(40)];
        RateLimiter::try_acquire_all(levels).await.unwrap()
    };
    let mut permits = Vec::new();
    for run in ["one", "two"] {
        match reserve(run).await {
            Acquired::Permit(permit) => permits.push(permit),
            Acquired::Refused(decision) => panic!("{decision:?}"),
        }
    }
    // The session is full: what the run holds returns, in whichever order the slots are asked.
    for run in ["three", "four", "five", "six"] {
        let refused = reserve(run).await;
        assert!(matches!(refused, Acquired::Refused(_)), "{run}");
        until_key_used(&runs, run, 0).await;
    }
    for (permit, used) in permits.iter_mut().zip([7, 50]) {
        permit.add(used);
    }
    drop(permits);
    until_key_used(&runs, "one", 7).await;
    until_key_used(&runs, "two", 50).await;
    until_key_used(&sessions, "ada", 57).await;
}
