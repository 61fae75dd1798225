//! One limiter in memory and one in Redis: a test asks both the same, and compares all numbers.

use std::time::Duration;

use tollgate::{Decision, Error, ErrorKind, QuotaDecision, Quotas, RateLimiter};

use super::test_time::TestTime;

/// The numbers of one quota.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QuotaNumbers {
    pub(crate) limit: u32,
    pub(crate) used: u32,
    pub(crate) remaining: u32,
    pub(crate) reset_after: Duration,
    pub(crate) retry_after: Option<Duration>,
}

impl From<QuotaDecision<'_>> for QuotaNumbers {
    fn from(quota: QuotaDecision<'_>) -> Self {
        Self {
            limit: quota.limit(),
            used: quota.used(),
            remaining: quota.remaining(),
            reset_after: quota.reset_after(),
            retry_after: quota.retry_after(),
        }
    }
}

/// Everything that a decision says except its source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) allowed: bool,
    pub(crate) exceeded: bool,
    /// The numbers of the decision as a whole.
    pub(crate) whole: QuotaNumbers,
    pub(crate) quotas: Vec<QuotaNumbers>,
}

impl Outcome {
    /// Returns the units that count against the first quota.
    pub(crate) fn used(&self) -> u32 {
        self.quotas[0].used
    }

    /// Returns the time until the same cost is admitted.
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.whole.retry_after
    }
}

/// Returns what a check says.
pub(crate) fn outcome(checked: &Result<Decision, Error>) -> Result<Outcome, ErrorKind> {
    let decision = checked.as_ref().map_err(Error::kind)?;
    Ok(Outcome {
        allowed: decision.is_allowed(),
        exceeded: decision.is_exceeded(),
        whole: QuotaNumbers {
            limit: decision.limit(),
            used: decision.used(),
            remaining: decision.remaining(),
            reset_after: decision.reset_after(),
            retry_after: decision.retry_after(),
        },
        quotas: decision.quotas().map(QuotaNumbers::from).collect(),
    })
}

/// A limiter in memory, and one in Redis.
#[derive(Clone)]
pub(crate) struct Both(pub(crate) [RateLimiter; 2]);

impl Both {
    pub(crate) fn new(time: &TestTime, quotas: impl Into<Quotas>) -> Self {
        let quotas = quotas.into();
        Self([
            RateLimiter::new(time.memory.clone(), quotas.clone()),
            RateLimiter::new(time.redis.clone(), quotas),
        ])
    }

    /// The same, but Redis is always asked: this process remembers no refusal.
    pub(crate) fn uncached(time: &TestTime, quotas: impl Into<Quotas>) -> Self {
        let quotas = quotas.into();
        Self([
            RateLimiter::new(time.memory.clone(), quotas.clone()),
            RateLimiter::new(time.uncached.clone(), quotas),
        ])
    }

    /// Checks in memory, then in Redis.
    pub(crate) async fn check(&self, key: &str, cost: u32) -> [Result<Decision, Error>; 2] {
        let [memory, redis] = &self.0;
        let in_memory = memory.check_n(key, cost).await;
        [in_memory, redis.check_n(key, cost).await]
    }

    /// Checks, and verifies that both say the same.
    pub(crate) async fn decide(&self, key: &str, cost: u32) -> Outcome {
        let [in_memory, in_redis] = self.check(key, cost).await;
        let in_memory = outcome(&in_memory);
        let quotas = self.0[0].quotas();
        assert_eq!(in_memory, outcome(&in_redis), "cost {cost} of {quotas}");
        in_memory.expect("a decision")
    }

    pub(crate) async fn refund(&self, [in_memory, in_redis]: &mut [Decision; 2], units: u32) {
        in_memory.refund(units).await.expect("a refund");
        in_redis.refund(units).await.expect("a refund");
    }

    pub(crate) async fn credit(&self, key: &str, units: u32) {
        for limiter in &self.0 {
            limiter.admin().credit(key, units).await.expect("a credit");
        }
    }

    /// Charges units without a check.
    pub(crate) async fn charge(&self, key: &str, units: u32) {
        for limiter in &self.0 {
            limiter.charge(key, units).await.expect("a charge");
        }
    }

    pub(crate) async fn reset(&self, key: &str) {
        for limiter in &self.0 {
            limiter.admin().reset(key).await.expect("a reset");
        }
    }
}
