//! Slots of shares: what is reserved is there, what is idle is used, and the limit is never exceeded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tollgate::store::TestStore;
use tollgate::{
    Acquired, ErrorKind, FailurePolicy, LevelCheck, MemoryStore, Permit, Quota, RateLimiter,
    RedisStore, Share, Source,
};

use crate::failures::until_used;
use crate::support::redis_server::RedisServer;
use crate::support::{holds_for_any, runtime};

const LIMIT: u32 = 7;

/// The shares that ask, with reserve and bound. The quota does not have the last one.
const SHARES: [(&str, u32, u32); 4] = [
    ("critical", 3, LIMIT),
    ("batch", 0, 2),
    ("free", 1, 3),
    ("unknown", 0, LIMIT),
];

fn quota() -> Quota {
    let known = SHARES.iter().take(3);
    Quota::in_flight(LIMIT)
        .shares(known.map(|(name, reserve, most)| Share::of(name).reserve(*reserve).at_most(*most)))
}

fn in_redis(server: &RedisServer) -> RateLimiter {
    let store = RedisStore::open(&server.url()).unwrap();
    RateLimiter::new(store.deadline(Duration::from_secs(5)), quota())
}

fn asks(limiter: &RateLimiter, share: usize) -> LevelCheck<'_> {
    limiter.level("ada").share(SHARES[share].0)
}

/// The rule, word by word, of slots that are held by each share.
fn admits(held: &[u32; 4], share: usize, slots: u32) -> bool {
    let mut after = *held;
    after[share] += slots;
    let (_, reserve, most) = SHARES[share];
    let kept = after.iter().zip(SHARES);
    let kept: u32 = kept
        .map(|(held, (_, reserve, _))| (*held).max(reserve))
        .sum();
    after.iter().sum::<u32>() <= LIMIT
        && after[share] <= most
        && (after[share] <= reserve || kept <= LIMIT)
}

#[derive(Clone, Debug)]
enum Step {
    Take {
        process: usize,
        share: usize,
        slots: u32,
    },
    GiveBack(usize),
}

#[test]
fn shares_of_slots_follow_the_rule_over_two_processes() {
    let server = RedisServer::start();
    let take =
        (0..2_usize, 0..SHARES.len(), 1..4_u32).prop_map(|(process, share, slots)| Step::Take {
            process,
            share,
            slots,
        });
    let step = prop_oneof![5 => take, 3 => any::<usize>().prop_map(Step::GiveBack)];
    let runtime = runtime();
    let seen = std::cell::Cell::new([0; 3]);
    let law = |steps: Vec<Step>| {
        crate::support::redis_server::run(&mut server.connect(), &["FLUSHALL"]);
        let memory = RateLimiter::new(MemoryStore::new(), quota());
        let processes = [in_redis(&server), in_redis(&server)];
        let (mut held, mut permits) = ([0; 4], Vec::new());
        runtime.block_on(async {
            for step in steps {
                match step {
                    Step::Take {
                        process,
                        share,
                        slots,
                    } => {
                        let expected = admits(&held, share, slots);
                        // The memory counts the slots of both.
                        let mut taken = Vec::new();
                        for limiter in [&memory, &processes[process]] {
                            taken.push(take_slots(limiter, share, slots, expected).await);
                        }
                        let mut count = seen.get();
                        count[usize::from(expected)] += 1;
                        count[2] +=
                            usize::from(!expected && held.iter().sum::<u32>() + slots <= LIMIT);
                        seen.set(count);
                        if expected {
                            held[share] += slots;
                            permits.push((share, slots, taken));
                        }
                    }
                    Step::GiveBack(_) if permits.is_empty() => {}
                    Step::GiveBack(index) => {
                        let (share, slots, taken) = permits.swap_remove(index % permits.len());
                        for permit in taken.into_iter().flatten() {
                            permit.release().await.unwrap();
                        }
                        held[share] -= slots;
                    }
                }
            }
        });
        Ok(())
    };
    holds_for_any(60, &prop::collection::vec(step, 10..40), law);
    let [refused, admitted, kept] = seen.get();
    assert!(
        refused > 20 && admitted > 30 && kept > 10,
        "{:?}",
        seen.get()
    );
}

