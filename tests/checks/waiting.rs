//! Calls that wait for the units of a key: each has its turn, in the order of arrival.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tollgate::{Algorithm, ErrorKind, MemoryStore, Quota, RateLimiter, RedisStore, Store};

use crate::support::costs;
use crate::support::redis_server::RedisServer;
use crate::support::relay::Relay;
use crate::support::store_on;

/// Longer than any machine stands still.
const PATIENCE: Duration = Duration::from_secs(60);

const MILLI: Duration = Duration::from_millis(1);

/// In memory, and in Redis with a deadline that no busy machine misses.
fn stores(server: &RedisServer) -> [Arc<dyn Store>; 2] {
    let redis = store_on(server).deadline(Duration::from_secs(10));
    [Arc::new(MemoryStore::new()), Arc::new(redis)]
}

/// A rate of one unit in this time, without bursts.
fn one_in(time: Duration) -> Quota {
    Quota::new(1, time)
}

/// Takes all units of a key, so that the next call waits.
async fn exhaust(limiter: &RateLimiter, key: &str) {
    while limiter.check(key).await.unwrap().is_allowed() {}
}

/// Starts calls for these costs, one after the other. Returns the order in which they were admitted.
async fn order_of(limiter: &RateLimiter, costs: &[u32]) -> Vec<usize> {
    let (admitted, mut calls) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
    for (call, cost) in costs.iter().copied().enumerate() {
        let (limiter, admitted) = (limiter.clone(), Arc::clone(&admitted));
        calls.spawn(async move {
            let decision = limiter.until_ready("ada", cost, PATIENCE).await.unwrap();
            assert!(decision.is_allowed());
            (admitted.fetch_add(1, Ordering::SeqCst), call)
        });
        // The next one arrives later.
        sleep(2 * MILLI).await;
    }
    let mut order = calls.join_all().await;
    order.sort_unstable();
    order.into_iter().map(|(_, call)| call).collect()
}

/// A limiter of a rate whose key `ada` has no units for a second: all calls arrive meanwhile, on a slow machine too.
async fn occupied(store: &Arc<dyn Store>, name: &str, rate: Quota) -> RateLimiter {
    let in_a_second = Quota::new(40, Duration::from_secs(1));
    let limiter = |quotas: Vec<Quota>| RateLimiter::new(Arc::clone(store), quotas).name(name);
    let all = limiter(vec![in_a_second.clone()]).check_n("ada", 40).await;
    assert!(all.unwrap().is_allowed());
    limiter(vec![rate, in_a_second])
}

#[tokio::test]
async fn calls_are_served_in_the_order_of_their_arrival_whatever_they_cost() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = occupied(&store, "alike", one_in(30 * MILLI)).await;
        let order = order_of(&limiter, &[1; 30]).await;
        assert_eq!(order, (0..30).collect::<Vec<_>>());

        let limiter = occupied(&store, "other costs", Quota::new(6, 120 * MILLI)).await;
        let costs = [1, 6, 1, 1, 3, 6, 2, 1, 4, 1];
        let order = order_of(&limiter, &costs).await;
        assert_eq!(order, (0..costs.len()).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn callers_that_ask_again_and_again_get_alike() {
    const CALLERS: usize = 32;
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(store, Quota::new(10, 100 * MILLI));
        exhaust(&limiter, "ada").await;
        let (end, mut callers) = (Instant::now() + Duration::from_secs(3), JoinSet::new());
        for _ in 0..CALLERS {
            let limiter = limiter.clone();
            callers.spawn(async move {
                let mut served = 0_u32;
                while Instant::now() < end {
                    let decision = limiter.until_ready("ada", 1, PATIENCE).await.unwrap();
                    assert!(decision.is_allowed());
                    served += 1;
                }
                served
            });
        }
        let served = callers.join_all().await;
        let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
        assert!(*least > 0 && most - least <= 2, "{served:?}");
    }
}

