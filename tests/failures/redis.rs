//! Errors of checks when Redis refuses, is unreachable, or does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redis::aio::ConnectionLike;
use redis::{Cmd, Commands, Pipeline, RedisError, RedisFuture, Value};
use tollgate::{Algorithm, ErrorKind, Quota, RateLimiter, RedisStore, Source};

use crate::lateness::with_lateness;
use crate::support::costs::algorithms;
use crate::support::node::Node;
use crate::support::redis_server::{DeadPort, RedisServer, run, signal};
use crate::support::store_on;
use crate::support::stored::name_of;

const ROW: &str = "tollgate:v3:{default,ada}";
const LOG: &str = "tollgate:v3:{default,ada}:log";

#[tokio::test]
async fn a_key_of_another_type_is_a_misconfiguration_and_stays_unchanged() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(5));
    let mut connection = server.connect();
    let both = [Quota::per_hour(5), Quota::per_day(9)];
    let both = RateLimiter::new(store_on(&server), both);
    let gcra = Quota::per_hour(5).with_algorithm(Algorithm::Gcra);
    let gcra = RateLimiter::new(store_on(&server), gcra);
    // So many units that the log is read in pages.
    let long = RateLimiter::new(store_on(&server), Quota::per_hour(5_000));
    // MGET reads a list as nothing, and SET would replace it.
    for is_list in [false, true] {
        for name in [LOG, ROW] {
            let () = connection.del(name).unwrap();
            if is_list {
                let () = connection.rpush(name, "somebody else's").unwrap();
            } else {
                let () = connection.set(name, "somebody else's").unwrap();
            }
        }
        for limiter in [&limiter, &both, &gcra, &long] {
            for cost in [1, 0, 6] {
                let error = limiter.check_n("ada", cost).await.unwrap_err();
                if cost > limiter.quotas().iter().next().unwrap().limit() {
                    assert_eq!(error.kind(), ErrorKind::CostExceedsLimit);
                    continue;
                }
                assert_eq!(error.kind(), ErrorKind::Misconfigured);
                assert!(error.to_string().contains("WRONGTYPE"), "{error}");
            }
            assert!(limiter.admin().credit("ada", 1).await.is_err());
        }
        for name in [LOG, ROW] {
            if is_list {
                let values: Vec<String> = connection.lrange(name, 0, -1).unwrap();
                assert_eq!(values, ["somebody else's"]);
            } else {
                let value: String = connection.get(name).unwrap();
                assert_eq!(value, "somebody else's");
            }
        }
    }
    assert!(limiter.check("bob").await.unwrap().is_allowed());
}

/// Stores a fixed window of 366 days with one unit and half a microsecond for its beginning, as no script does.
fn store_nonsense(connection: &mut redis::Connection) {
    let window = 366 * 86_400_000_000_u64;
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(connection).unwrap();
    let index = u32::try_from(seconds * 1_000_000 / window).unwrap();
    let mut value = u32::try_from(seconds + 3_600)
        .unwrap()
        .to_be_bytes()
        .to_vec();
    value.extend(b"\0\x07f");
    value.extend(&window.to_be_bytes()[2..]);
    value.extend(0.5_f64.to_be_bytes());
    value.extend(f64::from(index).to_be_bytes());
    value.extend(1_u32.to_be_bytes());
    let () = connection.set_ex(ROW, value, 3_600).unwrap();
}

