//! Commands that a vendor does not list: the store does without them.

use std::time::Duration;

use tollgate::{Quota, RateLimiter, RedisStore};

use crate::offer::Offer;
use crate::support::decided;
use crate::support::redis_server::{RedisServer, run};

/// Commands that a store does without. HELLO only chooses the protocol.
const UNLISTED: [&str; 8] = [
    "ACL", "CLIENT", "COMMAND", "CONFIG", "HELLO", "INFO", "MEMORY", "ROLE",
];

/// Checks a key, and blocks it.
async fn serves(store: RedisStore, what: &str) {
    let store = store.deadline(Duration::from_secs(10));
    store
        .ping()
        .await
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(9)).name(what);
    let decision = limiter.check("ada").await;
    let decision = decision.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(decision.is_allowed());
    let admin = limiter.admin();
    admin.block("ada", Duration::from_secs(60)).await.unwrap();
    assert_eq!(admin.blocked().await.unwrap().len(), 1, "{what}");
    admin.unblock("ada").await.unwrap();
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
        serves(RedisStore::open(&url).unwrap(), &missing.join(" ")).await;
    }
}

#[tokio::test]
async fn a_command_that_is_not_needed_may_be_unknown() {
    for missing in UNLISTED.chunks(1).chain([&UNLISTED[..]]) {
        let server = RedisServer::start_without(missing);
        serves(RedisStore::open(&server.url()).unwrap(), &missing.join(" ")).await;
    }
}

#[tokio::test]
async fn every_offer_serves() {
    for offer in [
        Offer::one_endpoint(),
        Offer::one_endpoint_by_slot(),
        Offer::memorystore(),
    ] {
        serves(RedisStore::open(offer.url()).unwrap(), "offer").await;
    }
}

/// A store that groups checks by slot still is one server.
#[tokio::test]
async fn one_endpoint_has_one_circuit_breaker() {
    let mut offer = Offer::one_endpoint_by_slot();
    let store = offer
        .process()
        .await
        .fork()
        .deadline(Duration::from_millis(200));
    let limiter = RateLimiter::new(store, Quota::per_hour(9));
    let _ = decided(&limiter, "first").await;
    offer.kill();
    let mut asked = 0;
    for key in 0..100 {
        let error = limiter.check(format!("key:{key}")).await.unwrap_err();
        asked += usize::from(!error.to_string().contains("circuit breaker"));
    }
    // Each key is in a slot of its own. With a breaker for each, all would be asked.
    assert!(
        (1..=10).contains(&asked),
        "{asked} of 100 checks asked a dead server"
    );
}
