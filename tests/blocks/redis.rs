//! `block_after` with Redis: processes that share refusals, an outage in between, and what it costs.

use std::io::stdin;
use std::time::{Duration, Instant};

use redis::Commands;
use tollgate::{BlockReason, BlockRule, FailurePolicy, Quota, RateLimiter, RedisStore, Source};

#[cfg(feature = "cluster")]
use crate::support::cluster::Cluster;
use crate::support::costs::{calls, forget_calls};
use crate::support::log;
use crate::support::process::{Process, argument, print, report};
use crate::support::redis_server::{RedisServer, run, times_to_live};
use crate::support::relay::Relay;
use crate::support::{store_on, until};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

const RULE: BlockRule = BlockRule::refusals(20).block_for(HOUR).doubling();

/// The refusals of a key within seven tenths of ten minutes, in buckets of a tenth of that.
const REFUSALS: &str = "tollgate:v3:{blocks=default,ada}:buckets:42000000";

/// The blocks of a key.
const BLOCKS: &str = "tollgate:v3:{blocks=default,ada}:log";

/// A limiter of a process, with one unit a day.
fn limiter(store: RedisStore, rule: BlockRule) -> RateLimiter {
    RateLimiter::new(store, Quota::per_day(1)).block_after(rule)
}

async fn source(limiter: &RateLimiter) -> Source {
    limiter.check("ada").await.expect("a decision").source()
}

async fn refuse(limiter: &RateLimiter, refusals: u32) {
    for _ in 0..refusals {
        let decision = limiter.check("ada").await.expect("a decision");
        assert!(!decision.is_allowed() && decision.source() != Source::Block);
    }
}

async fn blocks(limiter: &RateLimiter) -> Vec<(BlockReason, u64)> {
    let admin = limiter.admin();
    let mut blocks = Vec::new();
    for (key, left) in admin.blocked().await.expect("the blocks") {
        let status = admin.status(key).await.expect("a status");
        blocks.extend(status.block_reason.map(|reason| (reason, left.as_secs())));
    }
    blocks
}

#[tokio::test]
async fn a_client_that_hammers_costs_redis_one_call_a_second() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let limiter = limiter(store_on(&server), BlockRule::refusals(1_000_000));
    let _ = limiter.check("ada").await.expect("a decision");
    refuse(&limiter, 1).await;
    forget_calls(&mut connection);
    let (begin, mut refusals) = (Instant::now(), 0);
    let mut tick = tokio::time::interval(Duration::from_millis(1));
    while begin.elapsed() < 4 * SECOND {
        tick.tick().await;
        refuse(&limiter, 1).await;
        refusals += 1;
    }
    let calls = calls(&mut connection);
    // Only a count of refusals writes.
    let counted = calls.get("append").copied().unwrap_or(0)
        + calls.get("set").copied().unwrap_or(0)
        + calls.get("setrange").copied().unwrap_or(0);
    assert!(
        (3..=5).contains(&counted),
        "{counted} calls for {refusals} refusals: {calls:?}"
    );
    // The other calls check again, once a second, because a refusal is remembered for so long.
    let scripts =
        calls.get("evalsha").copied().unwrap_or(0) + calls.get("eval").copied().unwrap_or(0);
    assert!(scripts <= 11, "{calls:?}");
    assert!(refusals > 1_500, "{refusals}");
}

#[tokio::test]
async fn an_admitted_check_sends_nothing_more() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let mut commands = Vec::new();
    for rule in [None, Some(RULE)] {
        let limiter = RateLimiter::new(store_on(&server), Quota::per_day(1_000));
        let limiter = match rule {
            None => limiter.name("without"),
            Some(rule) => limiter.name("with").block_after(rule),
        };
        let _ = limiter.check("ada").await.expect("a decision");
        forget_calls(&mut connection);
        for _ in 0..100 {
            let decision = limiter.check("ada").await.expect("a decision");
            assert!(decision.is_allowed());
        }
        commands.push(calls(&mut connection));
    }
    assert_eq!(commands[0], commands[1]);
}