#[tokio::test]
async fn a_reply_that_makes_no_sense_for_one_key_fails_neither_the_call_nor_the_server() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    store_nonsense(&mut connection);
    let store = store_on(&server);
    let year = Quota::new(1_000, Duration::from_secs(366 * 86_400));
    let limiter = RateLimiter::new(store.clone(), year.with_algorithm(Algorithm::FixedWindow));
    let other = RateLimiter::new(store, Quota::per_hour(1_000)).name("other");
    // More in a row than open the circuit breaker.
    for _ in 0..20 {
        let error = limiter.check("ada").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidReply, "{error}");
    }
    // The first call of a round carries one check, the next ones several.
    for round in 0..5 {
        let mut checks = tokio::task::JoinSet::new();
        for number in 0..30 {
            let (limiter, key) = match number % 3 {
                0 => (limiter.clone(), "ada"),
                1 => (limiter.clone(), "bob"),
                _ => (other.clone(), "ada"),
            };
            checks.spawn(async move { (number, limiter.check(key).await) });
        }
        while let Some(checked) = checks.join_next().await {
            let (number, decision) = checked.unwrap();
            match decision {
                Ok(decision) => {
                    assert_ne!(number % 3, 0, "{decision:?}");
                    assert_eq!(decision.source(), Source::Redis);
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::InvalidReply, "{round}: {error}");
                    assert_eq!(number % 3, 0, "{round}: {error}");
                }
            }
        }
    }
    limiter.admin().reset("ada").await.unwrap();
    assert_eq!(limiter.check("ada").await.unwrap().used(), 1);
}

#[tokio::test]
async fn no_quota_is_charged_if_one_fails() {
    let server = RedisServer::start();
    let hour = Duration::from_secs(3_600);
    let quotas = algorithms().map(|(_, algorithm)| Quota::new(5, hour).with_algorithm(algorithm));
    let limiter = RateLimiter::new(store_on(&server), quotas.collect::<Vec<_>>());
    let mut connection = server.connect();
    for (_, algorithm) in algorithms() {
        let broken = &name_of("{default,ada}", algorithm, hour);
        let () = connection.set(broken, "somebody else's").unwrap();
        let error = limiter.check("ada").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured);
        let keys: Vec<String> = connection.keys("*").unwrap();
        assert_eq!(keys, [broken.as_str()]);
        let () = connection.del(broken).unwrap();
    }
}

