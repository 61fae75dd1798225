//! What the doctor finds on healthy and on faulty servers.

use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use proptest::test_runner::{Config, TestCaseError, TestRunner};
use redis::aio::ConnectionLike;
use redis::{Arg, AsyncConnectionConfig, Cmd, Commands, Connection, Pipeline, RedisFuture, Value};
use tollgate::RedisStore;
use tollgate_doctor::{Severity, examine, examine_url};

use crate::support::malformed_urls::{hides_password, malformed};
use crate::support::node::Node;
use crate::support::redis_server::{DeadPort, RedisServer, run, signal, times_to_live};
use crate::support::{assert_finding, finding, severity_and_text, store_on};

/// The ACL rules that the documentation gives.
fn least_permissions() -> String {
    let documentation = include_str!("../../../../src/store/redis/redis_store.rs");
    let (_, rules) = documentation.split_once(">password ").unwrap();
    let (rules, _) = rules.split_once("/// ```").unwrap();
    rules.replace("///", "")
}

fn keys(connection: &mut Connection) -> Vec<String> {
    connection.keys("*").unwrap()
}

/// A store that logs in as a new user with these ACL rules.
fn store_as(server: &RedisServer, user: &str, permissions: &str) -> RedisStore {
    let mut command = vec!["ACL", "SETUSER", user, "on", ">hunter2"];
    command.extend(permissions.split_whitespace());
    run(&mut server.connect(), &command);
    let url = format!("redis://{user}:hunter2@127.0.0.1:{}", server.port());
    RedisStore::open(&url)
        .unwrap()
        .deadline(Duration::from_secs(10))
}

#[tokio::test]
async fn a_healthy_server_has_only_ok_findings_and_keeps_no_key() {
    let server = RedisServer::start();
    let report = examine(&store_on(&server)).await;
    assert_eq!(report.worst(), Severity::Ok, "{report}");
    let topics: Vec<_> = report
        .findings()
        .iter()
        .map(|finding| finding.topic)
        .collect();
    let expected = [
        "connection",
        "server",
        "role",
        "permissions",
        "time",
        "script",
        "memory",
        "eviction",
        "replicas",
        "persistence",
        "round trip",
        "clock",
    ];
    assert_eq!(topics, expected);
    assert_eq!(keys(&mut server.connect()), [""; 0]);
    assert_eq!(report.to_string().lines().count(), expected.len());
}

#[tokio::test]
async fn external_connections_and_resp2_are_examined_too() {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(10)))
        .set_response_timeout(Some(Duration::from_secs(10)));
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let connection = connection.await.unwrap();
    let external = RedisStore::with_connection(connection);
    let url = format!("{}?protocol=resp2", server.url());
    for store in [external, RedisStore::open(&url).unwrap()] {
        let report = examine(&store.deadline(Duration::from_secs(10))).await;
        assert_eq!(report.worst(), Severity::Ok, "{report}");
        assert_eq!(report.findings().len(), 12, "{report}");
    }
}

#[tokio::test]
async fn an_evicting_policy_is_reported_with_its_effect_and_a_remedy() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    run(
        &mut connection,
        &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"],
    );
    let store = store_on(&server);
    assert_finding(
        &examine(&store).await,
        "eviction",
        Severity::Warning,
        &["allkeys-lru", "fresh quota", "maxmemory 0", "noeviction"],
    );
    run(&mut connection, &["CONFIG", "SET", "maxmemory", "1"]);
    assert_finding(
        &examine(&store).await,
        "eviction",
        Severity::Problem,
        &["allkeys-lru", "nearly full"],
    );
}

#[tokio::test]
async fn a_full_server_is_a_problem_of_memory_and_script() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    run(&mut connection, &["CONFIG", "SET", "maxmemory", "1"]);
    let report = examine(&store_on(&server)).await;
    assert_finding(
        &report,
        "memory",
        Severity::Problem,
        &["no room", "raise maxmemory"],
    );
    assert_finding(
        &report,
        "script",
        Severity::Problem,
        &["OOM", "raise maxmemory"],
    );
    // The permissions are not the cause.
    assert_finding(&report, "permissions", Severity::Ok, &[]);
    assert_eq!(report.worst(), Severity::Problem);
}