#[tokio::test]
async fn a_key_is_blocked_in_all_processes_and_by_a_single_block() {
    let server = RedisServer::start();
    let stores = [(); 3].map(|()| {
        let store = RedisStore::open(&server.url()).expect("a URL");
        store.deadline(10 * SECOND)
    });
    let limiters = stores.map(|store| limiter(store, RULE));
    for limiter in &limiters {
        let _ = limiter.check("ada").await.expect("a decision");
    }
    for limiter in &limiters {
        for _ in 0..30 {
            let _ = limiter.check("ada").await.expect("a decision");
        }
    }
    for limiter in &limiters {
        let took = until(async || source(limiter).await == Source::Block).await;
        assert!(took < 3 * SECOND, "{took:?}");
    }
    tokio::time::sleep(2 * SECOND).await;
    for limiter in &limiters {
        let [(reason, left)] = blocks(limiter).await[..] else {
            panic!("one block");
        };
        assert_eq!(reason, BlockReason::Refusals { blocks: 1 });
        assert!((3_580..3_600).contains(&left), "{left}");
    }
}

#[tokio::test]
async fn an_operator_lifts_a_block_in_all_processes_and_its_counts_are_gone() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let [here, there] = [(); 2].map(|()| limiter(store_on(&server), RULE));
    let _ = here.check("ada").await.expect("a decision");
    refuse(&here, 1).await;
    until(async || connection_has(&server, REFUSALS)).await;
    refuse(&here, 25).await;
    until(async || connection_has(&server, BLOCKS)).await;
    assert_eq!(source(&here).await, Source::Block);
    assert!(!connection_has(&server, REFUSALS));
    // The list and the blocks of the key expire.
    let keys = times_to_live(&mut connection);
    let of_blocks: Vec<_> = keys
        .iter()
        .filter(|(key, _)| key.contains("{blocks"))
        .collect();
    assert_eq!(of_blocks.len(), 2, "{keys:?}");
    for (key, left) in of_blocks {
        assert!((3_500_000..180_010_000).contains(left), "{key}: {left}");
    }
    there.admin().unblock("ada").await.expect("unblocked");
    assert!(!connection_has(&server, BLOCKS));
    assert_eq!(blocks(&here).await, []);
    assert_ne!(source(&here).await, Source::Block);
}

#[tokio::test]
async fn a_limiter_without_the_rule_sees_an_automatic_block_and_its_reason() {
    let server = RedisServer::start();
    let here = limiter(store_on(&server), RULE.block_for(9 * 24 * HOUR));
    let _ = here.check("ada").await.expect("a decision");
    refuse(&here, 1).await;
    refuse(&here, 25).await;
    until(async || connection_has(&server, BLOCKS)).await;
    let there = RateLimiter::new(store_on(&server), Quota::per_day(1));
    let [(reason, _)] = blocks(&there).await[..] else {
        panic!("one block");
    };
    assert_eq!(reason, BlockReason::Refusals { blocks: 1 });
    there.admin().unblock("ada").await.expect("unblocked");
    assert!(!connection_has(&server, BLOCKS));
    there.admin().block("ada", HOUR).await.expect("a block");
    assert_eq!(blocks(&here).await[0].0, BlockReason::Operator);
}