#[tokio::test]
async fn a_large_cost_has_its_turn_beside_small_ones() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(store, Quota::new(12, 200 * MILLI));
        let (end, mut small) = (Instant::now() + Duration::from_secs(3), JoinSet::new());
        for _ in 0..12 {
            let limiter = limiter.clone();
            small.spawn(async move {
                while Instant::now() < end {
                    let _ = limiter.until_ready("ada", 1, PATIENCE).await.unwrap();
                }
            });
        }
        let mut turns = 0;
        while Instant::now() < end {
            let decision = limiter.until_ready("ada", 6, PATIENCE).await.unwrap();
            turns += u32::from(decision.is_allowed());
        }
        small.join_all().await;
        // Eighteen units are asked for in turn: a third of 15 windows of 12 units are 60, for ten turns.
        assert!(turns >= 5, "{turns}");
    }
}

#[tokio::test]
async fn nobody_is_refused_whose_turn_comes_in_time() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(store, Quota::new(10, 200 * MILLI));
        let mut callers = JoinSet::new();
        for _ in 0..40 {
            let limiter = limiter.clone();
            callers.spawn(async move {
                let mut refused = 0;
                for _ in 0..4 {
                    // 40 units take 800 ms. The rest is for a machine that is busy.
                    let waited = limiter.until_ready("ada", 1, Duration::from_secs(6)).await;
                    refused += u32::from(!waited.unwrap().is_allowed());
                }
                refused
            });
        }
        assert_eq!(callers.join_all().await, [0; 40]);
    }
}

#[tokio::test]
async fn a_call_whose_turn_certainly_comes_too_late_is_refused_at_once() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_second(1));
    exhaust(&limiter, "ada").await;
    let mut calls = JoinSet::new();
    for _ in 0..10 {
        let limiter = limiter.clone();
        calls.spawn(async move { limiter.until_ready("ada", 1, PATIENCE).await });
    }
    sleep(50 * MILLI).await;
    let begin = Instant::now();
    let impatient = limiter.until_ready("ada", 1, Duration::from_secs(5)).await;
    let refused = impatient.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(4) && !refused.is_allowed());
    // Ten are before it, and the second that is left of the window may be all but over.
    let wait = refused.retry_after().unwrap();
    assert!(
        wait > Duration::from_secs(5) && wait <= Duration::from_secs(11),
        "{wait:?}"
    );
    assert_eq!(refused.limit(), 1);
}

/// With two units an hour and two hours and a half, at most six calls are in time if nothing is given back. Whether anything is
/// cannot be known, so those beyond are refused; those that wait are served as soon as units are there.
#[tokio::test]
async fn calls_that_wait_are_served_by_what_is_given_back_whatever_counts_the_units() {
    let hour = Duration::from_secs(3_600);
    for algorithm in Algorithm::ALL {
        let quota = Quota::new(2, hour).with_algorithm(*algorithm);
        let limiter = RateLimiter::new(MemoryStore::new(), quota);
        let all = limiter.check_n("ada", 2).await.unwrap();
        let mut calls = JoinSet::new();
        for _ in 0..8 {
            let limiter = limiter.clone();
            calls.spawn(async move {
                let decision = limiter.until_ready("ada", 1, 5 * hour / 2).await.unwrap();
                let is_allowed = decision.is_allowed();
                if is_allowed {
                    decision.settle(0).await.unwrap();
                }
                is_allowed
            });
            sleep(2 * MILLI).await;
        }
        all.settle(0).await.unwrap();
        let ended = timeout(PATIENCE, calls.join_all()).await.expect("an end");
        let served = ended.into_iter().filter(|is_allowed| *is_allowed).count();
        assert!(served >= 6, "{algorithm:?}: {served}");
    }
}

#[tokio::test]
async fn no_more_calls_wait_than_the_queue_is_long() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(1)).queue(3);
    exhaust(&limiter, "ada").await;
    let mut calls = JoinSet::new();
    for _ in 0..8 {
        let limiter = limiter.clone();
        calls.spawn(async move { limiter.until_ready("ada", 1, 2 * 60 * PATIENCE).await });
    }
    for _ in 0..5 {
        let refused = timeout(PATIENCE, calls.join_next()).await.expect("at once");
        assert!(!refused.unwrap().unwrap().unwrap().is_allowed());
    }
    assert!(timeout(100 * MILLI, calls.join_next()).await.is_err());
    // Another key has a line of its own.
    assert!(
        limiter
            .until_ready("bob", 1, PATIENCE)
            .await
            .unwrap()
            .is_allowed()
    );
}

