//! A server that refuses TIME in scripts: each call tells the time, as far as this process knows it.

use std::time::{Duration, Instant};

use tollgate::{Acquired, Algorithm, ErrorKind, Quota, RateLimiter, RedisStore};

use crate::spans::{Admission, Admissions};
use crate::support::algorithms::{algorithms, promised};
use crate::support::cases::some_or_all;
use crate::support::costs::{calls, forget_calls};
use crate::support::log;
use crate::support::proxy::{Proxy, Wire};
use crate::support::redis_server::run;
use crate::support::running::Running;
use crate::support::timeless::{Detour, TimelessServer};

const MS: Duration = Duration::from_millis(1);

fn store_at(url: &str) -> RedisStore {
    let store = RedisStore::open(url).unwrap();
    // Descriptions and block lists would be further calls.
    store
        .deadline(Duration::from_secs(10))
        .block_list_refresh(Duration::ZERO)
}

/// Two ways to a server by which its clock seems to differ by 50 ms, each with an error of 25 ms.
fn apart(server: &TimelessServer) -> [RedisStore; 2] {
    let [ahead, behind] = [(50 * MS, Duration::ZERO), (Duration::ZERO, 50 * MS)];
    let mut stores = Vec::new();
    for (of_request, of_reply) in [ahead, behind] {
        let detour = Detour {
            of_request,
            of_reply,
        };
        stores.push(store_at(&server.url_with(detour)));
    }
    stores.try_into().unwrap()
}

/// The error of each of them, with what a busy machine adds to a round trip, and what clocks drift in a second or two.
const ERROR: Duration = Duration::from_millis(40);

#[tokio::test]
async fn the_store_learns_it_once_says_so_and_keeps_the_limit() {
    log::keep();
    let server = TimelessServer::start();
    let limiter = RateLimiter::new(store_at(&server.url()), Quota::per_hour(3)).name("jobs");
    for used in 1..=3 {
        assert_eq!(limiter.check("ada").await.unwrap().used(), used);
    }
    let refused = limiter.check("ada").await.unwrap();
    assert!(!refused.is_allowed());
    let lines = log::kept();
    let told: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("refuses TIME in scripts"))
        .collect();
    assert_eq!(told.len(), 1, "{lines:?}");
    let server_name = format!("Redis at 127.0.0.1:{}", server.port());
    for part in [&*server_name, "tollgate::W020"] {
        assert!(told[0].contains(part), "{}", told[0]);
    }
    // From then on, a check is one call.
    let mut connection = server.server().connect();
    forget_calls(&mut connection);
    let _ = limiter.check("bob").await.unwrap();
    let calls = calls(&mut connection);
    assert_eq!(calls.get("evalsha"), Some(&1));
    assert_eq!(calls.get("eval"), None);
}

#[tokio::test]
async fn a_server_that_allows_time_is_not_told_it() {
    let server = crate::support::redis_server::RedisServer::start();
    let limiter = RateLimiter::new(store_at(&server.url()), Quota::per_hour(3));
    let _ = limiter.check("ada").await.unwrap();
    let mut connection = server.connect();
    forget_calls(&mut connection);
    let _ = limiter.check("ada").await.unwrap();
    // Called by the script.
    assert_eq!(calls(&mut connection).get("time"), Some(&1));
}

#[tokio::test]
async fn a_user_without_the_right_to_time_is_told_so_and_nothing_is_switched() {
    log::keep();
    let server = crate::support::redis_server::RedisServer::start();
    let rule = ["ACL", "SETUSER", "app", "on", ">x", "~*", "+@all", "-time"];
    run(&mut server.connect(), &rule);
    let url = format!("redis://app:x@127.0.0.1:{}", server.port());
    let limiter = RateLimiter::new(store_at(&url), Quota::per_hour(3));
    let error = limiter.check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(!log::kept().iter().any(|line| line.contains("refuses TIME")));
}

