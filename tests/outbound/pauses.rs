//! Paused keys, in memory and in Redis: by which process, for how long, and what is left while Redis is away.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use tollgate::store::TestClock;
use tollgate::store::protocol::{Block, BlockList};
use tollgate::{
    BlockReason, BlockRule, ErrorKind, FailurePolicy, Key, MemoryStore, Quota, RateLimiter,
    RedisStore, Source, Store,
};

use crate::support::log;
use crate::support::proxy::{Proxy, Wire};
use crate::support::redis_server::{RedisServer, run, times_to_live};
use crate::support::relay::Relay;
use crate::support::test_time::TestTime;
use crate::support::until;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

async fn source(limiter: &RateLimiter) -> Source {
    limiter.check("ada").await.expect("a decision").source()
}

async fn left(limiter: &RateLimiter) -> Option<Duration> {
    limiter
        .check("ada")
        .await
        .expect("a decision")
        .retry_after()
}

/// A limiter of a process.
fn process(url: &str) -> RateLimiter {
    let store = RedisStore::open(url).expect("a URL");
    RateLimiter::new(store.deadline(10 * SECOND), Quota::per_minute(1_000_000))
}

#[tokio::test]
async fn a_hold_refuses_ends_on_its_own_and_never_shortens() {
    let clock = TestClock::new();
    let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()), Quota::per_minute(9));
    assert_eq!(limiter.pause("ada", 20 * SECOND), 20 * SECOND);
    assert_eq!(left(&limiter).await, Some(20 * SECOND));
    clock.advance(5 * SECOND);
    for shorter in [SECOND, Duration::ZERO] {
        assert_eq!(limiter.pause("ada", shorter), 15 * SECOND);
    }
    assert_eq!(limiter.pause("ada", 30 * SECOND), 30 * SECOND);
    clock.advance(30 * SECOND - Duration::from_micros(1));
    assert_eq!(source(&limiter).await, Source::Paused);
    // The refused checks have charged nothing.
    clock.advance(Duration::from_micros(1));
    let decision = limiter.check("ada").await.expect("a decision");
    assert_eq!((decision.source(), decision.used()), (Source::Memory, 1));
    // Neither another key nor another limiter was paused.
    limiter.pause("bob", SECOND);
    assert_eq!(source(&limiter).await, Source::Memory);
    assert_eq!(source(&limiter.clone().name("other")).await, Source::Memory);
}

#[tokio::test]
async fn a_level_that_is_paused_refuses_the_whole_check() {
    let store = MemoryStore::new();
    let user = RateLimiter::new(store.clone(), Quota::per_minute(9)).name("user");
    let upstream = RateLimiter::new(store, Quota::per_minute(9)).name("upstream");
    upstream.pause("ada", HOUR);
    let levels = [user.level("ada"), upstream.level("ada")];
    let decision = RateLimiter::check_all(levels).await.expect("a decision");
    assert_eq!(decision.source(), Source::Paused);
    assert_eq!(user.peek("ada").await.expect("a decision").used(), 0);
    // A cost of 0 does not pass either.
    let look = upstream.check_n("ada", 0).await.expect("a decision");
    assert_eq!(look.source(), Source::Paused);
}

#[tokio::test]
async fn an_operator_sees_and_lifts_a_pause_and_a_block_stays_beside_it() {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let rule = BlockRule::refusals(3);
    let limiter = RateLimiter::new(store, Quota::per_minute(9)).block_after(rule);
    let admin = limiter.admin();
    let status = async || {
        let status = admin.status("ada").await.expect("a status");
        status.block_reason.zip(status.blocked_for)
    };
    limiter.pause("ada", 20 * SECOND);
    for _ in 0..10 {
        // These refusals are not the client's fault.
        assert_eq!(source(&limiter).await, Source::Paused);
    }
    assert_eq!(status().await, Some((BlockReason::Paused, 20 * SECOND)));
    admin.block("ada", 60 * SECOND).await.expect("a block");
    assert_eq!(source(&limiter).await, Source::Block);
    assert_eq!(status().await, Some((BlockReason::Operator, 60 * SECOND)));
    limiter.pause("ada", 90 * SECOND);
    limiter.pause("bob", 70 * SECOND);
    let blocked = admin.blocked().await.expect("a list");
    let (ada, bob) = (Key::from("ada"), Key::from("bob"));
    assert_eq!(blocked, [(ada, 90 * SECOND), (bob, 70 * SECOND)]);
    // Another block does not end the pause.
    admin.block("ada", SECOND).await.expect("a block");
    assert_eq!(status().await, Some((BlockReason::Paused, 90 * SECOND)));
    admin.unblock("ada").await.expect("unblocked");
    assert_eq!(status().await, None);
    assert_eq!(source(&limiter).await, Source::Memory);
    assert!(limiter.check("ada").await.expect("a decision").is_allowed());
}