#[tokio::test]
async fn units_that_this_process_gives_back_are_for_the_first_call_at_once() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(store, Quota::per_hour(2));
        let mut taken = limiter.check_n("ada", 2).await.unwrap();
        let mut calls = JoinSet::new();
        for call in 0..2 {
            let limiter = limiter.clone();
            calls.spawn(async move {
                let decision = limiter
                    .until_ready("ada", 1, Duration::from_secs(7_200))
                    .await;
                assert!(decision.unwrap().is_allowed());
                (call, Instant::now())
            });
            sleep(50 * MILLI).await;
        }
        for expected in 0..2 {
            let returned_at = Instant::now();
            taken.refund(1).await.unwrap();
            let (call, admitted_at) = calls.join_next().await.unwrap().unwrap();
            let waited = admitted_at - returned_at;
            assert_eq!(call, expected);
            // Without that, a call asks each second.
            assert!(waited < 300 * MILLI, "{waited:?}");
        }
    }
}

/// Time stands still while a call asks, and goes on at once while it waits.
#[tokio::test(start_paused = true)]
async fn an_operator_who_lets_a_key_continue_lets_the_first_call_ask_at_once() {
    let an_hour = Duration::from_secs(3_600);
    for act in ["reset", "admin reset", "credit", "unblock"] {
        let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(1));
        let admin = limiter.admin();
        if act == "unblock" {
            admin.block("ada", an_hour).await.unwrap();
        } else {
            exhaust(&limiter, "ada").await;
        }
        let call = {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.until_ready("ada", 1, 2 * an_hour).await })
        };
        // Without that, a call asks each second.
        sleep(10 * MILLI).await;
        match act {
            "reset" => limiter.admin().reset("ada").await,
            "admin reset" => admin.reset("ada").await,
            "credit" => admin.credit("ada", 1).await,
            _ => admin.unblock("ada").await,
        }
        .unwrap();
        let admitted = timeout(100 * MILLI, call).await.expect(act);
        assert!(admitted.unwrap().unwrap().is_allowed(), "{act}");
    }
}

#[tokio::test]
async fn a_call_that_leaves_keeps_nobody_waiting() {
    let limiter = RateLimiter::new(MemoryStore::new(), one_in(300 * MILLI));
    exhaust(&limiter, "ada").await;
    let mut leaving = Vec::new();
    for _ in 0..20 {
        let mut call = Box::pin(limiter.until_ready("ada", 1, PATIENCE));
        assert!(timeout(MILLI, &mut call).await.is_err());
        leaving.push(call);
    }
    let last = {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.until_ready("ada", 1, PATIENCE).await })
    };
    sleep(5 * MILLI).await;
    drop(leaving);
    let begin = Instant::now();
    assert!(last.await.unwrap().unwrap().is_allowed());
    assert!(
        begin.elapsed() < Duration::from_secs(3),
        "{:?}",
        begin.elapsed()
    );
}

/// Calls that are not polled would stop all others for ever.
#[tokio::test]
async fn a_call_that_is_not_polled_lets_others_pass_after_a_second_and_has_its_turn_later() {
    let limiter = RateLimiter::new(MemoryStore::new(), one_in(50 * MILLI));
    // On a busy machine, a unit may have returned before the call asks.
    let idle = loop {
        exhaust(&limiter, "ada").await;
        let mut idle = Box::pin(limiter.until_ready("ada", 1, PATIENCE));
        if timeout(MILLI, &mut idle).await.is_err() {
            break idle;
        }
    };
    let begin = Instant::now();
    for _ in 0..3 {
        let decision = limiter.until_ready("ada", 1, PATIENCE).await.unwrap();
        assert!(decision.is_allowed());
    }
    let waited = begin.elapsed();
    assert!(
        waited > Duration::from_millis(900) && waited < Duration::from_secs(5),
        "{waited:?}"
    );
    assert!(idle.await.unwrap().is_allowed());
}

