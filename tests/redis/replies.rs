//! Replies that are lost or sent twice: each call behind them would get the reply to another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::AsyncConnectionConfig;
use tollgate::store::protocol::{Block, Change, Subject};
use tollgate::{Algorithm, Error, ErrorKind, Key, Quota, Quotas, RateLimiter, RedisStore, Store};

use crate::support::redis_server::RedisServer;
use crate::support::reply_proxy::{ReplyFault, ReplyProxy};
use crate::support::store_on;

const OUT_OF_SYNC: &str = "tollgate::E127";

/// So long that no unit returns and no aligned window ends.
const WINDOW: Duration = Duration::from_secs(300 * 86_400);

/// Long enough for a busy machine: no call fails by it.
const PATIENCE: Duration = Duration::from_secs(20);

/// The tasks that check, each a key of its own.
const TASKS: u32 = 64;

/// The units of a key beyond those of the key before it, so that no two keys ever have the same number.
const APART: u32 = 10_000_000;

/// What came of the checks.
#[derive(Debug, Default)]
struct Outcome {
    faults: u64,
    decided: AtomicU64,
    /// Those that failed because they got the reply to another call.
    out_of_sync: AtomicU64,
    /// Those that failed because of that while the circuit breaker was open.
    rejected: AtomicU64,
    /// Those that failed for another reason.
    others: AtomicU64,
    /// Those with the numbers of another check.
    foreign: AtomicU64,
}

