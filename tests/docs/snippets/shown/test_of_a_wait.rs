//! A test of a wait, with counts that follow tokio's clock.

// page: shown
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tollgate::store::TestClock;
use tollgate::{MemoryStore, Quota, RateLimiter};

const MILLI: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn one_job_a_minute_is_sent() {
    let clock = TestClock::new();
    let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()), Quota::per_minute(1));
    tokio::spawn(async move {
        loop {
            sleep(MILLI).await;
            clock.advance(MILLI);
        }
    });

    let begin = Instant::now();
    for _ in 0..3 {
        let decision = limiter.until_ready("ada", 1, 2 * MINUTE).await.unwrap();
        assert!(decision.is_allowed());
    }
    assert_eq!(begin.elapsed().as_secs(), 120);
}
// page: end