#[test]
fn a_runtime_that_stands_still_stops_the_calls_of_no_other_one() {
    let limiter = RateLimiter::new(MemoryStore::new(), one_in(20 * MILLI));
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let (still, other) = (runtime(), runtime());
    let mut waiting = JoinSet::new();
    still.block_on(async {
        exhaust(&limiter, "ada").await;
        for _ in 0..10 {
            let limiter = limiter.clone();
            waiting.spawn(async move { limiter.until_ready("ada", 1, PATIENCE).await });
        }
        tokio::task::yield_now().await;
    });
    // All ten stand in line, and nobody polls them.
    let begin = Instant::now();
    other.block_on(async {
        for _ in 0..10 {
            let decision = limiter.until_ready("ada", 1, PATIENCE).await.unwrap();
            assert!(decision.is_allowed());
        }
    });
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    still.block_on(async {
        while let Some(served) = waiting.join_next().await {
            assert!(served.unwrap().unwrap().is_allowed());
        }
    });
}

#[tokio::test]
async fn a_call_that_waits_for_one_key_keeps_nobody_from_its_other_keys() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let user = RateLimiter::new(Arc::clone(&store), Quota::per_minute(100)).name("user");
        let slow = RateLimiter::new(Arc::clone(&store), Quota::per_hour(1)).name("slow");
        exhaust(&slow, "acme").await;
        let waiting = {
            let (user, slow) = (user.clone(), slow.clone());
            tokio::spawn(async move {
                let levels = [user.level("ada"), slow.level("acme")];
                RateLimiter::until_all_ready(levels, 2 * 60 * PATIENCE).await
            })
        };
        sleep(50 * MILLI).await;
        let begin = Instant::now();
        for _ in 0..10 {
            let decision = user.until_ready("ada", 1, PATIENCE).await.unwrap();
            assert!(decision.is_allowed());
        }
        assert!(begin.elapsed() < Duration::from_secs(5));
        assert!(!waiting.is_finished());
        waiting.abort();
    }
}

#[tokio::test]
async fn a_call_that_is_behind_others_for_one_key_does_not_stop_the_line_of_another_one() {
    let store = MemoryStore::new();
    let fast = RateLimiter::new(store.clone(), one_in(20 * MILLI)).name("fast");
    let slow = RateLimiter::new(store, Quota::per_hour(1)).name("slow");
    exhaust(&slow, "acme").await;
    exhaust(&fast, "ada").await;
    let hours = 2 * 60 * PATIENCE;
    let mut waiting = JoinSet::new();
    let of_slow = slow.clone();
    waiting.spawn(async move { of_slow.until_ready("acme", 1, hours).await.map(drop) });
    let end = Instant::now() + Duration::from_secs(2);
    let serve = |key: &'static str| {
        let fast = fast.clone();
        async move {
            let mut served = 0;
            while Instant::now() < end {
                let decision = fast.until_ready(key, 1, PATIENCE).await.unwrap();
                served += u32::from(decision.is_allowed());
            }
            served
        }
    };
    let callers: JoinSet<_> = (0..3).map(|_| serve("ada")).collect();
    let of_another_key = tokio::spawn(serve("bob"));
    // Both keys have lines when this call comes.
    sleep(50 * MILLI).await;
    let both = [fast.clone(), slow.clone()];
    waiting.spawn(async move {
        let levels = [both[0].level("ada"), both[1].level("acme")];
        RateLimiter::until_all_ready(levels, hours).await.map(drop)
    });
    let served: u32 = callers.join_all().await.into_iter().sum();
    let alone: u32 = of_another_key.await.unwrap();
    assert!(4 * served > alone, "{served}, and {alone} of another key");
    waiting.abort_all();
}