/// Refuses each key for a part of a second, by two limiters of one name in this process and by another process. Then an
/// operator here unblocks and resets it. Refusals are sent once a second, so that most keys have some unsent, and others
/// are about to be blocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unblock_is_not_undone_by_refusals_from_before_it() {
    const KEYS: u64 = 40;
    let server = RedisServer::start();
    let rule = RULE.block_for(60 * SECOND);
    let limiter = |store: &RedisStore| {
        RateLimiter::new(store.clone(), Quota::new(5, 900 * SECOND)).block_after(rule)
    };
    let [here, there] = [(); 2].map(|()| store_on(&server));
    let limiters = [limiter(&here), limiter(&here), limiter(&there)];
    let keys = (0..KEYS).map(|key| {
        let limiters = limiters.clone();
        tokio::spawn(async move {
            let end = Instant::now() + Duration::from_millis(20 + key * 1_100 / KEYS);
            while Instant::now() < end {
                for limiter in &limiters {
                    let _ = limiter.check(key).await.expect("a decision");
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let admin = limiters[0].admin();
            admin.unblock(key).await.expect("unblocked");
            admin.reset(key).await.expect("reset");
            tokio::time::sleep(3 * SECOND / 2).await;
            let mut refused = Vec::new();
            let mut block = None;
            for limiter in &limiters {
                // A process without checks still has the list of its last one.
                let status = limiter.admin().status(key).await.expect("a status");
                block = block.or(status.block_reason);
                let decision = limiter.check(key).await.expect("a decision");
                refused.extend((!decision.is_allowed()).then_some(decision));
            }
            (key, block, refused)
        })
    });
    let keys: Vec<_> = keys.collect();
    let mut undone = Vec::new();
    for key in keys {
        let (key, block, refused) = key.await.expect("a report");
        if block.is_some() || !refused.is_empty() {
            undone.push((
                key,
                block,
                refused.first().and_then(|refused| refused.retry_after()),
            ));
        }
    }
    assert!(
        undone.is_empty(),
        "{} of {KEYS} undone: {undone:?}",
        undone.len()
    );
}

#[tokio::test]
async fn a_block_after_a_reset_tells_no_wait_from_before_it() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server), Quota::new(5, 900 * SECOND));
    let limiter = limiter.block_after(RULE.block_for(60 * SECOND));
    let refuse = async |key: &str| {
        for _ in 0..30 {
            let _ = limiter.check(key).await.expect("a decision");
        }
    };
    let wait_of_block = async |key: &str| {
        // A look, so that no further refusal tells a wait.
        let is_blocked = async || {
            let status = limiter.admin().status(key).await.expect("a status");
            status.blocked_for.is_some()
        };
        until(is_blocked).await;
        let decision = limiter.check(key).await.expect("a decision");
        assert_eq!(decision.source(), Source::Block);
        decision.retry_after().expect("a wait")
    };
    refuse("ada").await;
    let wait = wait_of_block("ada").await;
    assert!(
        wait > 890 * SECOND,
        "the quotas refuse for longer: {wait:?}"
    );
    limiter.admin().reset("ada").await.expect("reset");
    let wait = wait_of_block("ada").await;
    assert!(wait <= 60 * SECOND, "the block is what holds: {wait:?}");
    // Refusals were sent within the last second, so that these are not sent before the reset.
    refuse("bob").await;
    limiter.admin().reset("bob").await.expect("reset");
    let wait = wait_of_block("bob").await;
    assert!(wait <= 60 * SECOND, "the block is what holds: {wait:?}");
}

fn connection_has(server: &RedisServer, key: &str) -> bool {
    server.connect().exists(key).expect("EXISTS answers")
}

#[tokio::test]
async fn a_key_of_another_program_is_left_alone() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    run(&mut connection, &["SET", REFUSALS, "of another program"]);
    let limiter = limiter(store_on(&server), BlockRule::refusals(1));
    for key in ["ada", "eve"] {
        for _ in 0..2 {
            let _ = limiter.check(key).await.expect("a decision");
        }
    }
    // Another key of the same call is blocked all the same.
    until(async || limiter.check("eve").await.expect("a decision").source() == Source::Block).await;
    assert_ne!(source(&limiter).await, Source::Block);
    let value: String = connection.get(REFUSALS).expect("GET answers");
    assert_eq!(value, "of another program");
}

#[tokio::test]
async fn a_full_list_and_a_block_by_an_operator_are_left_alone() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let limiter = limiter(store_on(&server), BlockRule::refusals(1));
    let refuse = async |key: &str| {
        let refused = limiter.clone().block_after(BlockRule::refusals(1));
        for _ in 0..2 {
            let _ = refused.check(key).await.expect("a decision");
        }
        // Longer than the calls take.
        tokio::time::sleep(SECOND / 2).await;
    };
    refuse("ada").await;
    let admin = limiter.admin();
    admin.block("ada", 9 * HOUR).await.expect("a block");
    // This process does not know of the block, and the rule blocks at once.
    let there = RateLimiter::new(store_on(&server), Quota::per_day(1));
    let there = there.block_after(BlockRule::refusals(1));
    let _ = there.check("ada").await.expect("a decision");
    tokio::time::sleep(SECOND / 2).await;
    let [(reason, left)] = blocks(&limiter).await[..] else {
        panic!("one block");
    };
    assert_eq!(reason, BlockReason::Operator);
    assert!(left > 8 * 3_600, "{left}");
    let mut fill = redis::cmd("ZADD");
    fill.arg("tollgate:v3:{blocks}");
    for number in 0..8_999 {
        fill.arg("4000000000000000")
            .arg(format!("{},{number}", number % 10));
    }
    fill.exec(&mut connection).expect("ZADD answers");
    log::keep();
    refuse("bob").await;
    refuse("bob").await;
    let lines = log::kept();
    assert!(
        lines.iter().all(
            |line| line.contains("cannot block a key that was refused too often")
                && line.contains("tollgate::W018")
        ),
        "{lines:?}"
    );
    assert_eq!(lines.len(), 2, "one for each limiter: {lines:?}");
    admin.block("eve", HOUR).await.expect("there is room");
    run(
        &mut connection,
        &["ZREM", "tollgate:v3:{blocks}", "1,1", "2,2"],
    );
    refuse("bob").await;
    let status = admin.status("bob").await.expect("a status");
    assert_eq!(
        status.block_reason,
        Some(BlockReason::Refusals { blocks: 1 })
    );
}