#[test]
fn without_a_runtime_this_process_obeys() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(9));
    limiter.pause("ada", HOUR);
    let decision = limiter.check("ada").now_or_never().expect("at once");
    assert_eq!(decision.expect("a decision").source(), Source::Paused);
}

#[tokio::test]
async fn all_processes_obey_within_a_second_and_for_as_long() {
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| process(&server.url()));
    let mut slowest = Duration::ZERO;
    for round in 0..5_u32 {
        let key = format!("ada{round}");
        let check = async |limiter: &RateLimiter| limiter.check(&*key).await.expect("a decision");
        assert!(check(&here).await.is_allowed());
        // Another process has just looked.
        tokio::time::sleep(round * SECOND / 5).await;
        assert!(check(&there).await.is_allowed());
        let end = Instant::now() + here.pause(&*key, 30 * SECOND);
        assert_eq!(check(&here).await.source(), Source::Paused);
        let took = until(async || check(&there).await.source() == Source::Paused).await;
        slowest = slowest.max(took);
        let left = check(&there).await.retry_after().expect("a wait");
        let difference = (Instant::now() + left).duration_since(end);
        assert!(difference < SECOND / 2, "ends {difference:?} later there");
    }
    println!("another process obeys after {slowest:.3?} at most");
    assert!(slowest < 3 * SECOND / 2, "{slowest:?}");
    for (key, left) in times_to_live(&mut server.connect()) {
        assert!((1..130_000).contains(&left), "{key}: {left}");
    }
}

#[tokio::test]
async fn the_longest_of_several_told_waits_counts_in_all_processes() {
    let server = RedisServer::start();
    for order in [[10, 30, 20], [30, 20, 10], [20, 10, 30]] {
        let limiters = [(); 3].map(|()| process(&server.url()).name(format!("{order:?}")));
        for (limiter, seconds) in limiters.iter().zip(order) {
            // At the same time, so that each overwrites what it has not seen.
            limiter.pause("ada", seconds * SECOND);
        }
        // All processes check meanwhile: one whose longer pause was overwritten finds out with its next check.
        let all_know_the_longest = async || {
            let lefts = join_all(limiters.iter().map(left)).await;
            lefts.iter().all(|left| *left > Some(24 * SECOND))
        };
        until(all_know_the_longest).await;
        // It stays so.
        tokio::time::sleep(5 * SECOND / 2).await;
        for limiter in &limiters {
            let left = left(limiter).await;
            assert!(
                left > Some(20 * SECOND) && left < Some(30 * SECOND),
                "{left:?}"
            );
        }
    }
}

#[tokio::test]
async fn an_operator_lifts_a_pause_in_all_processes_also_in_the_one_that_was_told() {
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| process(&server.url()));
    assert_eq!(source(&there).await, Source::Redis);
    here.pause("ada", HOUR);
    until(async || source(&there).await == Source::Paused).await;
    let status = there.admin().status("ada").await.expect("a status");
    assert_eq!(status.block_reason, Some(BlockReason::Paused));
    there.admin().unblock("ada").await.expect("unblocked");
    assert_eq!(source(&there).await, Source::Redis);
    let took = until(async || source(&here).await == Source::Redis).await;
    assert!(took < 2 * SECOND, "{took:?}");
    // It does not come back.
    tokio::time::sleep(2 * SECOND).await;
    for limiter in [&here, &there] {
        assert_eq!(source(limiter).await, Source::Redis);
    }
}

#[tokio::test]
async fn the_process_that_was_told_goes_on_and_tells_a_server_that_has_lost_its_data() {
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| process(&server.url()));
    assert_eq!(source(&there).await, Source::Redis);
    here.pause("ada", HOUR);
    until(async || source(&there).await == Source::Paused).await;
    run(&mut server.connect(), &["FLUSHALL"]);
    // The others forget for a moment, and are told again.
    let begin = Instant::now();
    let mut forgot = false;
    while begin.elapsed() < 4 * SECOND {
        assert_eq!(source(&here).await, Source::Paused);
        forgot |= source(&there).await == Source::Redis;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(source(&there).await, Source::Paused);
    assert!(left(&there).await > Some(HOUR - 30 * SECOND));
    println!("the other process forgot for a moment: {forgot}");
}

/// Returns how many blocks and pauses of the shared list end after a time.
fn listed_after(server: &RedisServer, time: u64) -> u32 {
    let mut count = redis::cmd("ZCOUNT");
    count.arg("tollgate:v3:{blocks}").arg(time).arg("+inf");
    let counted = count.query(&mut server.connect());
    counted.expect("ZCOUNT answers")
}

