//! The permissions that a Redis user needs are exactly those that the documentation lists.

use std::time::Duration;

use tollgate::store::TestClock;
use tollgate::{Algorithm, Error, ErrorKind, Quota, RateLimiter, RedisStore};

use crate::support::costs::algorithms;
use crate::support::permissions::documented;
use crate::support::redis_server::{RedisServer, run, times_to_live};
use crate::support::stored::name_of;

/// A store with a clock ahead of the server's.
fn later(store: &RedisStore, millis: u32) -> RedisStore {
    let clock = include_str!("../../lua/clock.lua");
    let now_text = "now_text = string.format('%.0f', now)";
    let clock = format!("{clock}\nnow = now + {millis} * 1000\n{now_text}\n");
    store.fork().with_clock_source(&clock, TestClock::new())
}

/// Runs every operation of a store, until one fails.
async fn use_all(store: &RedisStore, run: usize) -> Result<(), Error> {
    store.ping().await?;
    for (name, algorithm) in algorithms() {
        let key = format!("ada:{run}");
        // Some units expire and are trimmed, and then the clock steps back.
        for millis in [0, 6_000, 12_000, 11_000] {
            let quota = Quota::new(9, Duration::from_secs(10)).with_algorithm(algorithm);
            let limiter = RateLimiter::new(later(store, millis), quota).name(name);
            let mut decision = limiter.check_n(key.as_str(), 2).await?;
            decision.refund(1).await?;
            let _ = limiter.peek(key.as_str()).await?;
            limiter.admin().credit(key.as_str(), 1).await?;
            for cost in [1, 1, 1, 9] {
                let _ = limiter.check_n(key.as_str(), cost).await?;
            }
            if millis == 11_000 {
                limiter.admin().reset(key.as_str()).await?;
                let admin = limiter.admin();
                admin.block(key.as_str(), Duration::from_secs(60)).await?;
                let _ = admin.status(key.as_str()).await?;
                admin.unblock(key.as_str()).await?;
            }
        }
    }
    // A log that is read in pages.
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(5_000)).name("long");
    let key = format!("ada:{run}");
    let mut first = limiter.check_n(key.as_str(), 2).await?;
    for _ in 0..200 {
        let _ = limiter.check(key.as_str()).await?;
    }
    first.refund(1).await?;
    limiter.admin().credit(key.as_str(), 70).await?;
    // Slots are taken, stated and given back.
    let limiter = RateLimiter::new(store.clone(), Quota::in_flight(2)).name("slots");
    let permits = [
        limiter.acquire(key.as_str()).await?,
        limiter.acquire(key.as_str()).await?,
    ];
    for permit in permits {
        permit.release().await?;
    }
    Ok(())
}

fn store(server: &RedisServer) -> RedisStore {
    let url = format!("redis://limiter:password@127.0.0.1:{}", server.port());
    RedisStore::open(&url)
        .unwrap()
        .deadline(Duration::from_secs(10))
        .refusal_cache(Duration::ZERO)
}

#[tokio::test]
async fn the_documented_permissions_suffice() {
    let server = RedisServer::start();
    run(&mut server.connect(), &documented());
    use_all(&store(&server), 0).await.unwrap();
}

#[tokio::test]
async fn each_permission_is_needed_and_its_lack_is_named() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let mut rights: Vec<&str> = documented();
    rights.retain(|word| word.starts_with('+'));
    for (number, right) in rights.into_iter().enumerate() {
        run(&mut connection, &documented());
        let without = right.replace('+', "-");
        run(&mut connection, &["ACL", "SETUSER", "limiter", &without]);
        run(&mut connection, &["SCRIPT", "FLUSH"]);
        let Err(error) = use_all(&store(&server), number).await else {
            panic!("{right} is not needed");
        };
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{right}: {error}");
        let text = error.to_string().to_lowercase();
        // Redis 7.0 does not name a command of a script.
        let says_why = |text: &str| text.contains(&right[1..]) || text.contains("can't run this");
        assert!(says_why(&text), "{right}: {text}");
    }
}

