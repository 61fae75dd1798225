//! A list of blocked keys that is nearly full.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tollgate::{Quota, RateLimiter};

use crate::server::Server;

const HOUR: Duration = Duration::from_secs(3_600);

/// The 90th percentile of sorted times.
fn p90(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() * 9 / 10]
}

/// Checks until the flag is set. Returns how long each took.
async fn checks(limiter: RateLimiter, is_over: Arc<AtomicBool>) -> Vec<Duration> {
    let mut times = Vec::new();
    while !is_over.load(Ordering::SeqCst) {
        let asked = Instant::now();
        let _ = limiter.check("ada").await.unwrap();
        times.push(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    times
}

/// Blocks 40 keys beside checks. Returns the 90th percentiles of the blocks and of the checks.
async fn block_beside_checks(limiter: &RateLimiter) -> [Duration; 2] {
    let is_over = Arc::new(AtomicBool::new(false));
    let checks = tokio::spawn(checks(limiter.clone(), Arc::clone(&is_over)));
    let mut blocks = Vec::new();
    for key in 0..40 {
        let asked = Instant::now();
        limiter
            .admin()
            .block(format!("key:{key}"), HOUR)
            .await
            .unwrap();
        blocks.push(asked.elapsed());
    }
    // Beside two refreshes of the list.
    tokio::time::sleep(Duration::from_secs(2)).await;
    is_over.store(true, Ordering::SeqCst);
    let mut checks = checks.await.unwrap();
    [p90(&mut blocks), p90(&mut checks)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_and_a_check_are_fast_beside_9_000_blocked_keys() {
    let server = Server::shared();
    let store = server.store("many_blocked").await;
    let limiter = RateLimiter::new(store, Quota::per_second(1_000)).name("many");
    let [_, before] = block_beside_checks(&limiter).await;
    for number in 0..15 {
        let fill = format!(
            "INSERT INTO many_blocked.tollgate_blocked SELECT 'blocks||{number:x}', 7, convert_to('tollgate blocks 1' || \
             chr(10) || string_agg('filled user:{number}.' || g || ' 9000000000000000', chr(10)), 'UTF8'), 9e15 FROM \
             generate_series(1, 600) g ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value, version = 7"
        );
        server.run(&fill).await;
    }
    let [block, check] = block_beside_checks(&limiter).await;
    println!("a block took {block:?}, a check {check:?}, and {before:?} without blocked keys");
    // The machine of the test may be busy; the check before shows how much.
    assert!(
        check < Duration::from_millis(10) + before * 4,
        "{check:?}, {before:?}"
    );
    if !cfg!(debug_assertions) {
        assert!(
            block < Duration::from_millis(10) + before * 4,
            "{block:?}, {before:?}"
        );
    }
}
