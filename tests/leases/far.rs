//! Leases of a store that is far away.

use std::time::{Duration, Instant};

use tollgate::{Decision, Quota, RateLimiter, RedisStore, Source};

use crate::spans::{Admission, Admissions};
use crate::support::proxy::{Proxy, Wire};
use crate::support::redis_server::RedisServer;

async fn far_limiter(
    server: &RedisServer,
    round_trip: Duration,
    quota: Quota,
) -> (Proxy, RateLimiter) {
    let proxy = Proxy::before(server.port()).await;
    proxy.set(Wire::Slow(round_trip));
    let store = RedisStore::open(&proxy.url()).unwrap();
    let store = store.deadline(Duration::from_secs(10));
    (proxy, RateLimiter::new(store, quota))
}

/// What a check was answered, and when it was asked and answered.
struct Answered {
    decision: Decision,
    start: Duration,
    end: Duration,
}

impl Answered {
    fn is_from_memory(&self) -> bool {
        self.decision.source() == Source::Lease
    }
}

/// Checks a key at a pace, whether or not earlier checks have their answers.
async fn checks(limiter: &RateLimiter, pause: Duration, lasts: Duration) -> Vec<Answered> {
    let _ = limiter.peek("ada").await.unwrap();
    let began = Instant::now();
    let mut pending = Vec::new();
    let mut pace = tokio::time::interval(pause);
    while began.elapsed() < lasts {
        pace.tick().await;
        let limiter = limiter.clone();
        pending.push(tokio::spawn(async move {
            let start = began.elapsed();
            let decision = limiter.check("ada").await.unwrap();
            let end = began.elapsed();
            Answered {
                decision,
                start,
                end,
            }
        }));
    }
    let mut answered = Vec::new();
    for pending in pending {
        answered.push(pending.await.unwrap());
    }
    answered
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_a_store_far_away_is_leased_for_fewer_checks_unless_its_units_would_come_too_late()
{
    let server = RedisServer::start();
    let second = Duration::from_secs(1);
    let mut from_memory = Vec::new();
    for (key, millis) in ["far", "too far"].into_iter().zip([150, 900]) {
        let quota = Quota::new(1_000, 10 * second);
        let round_trip = Duration::from_millis(millis);
        let (_proxy, limiter) = far_limiter(&server, round_trip, quota).await;
        let limiter = limiter.name(key).lease(second);
        let answered = checks(&limiter, second / 6, 3 * second).await;
        let leased = answered.iter().filter(|answered| answered.is_from_memory());
        from_memory.push(leased.count());
    }
    assert!(
        from_memory[0] >= 6 && from_memory[1] == 0,
        "{from_memory:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_far_away_that_stays_at_its_limit_alone_gets_most_of_it_from_memory() {
    let server = RedisServer::start();
    let window = Duration::from_secs(2);
    // The proxy passes on one reply after the other, so a round trip takes up to three times as long.
    let round_trip = Duration::from_millis(10);
    let (_proxy, limiter) = far_limiter(&server, round_trip, Quota::new(200, window)).await;
    let limiter = limiter.lease(window / 10);
    let answered = checks(&limiter, Duration::from_millis(5), 4 * window).await;
    let admitted: Vec<_> = answered
        .iter()
        .filter(|answered| answered.decision.is_allowed())
        .collect();
    let steady = admitted
        .iter()
        .filter(|answered| answered.start > 2 * window);
    let steady: Vec<_> = steady.collect();
    let from_memory = steady.iter().filter(|answered| answered.is_from_memory());
    let from_memory = 100 * from_memory.count() / steady.len();
    let admissions = admitted.iter().map(|answered| Admission {
        start: answered.start,
        end: answered.end,
        units: 1,
    });
    let worst = Admissions::new(admissions.collect()).most_within(window);
    println!(
        "{from_memory} % of {} from memory, at most {worst}",
        steady.len()
    );
    assert!(worst <= 200, "{worst} of 200");
    // A window is counted for a tenth longer.
    assert!(steady.len() > 320, "{} of 364", steady.len());
    assert!(from_memory > 60, "{from_memory} %");
}