#[tokio::test]
async fn a_step_forward_of_the_servers_clock_ends_no_pause_of_the_process_that_was_told() {
    let server = RedisServer::start();
    let mut time = TestTime::new(&server);
    let here = RateLimiter::new(time.redis.clone(), Quota::per_minute(1_000_000));
    let there = RateLimiter::new(time.redis.fork(), Quota::per_minute(1_000_000));
    // The list outlives the pause.
    here.admin().block("bob", HOUR).await.expect("a block");
    here.pause("ada", 20 * SECOND);
    let begin = time.now();
    until(async || listed_after(&server, begin) == 2).await;

    time.step_forward(60 * SECOND);
    let stepped = time.now();
    assert_eq!(listed_after(&server, stepped), 1);
    // Another one changes the list, so that this process reads it.
    there.admin().block("eve", HOUR).await.expect("a block");
    here.admin().blocked().await.expect("a list");
    assert_eq!(source(&here).await, Source::Paused);
    assert_eq!(left(&here).await, Some(20 * SECOND));
    // The server is told again, by its new time, once the interval of refreshes has passed.
    time.advance(SECOND);
    assert_eq!(source(&here).await, Source::Paused);
    until(async || listed_after(&server, stepped) == 3).await;
    // After that, an operator ends the pause as ever.
    there.admin().unblock("ada").await.expect("unblocked");
    here.admin().blocked().await.expect("a list");
    assert_eq!(source(&here).await, Source::Redis);
}

#[tokio::test]
async fn a_late_reply_about_one_pause_ends_no_later_pause_of_the_process_that_was_told() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port()).await;
    let store = RedisStore::open(&proxy.url()).expect("a URL");
    // It tells the server of the second pause only after this test.
    let store = store.deadline(30 * SECOND).block_list_refresh(HOUR);
    let here = RateLimiter::new(store, Quota::per_minute(1_000_000));
    // The list outlives the first pause.
    here.admin().block("bob", HOUR).await.expect("a block");
    here.admin().blocked().await.expect("a list");

    // To tell the server, the process reads the list and then changes it.
    proxy.set(Wire::Slow(2 * SECOND));
    let replies = proxy.replies();
    here.pause("ada", 3 * SECOND);
    until(async || proxy.replies() == replies + 2).await;
    here.pause("ada", HOUR);
    proxy.set(Wire::Whole);
    // When the second reply comes, the first pause is over on the server. As of then, it would last for another second here.
    here.admin().blocked().await.expect("a list");
    assert_eq!(source(&here).await, Source::Paused);
}

#[tokio::test]
async fn while_redis_is_away_the_process_that_was_told_obeys_whatever_its_policy_is() {
    for (policy, expected) in [
        (Some(FailurePolicy::fall_back()), Some(Source::Fallback)),
        (Some(FailurePolicy::open()), Some(Source::None)),
        (Some(FailurePolicy::closed()), None),
        (None, None),
    ] {
        let server = RedisServer::start();
        let relay = Relay::to(server.port()).await;
        let store = RedisStore::open(&relay.url()).expect("a URL");
        let here = RateLimiter::new(store, Quota::per_minute(1_000_000));
        let here = match policy {
            None => here,
            Some(policy) => here.on_failure(policy),
        };
        let there = process(&server.url());
        for limiter in [&here, &there] {
            // The first check also connects.
            let first = until(async || {
                let checked = limiter.check("ada").await;
                checked.is_ok_and(|decision| decision.source() == Source::Redis)
            });
            first.await;
        }
        relay.lead_to(1);
        relay.block();
        // The breaker opens.
        until(async || {
            let other = here.check("bob").await;
            other.as_ref().ok().map(|decision| decision.source()) == expected
        })
        .await;
        // Told while Redis is away.
        here.pause("ada", HOUR);
        let begin = Instant::now();
        while begin.elapsed() < 3 * SECOND / 2 {
            assert_eq!(source(&here).await, Source::Paused);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // The others do not know: that is what is lost.
        assert_eq!(source(&there).await, Source::Redis);
        relay.lead_to(server.port());
        let told = until(async || {
            assert_eq!(source(&here).await, Source::Paused);
            // Another key, so that the breaker closes.
            let _ = here.check("bob").await;
            source(&there).await == Source::Paused
        });
        println!(
            "{expected:?}: the other process obeys {:.3?} after the return",
            told.await
        );
    }
}

#[tokio::test]
async fn a_full_list_keeps_a_pause_in_this_process_and_warns() {
    log::keep();
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| process(&server.url()));
    assert_eq!(source(&there).await, Source::Redis);
    let mut fill = redis::cmd("ZADD");
    fill.arg("tollgate:v3:{blocks}").arg("1").arg("#");
    for number in 0..9_000 {
        fill.arg("4000000000000000").arg(format!("other,{number}"));
    }
    fill.exec(&mut server.connect()).expect("ZADD answers");
    here.pause("ada", HOUR);
    let warned = async || {
        assert_eq!(source(&here).await, Source::Paused);
        let lines = log::all_kept();
        lines.iter().any(|line| {
            line.contains("cannot tell other processes") && line.contains("tollgate::W017")
        })
    };
    until(warned).await;
    assert_eq!(source(&there).await, Source::Redis);
}

