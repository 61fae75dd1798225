//! Servers as vendors rent them out: the doctor finds no fault with what a store does without.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Arg, Cmd, Pipeline, RedisFuture, Value};
use tollgate::RedisStore;
use tollgate_doctor::{Severity, examine};

use crate::offer::Offer;
use crate::support::redis_server::{RedisServer, run};
use crate::support::timeless::TimelessServer;
use crate::support::{assert_finding, store_at, store_on};

/// Commands that a store does without. HELLO only chooses the protocol.
const UNLISTED: [&str; 8] = [
    "ACL", "CLIENT", "COMMAND", "CONFIG", "HELLO", "INFO", "MEMORY", "ROLE",
];

/// Asserts that no finding says more than that something could not be examined.
async fn assert_no_fault(store: RedisStore, what: &str) {
    let report = examine(&store).await;
    assert!(report.worst() <= Severity::Unknown, "{what}: {report}");
}

#[tokio::test]
async fn a_right_that_is_not_needed_may_be_missing() {
    let server = RedisServer::start();
    let all = UNLISTED.map(|command| format!("-{}", command.to_lowercase()));
    for missing in all.chunks(1).chain([&all[..]]) {
        let user = [
            "ACL", "SETUSER", "renter", "reset", "on", ">secret", "~*", "&*", "+@all",
        ];
        let missing: Vec<_> = missing.iter().map(String::as_str).collect();
        run(&mut server.connect(), &[&user[..], &missing].concat());
        let url = format!("redis://renter:secret@127.0.0.1:{}", server.port());
        assert_no_fault(store_at(&url), &missing.join(" ")).await;
    }
}

#[tokio::test]
async fn a_command_that_is_not_needed_may_be_unknown() {
    for missing in UNLISTED.chunks(1).chain([&UNLISTED[..]]) {
        let server = RedisServer::start_without(missing);
        assert_no_fault(store_on(&server), &missing.join(" ")).await;
    }
}

#[tokio::test]
async fn the_doctor_finds_no_fault_with_any_offer() {
    for offer in [
        Offer::one_endpoint(),
        Offer::one_endpoint_by_slot(),
        Offer::memorystore(),
    ] {
        assert_no_fault(offer.store(), offer.url()).await;
    }
}

#[tokio::test]
async fn a_server_that_refuses_time_in_scripts_is_a_warning_and_the_script_is_tried() {
    let server = TimelessServer::start();
    let report = examine(&store_at(&server.url())).await;
    let words = [
        "refuses TIME in scripts",
        "tells it the time, which this process knows to",
    ];
    assert_finding(&report, "time", Severity::Warning, &words);
    for topic in ["script", "round trip"] {
        assert_finding(&report, topic, Severity::Ok, &[]);
    }
}

/// An application's connection that notes the number of keys of each call of a script.
#[derive(Clone)]
struct Noting {
    connection: MultiplexedConnection,
    keys: Arc<Mutex<Vec<String>>>,
}

impl ConnectionLike for Noting {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let arguments = cmd.args_iter().map(|argument| match argument {
            Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        });
        if let [name, _, keys, ..] = &arguments.collect::<Vec<_>>()[..]
            && name.starts_with("EVAL")
        {
            self.keys.lock().unwrap().push(keys.clone());
        }
        Box::pin(self.connection.send_packed_command(cmd))
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

/// Proxies choose a server by the keys of a call, and refuse a script without any.
#[tokio::test]
async fn every_call_of_a_script_has_a_key() {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let keys = Arc::default();
    let store = RedisStore::with_connection(Noting {
        connection,
        keys: Arc::clone(&keys),
    });
    let report = examine(&store.deadline(Duration::from_secs(10))).await;
    assert!(report.worst() < Severity::Problem, "{report}");
    let keys = keys.lock().unwrap();
    assert!(
        keys.len() > 200 && !keys.contains(&"0".to_owned()),
        "{keys:?}"
    );
}