impl Outcome {
    fn record(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The units that a key has, as far as its only task can tell: a call that failed may have been executed.
struct Units {
    least: u32,
    most: u32,
}

impl Units {
    /// Takes in that so many units were used after a check of one. Returns whether that can be.
    fn after_check(&mut self, used: u32) -> bool {
        let can_be = (self.least + 1..=self.most + 1).contains(&used);
        (self.least, self.most) = (used, used);
        can_be
    }
}

/// Checks, and gives every 16th unit back, until `checks` have been made.
async fn check_one_key(limiter: RateLimiter, number: u32, checks: u64, outcome: Arc<Outcome>) {
    let (key, first) = (format!("key {number}"), (number + 1) * APART);
    limiter.charge(&*key, first).await.expect("a charge");
    let mut units = Units {
        least: first,
        most: first,
    };
    let made = || {
        let Outcome {
            decided,
            out_of_sync,
            others,
            ..
        } = &*outcome;
        let counters = [decided, out_of_sync, others];
        let made = counters.map(|counter| counter.load(Ordering::Relaxed));
        made.into_iter().sum::<u64>()
    };
    let failed = |error: &Error| match error.code() {
        OUT_OF_SYNC => Outcome::record(&outcome.out_of_sync),
        "tollgate::E012" => Outcome::record(&outcome.rejected),
        _ => Outcome::record(&outcome.others),
    };
    while made() < checks {
        let mut decision = match limiter.check(&*key).await {
            Ok(decision) => decision,
            Err(error) => {
                failed(&error);
                units.most += 1;
                // While the circuit breaker is open, the answer is there at once.
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
        };
        Outcome::record(&outcome.decided);
        if !units.after_check(decision.used()) {
            Outcome::record(&outcome.foreign);
        }
        if decision.used().is_multiple_of(16) {
            let refunded = decision.refund(1).await;
            units.least -= 1;
            match refunded {
                Ok(()) => units.most -= 1,
                Err(error) => failed(&error),
            }
        }
    }
}

/// Makes checks through a proxy with a fault at each so many replies.
async fn checked(checks: u64, protocol: &str, replies: u64, fault: ReplyFault) -> Outcome {
    let server = RedisServer::start();
    let proxy = ReplyProxy::before(server.port()).await;
    let url = format!("{}?protocol={protocol}", proxy.url());
    let store = RedisStore::open(&url).unwrap().deadline(PATIENCE);
    let algorithms = [
        Algorithm::FixedWindow,
        Algorithm::SlidingCounter,
        Algorithm::SlidingLog,
    ];
    let limiters = algorithms.map(|algorithm| {
        let quota = Quota::new(u32::MAX, WINDOW).with_algorithm(algorithm);
        RateLimiter::new(store.clone(), quota).name(format!("{algorithm:?}"))
    });
    // The server knows the scripts.
    for limiter in &limiters {
        limiter.charge("nobody", 1).await.unwrap();
    }
    proxy.each(replies, fault);
    let outcome = Arc::new(Outcome::default());
    let tasks: Vec<_> = (0..TASKS)
        .zip(limiters.iter().cycle())
        .map(|(number, limiter)| {
            let outcome = Arc::clone(&outcome);
            tokio::spawn(check_one_key(limiter.clone(), number, checks, outcome))
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let mut outcome = Arc::into_inner(outcome).unwrap();
    outcome.faults = proxy.faults();
    outcome
}

/// The protocols and faults of a load.
const CASES: [(&str, ReplyFault); 4] = [
    ("resp3", ReplyFault::Swallow),
    ("resp3", ReplyFault::Stray),
    ("resp2", ReplyFault::Swallow),
    ("resp2", ReplyFault::Stray),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_check_gets_the_numbers_of_another_when_replies_are_lost_or_sent_twice() {
    for (protocol, fault) in CASES {
        let began = Instant::now();
        let outcome = checked(6_000, protocol, 500, fault).await;
        println!(
            "{protocol}, {fault:?}, {:.0?}: {outcome:?}",
            began.elapsed()
        );
        assert!(outcome.faults > 1);
        let others = outcome.others.into_inner();
        assert_eq!((outcome.foreign.into_inner(), others), (0, 0));
    }
}

/// A million checks of each case. Prints what came of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn no_check_of_a_million_gets_the_numbers_of_another() {
    for (protocol, fault) in CASES {
        let began = Instant::now();
        let outcome = checked(1_000_000, protocol, 10_000, fault).await;
        println!(
            "{protocol}, {fault:?}, {:.0?}: {outcome:?}",
            began.elapsed()
        );
        let others = outcome.others.into_inner();
        assert_eq!((outcome.foreign.into_inner(), others), (0, 0));
    }
}

/// A store through a proxy, to a server that knows its scripts.
async fn behind_proxy() -> (RedisServer, ReplyProxy, RedisStore) {
    let server = RedisServer::start();
    let proxy = ReplyProxy::before(server.port()).await;
    let store = RedisStore::open(&proxy.url()).unwrap().deadline(PATIENCE);
    (server, proxy, store)
}

fn code(outcome: Result<(), Error>) -> &'static str {
    outcome.err().map_or("ok", |error| error.code())
}

#[tokio::test]
async fn each_call_of_a_script_that_gets_the_reply_to_another_fails_and_ends_its_connection() {
    let (_server, proxy, store) = behind_proxy().await;
    let quotas = Quotas::from([Quota::per_hour(1_000), Quota::in_flight(9)]);
    let [limiter, key] = ["l", "ada"].map(Key::from);
    let subject = Subject::new(&limiter, &key, &quotas);
    let rate = Quotas::from(Quota::per_hour(1_000));
    let of_rate = Subject::new(&limiter, &key, &rate);
    let hour = Duration::from_secs(3_600);
    let calls = async |name: &str| match name {
        "check" => store.check(&[of_rate.check(1)]).await.map(drop),
        "reset" => store.adjust(of_rate.adjust(Change::Reset)).await,
        "credit" => {
            let credit = Change::Credit { units: 1 };
            store.adjust(of_rate.adjust(credit)).await
        }
        "charge" => {
            let charge = Change::Charge { units: 1 };
            store.adjust(of_rate.adjust(charge)).await
        }
        "block" => {
            let block = Block::new(&limiter, &key, hour);
            store.block(block).await.map(drop)
        }
        "refresh" => store.refresh_blocks(PATIENCE).await,
        "holders" => store.holders(subject).await.map(drop),
        "ping" => store.ping().await,
        _ => unreachable!("{name}"),
    };
    let names = [
        "check", "reset", "credit", "charge", "block", "refresh", "holders", "ping",
    ];
    // The replies that the proxy may send again.
    for name in names {
        assert_eq!(code(calls(name).await), "ok", "{name}");
    }
    for name in names {
        let before = proxy.connections();
        proxy.next(ReplyFault::Stray);
        assert_eq!(code(calls(name).await), OUT_OF_SYNC, "{name}");
        // Over the next connection.
        assert_eq!(code(calls(name).await), "ok", "{name}");
        assert_eq!(proxy.connections(), before + 1, "{name}");
    }
}

#[tokio::test]
async fn calls_behind_a_lost_reply_fail_at_once_and_say_that_they_may_have_been_executed() {
    let (server, proxy, store) = behind_proxy().await;
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(1_000));
    let _ = limiter.check("ada").await.unwrap();
    proxy.next(ReplyFault::Swallow);
    let began = Instant::now();
    // Each is a call of its own, and all are on the connection together.
    let charges = (0..4).map(|_| limiter.charge("ada", 1));
    let charged = futures_util::future::join_all(charges).await;
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    for charged in charged {
        let error = charged.unwrap_err();
        let text = error.to_string();
        assert_eq!(error.code(), OUT_OF_SYNC, "{text}");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let at = format!("Redis at 127.0.0.1:{}", proxy.port());
        for words in [&at, "may or may not have been executed", "a proxy"] {
            assert!(text.contains(words), "{text}");
        }
    }
    // They have been, and none twice.
    let behind = RateLimiter::new(store_on(&server), Quota::per_hour(1_000));
    assert_eq!(behind.check("ada").await.unwrap().used(), 6);
}

/// The bound: an error reply has no number.
#[tokio::test]
async fn a_foreign_noscript_sends_a_call_once_more_and_any_other_foreign_error_does_not() {
    let (server, proxy, store) = behind_proxy().await;
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(1_000));
    let behind = RateLimiter::new(store_on(&server), Quota::per_hour(1_000));
    let _ = limiter.check("ada").await.unwrap();
    for (error, executed) in [
        (&b"-NOSCRIPT No matching script.\r\n"[..], 2),
        (b"-LOADING Redis is loading the dataset in memory\r\n", 1),
        (b"-ERR something\r\n", 1),
    ] {
        let used = behind.peek("ada").await.unwrap().used();
        proxy.next(ReplyFault::Insert(error));
        let outcome = limiter.check("ada").await;
        // The server runs what came before it on the connection.
        let _ = store.ping().await;
        let now = behind.peek("ada").await.unwrap().used();
        assert_eq!(now - used, executed, "{outcome:?}");
        let _ = limiter.check("ada").await;
    }
}

#[tokio::test]
async fn a_given_connection_that_is_out_of_sync_answers_no_call_and_is_to_be_replaced() {
    let server = RedisServer::start();
    let proxy = ReplyProxy::before(server.port()).await;
    let client = redis::Client::open(proxy.url()).unwrap();
    // Replies wait as long as the calls of the store.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let connect = client.get_multiplexed_async_connection_with_config(&config);
    let connection = connect.await.unwrap();
    let store = RedisStore::with_connection(connection).deadline(Duration::from_secs(1));
    let limiter = RateLimiter::new(store, Quota::per_hour(1_000));
    let _ = limiter.check("ada").await.unwrap();
    proxy.next(ReplyFault::Swallow);
    let charges = (0..4).map(|_| limiter.charge("ada", 1));
    let charged = futures_util::future::join_all(charges).await;
    let error = charged.into_iter().next().unwrap().unwrap_err();
    assert_eq!(error.code(), OUT_OF_SYNC, "{error}");
    let words = "replace the connection that was given to `RedisStore::with_connection`";
    assert!(error.to_string().contains(words), "{error}");
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        let error = limiter.check("ada").await.unwrap_err();
        let codes = [OUT_OF_SYNC, "tollgate::E003", "tollgate::E012"];
        assert!(codes.contains(&error.code()), "{error}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_silent_server_is_back_when_it_replies_to_a_ping_with_a_pong() {
    let (_server, proxy, store) = behind_proxy().await;
    let store = store.fork().deadline(Duration::from_millis(500));
    let limiter = RateLimiter::new(store, Quota::per_hour(1_000));
    let _ = limiter.check("ada").await.unwrap();
    let before = proxy.connections();
    // The check has no reply within its deadline. Of three replies behind it, the second is for the PING.
    proxy.next(ReplyFault::Swallow);
    proxy.next(ReplyFault::Insert(b"$1\r\n1\r\n$1\r\n2\r\n"));
    let error = limiter.check("ada").await.unwrap_err();
    assert_eq!(error.code(), "tollgate::E003", "{error}");
    let began = Instant::now();
    while limiter.check("ada").await.is_err() {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(proxy.connections(), before + 1);
}