/// Two quotas of these algorithms, stored in different keys. No window ends during the test.
fn pair(first: Algorithm, second: Algorithm) -> [Quota; 2] {
    let days = |days: u64| Duration::from_secs(days * 86_400);
    [(first, 300), (second, 310)]
        .map(|(algorithm, window)| Quota::new(1_000, days(window)).with_algorithm(algorithm))
}

/// The units used in each quota.
async fn used(limiter: &RateLimiter, key: &str) -> Vec<u32> {
    let decision = limiter.peek(key).await.unwrap();
    decision.quotas().map(|quota| quota.used()).collect()
}

#[tokio::test]
async fn a_check_that_fails_by_a_missing_permission_frees_nothing_and_each_key_has_a_time_to_live()
{
    let server = RedisServer::start();
    let mut connection = server.connect();
    let store = store(&server);
    let writes = documented().into_iter().filter(|word| {
        let reads = "+eval +evalsha +time +ping +exists +get +mget +getrange +strlen +pttl +zcard +zcount +zrange \
            +zrangebyscore";
        word.starts_with('+') && reads.split_whitespace().all(|read| read != *word)
    });
    let mut wrong = Vec::new();
    for right in writes {
        for (first, second) in
            algorithms().flat_map(|first| algorithms().map(move |second| (first, second)))
        {
            let limiter = RateLimiter::new(store.clone(), pair(first.1, second.1));
            for before in [0, 3] {
                let key = format!("{right} {} {} {before}", first.0, second.0);
                run(&mut connection, &documented());
                if before > 0 {
                    let _ = limiter.check_n(key.as_str(), before).await.unwrap();
                }
                let without = right.replace('+', "-");
                run(&mut connection, &["ACL", "SETUSER", "limiter", &without]);
                let mut charged = before;
                for _ in 0..10 {
                    charged += u32::from(limiter.check(key.as_str()).await.is_ok());
                }
                run(&mut connection, &documented());
                let used = used(&limiter, &key).await;
                // Each check that failed may have charged one of them: too many, never too few.
                let range = charged..=before + 10;
                if used.iter().any(|used| !range.contains(used)) {
                    wrong.push(format!("{key}: {used:?} used, {charged} charged"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}: {wrong:#?}", wrong.len());
    let immortal = times_to_live(&mut connection)
        .into_iter()
        .filter(|(_, millis)| *millis < 0);
    assert_eq!(immortal.collect::<Vec<_>>(), []);
}

#[tokio::test]
async fn a_level_of_another_type_charges_no_other_level_whatever_the_user_may_write() {
    const WINDOW: Duration = Duration::from_secs(300 * 86_400);
    let server = RedisServer::start();
    let mut connection = server.connect();
    let store = store(&server);
    // The value of the user was there before, or is new.
    for (denied, is_known) in [("-set", true), ("-unlink", false)] {
        for (name, algorithm) in algorithms() {
            // Letters stand as they are in the name of a key.
            let name = name.split('(').next().unwrap();
            let quota = Quota::new(60, WINDOW).with_algorithm(algorithm);
            let user = RateLimiter::new(store.clone(), quota.clone()).name("user");
            let tenant = RateLimiter::new(store.clone(), quota).name("tenant");
            let user_key = format!("{name} {is_known}");
            run(&mut connection, &documented());
            if is_known {
                let _ = user.check(user_key.as_str()).await.unwrap();
            }
            let key = name_of(&format!("{{tenant,{name}}}"), algorithm, WINDOW);
            run(&mut connection, &["RPUSH", &key, "somebody else's"]);
            run(&mut connection, &["ACL", "SETUSER", "limiter", denied]);
            for _ in 0..10 {
                let levels = [user.level(user_key.as_str()), tenant.level(name)];
                let outcome = RateLimiter::check_all(levels).await;
                let error = outcome.expect_err("nothing is admitted");
                assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
                assert!(error.to_string().contains("WRONGTYPE"), "{error}");
            }
            run(&mut connection, &documented());
            let used = user.peek(user_key.as_str()).await.unwrap().used();
            assert_eq!(used, u32::from(is_known), "{denied} {user_key}");
        }
    }
}

#[tokio::test]
async fn a_log_stays_whole_if_a_permission_is_missing_after_the_clock_stepped_back() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let store = store(&server);
    for algorithm in [Algorithm::SlidingLog, Algorithm::SortedSetLog] {
        for right in [
            "+set",
            "+setrange",
            "+append",
            "+unlink",
            "+pexpire",
            "+zadd",
        ] {
            // All units are after now, or only the last two.
            for kept in [0, 3] {
                let quota = Quota::per_hour(100).with_algorithm(algorithm);
                let key = format!("{algorithm:?} {right} {kept}");
                let at = |millis| RateLimiter::new(later(&store, millis), quota.clone());
                run(&mut connection, &documented());
                if kept > 0 {
                    let _ = at(0).check_n(key.as_str(), kept).await.unwrap();
                }
                let _ = at(60_000).check_n(key.as_str(), 2).await.unwrap();
                let without = right.replace('+', "-");
                run(&mut connection, &["ACL", "SETUSER", "limiter", &without]);
                let mut charged = kept + 2;
                for _ in 0..3 {
                    charged += u32::from(at(30_000).check(key.as_str()).await.is_ok());
                }
                run(&mut connection, &documented());
                let used = at(30_000).peek(key.as_str()).await.unwrap().used();
                assert!(used >= charged, "{key}: {used} used, {charged} charged");
            }
        }
    }
    for (key, millis) in times_to_live(&mut connection) {
        assert!(millis > 0, "{key} lives for {millis} ms");
    }
}

#[tokio::test]
async fn a_full_server_still_refuses_by_a_log_after_its_clock_stepped_back() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    run(&mut connection, &documented());
    let store = store(&server);
    for algorithm in [Algorithm::SlidingLog, Algorithm::SortedSetLog] {
        let quota = Quota::per_hour(2).with_algorithm(algorithm);
        let at = |millis| RateLimiter::new(later(&store, millis), quota.clone());
        let key = format!("{algorithm:?}");
        let _ = at(60_000).check_n(key.as_str(), 2).await.unwrap();
        run(&mut connection, &["CONFIG", "SET", "maxmemory", "1"]);
        let refused = at(30_000).check(key.as_str()).await;
        run(&mut connection, &["CONFIG", "SET", "maxmemory", "0"]);
        let refused = refused.unwrap_or_else(|error| panic!("{key}: {error}"));
        assert_eq!((refused.is_allowed(), refused.used()), (false, 2), "{key}");
    }
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn a_cluster_needs_one_more_permission() {
    let server = RedisServer::start_cluster();
    let url = format!(
        "redis+cluster://limiter:password@127.0.0.1:{}",
        server.port()
    );
    let check = || async {
        let store = RedisStore::open(&url).unwrap();
        let store = store.deadline(Duration::from_secs(10));
        RateLimiter::new(store, Quota::per_hour(9))
            .check("ada")
            .await
    };
    run(&mut server.connect(), &documented());
    let error = check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    let more = [&documented()[..], &["+cluster|slots"]].concat();
    run(&mut server.connect(), &more);
    assert_eq!(check().await.unwrap().used(), 1);
}

#[tokio::test]
async fn keys_of_another_prefix_are_out_of_reach() {
    let server = RedisServer::start();
    run(&mut server.connect(), &documented());
    let limiter = RateLimiter::new(store(&server).prefix("other"), Quota::per_hour(9));
    let error = limiter.check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
}
