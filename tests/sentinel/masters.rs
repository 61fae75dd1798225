//! Failovers by Redis Sentinel.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::{ErrorKind, Quota, RateLimiter, RedisStore};

use crate::support::decided;
use crate::support::node::{Node, wait_until};
use crate::support::proxy::{Proxy, Wire};
use crate::support::reply_proxy::{ReplyFault, ReplyProxy};
use crate::support::sentinel::Sentinels;

fn limiter(url: &str) -> RateLimiter {
    RateLimiter::new(RedisStore::open(url).unwrap(), Quota::per_hour(1_000_000))
}

/// A limiter whose answer, if it is an error, tells of the servers and not of a slow machine.
fn patient(url: &str) -> RateLimiter {
    let store = RedisStore::open(url).unwrap();
    let store = store.deadline(Duration::from_secs(10));
    RateLimiter::new(store, Quota::per_hour(1_000_000))
}

fn is_master(server: &Node) -> bool {
    let info = server.try_ask(&["INFO", "replication"]);
    info.is_ok_and(|info: String| info.contains("role:master"))
}

/// Waits for the promotion of the replica, with checks in between as in a service. Returns the time from the promotion to
/// the first decision, without what the machine was late: in the question to a sentinel, its answer, a connection, its first
/// calls and a check.
async fn until_enforced(limiter: &RateLimiter, sentinels: &Sentinels) -> Duration {
    let patience = Instant::now() + Duration::from_secs(20);
    while !is_master(&sentinels.servers[1]) {
        assert!(Instant::now() < patience, "nobody is promoted");
        let _ = limiter.check("ada").await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let promoted = Instant::now();
    let mut late = Duration::ZERO;
    let mut is_counted = || {
        let asked = Instant::now();
        let counted = sentinels.servers[1].try_ask(&["KEYS", "*bob*"]);
        late = late.max(asked.elapsed());
        counted.is_ok_and(|keys: Vec<String>| !keys.is_empty())
    };
    while limiter.check("bob").await.is_err() || !is_counted() {
        assert!(Instant::now() < patience, "checks do not follow the master");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    promoted.elapsed().saturating_sub(8 * late)
}

#[tokio::test]
async fn the_first_check_waits_for_a_slow_sentinel_until_the_deadline() {
    let sentinels = Sentinels::start();
    let proxy = Proxy::before(sentinels.sentinels[0].port()).await;
    proxy.set(Wire::SlowStart(Duration::from_millis(800)));
    let url = format!("redis+sentinel://127.0.0.1:{}/mymaster", proxy.port());
    let store = RedisStore::open(&url).unwrap();
    let limiter = RateLimiter::new(store.deadline(Duration::from_secs(2)), Quota::per_hour(9));
    assert_eq!(limiter.check("ada").await.unwrap().used(), 1);
}

#[tokio::test(start_paused = true)]
async fn checks_are_decided_while_the_clock_of_tokio_is_paused() {
    let sentinels = Sentinels::start();
    let limiter = limiter(&sentinels.url());
    for _ in 0..50 {
        assert!(decided(&limiter, "ada").await.is_allowed());
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
}

#[tokio::test]
async fn the_first_check_after_an_idle_disconnect_from_the_master_is_decided() {
    let sentinels = Sentinels::start();
    for protocol in ["resp2", "resp3"] {
        let limiter = patient(&format!("{}?protocol={protocol}", sentinels.url()));
        for _ in 0..8 {
            let _ = limiter.check("ada").await.expect(protocol);
            let _: u64 = sentinels.servers[0].ask(&["CLIENT", "KILL", "TYPE", "normal"]);
            // The runtime reads what has arrived at the connection.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let _ = limiter.check("ada").await.expect(protocol);
    }
}

#[tokio::test]
async fn checks_follow_the_master_when_it_dies() {
    let mut sentinels = Sentinels::start();
    let limiter = limiter(&sentinels.url());
    assert!(decided(&limiter, "ada").await.used() >= 1);
    sentinels.servers[0].kill();
    let took = until_enforced(&limiter, &sentinels).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn a_server_that_does_not_tell_its_role_is_used_if_the_sentinels_name_it() {
    let mut sentinels = Sentinels::start_with(&["--rename-command", "ROLE", ""], "");
    let limiter = limiter(&sentinels.url());
    assert!(decided(&limiter, "ada").await.used() >= 1);
    sentinels.servers[0].kill();
    let _ = until_enforced(&limiter, &sentinels).await;
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
        let _ = decided(&limiter, &format!("later:{key}")).await;
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
    // The sentinels see the promotion up to a second later, and the old master would take writes for ten.
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_forgets_no_more_than_moments() {
    let sentinels = Sentinels::start();
    // No check is charged after its caller has given up.
    let limiter = patient(&sentinels.url());
    let _ = decided(&limiter, "ada").await;
    let (mut checks, mut admitted) = (JoinSet::new(), 1);
    let mut turns = tokio::time::interval(Duration::from_millis(1));
    let (patience, mut promoted) = (Instant::now() + Duration::from_secs(30), None);
    for turn in 0_u32.. {
        turns.tick().await;
        let limiter = limiter.clone();
        checks.spawn(async move { limiter.check("ada").await.is_ok() });
        if turn == 500 {
            let () = sentinels.sentinels[0].ask(&["SENTINEL", "FAILOVER", "mymaster"]);
        }
        if turn > 500 && turn % 50 == 0 && promoted.is_none() && is_master(&sentinels.servers[1]) {
            promoted = Some(Instant::now());
        }
        // All sentinels name the new master by then, and the poll has run.
        if promoted.is_some_and(|promoted| promoted.elapsed() > Duration::from_secs(4)) {
            break;
        }
        assert!(Instant::now() < patience, "nobody is promoted");
    }
    while let Some(is_admitted) = checks.join_next().await {
        admitted += u32::from(is_admitted.unwrap());
    }
    let used = limiter.check_n("ada", 0).await.unwrap().used();
    let forgotten = i64::from(admitted) - i64::from(used);
    // Half a second's. Without events of the sentinels, it was 1 146 to 1 327 in ten runs; with them, 0 to 33.
    assert!(forgotten < 500, "{forgotten} of {admitted}");
}

/// The connections to a sentinel that wait for events.
fn subscribers(sentinel: &Node) -> usize {
    let list = sentinel.try_ask::<String>(&["CLIENT", "LIST", "TYPE", "pubsub"]);
    list.map_or(0, |list| list.lines().count())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn all_connections_share_one_subscription_to_each_sentinel_which_ends_with_the_store() {
    let mut sentinels = Sentinels::start();
    // The sentinels know each other by their addresses.
    let url = sentinels.url().replace("127.0.0.1", "localhost");
    let store = RedisStore::open(&url).unwrap();
    let limiter = RateLimiter::new(store, Quota::per_hour(1_000_000));
    for key in 0..20 {
        let _ = decided(&limiter, &key.to_string()).await;
    }
    let all_have = |sentinels: &Sentinels, count| {
        let sentinels = &sentinels.sentinels;
        wait_until("each sentinel has its subscribers", || {
            sentinels
                .iter()
                .all(|sentinel| subscribers(sentinel) == count)
        });
    };
    all_have(&sentinels, 1);
    sentinels.sentinels[1].kill();
    sentinels.sentinels[1].restart();
    all_have(&sentinels, 1);
    drop(limiter);
    all_have(&sentinels, 0);
}

#[tokio::test]
async fn checks_follow_the_master_without_the_right_to_subscribe() {
    let sentinels = Sentinels::start();
    for sentinel in &sentinels.sentinels {
        let () = sentinel.ask(&["ACL", "SETUSER", "default", "-subscribe"]);
    }
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
    // The time that the machine takes for it now.
    let begin = Instant::now();
    assert!(decided(&limiter(&url), "bob").await.used() >= 1);
    let with_all = begin.elapsed();
    sentinels.sentinels[0].stop();
    let begin = Instant::now();
    assert!(decided(&limiter(&url), "ada").await.used() >= 1);
    let took = begin.elapsed();
    assert!(
        took < with_all + Duration::from_millis(100),
        "{took:?}, {with_all:?}"
    );
    // A single sentinel is no majority, but knows the master.
    sentinels.sentinels[1].kill();
    assert_eq!(decided(&limiter(&url), "ada").await.used(), 2);
    sentinels.sentinels[2].kill();
    sentinels.sentinels[0].kill();
    let error = patient(&url).check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn without_any_sentinel_a_new_store_says_which_ones_it_asked() {
    let mut sentinels = Sentinels::start();
    let limiter = patient(&sentinels.url());
    for sentinel in &mut sentinels.sentinels {
        sentinel.kill();
    }
    // The master lives, but nobody says where.
    let error = limiter.check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    for sentinel in &sentinels.sentinels {
        assert!(error.to_string().contains(&sentinel.address()), "{error}");
    }
    assert!(error.to_string().contains("Sentinel"), "{error}");
}

#[tokio::test]
async fn checks_follow_the_master_when_one_sentinel_has_moved() {
    let mut sentinels = Sentinels::start();
    let limiter = limiter(&sentinels.url());
    let _ = decided(&limiter, "ada").await;
    sentinels.move_sentinel(0);
    let _ = decided(&limiter, "ada").await;
    sentinels.servers[0].kill();
    let took = until_enforced(&limiter, &sentinels).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn checks_follow_the_master_when_all_sentinels_have_moved_in_turn() {
    let mut sentinels = Sentinels::start();
    let limiter = limiter(&sentinels.url());
    let _ = decided(&limiter, "ada").await;
    for id in 0..3 {
        sentinels.move_sentinel(id);
        wait_until("the store knows where the sentinel is", || {
            subscribers(&sentinels.sentinels[id]) == 1
        });
        let _ = decided(&limiter, "ada").await;
    }
    sentinels.servers[0].kill();
    let took = until_enforced(&limiter, &sentinels).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_store_that_is_told_one_sentinel_follows_the_master_after_its_death() {
    let mut sentinels = Sentinels::start();
    // The rights that the guide gives.
    let user = "on >w&w resetchannels &+switch-master &+promoted-slave &+failover-state-wait-promotion \
        -@all +subscribe +sentinel|get-master-addr-by-name +sentinel|myid +sentinel|sentinels";
    for sentinel in &sentinels.sentinels {
        let user: Vec<_> = user.split_whitespace().collect();
        let () = sentinel.ask(&[&["ACL", "SETUSER", "watcher"], &user[..]].concat());
    }
    let limiter = limiter(&format!(
        "redis+sentinel://{}/mymaster?sentinel_username=watcher&sentinel_password=w%26w",
        sentinels.sentinels[0].address()
    ));
    let _ = decided(&limiter, "ada").await;
    wait_until("the store asks all sentinels", || {
        let mut all = sentinels.sentinels.iter();
        all.all(|sentinel| subscribers(sentinel) == 1)
    });
    sentinels.sentinels[0].kill();
    sentinels.servers[0].kill();
    let took = until_enforced(&limiter, &sentinels).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_whose_replies_are_out_of_sync_is_connected_to_anew() {
    let sentinels = Sentinels::start();
    let proxy = ReplyProxy::before(sentinels.sentinels[0].port()).await;
    let limiter = patient(&format!(
        "redis+sentinel://127.0.0.1:{}/mymaster",
        proxy.port()
    ));
    let _ = decided(&limiter, "ada").await;
    for _ in 0..3 {
        let (before, replies) = (proxy.connections(), proxy.replies());
        // The three questions have replies of three shapes, and the stray one is that to the question before.
        wait_until("the sentinel is asked", || proxy.replies() > replies + 4);
        proxy.next(ReplyFault::Stray);
        wait_until("the store connects to the sentinel again", || {
            proxy.connections() > before
        });
        let _ = limiter.check("ada").await.unwrap();
    }
}

#[tokio::test]
async fn a_master_that_no_sentinel_knows_is_a_misconfiguration() {
    let sentinels = Sentinels::start();
    let url = format!("redis+sentinel://{}/other", sentinels.addresses());
    let error = patient(&url).check("ada").await.unwrap_err();
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

    let error = patient(&sentinels.url()).check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    let addresses = sentinels.addresses();
    let by_watcher = "sentinel_username=watcher&sentinel_password=w%26w";
    let url = format!("redis+sentinel://{addresses}/mymaster?{by_watcher}");
    let error = patient(&url).check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    let url = format!("redis+sentinel://limiter:p%2Fw@{addresses}/mymaster?{by_watcher}");
    assert!(decided(&limiter(&url), "ada").await.used() >= 1);
    wait_until("it is counted", || {
        let counted: Vec<String> = master.ask(&["KEYS", "*"]);
        counted.len() == 1
    });
}
