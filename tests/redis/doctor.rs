//! What the doctor finds, of servers that are well and of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::aio::ConnectionLike;
use redis::{Arg, AsyncConnectionConfig, Cmd, Commands, Connection, Pipeline, RedisFuture, Value};
use tollgate::RedisStore;
use tollgate::doctor::{Finding, Report, Severity};

use crate::store_on;
use crate::support::cluster::Cluster;
use crate::support::redis_server::{DeadPort, RedisServer, run, signal, times_to_live};

/// The rules that the documentation gives a user.
fn least_rights() -> String {
    let documentation = include_str!("../../src/store/redis/redis_store.rs");
    let (_, rules) = documentation.split_once(">password ").unwrap();
    let (rules, _) = rules.split_once("/// ```").unwrap();
    rules.replace("///", "")
}

fn finding<'a>(report: &'a Report, topic: &str) -> &'a Finding {
    let mut findings = report.findings().iter();
    let found = findings.find(|finding| finding.topic() == topic);
    found.unwrap_or_else(|| panic!("nothing is said of {topic}:\n{report}"))
}

/// How bad it is, and the text and the remedy.
fn told(report: &Report, topic: &str) -> (Severity, String) {
    let finding = finding(report, topic);
    let remedy = finding.remedy().unwrap_or_default();
    (
        finding.severity(),
        format!("{} -> {remedy}", finding.text()),
    )
}

#[track_caller]
fn assert_told(report: &Report, topic: &str, severity: Severity, words: &[&str]) {
    let (found, text) = told(report, topic);
    assert_eq!(found, severity, "{topic}: {text}");
    for word in words {
        assert!(text.contains(word), "{word} is not said: {text}");
    }
}

fn keys(connection: &mut Connection) -> Vec<String> {
    connection.keys("*").unwrap()
}

/// A user of these rights, and a store that logs in as it.
fn store_as(server: &RedisServer, user: &str, rights: &str) -> RedisStore {
    let mut command = vec!["ACL", "SETUSER", user, "on", ">hunter2"];
    command.extend(rights.split_whitespace());
    run(&mut server.connect(), &command);
    let url = format!("redis://{user}:hunter2@127.0.0.1:{}", server.port());
    RedisStore::open(&url)
        .unwrap()
        .deadline(Duration::from_secs(10))
}

#[tokio::test]
async fn a_server_that_is_well_has_no_finding_but_good_ones_and_keeps_no_key() {
    let server = RedisServer::start();
    let report = store_on(&server).doctor().await;
    assert_eq!(report.worst(), Severity::Ok, "{report}");
    let topics: Vec<_> = report.findings().iter().map(Finding::topic).collect();
    let expected = [
        "connection",
        "server",
        "role",
        "rights",
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
async fn a_connection_of_the_application_and_resp2_are_looked_at_as_well() {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let patient = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(10)))
        .set_response_timeout(Some(Duration::from_secs(10)));
    let connection = client.get_multiplexed_async_connection_with_config(&patient);
    let connection = connection.await.unwrap();
    let given = RedisStore::with_connection(connection);
    let url = format!("{}?protocol=resp2", server.url());
    for store in [given, RedisStore::open(&url).unwrap()] {
        let report = store.deadline(Duration::from_secs(10)).doctor().await;
        assert_eq!(report.worst(), Severity::Ok, "{report}");
        assert_eq!(report.findings().len(), 11, "{report}");
    }
}

#[tokio::test]
async fn an_evicting_policy_is_told_with_what_it_does_and_what_to_do() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    run(
        &mut connection,
        &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"],
    );
    let store = store_on(&server);
    assert_told(
        &store.doctor().await,
        "eviction",
        Severity::Warning,
        &["allkeys-lru", "fresh quota", "maxmemory 0", "noeviction"],
    );
    run(&mut connection, &["CONFIG", "SET", "maxmemory", "1"]);
    assert_told(
        &store.doctor().await,
        "eviction",
        Severity::Problem,
        &["allkeys-lru", "nearly full"],
    );
}

#[tokio::test]
async fn a_full_server_is_a_problem_of_its_memory_and_of_the_script() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    run(&mut connection, &["CONFIG", "SET", "maxmemory", "1"]);
    let report = store_on(&server).doctor().await;
    assert_told(
        &report,
        "memory",
        Severity::Problem,
        &["no room", "raise maxmemory"],
    );
    assert_told(
        &report,
        "script",
        Severity::Problem,
        &["OOM", "raise maxmemory"],
    );
    // It is not for want of rights.
    assert_told(&report, "rights", Severity::Ok, &[]);
    assert_eq!(report.worst(), Severity::Problem);
}