#[tokio::test]
async fn a_replica_is_the_wrong_server() {
    let server = RedisServer::start();
    let nowhere = DeadPort::new();
    let port = nowhere.port().to_string();
    server.replicate(nowhere.port());
    let report = examine(&store_on(&server)).await;
    assert_finding(
        &report,
        "role",
        Severity::Problem,
        &["a replica of 127.0.0.1", &port],
    );
    assert_finding(
        &report,
        "script",
        Severity::Problem,
        &["READONLY", "the master"],
    );
    assert_finding(&report, "permissions", Severity::Ok, &[]);
}

#[tokio::test]
async fn the_documented_permissions_are_enough() {
    let server = RedisServer::start();
    // Checks do not need PING.
    let permissions = format!("{} -ping", least_permissions());
    let report = examine(&store_as(&server, "least", &permissions)).await;
    for topic in ["script", "permissions", "round trip", "clock"] {
        assert_finding(&report, topic, Severity::Ok, &[]);
    }
    // Read from HELLO.
    assert_finding(&report, "role", Severity::Ok, &["a master"]);
    assert_ne!(finding(&report, "server").text, "");
    assert_finding(
        &report,
        "connection",
        Severity::Ok,
        &["PING is not permitted"],
    );
    assert_finding(&report, "info", Severity::Unknown, &["NOPERM", "+info"]);
    // Each topic that was not examined says so: an evicting policy is not taken for a good one.
    for topic in ["memory", "eviction", "replicas", "persistence"] {
        assert_finding(&report, topic, Severity::Unknown, &["not examined", "INFO"]);
    }
    assert_eq!(report.worst(), Severity::Unknown, "{report}");
    assert!(
        !format!("{report}{report:?}").contains("hunter2"),
        "{report}"
    );
    assert_eq!(keys(&mut server.connect()), [""; 0]);
}

#[tokio::test]
async fn exactly_the_missing_permissions_are_named() {
    let server = RedisServer::start();
    let least = least_permissions();
    for missing in [
        "append", "getrange", "strlen", "pttl", "pexpire", "unlink", "zadd", "zrem", "set", "eval",
        "evalsha",
    ] {
        let permissions = format!("{least} +info +ping +config +acl|whoami -{missing}");
        let report = examine(&store_as(&server, missing, &permissions)).await;
        assert_finding(&report, "permissions", Severity::Problem, &[]);
        let (_, text) = severity_and_text(&report, "permissions");
        let expected =
            format!("the user may not run {missing} -> ACL SETUSER {missing} +{missing}");
        assert_eq!(text, expected);
    }
    let report = examine(&store_as(&server, "two", &format!("{least} -zcard -time"))).await;
    let words = ["may not run zcard, time", "ACL SETUSER <user> +zcard +time"];
    assert_finding(&report, "permissions", Severity::Problem, &words);
    // Without SET, the others are reported where trying them leaves no key.
    let report = examine(&store_as(
        &server,
        "text",
        &format!("{least} -set -strlen -append"),
    ))
    .await;
    let (_, text) = severity_and_text(&report, "permissions");
    assert!(
        text.starts_with("the user may not run set, strlen ->"),
        "{text}"
    );
    // No key is left if the user may neither remove it nor set its time to live.
    run(&mut server.connect(), &["FLUSHALL"]);
    let permissions = format!("{least} -unlink -pexpire");
    let report = examine(&store_as(&server, "three", &permissions)).await;
    assert_finding(
        &report,
        "permissions",
        Severity::Problem,
        &["may not run unlink, pexpire "],
    );
    assert_finding(&report, "script", Severity::Problem, &["not tried"]);
    let left = times_to_live(&mut server.connect());
    assert!(left.iter().all(|(_, millis)| *millis > 0), "{left:?}");
}

#[tokio::test]
async fn no_key_is_left_by_a_user_who_may_not_unlink() {
    let server = RedisServer::start();
    let least = least_permissions();
    // UNLINK, then DEL, then PEXPIRE remove the keys.
    for (user, permissions) in [
        ("deletes", format!("{least} -unlink -pexpire +del")),
        ("expires", format!("{least} -unlink")),
    ] {
        let report = examine(&store_as(&server, user, &permissions)).await;
        assert_finding(&report, "permissions", Severity::Problem, &["unlink"]);
        assert_finding(&report, "script", Severity::Problem, &[]);
        assert_eq!(keys(&mut server.connect()), [""; 0], "{user}");
    }
    // None of them may be run: the key expires soon.
    let none = format!("{least} -unlink -pexpire");
    let _ = examine(&store_as(&server, "none", &none)).await;
    let left = times_to_live(&mut server.connect());
    assert!(
        left.iter().all(|(_, millis)| (1..=60_000).contains(millis)),
        "{left:?}"
    );
}