/// Takes slots, and verifies the answer. A process repeats its own refusal for up to 20 ms, while another one gives back.
async fn take_slots(
    limiter: &RateLimiter,
    share: usize,
    slots: u32,
    expected: bool,
) -> Option<Permit> {
    for attempt in 0.. {
        let check = asks(limiter, share).slots(slots);
        let said = format!("{slots} slots of {}, {limiter:?}", SHARES[share].0);
        match RateLimiter::try_acquire_all([check]).await {
            Ok(Acquired::Permit(permit)) => {
                assert!(expected, "{said}: {:?}", permit.decision());
                return Some(permit);
            }
            Ok(Acquired::Refused(_)) if expected && attempt == 0 => {
                tokio::time::sleep(Duration::from_millis(21)).await;
            }
            Ok(Acquired::Refused(decision)) => {
                assert!(!expected, "{said}: {decision:?}");
                return None;
            }
            Err(error) => {
                // They fit into no unused limit.
                assert_eq!(error.kind(), ErrorKind::CostExceedsLimit, "{said}");
                assert!(!admits(&[0; 4], share, slots), "{said}: {error}");
                return None;
            }
        }
    }
    None
}

/// The slots that are in use, of each share and of all: counted after they are taken, and until before they are given back.
#[derive(Default)]
struct InUse([AtomicU32; 5]);

impl InUse {
    fn add(&self, share: usize, slots: u32) {
        for (count, most) in [(share, SHARES[share].2), (4, LIMIT)] {
            let used = self.0[count].fetch_add(slots, Ordering::SeqCst) + slots;
            assert!(used <= most, "{used} of {most} slots in use by {share}");
        }
    }

