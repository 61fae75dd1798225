//! `governor` 0.10, without HTTP.

pub mod before {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use governor::clock::{Clock, DefaultClock};
    use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

    pub const QUOTA: Quota = Quota::per_second(NonZeroU32::new(50).unwrap());

    pub fn limiter() -> DefaultKeyedRateLimiter<String> {
        RateLimiter::keyed(QUOTA)
    }

    /// Returns how long the tenant has to wait, or `None` if it may send now.
    pub fn wait(limiter: &DefaultKeyedRateLimiter<String>, tenant: &String) -> Option<Duration> {
        let refused = limiter.check_key(tenant).err()?;
        Some(refused.wait_time_from(DefaultClock::default().now()))
    }

    pub async fn until_ready(limiter: &DefaultKeyedRateLimiter<String>, tenant: &String) {
        limiter.until_key_ready(tenant).await;
    }
}

pub mod after {
    // page: after
    use std::time::Duration;

    use tollgate::{Algorithm, Error, Quota, RateLimiter, Store};

    pub const QUOTA: Quota = Quota::per_second(50).with_algorithm(Algorithm::Gcra);

    pub fn limiter(store: impl Store) -> RateLimiter {
        RateLimiter::new(store, QUOTA).name("send")
    }

    /// Returns how long the tenant has to wait, or `None` if it may send now.
    pub async fn wait(limiter: &RateLimiter, tenant: &str) -> Result<Option<Duration>, Error> {
        Ok(limiter.check(tenant).await?.retry_after())
    }

    /// Returns whether the tenant may send, after at most 30 seconds.
    pub async fn until_ready(limiter: &RateLimiter, tenant: &str) -> Result<bool, Error> {
        let decision = limiter
            .until_ready(tenant, 1, Duration::from_secs(30))
            .await?;
        Ok(decision.is_allowed())
    }
    // page: end
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use governor::clock::{Clock, FakeRelativeClock};
    use tollgate::store::TestClock;
    use tollgate::{Algorithm, ErrorKind, MemoryStore, Quota, RateLimiter};

    use super::{after, before};

    /// Sends checks to both at the same times, and compares which are admitted, and the waits.
    async fn compare(
        before: governor::Quota,
        after: Quota,
        pauses: impl Iterator<Item = Duration>,
    ) {
        let clocks = (FakeRelativeClock::default(), TestClock::new());
        let before = governor::RateLimiter::direct_with_clock(before, clocks.0.clone());
        let after = RateLimiter::new(MemoryStore::with_clock(clocks.1.clone()), after);
        let (mut admitted, mut refused) = (0, 0);
        for (step, pause) in pauses.enumerate() {
            let decision = after.check("ada").await.expect("in memory");
            match before.check() {
                Ok(()) => {
                    admitted += 1;
                    assert!(decision.is_allowed(), "step {step}");
                }
                Err(until) => {
                    refused += 1;
                    let wait = until.wait_time_from(clocks.0.now());
                    assert_eq!(decision.retry_after(), Some(wait), "step {step}");
                }
            }
            clocks.0.advance(pause);
            clocks.1.advance(pause);
        }
        assert!(admitted > 20 && refused > 20, "{admitted} and {refused}");
    }

    #[tokio::test]
    async fn both_admit_the_same_checks() {
        let pauses = (0..2_000).map(|step| Duration::from_millis(step * 7 % 31));
        compare(before::QUOTA, after::QUOTA, pauses).await;

        let interval = Duration::from_secs(2);
        let (limit, burst) = (5, NonZeroU32::new(5).expect("not 0"));
        let before = governor::Quota::with_period(interval).expect("not 0");
        let after = Quota::new(limit, interval * limit).with_algorithm(Algorithm::Gcra);
        let pauses = (0..200).map(|step| Duration::from_millis(step * 317 % 2_500));
        compare(before.allow_burst(burst), after, pauses).await;
    }

    #[tokio::test]
    async fn the_code_of_the_page_runs() {
        let before = before::limiter();
        let after = after::limiter(MemoryStore::new());
        let ada = "ada".to_owned();
        while before::wait(&before, &ada).is_none() {}
        while after::wait(&after, "ada")
            .await
            .expect("in memory")
            .is_none()
        {}
        before::until_ready(&before, &ada).await;
        assert!(after::until_ready(&after, "ada").await.expect("in memory"));
    }

    #[tokio::test]
    async fn a_cost_above_the_limit_is_an_error_of_both() {
        let before = before::limiter();
        let after = after::limiter(MemoryStore::new());
        let cost = NonZeroU32::new(51).expect("not 0");
        assert!(before.check_key_n(&"ada".to_owned(), cost).is_err());
        let error = after.check_n("ada", 51).await.expect_err("never fits");
        assert_eq!(error.kind(), ErrorKind::CostExceedsLimit);
    }
}
