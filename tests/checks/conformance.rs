//! The conformance kit on the stores of this crate.

use std::time::Duration;

use tollgate::store::TestClock;
use tollgate::{MemoryStore, RedisStore};
use tollgate_conformance::Conformance;

use crate::support::redis_server::RedisServer;
use crate::support::test_time::TestTime;

#[tokio::test]
async fn the_memory_store_conforms() {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let kit = Conformance::new(store).clock(move |step| clock.advance(step));
    let report = kit.run().await;
    println!("{report}");
    report.assert_complete();
}

#[tokio::test]
async fn the_memory_store_conforms_by_a_clock_that_runs() {
    let report = Conformance::new(MemoryStore::new()).run().await;
    println!("{report}");
    report.assert_complete();
}

#[tokio::test]
async fn the_redis_store_conforms() {
    let server = RedisServer::start();
    let mut time = TestTime::new(&server);
    let kit = Conformance::new(time.redis.clone()).clock(move |step| time.advance(step));
    let report = kit.run().await;
    println!("{report}");
    report.assert_complete();
}

#[tokio::test]
async fn the_redis_store_conforms_by_the_clock_of_its_server() {
    let server = RedisServer::start();
    let store = RedisStore::open(&server.url()).unwrap();
    let report = Conformance::new(store.deadline(Duration::from_secs(10)))
        .run()
        .await;
    println!("{report}");
    report.assert_complete();
}