#[tokio::test]
async fn a_thousand_keys_are_blocked_within_seconds_in_few_calls() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let limiter = limiter(store_on(&server), BlockRule::refusals(3));
    for key in 0..1_000 {
        for _ in 0..4 {
            let _ = limiter.check(key).await.expect("a decision");
        }
    }
    forget_calls(&mut connection);
    until(async || blocks(&limiter).await.len() == 1_000).await;
}

/// Limiters of several processes, each with a store of its own, hammer one key.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_processes_block_a_key_once_and_its_blocks_grow_once() {
    const HERE: usize = 8;
    let server = RedisServer::start();
    let rule = BlockRule::refusals(20)
        .within(10 * SECOND)
        .block_for(3 * SECOND)
        .doubling();
    let limiters = [(); HERE].map(|()| {
        let store = RedisStore::open(&server.url()).expect("a URL");
        limiter(store.deadline(10 * SECOND), rule)
    });
    for blocks_so_far in 1..=3 {
        let tasks = limiters.clone().map(|limiter| {
            tokio::spawn(async move {
                while source(&limiter).await != Source::Block {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        });
        for task in tasks {
            task.await.expect("blocked");
        }
        until(async || {
            let blocks = blocks(&limiters[0]).await;
            blocks.len() == 1 && matches!(blocks[0].0, BlockReason::Refusals { blocks } if blocks == blocks_so_far)
        })
        .await;
        let [(_, left)] = blocks(&limiters[0]).await[..] else {
            panic!("one block");
        };
        let duration = 3 << (blocks_so_far - 1);
        assert!((duration - 3..duration).contains(&left), "{left}");
        if blocks_so_far < 3 {
            until(async || blocks(&limiters[0]).await.is_empty()).await;
        }
    }
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn on_a_cluster_keys_of_all_slots_are_counted_and_blocked() {
    let cluster = Cluster::start();
    let store = RedisStore::open(&cluster.url()).expect("a URL");
    let limiter = limiter(store.deadline(10 * SECOND), BlockRule::refusals(3));
    for key in 0..50 {
        for _ in 0..4 {
            let _ = limiter.check(key).await.expect("a decision");
        }
    }
    until(async || blocks(&limiter).await.len() == 50).await;
    limiter.admin().unblock(7).await.expect("unblocked");
    assert_eq!(blocks(&limiter).await.len(), 49);
}

#[tokio::test]
async fn refusals_from_before_an_outage_count_after_it_and_those_of_the_fallback_do_not() {
    log::keep();
    let server = RedisServer::start();
    let relay = Relay::to(server.port()).await;
    let store = RedisStore::open(&relay.url()).expect("a URL");
    let store = store
        .deadline(Duration::from_millis(300))
        .block_list_refresh(Duration::ZERO);
    let limiter = limiter(store, RULE).on_failure(FailurePolicy::fall_back());
    assert_eq!(source(&limiter).await, Source::Redis);
    refuse(&limiter, 10).await;
    let counted = async || counted(&server);
    until(async || counted().await == 10).await;
    // Redis is away: the fallback decides, and its refusals do not count.
    relay.lead_to(1);
    relay.block();
    until(async || source(&limiter).await == Source::Fallback).await;
    for _ in 0..100 {
        let decision = limiter.check("ada").await.expect("a decision");
        assert_ne!(decision.source(), Source::Block);
    }
    relay.lead_to(server.port());
    until(async || matches!(source(&limiter).await, Source::Redis | Source::RefusalCache)).await;
    // Refusals that were sent when the connection was lost are not sent again.
    tokio::time::sleep(2 * SECOND).await;
    let before = counted().await;
    assert!((10..20).contains(&before), "{before}");
    refuse(&limiter, 19 - before).await;
    tokio::time::sleep(3 * SECOND / 2).await;
    assert_eq!(counted().await, 19);
    assert_eq!(blocks(&limiter).await, []);
    refuse(&limiter, 1).await;
    until(async || source(&limiter).await == Source::Block).await;
}

/// The refusals of the key that were counted: the position of the last run.
fn counted(server: &RedisServer) -> u32 {
    let log: Option<Vec<u8>> = server.connect().get(REFUSALS).expect("GET answers");
    let log = log.unwrap_or_default();
    let position = log.last_chunk::<4>().copied().unwrap_or_default();
    u32::from_be_bytes(position)
}

#[test]
fn four_processes_share_twenty_refusals() {
    const TEST: &str = "redis::four_processes_share_twenty_refusals";
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if let Some(url) = argument() {
        let source = runtime.block_on(async {
            let store = RedisStore::open(&url).expect("a URL");
            let limiter = limiter(store.deadline(10 * SECOND), RULE);
            refuse(&limiter, 5).await;
            let peek = async || {
                let status = limiter.admin().status("ada").await.expect("a status");
                status.block_reason == Some(BlockReason::Refusals { blocks: 1 })
            };
            until(peek).await;
            source(&limiter).await
        });
        return report(format_args!("{source:?}"));
    }
    let server = RedisServer::start();
    let here = limiter(store_on(&server), RULE);
    runtime.block_on(async {
        assert_eq!(source(&here).await, Source::Redis);
    });
    for child in [(); 4].map(|()| Process::of(TEST, &server.url())) {
        assert_eq!(child.report(), "Block");
    }
    let blocks = runtime.block_on(blocks(&here));
    assert_eq!(blocks.len(), 1);
    assert_eq!(blocks[0].0, BlockReason::Refusals { blocks: 1 });
    assert!(blocks[0].1 > 3_500 && blocks[0].1 < 3_600, "{blocks:?}");
}

const READY: &str = "ready";

const HAMMERED: &str = "hammered";

/// Three processes refuse twenty keys, each for a part of a second. An operator in this process then unblocks and resets
/// them, while the others have refusals that they did not send.
#[test]
fn an_unblock_holds_in_all_processes() {
    const TEST: &str = "redis::an_unblock_holds_in_all_processes";
    const KEYS: u64 = 20;
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let limiter = |url: &str| {
        let store = RedisStore::open(url).expect("a URL").deadline(10 * SECOND);
        RateLimiter::new(store, Quota::new(60, 900 * SECOND)).block_after(RULE)
    };
    if let Some(url) = argument() {
        let limiter = limiter(&url);
        let refused = runtime.block_on(async {
            let _ = limiter.check("ada").await.expect("a decision");
            print(READY);
            stdin().read_line(&mut String::new()).expect("a line");
            let begin = Instant::now();
            for key in 0..KEYS {
                // Refusals are sent after one second, and then those of the last keys after two.
                let end = Duration::from_millis(80 * (key + 1));
                while begin.elapsed() < end {
                    let _ = limiter.check(key).await.expect("a decision");
                }
            }
            print(HAMMERED);
            tokio::time::sleep(3 * SECOND).await;
            // A process without checks still has the list of its last one.
            assert_eq!(blocks(&limiter).await, []);
            let mut refused = Vec::new();
            for key in 0..KEYS {
                let decision = limiter.check(key).await.expect("a decision");
                refused.extend((!decision.is_allowed()).then_some((key, decision.source())));
            }
            refused
        });
        return report(format_args!("{refused:?}"));
    }
    let server = RedisServer::start();
    let limiter = limiter(&server.url());
    let mut children = [(); 3].map(|()| Process::of(TEST, &server.url()));
    for child in &mut children {
        child.rest_of_line(READY);
    }
    for child in &mut children {
        child.send_line("");
    }
    for child in &mut children {
        child.rest_of_line(HAMMERED);
    }
    runtime.block_on(async {
        let admin = limiter.admin();
        for key in 0..KEYS {
            admin.unblock(key).await.expect("unblocked");
            admin.reset(key).await.expect("reset");
        }
    });
    for child in children {
        assert_eq!(child.report(), "[]");
    }
}