#[tokio::test]
async fn a_missing_permission_is_a_misconfiguration() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    for (user, rights) in [
        ("nobody", "-@all"),
        ("reads_not", "+@all -mget"),
        ("sets_not", "+@all -set"),
    ] {
        let mut command = vec!["ACL", "SETUSER", user, "on", ">pw", "~*"];
        command.extend(rights.split(' '));
        run(&mut connection, &command);
        let url = format!("redis://{user}:pw@127.0.0.1:{}", server.port());
        let store = RedisStore::open(&url)
            .unwrap()
            .deadline(Duration::from_secs(5));
        let error = RateLimiter::new(store, Quota::per_hour(5))
            .check("ada")
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{user}: {error}");
        assert!(!error.to_string().contains("pw@"), "{error}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_a_misconfiguration_until_corrected_and_is_not_shown() {
    let server = RedisServer::start();
    let url = format!("redis://default:hunter2@127.0.0.1:{}", server.port());
    let mut connection = server.connect();
    run(&mut connection, &["CONFIG", "SET", "requirepass", "other"]);
    let store = RedisStore::open(&url)
        .unwrap()
        .deadline(Duration::from_secs(5));
    let error = store.ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error:?}");
    assert!(!format!("{error:?}{store:?}").contains("hunter2"));

    run(
        &mut connection,
        &["CONFIG", "SET", "requirepass", "hunter2"],
    );
    let patience = Instant::now() + Duration::from_secs(5);
    while let Err(error) = store.ping().await {
        assert!(Instant::now() < patience, "{error}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_password_that_a_server_quotes_is_not_shown() {
    let arguments = [
        ["--rename-command", "HELLO", ""],
        ["--rename-command", "AUTH", ""],
    ];
    let server = Node::start(&[&arguments.concat()[..], &["--requirepass", "s3cret"]].concat());
    let mut urls = vec![
        format!("redis://:s3cret@{}?protocol=resp3", server.address()),
        format!("redis://:s3cret@{}", server.address()),
        format!("redis://user:s3cret@{}?protocol=resp2", server.address()),
    ];
    if cfg!(feature = "cluster") {
        urls.push(format!(
            "redis+cluster://:s3cret@{}?protocol=resp3",
            server.address()
        ));
        urls.push(format!("redis+cluster://:s3cret@{}", server.address()));
    }
    for url in urls {
        let store = RedisStore::open(&url).unwrap();
        let store = store.deadline(Duration::from_secs(5));
        let error = store.ping().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error:?}");
        let source = std::error::Error::source(&error);
        let shown = format!("{error} {error:?} {source:?} {store:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
        // The cause is still named: by the server, or by the client in its own words.
        let told = ["unknown command", "RESP3NotSupported", "AUTH"];
        let is_told = told.iter().any(|told| shown.contains(told));
        assert!(is_told || !url.ends_with("resp3"), "{shown}");
    }
}

/// A connection that counts commands and fails all of them.
#[derive(Clone)]
struct Failing {
    commands: Arc<AtomicU32>,
    failure: fn() -> RedisError,
}

impl ConnectionLike for Failing {
    fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
        self.commands.fetch_add(1, Ordering::Relaxed);
        let failure = (self.failure)();
        Box::pin(async move { Err(failure) })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        let failure = (self.failure)();
        Box::pin(async move { Err(failure) })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

#[tokio::test]
async fn a_command_that_may_have_been_executed_is_not_sent_again() {
    let failures: [fn() -> RedisError; 4] = [
        || std::io::Error::from(std::io::ErrorKind::BrokenPipe).into(),
        || std::io::Error::from(std::io::ErrorKind::TimedOut).into(),
        || redis::make_extension_error("READONLY".into(), None),
        || redis::make_extension_error("BUSY".into(), None),
    ];
    for failure in failures {
        let commands = Arc::new(AtomicU32::new(0));
        let connection = Failing {
            commands: Arc::clone(&commands),
            failure,
        };
        // Only the check sends commands.
        let store = RedisStore::with_connection(connection).block_list_refresh(Duration::ZERO);
        let limiter = RateLimiter::new(store, Quota::per_hour(5));
        assert!(limiter.check("ada").await.is_err());
        assert_eq!(commands.load(Ordering::Relaxed), 1, "{}", failure());
    }
}

#[tokio::test]
async fn a_full_server_still_refuses_but_admits_nothing() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(2));
    let _ = limiter.check_n("ada", 2).await.unwrap();
    let mut connection = server.connect();
    run(&mut connection, &["CONFIG", "SET", "maxmemory", "1"]);
    assert!(!limiter.check("ada").await.unwrap().is_allowed());
    let error = limiter.check("bob").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    run(&mut connection, &["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(limiter.check("bob").await.unwrap().used(), 1);
}

#[tokio::test]
async fn a_replica_is_unavailable() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(2));
    let nowhere = DeadPort::new();
    server.replicate(nowhere.port());
    let error = limiter.check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn an_unreachable_server_is_unavailable_within_the_deadline() {
    let nowhere = DeadPort::new();
    let limiter = RateLimiter::new(
        RedisStore::open(&nowhere.url()).unwrap(),
        Quota::per_hour(2),
    );
    for _ in 0..3 {
        let begin = Instant::now();
        let (checked, late) = with_lateness(limiter.check("ada")).await;
        let took = begin.elapsed();
        let error = checked.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let bound = Duration::from_millis(150) + late;
        assert!(took < bound, "{took:?}, {late:?} late");
    }
}

#[tokio::test]
async fn a_hanging_server_is_a_timeout_at_the_deadline() {
    let server = RedisServer::start();
    let deadline = Duration::from_millis(60);
    let store = store_on(&server).deadline(deadline);
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(9));
    store.ping().await.unwrap();
    signal(&server, "STOP");
    let begin = Instant::now();
    let error = limiter.check("ada").await.unwrap_err();
    let waited = begin.elapsed();
    signal(&server, "CONT");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!((deadline..deadline * 5).contains(&waited), "{waited:?}");
}
