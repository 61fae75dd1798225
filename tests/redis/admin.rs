//! Changes by an operator apply to all processes; their cost in Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Commands, Pipeline, RedisFuture, Value};
use tokio::sync::Semaphore;
use tollgate::store::TestClock;
use tollgate::{Error, ErrorKind, FailurePolicy, Quota, RateLimiter, RedisStore, Source};

use crate::support::cases::some_or_all;
use crate::support::costs::{calls, forget_calls};
use crate::support::log;
use crate::support::redis_server::{RedisServer, run, times_to_live};
use crate::support::store_on;
use crate::support::test_time::TestTime;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// The block list.
const LIST: &str = "tollgate:v3:{blocks}";

/// The default refresh interval, with a margin for a busy machine.
const SOON: Duration = Duration::from_millis(1_300);

/// A limiter as in a separate process, which refreshes the block list.
fn limiter(server: &RedisServer) -> RateLimiter {
    let store = RedisStore::open(&server.url()).unwrap();
    RateLimiter::new(store.deadline(10 * SECOND), Quota::per_hour(1_000_000))
}

async fn source(limiter: &RateLimiter, key: &str) -> Source {
    limiter.check(key).await.unwrap().source()
}

/// Checks a key until the decision has this source. Returns the time taken, without what two answers were late: that of the list,
/// and that of the check.
async fn until(limiter: &RateLimiter, key: &str, wanted: Source) -> Duration {
    let (begin, mut late) = (Instant::now(), Duration::ZERO);
    loop {
        let asked = Instant::now();
        if source(limiter, key).await == wanted {
            return begin.elapsed().saturating_sub(2 * late);
        }
        late = late.max(asked.elapsed());
        assert!(begin.elapsed() < 10 * SECOND, "never by {wanted:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_block_starts_and_ends_in_all_processes_within_a_second() {
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| limiter(&server));
    assert_eq!(source(&there, "ada").await, Source::Redis);
    for _ in 0..2 {
        here.admin().block("ada", HOUR).await.unwrap();
        assert_eq!(source(&here, "ada").await, Source::Block);
        let took = until(&there, "ada", Source::Block).await;
        assert!(took < SOON, "{took:?}");
        // Another process unblocks it.
        there.admin().unblock("ada").await.unwrap();
        assert_eq!(source(&there, "ada").await, Source::Redis);
        let took = until(&here, "ada", Source::Redis).await;
        assert!(took < SOON, "{took:?}");
    }
}

#[tokio::test]
async fn an_idle_process_learns_of_a_block_at_its_first_check() {
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| limiter(&server));
    here.admin().block("ada", HOUR).await.unwrap();
    // The check does not wait for the list.
    assert_eq!(source(&there, "ada").await, Source::Redis);
    let took = until(&there, "ada", Source::Block).await;
    assert!(took < SECOND / 2, "{took:?}");
}

