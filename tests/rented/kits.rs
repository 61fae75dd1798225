//! The promises of every store, on each offer: by the kit for stores, and by processes that begin at the same time.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Semaphore, SemaphorePermit};
use tollgate::{Algorithm, Quota, RateLimiter, RedisStore, Source};
use tollgate_conformance::Conformance;

use crate::adversary::{Traffic, is_kept};
use crate::offer::Offer;
use crate::runtime::Runtime;
use crate::support::cases::some_or_all;
use crate::support::several_processes::{
    Tree, block_together, count_each_key_exactly, hold_no_more_slots_than_the_limit,
    keep_every_level, lease_no_more_than_the_limit, used,
};

/// The stores of as many processes.
async fn processes<const N: usize>(offer: &Offer) -> [RedisStore; N] {
    join_all([(); N].map(|()| offer.process()))
        .await
        .try_into()
        .expect("one for each process")
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

/// Every change waits for a server that divides its keys: `tests/checks` has the kit on a server of our own. The others
/// differ by a word in the URL, and by what their user may not do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kit_for_stores_passes_by_a_clock_that_the_test_moves() {
    let _place = place();
    let offers = [
        Offer::one_endpoint,
        Offer::one_endpoint_by_slot,
        Offer::memorystore,
    ];
    for offer in offers.into_iter().take(some_or_all(1, 3)) {
        conforms(&offer()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kit_for_stores_passes_by_the_clock_of_the_store() {
    let _place = place();
    conforms(&Offer::serverless()).await;
}

/// The first checks of each process are of several levels and of one, at the same time: each is decided by the server,
/// charged once to each level, and none is lost.
async fn decides_the_first_checks(offer: &Offer) {
    const ROUNDS: u32 = 8;
    const CHECKS: u32 = 24;
    for round in 0..ROUNDS {
        // A process does not know yet how the server divides its keys.
        let store = offer.process().await;
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

/// Threads check one key as fast as they can, with callers of two limits and refunds, by every algorithm.
fn keeps_its_promise_under_threads(offer: &Offer) {
    let traffic = Traffic {
        threads: 8,
        limits: &[60, 10],
        window: Duration::from_millis(80),
        duration: Duration::from_millis(some_or_all(500, 1_200)),
        work: Duration::from_micros(20),
        rest: Duration::from_millis(10),
        refunds: true,
    };
    let broken: Vec<_> = Algorithm::ALL
        .iter()
        .filter_map(|algorithm| {
            let store = offer.store().prefix(format!("{algorithm:?}"));
            let outcome = traffic.run(*algorithm, &store, Runtime::new);
            is_kept(*algorithm, &traffic, &outcome).err()
        })
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

/// The processes of one offer keep a core busy, so that more of them at a time would only take longer.
static PLACES: Semaphore = Semaphore::const_new(2);

/// Waits until few other tests run.
fn place() -> SemaphorePermit<'static> {
    loop {
        if let Ok(place) = PLACES.try_acquire() {
            return place;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

macro_rules! on_each_offer {
    ($($offer:ident)*) => {
        $(
            mod $offer {
                use super::*;

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn each_key_is_counted_exactly() {
                    let _place = place();
                    let offer = Offer::$offer();
                    count_each_key_exactly(processes(&offer).await).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn the_first_checks_of_a_process_are_decided_and_charged_once() {
                    let _place = place();
                    decides_the_first_checks(&Offer::$offer()).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn every_level_is_charged_or_none() {
                    let _place = place();
                    let offer = Offer::$offer();
                    keep_every_level(processes(&offer).await).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn leases_exceed_no_limit_and_return() {
                    let _place = place();
                    let offer = Offer::$offer();
                    lease_no_more_than_the_limit(processes(&offer).await).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn a_block_is_seen_and_lifted_by_another_process() {
                    let _place = place();
                    let offer = Offer::$offer();
                    let stores = processes(&offer).await;
                    let refresh = Duration::from_millis(50);
                    block_together(stores.map(|store| store.fork().block_list_refresh(refresh))).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn processes_hold_no_more_slots_than_the_limit() {
                    let _place = place();
                    let offer = Offer::$offer();
                    hold_no_more_slots_than_the_limit(processes::<3>(&offer).await).await;
                }

                #[test]
                fn no_span_has_more_than_the_promise_under_threads() {
                    let _place = place();
                    keeps_its_promise_under_threads(&Offer::$offer());
                }
            }
        )*
    };
}

on_each_offer! { one_endpoint one_endpoint_by_slot memorystore serverless }