#[tokio::test]
async fn a_replica_is_the_wrong_server() {
    let server = RedisServer::start();
    let nowhere = DeadPort::new();
    let port = nowhere.port().to_string();
    run(&mut server.connect(), &["REPLICAOF", "127.0.0.1", &port]);
    let report = store_on(&server).doctor().await;
    assert_told(
        &report,
        "role",
        Severity::Problem,
        &["a replica of 127.0.0.1", &port],
    );
    assert_told(
        &report,
        "script",
        Severity::Problem,
        &["READONLY", "the master"],
    );
    assert_told(&report, "rights", Severity::Ok, &[]);
}

#[tokio::test]
async fn a_user_of_the_least_rights_has_enough_of_them() {
    let server = RedisServer::start();
    // Checks do without PING.
    let rights = format!("{} -ping", least_rights());
    let report = store_as(&server, "least", &rights).doctor().await;
    for topic in ["script", "rights", "round trip", "clock"] {
        assert_told(&report, topic, Severity::Ok, &[]);
    }
    // HELLO tells these.
    assert_told(&report, "role", Severity::Ok, &["a master"]);
    assert_ne!(finding(&report, "server").text(), "");
    assert_told(
        &report,
        "connection",
        Severity::Ok,
        &["PING is not permitted"],
    );
    assert_told(&report, "info", Severity::Unknown, &["eviction", "+info"]);
    assert_eq!(report.worst(), Severity::Unknown, "{report}");
    assert!(
        !format!("{report}{report:?}").contains("hunter2"),
        "{report}"
    );
    assert_eq!(keys(&mut server.connect()), [""; 0]);
}

#[tokio::test]
async fn rights_that_are_missing_are_named_and_nothing_else() {
    let server = RedisServer::start();
    let least = least_rights();
    for missing in [
        "rpush", "pexpire", "unlink", "zadd", "zrem", "set", "eval", "evalsha",
    ] {
        let rights = format!("{least} +info +ping +config +acl|whoami -{missing}");
        let report = store_as(&server, missing, &rights).doctor().await;
        assert_told(&report, "rights", Severity::Problem, &[]);
        let (_, text) = told(&report, "rights");
        let expected =
            format!("the user may not run {missing} -> ACL SETUSER {missing} +{missing}");
        assert_eq!(text, expected);
    }
    let report = store_as(&server, "two", &format!("{least} -zcard -time"))
        .doctor()
        .await;
    assert_told(&report, "script", Severity::Problem, &[]);
    let words = ["may not run zcard, time", "ACL SETUSER <user> +zcard +time"];
    assert_told(&report, "rights", Severity::Problem, &words);
    // Without SET, what else is missing is told where it can be tried without leaving a key.
    let report = store_as(&server, "text", &format!("{least} -set -llen -rpush"))
        .doctor()
        .await;
    let (_, text) = told(&report, "rights");
    assert!(
        text.starts_with("the user may not run set, llen ->"),
        "{text}"
    );
    // Whoever may neither remove keys nor have them end leaves none behind.
    run(&mut server.connect(), &["FLUSHALL"]);
    let rights = format!("{least} -unlink -pexpire");
    let report = store_as(&server, "three", &rights).doctor().await;
    assert_told(
        &report,
        "rights",
        Severity::Problem,
        &["may not run unlink, pexpire "],
    );
    assert_told(&report, "script", Severity::Problem, &["not tried"]);
    let left = times_to_live(&mut server.connect());
    assert!(left.iter().all(|(_, millis)| *millis > 0), "{left:?}");
}

/// A connection of the application on which nothing is answered any more from this command on, which is
/// executed.
#[derive(Clone)]
struct Falling {
    connection: redis::aio::MultiplexedConnection,
    silent_from: &'static str,
    is_silent: Arc<AtomicBool>,
}