/// Each key is waited for by calls in another order of their levels, so that two could wait for each other.
#[tokio::test]
async fn calls_for_several_keys_are_served_and_never_wait_for_each_other() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiters = ["a", "b", "c"]
            .map(|name| RateLimiter::new(Arc::clone(&store), Quota::new(4, 60 * MILLI)).name(name));
        let mut callers = JoinSet::new();
        for caller in 0..24_usize {
            let limiters = limiters.clone();
            callers.spawn(async move {
                for turn in 0..4 {
                    let (first, second) = ((caller + turn) % 3, (caller + 2 * turn + 1) % 3);
                    let mut levels = vec![limiters[first].level("k")];
                    if second != first {
                        levels.push(limiters[second].level("k"));
                    }
                    let decision = RateLimiter::until_all_ready(levels, PATIENCE)
                        .await
                        .unwrap();
                    assert!(decision.is_allowed());
                }
            });
        }
        let all = timeout(PATIENCE / 2, callers.join_all()).await;
        assert!(all.is_ok(), "calls wait for each other");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_threads_that_wait_and_leave_lose_no_turn() {
    let limiter = RateLimiter::new(
        MemoryStore::new(),
        Quota::new(50, 20 * MILLI).with_algorithm(Algorithm::Gcra),
    );
    let mut callers = JoinSet::new();
    for caller in 0..64_u32 {
        let limiter = limiter.clone();
        callers.spawn(async move {
            for turn in 0..40 {
                let key = ["ada", "bob"][((caller + turn) % 2) as usize];
                let call = limiter.until_ready(key, 1 + turn % 3, PATIENCE);
                // Some give up at any point.
                match (caller * 7 + turn) % 5 {
                    0 => drop(timeout(MILLI * (turn % 7), call).await),
                    _ => assert!(call.await.unwrap().is_allowed()),
                }
            }
        });
    }
    let all = timeout(PATIENCE, callers.join_all()).await;
    assert!(all.is_ok(), "a turn was lost");
    // Nothing is left: one of a few calls is served at once. Behind a call that has gone, each would wait for a second.
    let mut least = PATIENCE;
    for _ in 0..3 {
        sleep(50 * MILLI).await;
        let begin = Instant::now();
        let decision = limiter.until_ready("ada", 1, PATIENCE).await.unwrap();
        assert!(decision.is_allowed());
        least = least.min(begin.elapsed());
    }
    assert!(least < 500 * MILLI, "{least:?}");
}

/// Returns the time for which this thread has run: a busy machine adds nothing to it.
fn running_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanos = text.split_whitespace().next().unwrap();
    Duration::from_nanos(nanos.parse().unwrap())
}

#[tokio::test]
async fn a_call_that_comes_to_a_line_or_leaves_it_takes_as_long_however_many_wait() {
    const CALLS: usize = 100_000;
    const PARTS: usize = 5;
    let years = Duration::from_secs(90 * 365 * 86_400);
    let rate = RateLimiter::new(MemoryStore::new(), Quota::per_hour(1));
    exhaust(&rate, "ada").await;
    let slots = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1)).max_wait(years);
    let _held = slots.acquire("ada").await.unwrap();
    for of_slots in [false, true] {
        let mut calls: Vec<Pin<Box<dyn Future<Output = bool>>>> = Vec::new();
        let (mut came, mut left) = (Vec::new(), Vec::new());
        for _ in 0..PARTS {
            let begin = running_time();
            for _ in 0..CALLS / PARTS {
                let (rate, slots) = (&rate, &slots);
                let mut call: Pin<Box<dyn Future<Output = bool>>> = match of_slots {
                    true => Box::pin(async { slots.acquire("ada").await.is_ok() }),
                    false => Box::pin(async { rate.until_ready("ada", 1, years).await.is_ok() }),
                };
                let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert!(polled.is_pending());
                calls.push(call);
            }
            came.push(running_time() - begin);
        }
        // The first ones leave first: each time, another one is the first.
        let mut calls = calls.into_iter();
        for _ in 0..PARTS {
            let begin = running_time();
            calls.by_ref().take(CALLS / PARTS).for_each(drop);
            left.push(running_time() - begin);
        }
        println!("{CALLS} calls came in {came:?}, and left in {left:?}");
        // With all calls added up by each, the last part would take nine times as long as the first.
        assert!(came[PARTS - 1] < 4 * came[0], "{came:?}");
        assert!(left[0] < 4 * left[PARTS - 1], "{left:?}");
    }
}

#[tokio::test]
async fn tens_of_thousands_of_calls_whose_time_is_over_together_end_together() {
    const CALLS: usize = 20_000;
    let wait = Duration::from_secs(5);
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1)).max_wait(wait);
    let _held = limiter.acquire("ada").await.unwrap();
    let mut calls = JoinSet::new();
    let (begin, ran) = (Instant::now(), running_time());
    for _ in 0..CALLS {
        let limiter = limiter.clone();
        calls.spawn(async move { limiter.acquire("ada").await.map(drop) });
    }
    for ended in calls.join_all().await {
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::MaxWait);
    }
    let (ended, ran) = (begin.elapsed(), running_time() - ran);
    println!("{CALLS} calls with {wait:?} ended after {ended:?}, which took {ran:?}");
    // Of a build without optimization. With all calls added up by each, it takes minutes.
    assert!(ran < 4 * wait, "{ran:?}");
}