#[tokio::test]
async fn a_server_that_refuses_time_cannot_be_used() {
    let server = RedisServer::start();
    let permissions = format!("{} -time", least_permissions());
    let blind = store_as(&server, "blind", &permissions);
    let without = RedisServer::start_with(&["--rename-command", "TIME", ""]);
    for (store, remedy) in [
        (blind, "ACL SETUSER <user> +time"),
        (store_on(&without), "remove `rename-command` for time"),
    ] {
        let report = examine(&store).await;
        assert_finding(
            &report,
            "time",
            Severity::Problem,
            &[
                "refuses TIME in scripts",
                "and outside of them, so the store cannot work here",
                remedy,
            ],
        );
        // The same failure of each check is not repeated.
        for topic in ["script", "round trip"] {
            let words = ["scripts may not call TIME"];
            assert_finding(&report, topic, Severity::Unknown, &words);
        }
    }
}

#[tokio::test]
async fn memory_that_is_nearly_full_is_a_warning() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let info: redis::InfoDict = redis::cmd("INFO").query(&mut connection).unwrap();
    let used: u64 = info.get("used_memory").unwrap();
    // The buffers of further clients fit in.
    let max = (used * 100 / 85).to_string();
    run(&mut connection, &["CONFIG", "SET", "maxmemory", &max]);
    let report = examine(&store_on(&server)).await;
    assert_finding(
        &report,
        "memory",
        Severity::Warning,
        &["MiB used of", "%", "raise maxmemory"],
    );
}

#[tokio::test]
async fn a_web_server_is_no_redis() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, axum::Router::new()).await });
    let store = RedisStore::open(&format!("redis://{address}")).unwrap();
    let report = examine(&store).await;
    assert_eq!(report.findings().len(), 1, "{report}");
    let words = ["failed to read a reply", "is it a Redis server?"];
    assert_finding(&report, "connection", Severity::Problem, &words);
}

/// An application's connection that executes commands up to this one, and then never answers again.
#[derive(Clone)]
struct GoesSilent {
    connection: redis::aio::MultiplexedConnection,
    silent_from: &'static str,
    is_silent: Arc<AtomicBool>,
}

impl ConnectionLike for GoesSilent {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            if self.is_silent.load(Ordering::Relaxed) {
                return std::future::pending().await;
            }
            let reply = self.connection.send_packed_command(cmd).await;
            let is_last = matches!(
                cmd.args_iter().next(),
                Some(Arg::Simple(name)) if name == self.silent_from.as_bytes()
            );
            if is_last {
                self.is_silent.store(true, Ordering::Relaxed);
                return std::future::pending().await;
            }
            reply
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        unreachable!("a store sends no pipeline")
    }

    fn get_db(&self) -> i64 {
        0
    }
}

#[tokio::test]
async fn wherever_answers_stop_all_keys_expire_and_no_permission_is_blamed() {
    for silent_from in ["SET", "APPEND", "ZADD", "EVALSHA"] {
        let server = RedisServer::start();
        let client = redis::Client::open(server.url()).unwrap();
        let connection = client.get_multiplexed_async_connection().await.unwrap();
        let store = RedisStore::with_connection(GoesSilent {
            connection,
            silent_from,
            is_silent: Arc::default(),
        });
        let report = examine(&store).await;
        let left = times_to_live(&mut server.connect());
        assert!(
            left.iter().all(|(_, millis)| *millis > 0),
            "{silent_from}: {left:?}"
        );
        assert_finding(
            &report,
            "permissions",
            Severity::Unknown,
            &["failed to try the commands"],
        );
        assert_finding(&report, "script", Severity::Unknown, &["not tried"]);
        assert_finding(&report, "connection", Severity::Ok, &[]);
        assert!(!report.to_string().contains("the user may"), "{report}");
    }
}

