//! Failovers by Redis Sentinel.

use std::time::{Duration, Instant};

use tollgate::{ErrorKind, Quota, RateLimiter, RedisStore};

use crate::support::decided;
use crate::support::node::{Node, wait_until};
use crate::support::sentinel::Sentinels;

fn limiter(url: &str) -> RateLimiter {
    RateLimiter::new(RedisStore::open(url).unwrap(), Quota::per_hour(1_000_000))
}

fn is_master(server: &Node) -> bool {
    let info = server.try_ask(&["INFO", "replication"]);
    info.is_ok_and(|info: String| info.contains("role:master"))
}

/// Waits for the promotion of the replica, with checks in between as in a service. Returns the time from
/// the promotion to the first decision.
async fn until_enforced(limiter: &RateLimiter, sentinels: &Sentinels) -> Duration {
    let patience = Instant::now() + Duration::from_secs(20);
    while !is_master(&sentinels.servers[1]) {
        assert!(Instant::now() < patience, "nobody is promoted");
        let _ = limiter.check("ada").await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let promoted = Instant::now();
    let is_counted = || {
        let counted = sentinels.servers[1].try_ask(&["KEYS", "*bob*"]);
        counted.is_ok_and(|keys: Vec<String>| !keys.is_empty())
    };
    while limiter.check("bob").await.is_err() || !is_counted() {
        assert!(Instant::now() < patience, "checks do not follow the master");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    promoted.elapsed()
}

#[tokio::test]
async fn checks_follow_the_master_when_it_dies() {
    let mut sentinels = Sentinels::start();
    let limiter = limiter(&sentinels.url());
    assert_eq!(decided(&limiter, "ada").await.used(), 1);
    sentinels.servers[0].kill();
    let took = until_enforced(&limiter, &sentinels).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn checks_follow_the_master_when_it_hangs_and_stay_when_it_wakes() {
    let sentinels = Sentinels::start();
    let limiter = limiter(&sentinels.url());
    let _ = decided(&limiter, "ada").await;
    sentinels.servers[0].stop();
    let took = until_enforced(&limiter, &sentinels).await;
    sentinels.servers[0].resume();
    assert!(took < Duration::from_secs(2), "{took:?}");
    // The old server considers itself the master until the sentinels demote it.
    for key in 0..100 {
        let _ = limiter.check(format!("later:{key}")).await.unwrap();
    }
    let of_old: Vec<String> = sentinels.servers[0].ask(&["KEYS", "*later*"]);
    assert_eq!(of_old, Vec::<String>::new());
}

#[tokio::test]
async fn checks_follow_a_master_that_is_changed_on_purpose() {
    let sentinels = Sentinels::start();
    let limiter = limiter(&sentinels.url());
    let _ = decided(&limiter, "ada").await;
    let () = sentinels.sentinels[0].ask(&["SENTINEL", "FAILOVER", "mymaster"]);
    let took = until_enforced(&limiter, &sentinels).await;
    // The sentinels agree within two seconds and are asked every second; the old master would take writes
    // for ten.
    assert!(took < Duration::from_secs(4), "{took:?}");
}

#[tokio::test]
async fn a_hanging_or_dead_sentinel_delays_nothing() {
    let mut sentinels = Sentinels::start();
    let url = sentinels.url();
    sentinels.sentinels[0].stop();
    let begin = Instant::now();
    assert_eq!(decided(&limiter(&url), "ada").await.used(), 1);
    assert!(
        begin.elapsed() < Duration::from_millis(100),
        "{:?}",
        begin.elapsed()
    );
    // A single sentinel is no majority, but knows the master.
    sentinels.sentinels[1].kill();
    assert_eq!(decided(&limiter(&url), "ada").await.used(), 2);
    sentinels.sentinels[2].kill();
    sentinels.sentinels[0].kill();
    let error = limiter(&url).check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_master_that_no_sentinel_knows_is_a_misconfiguration() {
    let sentinels = Sentinels::start();
    let url = format!("redis+sentinel://{}/other", sentinels.addresses());
    let error = limiter(&url).check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("other"), "{error}");
}

#[tokio::test]
async fn servers_and_sentinels_may_have_different_users() {
    let sentinels = Sentinels::start();
    for sentinel in &sentinels.sentinels {
        let rights = ["+sentinel|get-master-addr-by-name"];
        let user = ["ACL", "SETUSER", "watcher", "on", ">w&w", "-@all"];
        let () = sentinel.ask(&[&user[..], &rights].concat());
        let () = sentinel.ask(&["ACL", "SETUSER", "default", "-sentinel"]);
    }
    let master = &sentinels.servers[0];
    let () = master.ask(&["ACL", "SETUSER", "limiter", "on", ">p/w", "~*", "+@all"]);
    let () = master.ask(&["ACL", "SETUSER", "default", "-evalsha"]);

    let error = limiter(&sentinels.url()).check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    let addresses = sentinels.addresses();
    let by_watcher = "sentinel_username=watcher&sentinel_password=w%26w";
    let url = format!("redis+sentinel://{addresses}/mymaster?{by_watcher}");
    let error = limiter(&url).check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    let url = format!("redis+sentinel://limiter:p%2Fw@{addresses}/mymaster?{by_watcher}");
    assert_eq!(decided(&limiter(&url), "ada").await.used(), 1);
    wait_until("it is counted", || {
        let counted: Vec<String> = master.ask(&["KEYS", "*"]);
        counted.len() == 1
    });
}