impl ConnectionLike for Falling {
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
async fn wherever_answers_end_no_key_stays_for_ever_and_no_right_is_blamed() {
    for silent_from in ["SET", "RPUSH", "ZADD", "EVALSHA"] {
        let server = RedisServer::start();
        let client = redis::Client::open(server.url()).unwrap();
        let connection = client.get_multiplexed_async_connection().await.unwrap();
        let store = RedisStore::with_connection(Falling {
            connection,
            silent_from,
            is_silent: Arc::default(),
        });
        let report = store.doctor().await;
        let left = times_to_live(&mut server.connect());
        assert!(
            left.iter().all(|(_, millis)| *millis > 0),
            "{silent_from}: {left:?}"
        );
        assert_told(
            &report,
            "rights",
            Severity::Unknown,
            &["could not be tried"],
        );
        assert_told(&report, "script", Severity::Unknown, &["not tried"]);
        assert_told(&report, "connection", Severity::Ok, &[]);
        assert!(!report.to_string().contains("the user may"), "{report}");
    }
}

#[tokio::test]
async fn keys_that_may_not_be_touched_are_told_by_the_prefix_of_the_store() {
    let server = RedisServer::start();
    let store = store_as(&server, "other", &least_rights()).prefix("shop");
    let report = store.doctor().await;
    assert_told(&report, "script", Severity::Problem, &[]);
    let words = [
        "may not touch the keys shop:*",
        "ACL SETUSER <user> ~shop:*",
    ];
    assert_told(&report, "rights", Severity::Problem, &words);
}

#[tokio::test]
async fn commands_that_were_renamed_are_done_without_or_told() {
    let renamed = ["ACL", "CONFIG", "HELLO", "LREM"];
    let arguments = renamed.map(|command| ["--rename-command", command, ""]);
    let server = RedisServer::start_with(&arguments.concat());
    let url = format!("{}?protocol=resp2", server.url());
    let store = RedisStore::open(&url).unwrap();
    let report = store.deadline(Duration::from_secs(10)).doctor().await;
    assert_told(&report, "rights", Severity::Problem, &["may not run lrem "]);
    for topic in ["server", "replicas", "persistence"] {
        assert_told(&report, topic, Severity::Ok, &[]);
    }
}

#[tokio::test]
async fn nobody_there_is_a_problem_and_the_only_finding() {
    let nowhere = DeadPort::new();
    let begin = Instant::now();
    let report = RedisStore::open(&nowhere.url()).unwrap().doctor().await;
    assert!(
        begin.elapsed() < Duration::from_secs(3),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(report.findings().len(), 1, "{report}");
    assert_told(
        &report,
        "connection",
        Severity::Problem,
        &["is the server running"],
    );
}

#[tokio::test]
async fn a_server_that_hangs_is_a_problem_and_is_not_waited_for_for_long() {
    let server = RedisServer::start();
    let store = RedisStore::open(&server.url()).unwrap();
    store
        .clone()
        .deadline(Duration::from_secs(10))
        .ping()
        .await
        .unwrap();
    signal(&server, "STOP");
    let begin = Instant::now();
    let report = store.doctor().await;
    let waited = begin.elapsed();
    signal(&server, "CONT");
    assert!(waited < Duration::from_secs(3), "{waited:?}");
    assert_eq!(report.findings().len(), 1, "{report}");
    assert_told(
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
    let report = store.doctor().await;
    assert_eq!(report.findings().len(), 1, "{report}");
    assert_told(
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
async fn a_cluster_that_lacks_slots_is_a_problem() {
    let whole = RedisServer::start_cluster();
    let report = store_on(&whole).doctor().await;
    assert_told(&report, "cluster", Severity::Ok, &["all slots"]);
    assert_eq!(report.worst(), Severity::Ok, "{report}");

    let mut connection = whole.connect();
    let mut command = redis::cmd("CLUSTER");
    command.arg("DELSLOTS").arg((0..8_192).collect::<Vec<_>>());
    command.exec(&mut connection).unwrap();
    let report = store_on(&whole).doctor().await;
    let words = ["cannot be reached", "slots are not served"];
    assert_told(&report, "cluster", Severity::Problem, &words);
}

#[tokio::test]
async fn a_store_that_knows_one_server_of_a_cluster_is_told_so() {
    let cluster = Cluster::start();
    let one = RedisStore::open(&cluster.nodes[1].url()).unwrap();
    let report = one.deadline(Duration::from_secs(10)).doctor().await;
    let words = ["cannot be reached", "connect to the cluster as one"];
    assert_told(&report, "cluster", Severity::Problem, &words);
}

#[tokio::test]
async fn replicas_that_writes_do_not_wait_for_are_a_warning() {
    let master = RedisServer::start();
    let replica = RedisServer::start();
    let mut connection = master.connect();
    run(
        &mut connection,
        &["CONFIG", "SET", "repl-diskless-sync-delay", "0"],
    );
    let port = master.port().to_string();
    run(&mut replica.connect(), &["REPLICAOF", "127.0.0.1", &port]);
    let patience = Instant::now() + Duration::from_secs(20);
    let is_online = |connection: &mut Connection| {
        let info: String = redis::cmd("INFO")
            .arg("replication")
            .query(connection)
            .unwrap();
        info.contains("state=online")
    };
    while !is_online(&mut connection) {
        assert!(Instant::now() < patience, "the replica does not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let store = store_on(&master);
    let words = ["up to twice the limits", "min-replicas-to-write 1"];
    assert_told(&store.doctor().await, "replicas", Severity::Warning, &words);
    run(
        &mut connection,
        &["CONFIG", "SET", "min-replicas-to-write", "2"],
    );
    let report = store.doctor().await;
    assert_told(
        &report,
        "replicas",
        Severity::Problem,
        &["asks for 2", "NOREPLICAS"],
    );
    assert_told(&report, "script", Severity::Problem, &["NOREPLICAS"]);
}