/// Tasks that check as fast as they can, half of them by each store. Returns what was admitted, and how many checks there
/// were.
async fn flood(limiters: [RateLimiter; 2], lasts: Duration) -> (Admissions, u64) {
    let begin = Instant::now();
    let tasks = (0..8).map(|task| {
        let limiter = limiters[task % 2].clone();
        tokio::spawn(async move {
            let (mut admitted, mut checks) = (Vec::new(), 0);
            while begin.elapsed() < lasts {
                let start = begin.elapsed();
                checks += 1;
                if limiter.check("ada").await.unwrap().is_allowed() {
                    let end = begin.elapsed();
                    let units = 1;
                    admitted.push(Admission { start, end, units });
                }
                tokio::time::sleep(MS / 2).await;
            }
            (admitted, checks)
        })
    });
    let (mut admissions, mut all_checks) = (Vec::new(), 0);
    for task in tasks.collect::<Vec<_>>() {
        let (admitted, checks) = task.await.unwrap();
        admissions.extend(admitted);
        all_checks += checks;
    }
    (Admissions::new(admissions), all_checks)
}

/// No span as long as the window less twice the error has more than the algorithm promises.
async fn keeps_its_promise(algorithm: Algorithm, lease: Option<Duration>) {
    const LIMIT: u32 = 20;
    const WINDOW: Duration = Duration::from_millis(300);
    let server = TimelessServer::start();
    let limiters = apart(&server).map(|store| {
        let store = store.refusal_cache(Duration::ZERO);
        let quota = Quota::new(LIMIT, WINDOW).with_algorithm(algorithm);
        let limiter = RateLimiter::new(store, quota).name("flood");
        match lease {
            Some(lease) => limiter.lease(lease),
            None => limiter,
        }
    });
    let lasts = Duration::from_millis(some_or_all(1_300, 2_500));
    let (admissions, checks) = flood(limiters, lasts).await;
    let promised = promised(algorithm, LIMIT);
    let [whole, shorter] = [WINDOW, WINDOW - 2 * ERROR].map(|span| admissions.most_within(span));
    println!(
        "{algorithm}, lease {lease:?}: at most {shorter} in the window less 2 e, {whole} in a window ({promised} \
         promised), {} admitted",
        admissions.total()
    );
    assert!(shorter <= promised, "{algorithm}: {shorter} of {promised}");
    // About the limit in each window: nothing stands still, and no clock runs away.
    let window = WINDOW + lease.unwrap_or_default();
    let windows = u64::try_from(admissions.lasted().as_millis() / window.as_millis()).unwrap();
    let (total, limit) = (admissions.total(), u64::from(LIMIT));
    // On a busy machine, few are asked for.
    assert!(
        10 * total >= 3 * (windows * limit).min(checks),
        "{algorithm}: {total} of {checks} in {windows} windows"
    );
    assert!(
        total <= (windows + 2) * limit,
        "{algorithm}: {total} in {windows} windows"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_whose_clocks_differ_keep_every_promise() {
    for algorithm in algorithms(10) {
        keeps_its_promise(algorithm, None).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn leases_of_callers_whose_clocks_differ_keep_the_promise() {
    keeps_its_promise(Algorithm::SlidingLog, Some(50 * MS)).await;
    keeps_its_promise(Algorithm::Gcra, Some(50 * MS)).await;
}

/// How much is left of the window of the server.
async fn left(limiter: &RateLimiter, moment: &str) -> Duration {
    limiter.check(moment).await.unwrap().reset_after()
}

#[tokio::test]
async fn a_call_that_arrives_two_windows_late_empties_no_fixed_window() {
    const LIMIT: u32 = 5;
    let server = TimelessServer::start();
    let proxy = Proxy::before(server.port()).await;
    let [prompt, late] = [server.url(), proxy.url()].map(|url| {
        let store = store_at(&url).refusal_cache(Duration::ZERO);
        let quota = Quota::per_second(LIMIT).with_algorithm(Algorithm::FixedWindow);
        RateLimiter::new(store, quota)
    });
    // On a busy machine, a window may end before the test does.
    for round in 0.. {
        assert!(round < 10, "no window is long enough");
        let key = round.to_string();
        assert_eq!(late.peek(&key).await.unwrap().used(), 0);
        proxy.set(Wire::Hole);
        let delayed = tokio::spawn({
            let (late, key) = (late.clone(), key.clone());
            async move { late.check(&key).await.unwrap() }
        });
        tokio::time::sleep(1_500 * MS).await;
        tokio::time::sleep(left(&prompt, &format!("{key} waits")).await).await;
        let before = left(&prompt, &format!("{key} begins")).await;
        for _ in 0..LIMIT {
            assert!(prompt.check(&key).await.unwrap().is_allowed());
        }
        proxy.set(Wire::Whole);
        let delayed = delayed.await.unwrap();
        let refused = prompt.check(&key).await.unwrap();
        if left(&prompt, &format!("{key} ends")).await < before {
            assert!(
                !delayed.is_allowed() && !refused.is_allowed(),
                "{refused:?}"
            );
            break;
        }
    }
}

#[tokio::test]
async fn refunds_find_their_charges_whichever_caller_was_last() {
    let server = TimelessServer::start();
    let [ahead, behind] = apart(&server);
    for algorithm in algorithms(10) {
        let limiters = [&ahead, &behind].map(|store| {
            let quota = Quota::per_hour(1_000).with_algorithm(algorithm);
            RateLimiter::new(store.clone(), quota).name(format!("refunds {algorithm}"))
        });
        let mut decisions = Vec::new();
        let start = Instant::now();
        for number in 0..40 {
            let limiter = &limiters[number % 2];
            decisions.push(limiter.check_n("ada", 3).await.unwrap());
        }
        // In another order than they were charged.
        decisions.rotate_left(7);
        for decision in decisions {
            decision.settle(1).await.unwrap();
        }
        let used = limiters[0].peek("ada").await.unwrap().used();
        // A level drains a unit in 3.6 s, by clocks that differ by at most 50 ms.
        let drained = (start.elapsed() + 50 * MS).as_millis().div_ceil(3_600);
        let fewest = match algorithm {
            Algorithm::Gcra => 40_u32.saturating_sub(drained.try_into().unwrap_or(u32::MAX)),
            _ => 40,
        };
        assert!((fewest..=40).contains(&used), "{algorithm}: {used}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn slots_of_callers_whose_clocks_differ_are_never_more_than_the_limit() {
    const LIMIT: u32 = 4;
    let server = TimelessServer::start();
    let limiters = apart(&server).map(|store| {
        // A tenth of it is the most that a busy machine may be unsure of the time.
        let quota = Quota::in_flight(LIMIT).slot_lease(Duration::from_secs(60));
        RateLimiter::new(store, quota).name("slots")
    });
    let held = Running::default();
    let tasks = (0..12).map(|task| {
        let limiter = limiters[task % 2].clone();
        let held = held.clone();
        tokio::spawn(async move {
            for _ in 0..30 {
                let permit = limiter.acquire("ada").await.unwrap();
                held.run(MS).await;
                drop(permit);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(held.most(), LIMIT);
}

#[tokio::test]
async fn a_lease_that_the_clock_is_too_coarse_for_is_an_error() {
    let server = TimelessServer::start();
    let detour = Detour {
        of_request: Duration::from_millis(1_100),
        of_reply: Duration::ZERO,
    };
    let store = store_at(&server.url_with(detour));
    let quota = Quota::in_flight(3).slot_lease(Duration::from_secs(5));
    let limiter = RateLimiter::new(store, quota).name("slots");
    // The first call learns that it has to tell the time, and is refused then.
    let error = loop {
        match limiter.try_acquire("ada").await {
            Ok(Acquired::Permit(_) | Acquired::Refused(_)) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    let text = error.to_string();
    for said in ["lease of 5s", "refuses TIME in scripts"] {
        assert!(text.contains(said), "{text}");
    }
}

#[tokio::test]
async fn a_lease_that_one_slow_reading_is_too_coarse_for_is_held_after_the_next_reading() {
    let server = TimelessServer::start();
    let proxy = Proxy::before(server.port()).await;
    let quota = Quota::in_flight(3).slot_lease(Duration::from_secs(5));
    let limiter = RateLimiter::new(store_at(&proxy.url()), quota).name("slots");
    // Connects the thread of the slots, whose first reading is too old then.
    while let Err(error) = limiter.try_acquire("ada").await {
        println!("asks again: {error}");
    }
    tokio::time::sleep(Duration::from_millis(10_200)).await;
    proxy.set(Wire::Slow(1_200 * MS));
    let error = limiter.try_acquire("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    proxy.set(Wire::Whole);
    let begin = Instant::now();
    while let Err(error) = limiter.try_acquire("ada").await {
        assert!(begin.elapsed() < Duration::from_secs(5), "{error}");
        tokio::time::sleep(50 * MS).await;
    }
}

#[tokio::test]
async fn a_lease_that_the_clock_is_too_coarse_for_fails_no_other_check_of_its_call() {
    let server = TimelessServer::start();
    let detour = Detour {
        of_request: Duration::from_millis(1_100),
        of_reply: Duration::ZERO,
    };
    let store = store_at(&server.url_with(detour));
    let rates = RateLimiter::new(store.clone(), Quota::per_hour(1_000)).name("rates");
    let slots = |lease| {
        let quota = Quota::in_flight(100).slot_lease(Duration::from_secs(lease));
        RateLimiter::new(store.clone(), quota).name(format!("slots of {lease}"))
    };
    let (short, long) = (slots(5), slots(60));
    // Learns that calls have to tell the time.
    let _ = rates.check("first").await.unwrap();
    // The first is in a call of its own. Those in the next one take turns behind each reading of the clock.
    let checks = (0..2).map(|number| {
        let (rates, short, long) = (rates.clone(), short.clone(), long.clone());
        tokio::spawn(async move {
            let key = number.to_string();
            tokio::join!(
                rates.check(key.as_str()),
                short.try_acquire(key.as_str()),
                long.try_acquire(key.as_str())
            )
        })
    });
    for check in checks.collect::<Vec<_>>() {
        let (rate, short, long) = check.await.unwrap();
        assert_eq!(rate.unwrap().used(), 1);
        assert!(matches!(long.unwrap(), Acquired::Permit(_)));
        let error = short.unwrap_err();
        assert!(error.to_string().contains("lease of 5s"), "{error}");
    }
}

#[tokio::test]
async fn blocks_end_by_the_time_that_is_told() {
    let server = TimelessServer::start();
    let [ahead, behind] = apart(&server);
    let [one, other] = [ahead, behind].map(|store| {
        let store = store.fork().block_list_refresh(50 * MS);
        RateLimiter::new(store, Quota::per_minute(1_000)).name("blocked")
    });
    // The block begins before its reply.
    let begin = Instant::now();
    one.admin()
        .block("eve", Duration::from_secs(2))
        .await
        .unwrap();
    let mut slowest = begin.elapsed();
    let mut blocked_for = None;
    let mut admitted_after = None;
    while begin.elapsed() < Duration::from_secs(10) {
        let turn = Instant::now();
        let is_blocked = !other.check("eve").await.unwrap().is_allowed();
        slowest = slowest.max(turn.elapsed());
        match (is_blocked, blocked_for) {
            (true, _) => blocked_for = Some(begin.elapsed()),
            (false, Some(_)) => {
                admitted_after = Some(begin.elapsed());
                break;
            }
            (false, None) => {}
        }
        tokio::time::sleep(5 * MS).await;
    }
    let blocked_for = blocked_for.expect("the other process saw the block");
    // The last refusal may have been long before, if the machine stood still meanwhile.
    let admitted_after = admitted_after.expect("the block ends");
    assert!(
        admitted_after > Duration::from_millis(1_850),
        "{admitted_after:?}"
    );
    // A check, and a refresh of the list beside it, are as late as the machine is.
    let latest = Duration::from_millis(2_300) + 2 * slowest;
    assert!(blocked_for < latest, "{blocked_for:?}, {slowest:?}");
}