/// A store outside of this crate shares its blocks as ever; the pauses come with them.
#[test]
fn a_list_that_is_replaced_keeps_what_this_process_was_told() {
    let list = BlockList::new();
    let (limiter, key) = (Key::from("search"), Key::from("ada"));
    list.put(Block::new(&limiter, &key, HOUR)).expect("room");
    list.replace([]);
    assert!(
        list.put(Block::new(&limiter, &key, HOUR).automatic())
            .expect("room")
    );
}

/// A pause of one key costs the store a few calls, and each check of it none.
#[tokio::test]
async fn checks_of_a_key_that_is_paused_do_not_ask_redis() {
    let server = RedisServer::start();
    let limiter = process(&server.url());
    assert_eq!(source(&limiter).await, Source::Redis);
    limiter.pause("ada", HOUR);
    until(async || {
        let blocked = limiter.admin().blocked().await.expect("a list");
        blocked.len() == 1
    })
    .await;
    let calls = || {
        let calls = crate::support::costs::calls(&mut server.connect());
        let scripts = ["eval", "evalsha"].map(|name| calls.get(name).copied().unwrap_or(0));
        scripts.iter().sum::<u64>()
    };
    let before = calls();
    for _ in 0..10_000 {
        assert_eq!(source(&limiter).await, Source::Paused);
    }
    // The refreshes of the list.
    let asked = calls() - before;
    assert!(asked < 30, "{asked} calls");
}

#[tokio::test]
async fn a_store_without_blocks_keeps_a_pause_in_this_process() {
    let store = tollgate::store::TestStore::new();
    let limiter = RateLimiter::new(store, Quota::per_minute(9));
    limiter.pause("ada", HOUR);
    assert_eq!(source(&limiter).await, Source::Paused);
    let error = limiter
        .check_n("ada", 10)
        .await
        .expect_err("above the limit");
    assert_eq!(error.kind(), ErrorKind::CostExceedsLimit);
}

#[tokio::test]
async fn who_acquires_a_permit_waits_until_the_pause_ends() {
    let pause = Duration::from_millis(300);
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1));
    limiter.pause("ada", pause);
    assert!(matches!(
        limiter.try_acquire("ada").await.expect("a decision"),
        tollgate::Acquired::Refused(_)
    ));
    let begin = Instant::now();
    let permit = limiter.acquire("ada").await.expect("a permit");
    assert!(begin.elapsed() >= pause - Duration::from_millis(50));
    drop(permit);

    limiter.pause("ada", HOUR);
    let limiter = limiter.max_wait(SECOND);
    let error = limiter
        .acquire("ada")
        .await
        .expect_err("an hour is too long");
    assert_eq!(error.kind(), ErrorKind::MaxWait);
}

/// Lets calls for slots wait for the end of a pause. Returns the order in which they had their slots.
async fn order_after_a_pause(limiter: &RateLimiter) -> Vec<u32> {
    limiter.pause("ada", SECOND / 2);
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut calls = Vec::new();
    for number in 0..16 {
        let (of_call, order) = (limiter.clone(), Arc::clone(&order));
        let mut call = Box::pin(async move {
            let permit = of_call.acquire("ada").await.expect("a permit");
            order.lock().expect("a list").push(number);
            // Meanwhile, others could overtake those that are next.
            tokio::time::sleep(Duration::from_millis(2)).await;
            drop(permit);
        });
        // It has arrived before the next one.
        assert!(call.as_mut().now_or_never().is_none());
        calls.push(tokio::spawn(call));
    }
    join_all(calls).await;
    order.lock().expect("a list").clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_for_slots_have_them_in_order_after_a_pause() {
    let server = RedisServer::start();
    let redis = RedisStore::open(&server.url()).expect("a URL");
    let stores: [Arc<dyn Store>; 2] = [
        Arc::new(MemoryStore::new()),
        Arc::new(redis.deadline(10 * SECOND)),
    ];
    for store in stores {
        let limiter = RateLimiter::new(store, Quota::in_flight(1));
        for pause in 0..5 {
            let order = order_after_a_pause(&limiter).await;
            assert_eq!(order, (0..16).collect::<Vec<_>>(), "pause {pause}");
        }
    }
}