#[tokio::test]
async fn a_queue_of_nobody_lets_no_call_wait() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(store, Quota::per_hour(1)).queue(0);
        exhaust(&limiter, "ada").await;
        let mut calls = JoinSet::new();
        for _ in 0..20 {
            let limiter = limiter.clone();
            calls.spawn(async move { limiter.until_ready("ada", 1, 120 * PATIENCE).await });
        }
        let ended = timeout(PATIENCE / 2, calls.join_all()).await;
        for refused in ended.expect("refused at once") {
            assert!(!refused.unwrap().is_allowed());
        }
    }
}

/// All of them ask before any is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_calls_that_come_at_once_only_those_wait_that_may_be_in_time() {
    const CALLS: usize = 500;
    let hour = Duration::from_secs(3_600);
    let wait = 2 * hour - Duration::from_secs(200);
    let server = RedisServer::start();
    for store in stores(&server).into_iter().rev() {
        let limiter = RateLimiter::new(store, Quota::per_hour(1));
        let mut calls = JoinSet::new();
        for _ in 0..CALLS {
            let limiter = limiter.clone();
            calls.spawn(async move { limiter.until_ready("ada", 1, wait).await.unwrap() });
        }
        // One has the unit. The next is served after an hour, and one more may be, as a rate may allow a burst.
        let mut admitted = 0;
        let mut refused = 0;
        while admitted + refused < CALLS - 2 {
            let ended = timeout(PATIENCE / 2, calls.join_next()).await;
            let left = CALLS - admitted - refused;
            let ended = ended.unwrap_or_else(|_| panic!("{left} calls wait"));
            let decision = ended.unwrap().unwrap();
            if decision.is_allowed() {
                admitted += 1;
            } else {
                refused += 1;
                let retry_after = decision.retry_after().unwrap();
                assert!(retry_after > wait, "{retry_after:?}");
            }
        }
        assert_eq!((admitted, calls.len()), (1, 2));
        assert!(timeout(1_500 * MILLI, calls.join_next()).await.is_err());
    }
}

/// The first call asks for longer than a call that is told to ask may stand still.
#[tokio::test]
async fn calls_keep_their_order_though_a_reply_takes_longer_than_a_second() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port()).await;
    let far = RedisStore::open(&relay.url()).unwrap();
    let far = far.deadline(PATIENCE).prefix("far");
    let near = RedisStore::open(&server.url()).unwrap();
    let near = near.deadline(PATIENCE).prefix("far");
    let limiter = |store| RateLimiter::new(store, Quota::per_hour(1));
    let (far, near) = (limiter(far), limiter(near));
    let mut taken = near.check("ada").await.unwrap();
    assert!(far.check("bob").await.unwrap().is_allowed());
    relay.set_round_trip(Duration::from_secs(3));
    let mut calls = JoinSet::new();
    for call in 0..2 {
        let far = far.clone();
        calls.spawn(async move {
            let decision = far.until_ready("ada", 1, 120 * PATIENCE).await;
            assert!(decision.unwrap().is_allowed());
            call
        });
        sleep(50 * MILLI).await;
    }
    // Both are refused after 3 s. A second later, the first one asks again. It is refused, but the unit is free for the next.
    sleep(Duration::from_millis(4_300)).await;
    let asked = scripts(&server);
    let refused_again = async {
        while scripts(&server) == asked {
            sleep(10 * MILLI).await;
        }
    };
    timeout(PATIENCE, refused_again).await.expect("a call");
    taken.refund(1).await.unwrap();
    let first = timeout(PATIENCE, calls.join_next()).await.expect("a unit");
    assert_eq!(first.unwrap().unwrap(), 0, "the second call overtook");
}

/// Returns how many calls of the script the server has executed.
fn scripts(server: &RedisServer) -> u64 {
    let calls = costs::calls(&mut server.connect());
    calls.get("evalsha").copied().unwrap_or(0)
}