#[tokio::test]
async fn keys_that_may_not_be_accessed_are_named_by_the_prefix() {
    let server = RedisServer::start();
    let store = store_as(&server, "other", &least_permissions()).prefix("shop");
    let report = examine(&store).await;
    assert_finding(&report, "script", Severity::Problem, &[]);
    let words = [
        "may not access the keys shop:*",
        "ACL SETUSER <user> ~shop:*",
    ];
    assert_finding(&report, "permissions", Severity::Problem, &words);
}

#[tokio::test]
async fn renamed_commands_are_done_without_or_reported() {
    let renamed = ["ACL", "CONFIG", "HELLO", "STRLEN"];
    let arguments = renamed.map(|command| ["--rename-command", command, ""]);
    let server = RedisServer::start_with(&arguments.concat());
    let url = format!("{}?protocol=resp2", server.url());
    let store = RedisStore::open(&url).unwrap();
    let report = examine(&store.deadline(Duration::from_secs(10))).await;
    assert_finding(
        &report,
        "permissions",
        Severity::Problem,
        &["lacks or renames strlen,", "remove `rename-command`"],
    );
    for topic in ["server", "replicas", "persistence"] {
        assert_finding(&report, topic, Severity::Ok, &[]);
    }
}

#[tokio::test]
async fn an_unreachable_server_is_the_only_finding() {
    let nowhere = DeadPort::new();
    let begin = Instant::now();
    let report = examine(&RedisStore::open(&nowhere.url()).unwrap()).await;
    assert!(
        begin.elapsed() < Duration::from_secs(3),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(report.findings().len(), 1, "{report}");
    assert_finding(
        &report,
        "connection",
        Severity::Problem,
        &["is redis-server running at 127.0.0.1:"],
    );
}

#[tokio::test]
async fn a_hanging_server_is_reported_within_three_seconds() {
    let server = RedisServer::start();
    let store = RedisStore::open(&server.url()).unwrap();
    store
        .fork()
        .deadline(Duration::from_secs(10))
        .ping()
        .await
        .unwrap();
    signal(&server, "STOP");
    let begin = Instant::now();
    let report = examine(&store).await;
    let waited = begin.elapsed();
    signal(&server, "CONT");
    assert!(waited < Duration::from_secs(3), "{waited:?}");
    assert_eq!(report.findings().len(), 1, "{report}");
    assert_finding(
        &report,
        "connection",
        Severity::Problem,
        &["did not answer within 1s"],
    );
}

#[tokio::test]
async fn a_wrong_password_is_a_problem_and_is_not_shown() {
    let server = RedisServer::start();
    let url = format!("redis://default:hunter2@127.0.0.1:{}", server.port());
    run(
        &mut server.connect(),
        &["CONFIG", "SET", "requirepass", "other"],
    );
    let store = RedisStore::open(&url)
        .unwrap()
        .deadline(Duration::from_secs(10));
    let report = examine(&store).await;
    assert_eq!(report.findings().len(), 1, "{report}");
    assert_finding(
        &report,
        "connection",
        Severity::Problem,
        &["the password in the URL"],
    );
    assert!(
        !format!("{report}{report:?}").contains("hunter2"),
        "{report}"
    );
}

#[tokio::test]
async fn replicas_without_min_replicas_to_write_are_a_warning() {
    let master = RedisServer::start();
    let replica = RedisServer::start();
    let mut connection = master.connect();
    run(
        &mut connection,
        &["CONFIG", "SET", "repl-diskless-sync-delay", "0"],
    );
    replica.replicate(master.port());
    let deadline = Instant::now() + Duration::from_secs(20);
    let is_online = |connection: &mut Connection| {
        let info: String = redis::cmd("INFO")
            .arg("replication")
            .query(connection)
            .unwrap();
        info.contains("state=online")
    };
    while !is_online(&mut connection) {
        assert!(Instant::now() < deadline, "the replica does not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let store = store_on(&master);
    let words = ["up to twice the limits", "min-replicas-to-write 1"];
    assert_finding(
        &examine(&store).await,
        "replicas",
        Severity::Warning,
        &words,
    );
    run(
        &mut connection,
        &["CONFIG", "SET", "min-replicas-to-write", "2"],
    );
    let report = examine(&store).await;
    assert_finding(
        &report,
        "replicas",
        Severity::Problem,
        &["asks for 2", "NOREPLICAS"],
    );
    assert_finding(&report, "script", Severity::Problem, &["NOREPLICAS"]);
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn tls_on_one_side_only_is_a_problem_of_the_connection() {
    use crate::support::tls::TlsServer;

    let server = TlsServer::start(false);
    let plain_port = server.node.address();
    for (url, words) in [
        (
            server.url().replace("rediss://", "redis://"),
            [
                "closed the connection before its first reply",
                "use rediss:// if the port speaks TLS",
            ],
        ),
        (
            format!("rediss://{plain_port}"),
            [
                "failed to set up TLS with",
                "use redis:// if the port does not speak TLS",
            ],
        ),
    ] {
        let report = examine(&RedisStore::open(&url).unwrap()).await;
        assert_eq!(report.findings().len(), 1, "{report}");
        assert_finding(&report, "connection", Severity::Problem, &words);
    }
}

#[tokio::test]
async fn a_url_may_have_settings_and_a_store_in_memory_has_no_finding() {
    let server = RedisServer::start();
    let user = [
        "ACL", "SETUSER", "app", "on", ">hunter2", "~other:*", "+@all",
    ];
    run(&mut server.connect(), &user);
    let at = format!("app:hunter2@127.0.0.1:{}", server.port());
    let url = format!("redis://{at}?prefix=shop&deadline=10s");
    let report = examine_url(&url).await.unwrap();
    let words = ["may not access the keys shop:*"];
    assert_finding(&report, "permissions", Severity::Problem, &words);
    let memory = examine_url("memory:?max_keys=5").await.unwrap();
    assert_eq!(memory.findings().len(), 0);
    let error = examine_url("redis://app:hunter2@").await.unwrap_err();
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

#[test]
fn the_doctor_shows_no_password_however_malformed_a_url_is() {
    let urls = &[
        "redis://u:PASSWORD@h:1/0",
        "redis:/u:PASSWORD@h",
        "redis+cluster://u:PASSWORD@a,b",
        "redis+sentinel://u:PASSWORD@a/m?sentinel_password=PASSWORD",
        "unix:/u:PASSWORD@h",
    ];
    let config = Config {
        cases: 5_000,
        failure_persistence: None,
        ..Config::default()
    };
    let shows_no_password = |url: String| {
        // A URL that is not malformed leads to a server.
        if tollgate::store::from_url(&url).is_ok() {
            return Ok(());
        }
        let examined = pin!(examine_url(&url));
        let Poll::Ready(Err(error)) = examined.poll(&mut Context::from_waker(Waker::noop())) else {
            return Err(TestCaseError::fail("a URL is accepted"));
        };
        hides_password(&url, &format!("{error} {error:?}"))
    };
    TestRunner::new(config)
        .run(&malformed(urls), shows_no_password)
        .unwrap();
}

#[test]
fn the_program_shows_no_password_of_its_arguments() {
    for argument in [
        "redis:/u:secret@h",
        "secret:6379",
        "--url=redis://u:secret@h",
        "redis://u:secret@h:port",
    ] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_tollgate-doctor"));
        let output = program.arg(argument).output().unwrap();
        let shown = [output.stdout, output.stderr].concat();
        let shown = String::from_utf8(shown).unwrap();
        assert!(!output.status.success(), "{argument}: {shown}");
        assert!(!shown.contains("secret"), "{argument}: {shown}");
    }
}

#[tokio::test]
async fn a_password_that_a_server_quotes_is_not_shown() {
    let arguments = [
        ["--rename-command", "HELLO", ""],
        ["--rename-command", "AUTH", ""],
    ];
    let server = Node::start(&[&arguments.concat()[..], &["--requirepass", "s3cret"]].concat());
    for (scheme, parameters) in [
        ("redis://", "?protocol=resp3"),
        ("redis://", ""),
        ("redis://user", "?protocol=resp2"),
        ("redis+cluster://", "?protocol=resp3"),
        ("redis+cluster://", ""),
    ] {
        let url = format!("{scheme}:s3cret@{}{parameters}", server.address());
        let store = RedisStore::open(&url).unwrap();
        let report = examine(&store.deadline(Duration::from_secs(5))).await;
        assert_finding(&report, "connection", Severity::Problem, &[]);
        let shown = format!("{report} {report:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