#[tokio::test]
async fn resets_and_credits_end_refusals_of_other_processes_within_a_second() {
    let server = RedisServer::start();
    let [here, there] = [store_on(&server), store_on(&server)]
        .map(|store| RateLimiter::new(store, Quota::per_hour(5)));
    for round in 0..2 {
        let _ = here.check_n("ada", 5).await.unwrap();
        assert!(!there.check("ada").await.unwrap().is_allowed());
        if round == 0 {
            here.admin().reset("ada").await.unwrap();
        } else {
            here.admin().credit("ada", 1).await.unwrap();
        }
        let begin = Instant::now();
        while !there.check("ada").await.unwrap().is_allowed() {
            assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        here.admin().reset("ada").await.unwrap();
    }
}

#[tokio::test]
async fn peek_and_list_show_blocks_of_other_processes_at_once() {
    let server = RedisServer::start();
    // One of them never refreshes on its own.
    let [here, there] = [
        limiter(&server),
        RateLimiter::new(store_on(&server), Quota::per_hour(5)),
    ];
    here.admin().block("ada", HOUR).await.unwrap();
    assert_eq!(source(&there, "ada").await, Source::Redis);
    let standing = there.admin().status("ada").await.unwrap();
    let left = standing.blocked_for.unwrap();
    assert!(left > HOUR - 10 * SECOND && left <= HOUR, "{left:?}");
    assert_eq!(standing.view.used(), 1);
    here.admin().block("bob", 2 * HOUR).await.unwrap();
    let blocked = there.admin().blocked().await.unwrap();
    let blocked: Vec<_> = blocked.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(blocked, ["bob", "ada"]);
    here.admin().unblock("ada").await.unwrap();
    assert_eq!(there.admin().status("ada").await.unwrap().blocked_for, None);
}

#[tokio::test]
async fn a_permanent_block_holds_in_other_processes_too() {
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| limiter(&server));
    here.admin().block("ada", Duration::MAX).await.unwrap();
    let standing = there.admin().status("ada").await.unwrap();
    assert!(standing.blocked_for.unwrap() > 100 * 365 * 24 * HOUR);
    assert_eq!(here.admin().blocked().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_blocked_key_costs_redis_nothing_and_an_unchanged_list_one_command_a_second() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let quiet = RateLimiter::new(store_on(&server), Quota::per_hour(5));
    quiet.admin().block("ada", HOUR).await.unwrap();
    forget_calls(&mut connection);
    for _ in 0..1_000 {
        assert_eq!(source(&quiet, "ada").await, Source::Block);
    }
    assert!(calls(&mut connection).is_empty());

    let looking = limiter(&server);
    let _ = looking.admin().blocked().await.unwrap();
    forget_calls(&mut connection);
    let begin = Instant::now();
    let mut checks = 0_u64;
    while begin.elapsed() < 2 * SECOND {
        let _ = source(&looking, "ada").await;
        checks += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let calls = calls(&mut connection);
    let looks = calls["evalsha"];
    assert!((1..=4).contains(&looks), "{looks} looks of {checks} checks");
    assert_eq!(calls["zrange"], looks);
    assert!(!calls.contains_key("zrangebyscore"), "{calls:?}");
}

#[tokio::test]
async fn a_process_without_refresh_knows_only_its_own_blocks() {
    let server = RedisServer::start();
    let [here, there] =
        [(); 2].map(|()| RateLimiter::new(store_on(&server), Quota::per_hour(1_000)));
    here.admin().block("ada", HOUR).await.unwrap();
    let begin = Instant::now();
    while begin.elapsed() < SOON {
        assert_eq!(source(&there, "ada").await, Source::Redis);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A limiter that falls back to memory, and the clock of this process.
fn falling_back(server: &RedisServer) -> (RateLimiter, TestClock) {
    let local = TestClock::new();
    let clock = include_str!("../../lua/clock.lua");
    let store = RedisStore::open(&server.url()).unwrap();
    let store = store.with_clock_source(clock, local.clone());
    let limiter = RateLimiter::new(store.deadline(SECOND), Quota::per_hour(1_000));
    (limiter.on_failure(FailurePolicy::fall_back()), local)
}

#[tokio::test]
async fn a_block_outlives_the_server_and_ends_on_time_without_it() {
    let mut server = RedisServer::start();
    let (limiter, local) = falling_back(&server);
    let (other, of_other) = falling_back(&server);
    limiter.admin().block("ada", HOUR).await.unwrap();
    let _ = other.admin().status("ada").await.unwrap();
    server.kill();
    for (limiter, local) in [(limiter, local), (other, of_other)] {
        for key in ["bob", "bob", "bob", "bob", "bob", "bob"] {
            assert_eq!(source(&limiter, key).await, Source::Fallback);
        }
        assert_eq!(source(&limiter, "ada").await, Source::Block);
        local.advance(HOUR - SECOND);
        let refused = limiter.check("ada").await.unwrap();
        let left = refused.retry_after().unwrap();
        assert!(left <= 2 * SECOND, "{left:?}");
        local.advance(SECOND);
        let refused = limiter.check("ada").await.unwrap();
        assert!(refused.retry_after().is_none_or(|left| left < SECOND));
        local.advance(SECOND);
        assert_eq!(source(&limiter, "ada").await, Source::Fallback);
    }
}

#[tokio::test]
async fn while_the_server_is_down_every_admin_operation_fails() {
    let mut server = RedisServer::start();
    let (limiter, _) = falling_back(&server);
    let admin = limiter.admin();
    admin.block("ada", HOUR).await.unwrap();
    server.kill();
    // Eight rounds: the breaker opens meanwhile.
    for _ in 0..8 {
        for outcome in [
            admin.status("ada").await.map(drop),
            admin.blocked().await.map(drop),
            admin.block("bob", HOUR).await,
            admin.unblock("ada").await,
            admin.reset("ada").await,
            admin.credit("ada", 1).await,
        ] {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
        let _ = limiter.check("bob").await.unwrap();
    }
    // Failed operations have no effect in this process either.
    assert_eq!(source(&limiter, "ada").await, Source::Block);
    assert_eq!(source(&limiter, "bob").await, Source::Fallback);
}

/// Blocks this many keys for a day.
fn fill(connection: &mut redis::Connection, keys: usize) {
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(connection).unwrap();
    let mut members = vec![(seconds * 1_000, "#".to_owned())];
    let until = (seconds + 86_400) * 1_000_000;
    members.extend((1..=keys).map(|key| (until, format!("default,key:{key}"))));
    let () = connection.zadd_multiple(LIST, &members).unwrap();
}

#[tokio::test]
async fn a_full_list_accepts_only_its_members_and_fails_for_others() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    fill(&mut connection, 9_999);
    let [here, there] =
        [(); 2].map(|()| RateLimiter::new(store_on(&server), Quota::per_hour(1_000)));
    let admin = here.admin();
    admin.block("ada", HOUR).await.unwrap();
    let error = admin.block("bob", HOUR).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(source(&here, "bob").await, Source::Redis);
    assert_eq!(there.admin().blocked().await.unwrap().len(), 10_000);
    assert_eq!(source(&there, "key:10000").await, Source::Redis);
    assert_eq!(source(&there, "key:9999").await, Source::Block);

    // BlockRule a blocked key again needs no room, and unblocking it makes room.
    admin.block("ada", 2 * HOUR).await.unwrap();
    let left = there.admin().status("ada").await.unwrap().blocked_for;
    assert!(left.unwrap() > HOUR, "{left:?}");
    admin.unblock("nobody").await.unwrap();
    assert_eq!(
        admin.block("bob", HOUR).await.unwrap_err().kind(),
        ErrorKind::Full
    );
    admin.unblock("ada").await.unwrap();
    admin.block("bob", HOUR).await.unwrap();
    assert_eq!(there.admin().blocked().await.unwrap().len(), 10_000);
    assert_eq!(source(&there, "ada").await, Source::Redis);
}

#[tokio::test]
async fn ended_blocks_are_removed_and_make_room() {
    let server = RedisServer::start();
    let mut time = TestTime::new(&server);
    let limiter = RateLimiter::new(time.redis.clone(), Quota::per_hour(3));
    let admin = limiter.admin();
    admin.block("ada", SECOND).await.unwrap();
    admin.block("bob", HOUR).await.unwrap();
    time.advance(SECOND);
    assert_eq!(source(&limiter, "ada").await, Source::Redis);
    admin.block("eve", HOUR).await.unwrap();
    let members: Vec<String> = time.connection().zrange(LIST, 0, -1).unwrap();
    assert_eq!(members, ["#", "default,bob", "default,eve"]);
    // The last block is the longest: the list lives for some seconds more.
    let kept = time.times_to_live();
    let (_, left) = kept.iter().find(|(key, _)| key == LIST).unwrap();
    assert_eq!(*left, 3_605_000);
    time.advance(HOUR);
    assert!(admin.blocked().await.unwrap().is_empty());
    assert_eq!(source(&limiter, "bob").await, Source::Redis);
}

#[tokio::test]
async fn a_list_expires_shortly_after_its_last_block() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let admin = RateLimiter::new(store_on(&server), Quota::per_hour(3)).admin();
    // 100 000 000 ms, which some servers write as 1e+8.
    for (block, most) in [
        (99_995 * SECOND, 100_000_000),
        (HOUR, 100_000_000),
        (Duration::ZERO, 5_000),
    ] {
        let key = if block == HOUR { "bob" } else { "ada" };
        admin.block(key, block).await.unwrap();
        if block.is_zero() {
            admin.unblock("bob").await.unwrap();
        }
        let mut kept = times_to_live(&mut connection);
        // An unblock is known for an hour.
        let unblocks: Vec<_> = kept.extract_if(.., |(key, _)| key != LIST).collect();
        assert_eq!(
            unblocks.len(),
            if block.is_zero() { 2 } else { 0 },
            "{unblocks:?}"
        );
        assert!(
            unblocks.iter().all(|(_, millis)| *millis <= 7_201_000),
            "{unblocks:?}"
        );
        let [(_, millis)] = kept.as_slice() else {
            panic!("{kept:?}");
        };
        assert!((most - 2_000..=most).contains(millis), "{millis}");
    }
}

#[tokio::test]
async fn a_lost_list_blocks_no_key_within_a_second_and_starts_again() {
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| limiter(&server));
    here.admin().block("ada", HOUR).await.unwrap();
    let _ = there.admin().blocked().await.unwrap();
    run(&mut server.connect(), &["FLUSHALL"]);
    for limiter in [&here, &there] {
        let took = until(limiter, "ada", Source::Redis).await;
        assert!(took < SOON, "{took:?}");
    }
    here.admin().block("bob", HOUR).await.unwrap();
    let took = until(&there, "bob", Source::Block).await;
    assert!(took < SOON, "{took:?}");
}

#[tokio::test]
async fn a_list_is_read_again_when_its_version_goes_back() {
    let server = RedisServer::start();
    let mut time = TestTime::new(&server);
    let clock = include_str!("../support/clock.lua");
    let there = store_on(&server).with_clock_source(clock, TestClock::new());
    let [here, there] =
        [time.redis.clone(), there].map(|store| RateLimiter::new(store, Quota::per_hour(3)));
    here.admin().block("ada", HOUR).await.unwrap();
    assert_eq!(there.admin().blocked().await.unwrap().len(), 1);
    let before: u64 = time.connection().zscore(LIST, "#").unwrap();

    // A clock that stands still or steps back still makes a new version.
    time.step_back(60 * SECOND);
    here.admin().block("bob", HOUR).await.unwrap();
    assert_eq!(there.admin().blocked().await.unwrap().len(), 2);
    let after: u64 = time.connection().zscore(LIST, "#").unwrap();
    assert_eq!(after, before + 1);

    // A list that was lost and made again has an earlier version.
    run(time.connection(), &["DEL", LIST]);
    here.admin().block("eve", HOUR).await.unwrap();
    let anew: u64 = time.connection().zscore(LIST, "#").unwrap();
    assert!(anew < before);
    for limiter in [&here, &there] {
        let blocked = limiter.admin().blocked().await.unwrap();
        assert_eq!(blocked.len(), 1);
        assert_eq!(blocked[0].0.as_str(), "eve");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_local_block_holds_at_once_despite_refreshes_in_flight() {
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| limiter(&server));
    let looking: Vec<_> = (0..6)
        .map(|_| {
            let admin = here.admin();
            tokio::spawn(async move {
                loop {
                    let _ = admin.blocked().await.unwrap();
                }
            })
        })
        .collect();
    // So that every refresh finds a new version.
    let changing = tokio::spawn(async move {
        for round in 0_u32.. {
            let duration = HOUR + Duration::from_secs(round.into());
            there.admin().block("bob", duration).await.unwrap();
        }
    });
    for round in 0..some_or_all(100, 300) {
        here.admin().block("ada", HOUR).await.unwrap();
        for _ in 0..3 {
            assert_eq!(source(&here, "ada").await, Source::Block, "round {round}");
        }
        here.admin().unblock("ada").await.unwrap();
        assert_eq!(source(&here, "ada").await, Source::Redis, "round {round}");
    }
    changing.abort();
    for look in looking {
        assert!(!look.is_finished());
        look.abort();
    }
}

/// A connection that holds back the first reply to a refresh of the list until it is released.
#[derive(Clone)]
struct Late {
    connection: MultiplexedConnection,
    is_kept: Arc<AtomicBool>,
    let_go: Arc<Semaphore>,
}

impl ConnectionLike for Late {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let answer = self.connection.req_packed_command(cmd).await;
            let packed = cmd.get_packed_command();
            let names_list = packed
                .windows(LIST.len())
                .any(|text| text == LIST.as_bytes());
            // EVALSHA, hash, number of keys, key, version, number of the call. The script that blocks has two arguments
            // more.
            let looks = names_list && cmd.args_iter().count() == 6;
            // Before that, the server may not know the script.
            let is_told = looks && answer.is_ok();
            if is_told && !self.is_kept.swap(true, Ordering::SeqCst) {
                let _ = self.let_go.acquire().await;
            }
            answer
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.connection.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

#[tokio::test]
async fn a_reply_from_before_a_block_does_not_undo_it() {
    let server = RedisServer::start();
    let there = limiter(&server);
    there.admin().block("bob", HOUR).await.unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let late = Late {
        connection: client.get_multiplexed_async_connection().await.unwrap(),
        is_kept: Arc::default(),
        let_go: Arc::new(Semaphore::new(0)),
    };
    let store = RedisStore::with_connection(late.clone()).deadline(10 * SECOND);
    let here = RateLimiter::new(
        store.block_list_refresh(Duration::ZERO),
        Quota::per_hour(1_000),
    );
    // So that the server knows the script.
    let _ = there.admin().blocked().await.unwrap();
    let look = tokio::spawn({
        let admin = here.admin();
        async move { admin.blocked().await.unwrap() }
    });
    while !late.is_kept.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    here.admin().block("ada", HOUR).await.unwrap();
    late.let_go.add_permits(1);
    // The refresh returns the current list.
    let told: Vec<_> = look
        .await
        .unwrap()
        .into_iter()
        .map(|(key, _)| key)
        .collect();
    assert_eq!(told.len(), 2, "{told:?}");
    for key in ["ada", "bob"] {
        assert_eq!(source(&here, key).await, Source::Block, "{key}");
    }
}

#[tokio::test]
async fn another_prefix_has_another_list() {
    let server = RedisServer::start();
    let one = limiter(&server);
    let other = RateLimiter::new(store_on(&server).prefix("other"), Quota::per_hour(3));
    one.admin().block("ada", HOUR).await.unwrap();
    assert!(other.admin().blocked().await.unwrap().is_empty());
    assert_eq!(source(&other, "ada").await, Source::Redis);
}

/// A limiter of a user that lacks some permissions.
fn without(server: &RedisServer, rights: &[&str]) -> RateLimiter {
    let rights = [
        &["ACL", "SETUSER", "limiter", "on", ">pw", "~*", "+@all"],
        rights,
    ]
    .concat();
    run(&mut server.connect(), &rights);
    let url = format!("redis://limiter:pw@127.0.0.1:{}", server.port());
    let store = RedisStore::open(&url).unwrap().deadline(10 * SECOND);
    let store = store.block_list_refresh(Duration::from_millis(20));
    RateLimiter::new(store, Quota::per_hour(1_000))
}

#[tokio::test]
async fn without_the_permission_to_refresh_checks_go_on_and_one_line_names_it() {
    let server = RedisServer::start();
    let limiter = without(&server, &["-zrange", "-zrangebyscore", "-zadd"]);
    log::keep();
    for _ in 0..30 {
        assert!(limiter.check("ada").await.unwrap().is_allowed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let lines = log::kept();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    for part in ["WARN", "block", "tollgate::W022"] {
        assert!(lines[0].contains(part), "{}", lines[0]);
    }
    let admin = limiter.admin();
    let outcomes: [Result<(), Error>; 3] = [
        admin.status("ada").await.map(drop),
        admin.blocked().await.map(drop),
        admin.block("ada", HOUR).await,
    ];
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    }
    assert!(limiter.check("ada").await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_full_server_fails_to_block() {
    let server = RedisServer::start();
    let limiter = limiter(&server);
    let mut connection = server.connect();
    run(&mut connection, &["CONFIG", "SET", "maxmemory", "1"]);
    let error = limiter.admin().block("ada", HOUR).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    run(&mut connection, &["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(source(&limiter, "ada").await, Source::Redis);
}

#[tokio::test]
async fn a_full_server_unblocks_one_of_several_keys_in_all_processes() {
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| limiter(&server));
    let keys = ["ada", "bob"];
    for key in keys {
        here.admin().block(key, HOUR).await.unwrap();
        let _ = until(&there, key, Source::Block).await;
    }
    let mut connection = server.connect();
    run(&mut connection, &["CONFIG", "SET", "maxmemory", "1"]);
    for key in keys {
        here.admin().unblock("nobody").await.unwrap();
        here.admin().unblock(key).await.unwrap();
        // The others ask Redis again, which may have no room for a count.
        let begin = Instant::now();
        while let Ok(decision) = there.check(key).await
            && decision.source() == Source::Block
        {
            assert!(begin.elapsed() < 10 * SECOND, "{key} stays blocked");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    run(&mut connection, &["CONFIG", "SET", "maxmemory", "0"]);
    assert!(there.admin().blocked().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_list_of_another_type_is_a_misconfiguration_and_checks_go_on() {
    let server = RedisServer::start();
    let () = server.connect().set(LIST, "somebody else's").unwrap();
    let store = store_on(&server).block_list_refresh(Duration::from_millis(20));
    let limiter = RateLimiter::new(store, Quota::per_hour(1_000_000));
    log::keep();
    let error = limiter.admin().blocked().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    // The first failure is not logged. Then there is one line, and one when it is over.
    let mut lines = Vec::new();
    for list_is_bad in [true, false] {
        let begin = Instant::now();
        while lines.is_empty() || begin.elapsed() < Duration::from_millis(300) {
            assert!(begin.elapsed() < 10 * SECOND, "{list_is_bad}");
            assert_eq!(source(&limiter, "ada").await, Source::Redis);
            tokio::time::sleep(Duration::from_millis(1)).await;
            lines.extend(log::kept());
        }
        let says = [
            "the block list is refreshed again",
            "failed to refresh the block list: ",
        ][usize::from(list_is_bad)];
        assert!(lines.len() == 1 && lines[0].contains(says), "{lines:?}");
        lines.clear();
        run(&mut server.connect(), &["DEL", LIST]);
    }
}

#[tokio::test]
async fn on_a_cluster_of_one_a_block_is_one_key_in_one_slot() {
    let server = RedisServer::start_cluster();
    let [here, there] = [(); 2].map(|()| limiter(&server));
    for key in ["ada", "bob", "eve"] {
        here.admin().block(key, HOUR).await.unwrap();
        assert!(
            there
                .admin()
                .status(key)
                .await
                .unwrap()
                .blocked_for
                .is_some()
        );
    }
    let keys: Vec<String> = server.connect().keys("*").unwrap();
    assert_eq!(keys, [LIST]);
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn on_a_cluster_of_six_a_block_holds_for_keys_of_each_master() {
    use crate::support::cluster::Cluster;

    let cluster = Cluster::start();
    let [here, there] = [(); 2].map(|()| {
        let store = RedisStore::open(&cluster.url())
            .unwrap()
            .deadline(10 * SECOND);
        RateLimiter::new(store, Quota::per_hour(1_000))
    });
    let keys: Vec<String> = (0..12).map(|key| format!("key:{key}")).collect();
    let masters = keys
        .iter()
        .map(|key| cluster.master_of(&format!("{{default,{key}}}")));
    let masters: std::collections::BTreeSet<_> = masters.collect();
    assert_eq!(masters.len(), 3);
    for key in &keys {
        here.admin().block(key, HOUR).await.unwrap();
    }
    for key in &keys {
        let took = until(&there, key, Source::Block).await;
        assert!(took < SOON, "{took:?}");
        there.admin().unblock(key).await.unwrap();
    }
    for key in &keys {
        let took = until(&here, key, Source::Redis).await;
        assert!(took < SOON, "{took:?}");
    }
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn on_a_cluster_without_one_master_blocks_are_read_from_the_others() {
    use crate::support::cluster::Cluster;

    let mut cluster = Cluster::start_with(&["--cluster-require-full-coverage", "no"]);
    let [here, there] = [(); 2].map(|()| {
        let store = RedisStore::open(&cluster.url()).unwrap();
        let limiter = RateLimiter::new(store.deadline(SECOND / 4), Quota::per_hour(1_000_000));
        limiter.on_failure(FailurePolicy::fall_back())
    });
    let has_list = cluster.master_of(LIST);
    let lost = (0..3).find(|master| *master != has_list).unwrap();
    let key_on = |master| {
        let mut keys = (0..).map(|key| format!("key:{key}"));
        let on = |key: &String| cluster.master_of(&format!("{{default,{key}}}")) == master;
        keys.find(on).unwrap()
    };
    let (of_lost, of_list) = (key_on(lost), key_on(has_list));
    for limiter in [&here, &there] {
        until(limiter, &of_list, Source::Redis).await;
    }
    for node in [lost + 3, lost] {
        cluster.nodes[node].kill();
    }
    for _ in 0..10 {
        let _ = there.check(&of_lost).await;
    }
    assert_eq!(source(&there, &of_lost).await, Source::Fallback);
    // Once the other nodes know that one is gone.
    let patience = Instant::now() + 10 * SECOND;
    while let Err(error) = here.admin().block(&of_list, HOUR).await {
        assert!(Instant::now() < patience, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let begin = Instant::now();
    while source(&there, &of_list).await != Source::Block {
        assert_ne!(source(&there, &of_lost).await, Source::Redis);
        assert!(begin.elapsed() < 2 * SOON, "{:?}", begin.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // A key can be blocked even if its counts were on the dead master.
    there.admin().block(&of_lost, HOUR).await.unwrap();
    assert_eq!(source(&there, &of_lost).await, Source::Block);
}
