//! Several checks that are decided together.

use std::time::Duration;

use tollgate::store::{Check, Store};
use tollgate::{ErrorKind, Key, Quota, Quotas, RateLimiter};

use crate::store_on;
use crate::support::redis_server::{RedisServer, run};

#[tokio::test]
async fn checks_that_have_limiter_and_key_in_common_are_an_error_and_charge_nothing() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let (limiter, key) = (Key::from("default"), Key::from("ada"));
    let quotas = Quotas::from(Quota::per_hour(5));
    let check = Check::new(&limiter, &key, &quotas, 3);
    let error = store.check_all(&[check, check]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    let used = RateLimiter::new(store, quotas.clone())
        .peek("ada")
        .await
        .unwrap()
        .used();
    assert_eq!(used, 0);
}

#[tokio::test]
async fn a_write_that_fails_charges_none_of_the_checks() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let quotas = Quotas::from(Quota::new(5, Duration::from_secs(60)));
    let (limiter, keys) = (Key::from("default"), ["ada", "bob", "cem"].map(Key::from));
    let [ada, bob, cem] = keys
        .each_ref()
        .map(|key| Check::new(&limiter, key, &quotas, 2));
    let mut connection = server.connect();
    let stored = "tollgate:v2:{default,cem}";
    for (command, value) in [("SET", "x"), ("RPUSH", "x")] {
        run(&mut connection, &["DEL", stored]);
        run(&mut connection, &[command, stored, value]);
        let error = store.check_all(&[ada, bob, cem]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
        assert_eq!(keys, [stored]);
    }
    let limiter = RateLimiter::new(store, quotas.clone());
    for key in ["ada", "bob"] {
        assert_eq!(limiter.peek(key).await.unwrap().used(), 0, "{key}");
    }
}