    fn remove(&self, share: usize, slots: u32) {
        for count in [share, 4] {
            self.0[count].fetch_sub(slots, Ordering::SeqCst);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_share_gets_its_reserve_at_once_however_many_others_ask() {
    let server = RedisServer::start();
    let (in_use, stop) = (Arc::new(InUse::default()), Arc::new(AtomicU32::new(0)));
    let mut tasks = Vec::new();
    for process in [(); 4].map(|()| in_redis(&server).max_wait(Duration::from_secs(30))) {
        for share in [1, 2, 3, 1, 2, 3] {
            let (limiter, in_use, stop) = (process.clone(), Arc::clone(&in_use), Arc::clone(&stop));
            tasks.push(tokio::spawn(async move {
                let mut permits = 0_u32;
                while stop.load(Ordering::Relaxed) == 0 {
                    let permit = RateLimiter::acquire_all([asks(&limiter, share)])
                        .await
                        .unwrap();
                    in_use.add(share, 1);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    in_use.remove(share, 1);
                    drop(permit);
                    permits += 1;
                }
                permits
            }));
        }
    }
    let critical = in_redis(&server);
    for round in 0..60 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let mut permits = Vec::new();
        for _ in 0..3 {
            match RateLimiter::try_acquire_all([asks(&critical, 0)])
                .await
                .unwrap()
            {
                Acquired::Permit(permit) => permits.push(permit),
                Acquired::Refused(decision) => panic!("round {round}: {decision:?}"),
            }
        }
        in_use.add(0, 3);
        in_use.remove(0, 3);
        for permit in permits {
            permit.release().await.unwrap();
        }
    }
    stop.store(1, Ordering::Relaxed);
    let mut permits = Vec::new();
    for task in tasks {
        permits.push(task.await.unwrap());
    }
    assert!(permits.iter().sum::<u32>() > 200, "{permits:?}");
}

#[tokio::test]
async fn a_slot_that_one_share_gives_back_goes_to_another_one_that_waits() {
    let server = RedisServer::start();
    for limiter in [
        in_redis(&server),
        RateLimiter::new(MemoryStore::new(), quota()),
    ] {
        // All that is not reserved for `critical`, of which one is reserved for `free`.
        let free = RateLimiter::try_acquire_all([asks(&limiter, 2).slots(1)])
            .await
            .unwrap();
        let other = RateLimiter::try_acquire_all([asks(&limiter, 3).slots(3)])
            .await
            .unwrap();
        let (Acquired::Permit(_free), Acquired::Permit(other)) = (free, other) else {
            panic!("there is room for both");
        };
        let waits = {
            let limiter = limiter.clone();
            tokio::spawn(async move { RateLimiter::acquire_all([asks(&limiter, 1)]).await })
        };
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert!(!waits.is_finished());
        drop(other);
        let permit = tokio::time::timeout(Duration::from_secs(5), waits)
            .await
            .expect("it waits no longer");
        let permit = permit.unwrap().unwrap();
        // One process, whatever its shares.
        let status = limiter.admin().status("ada").await.unwrap();
        let held: Vec<_> = status
            .holders
            .iter()
            .map(|of| (Some(of.holder), of.held))
            .collect();
        assert_eq!(held, [(status.own_holder, 2)]);
        drop(permit);
    }
}

/// The permit of a share that takes slots at once. `None` if it is refused.
async fn taken(limiter: &RateLimiter, share: &str, slots: u32) -> Option<Permit> {
    let check = limiter.level("ada").share(share).slots(slots);
    match RateLimiter::try_acquire_all([check]).await.unwrap() {
        Acquired::Permit(permit) => Some(permit),
        Acquired::Refused(_) => None,
    }
}

#[tokio::test]
async fn a_slot_that_one_share_gives_back_is_there_for_another_one_at_once() {
    let quota = Quota::in_flight(10).shares([Share::of("a"), Share::of("b")]);
    let limiter = RateLimiter::new(MemoryStore::new(), quota);
    let first = taken(&limiter, "b", 1).await;
    let others = taken(&limiter, "a", 9).await;
    assert!(first.is_some() && others.is_some());
    drop(first);
    assert!(taken(&limiter, "a", 1).await.is_some());
}

/// A limiter with a bounded share that falls back, and its store.
fn falling_back() -> (RateLimiter, TestStore) {
    let store = TestStore::new();
    let quota = Quota::in_flight(10).shares([Share::of("batch").at_most(4)]);
    let limiter = RateLimiter::new(store.clone(), quota);
    let limiter = limiter.on_failure(FailurePolicy::fall_back());
    (limiter, store)
}

#[tokio::test]
async fn fall_back_counts_what_this_process_holds_for_all_shares() {
    let (limiter, store) = falling_back();
    let rest = taken(&limiter, "", 9).await.unwrap();
    let last = taken(&limiter, "", 1).await.unwrap();
    store.fail_all(ErrorKind::Unavailable);
    assert!(taken(&limiter, "batch", 1).await.is_none());
    drop(last);
    let batch = taken(&limiter, "batch", 1).await.unwrap();
    assert_eq!(batch.decision().source(), Source::Fallback);
    assert!(taken(&limiter, "", 1).await.is_none());
    drop((rest, batch));
}

#[tokio::test]
async fn fall_back_counts_no_slot_that_another_share_gave_back() {
    let (limiter, store) = falling_back();
    store.fail_all(ErrorKind::Unavailable);
    let all = taken(&limiter, "", 10).await.unwrap();
    assert!(taken(&limiter, "batch", 1).await.is_none());
    drop(all);
    assert!(taken(&limiter, "batch", 4).await.is_some());
    // Also in the next outage.
    let all = taken(&limiter, "", 10).await.unwrap();
    store.recover();
    until_used(&limiter, &store, 10).await;
    all.release().await.unwrap();
    store.fail_all(ErrorKind::Unavailable);
    assert!(taken(&limiter, "batch", 4).await.is_some());
}
