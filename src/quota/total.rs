//! Totals: quotas that never refill.

use std::time::Duration;

use super::algorithm::Algorithm;
use super::quota::{Quota, window_in_range};
use crate::clock::micros_rounded_up;
use crate::error::ConfigError;

impl Quota {
    /// Creates a quota of `limit` units altogether: a budget that never refills, for an agent's run, a trial or prepaid
    /// units.
    ///
    /// Charges add up until the limit is reached, and then every check is refused. Only a [refund](crate::Decision::refund), a
    /// [settlement](crate::Decision::settle) below the cost, a [credit](crate::Admin::credit) or a
    /// [reset](crate::Admin::reset) makes room again, or a higher limit, such as a plan that was topped up. No wait helps:
    /// `retry_after` is `None`, [`until_ready`](crate::RateLimiter::until_ready) returns the refusal at once, and responses
    /// have no `Retry-After`. [A responder](crate::RateLimitLayer::responder) can answer 402 in place of 429.
    ///
    /// `idle` says when the total of a key is forgotten, so that keys that are gone take no memory: one to two idle times
    /// after its last charge. **A key that comes back later starts at 0 units**, so take a time after which nobody comes
    /// back, or after which a new budget does no harm. It is from 1 ms to 366 days, and there is no default. A refusal is no
    /// charge: an exhausted total is forgotten, too. [`window`](Self::window) returns the idle time.
    ///
    /// A total may stand beside rates in one list. It counts as long as the longest-lived counter of its key. It has no
    /// [lease](crate::RateLimiter::lease) and no [shares](Self::shares).
    ///
    /// # What a change keeps
    ///
    /// All totals of a limiter and key are one count: several limits compare the same units, and a change of the limit or of
    /// the idle time keeps them. A new idle time applies from the next charge on, and never shortens the life of a total.
    ///
    /// # What a total cannot do
    ///
    /// The cost of a check that was charged and never settled, because its process died, stays charged for ever. A
    /// [`MemoryStore`](crate::MemoryStore) loses its totals with the process, and any store with its data; every
    /// key then has all of its limit again. The balance of an account belongs into a database: see
    /// [the cookbook](crate::guide::cookbook#an-agents-tree-of-totals).
    ///
    /// As text, this is `200000 total:7d`.
    ///
    /// # Panics
    ///
    /// Panics if the idle time is out of range. In a `const`, that is a compile error. For an idle time from outside the
    /// program, use [`Quota::try_total`].
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// const WEEK: Duration = Duration::from_secs(7 * 86_400);
    /// let runs = RateLimiter::new(MemoryStore::new(), Quota::total(200_000, WEEK)).name("agent-run");
    ///
    /// let decision = runs.check_n("run-17", 150_000).await?;
    /// assert_eq!(decision.remaining(), 50_000);
    /// let refused = runs.check_n("run-17", 60_000).await?;
    /// assert!(!refused.is_allowed());
    /// assert_eq!(refused.retry_after(), None);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    #[doc(alias("budget", "credits", "prepaid"))]
    pub const fn total(limit: u32, idle: Duration) -> Self {
        let micros = micros_rounded_up(idle);
        assert!(
            window_in_range(micros),
            "the idle time of a total must be from 1 ms to 366 days"
        );
        let mut quota = Self::from_micros(limit, micros);
        quota.algorithm = Algorithm::Total;
        quota
    }

    /// Creates a total as [`Quota::total`] does, but returns an error in place of a panic.
    ///
    /// For an idle time from outside the program, such as a configuration file.
    ///
    /// # Errors
    ///
    /// Returns an error if the idle time is shorter than 1 ms or longer than 366 days.
    pub fn try_total(limit: u32, idle: Duration) -> Result<Self, ConfigError> {
        if window_in_range(micros_rounded_up(idle)) {
            return Ok(Self::total(limit, idle));
        }
        let rule = "the time is from 1 ms to 366 days";
        Err(ConfigError::quota_part(
            "idle time of a total",
            &format!("{idle:?}"),
            rule,
        ))
    }

    #[inline]
    pub(crate) const fn is_total(&self) -> bool {
        matches!(self.algorithm, Algorithm::Total)
    }

    /// Returns whether units return with time: not to a total, and slots are given back.
    #[inline]
    pub(crate) const fn is_rate(&self) -> bool {
        self.algorithm.counts_rates()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Quotas;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn an_idle_time_is_from_one_millisecond_to_366_days() {
        for idle in [Duration::from_millis(1), 366 * DAY] {
            assert_eq!(Quota::try_total(1, idle), Ok(Quota::total(1, idle)));
        }
        for idle in [Duration::ZERO, 366 * DAY + Duration::from_nanos(1)] {
            let text = Quota::try_total(1, idle).unwrap_err().to_string();
            assert!(text.contains(&format!("{idle:?}")), "{text}");
            assert!(text.contains("from 1 ms to 366 days"), "{text}");
        }
    }

    #[test]
    #[should_panic(expected = "from 1 ms to 366 days")]
    fn total_panics_on_an_idle_time_out_of_range() {
        let _ = Quota::total(1, 367 * DAY);
    }

    #[test]
    fn a_rate_becomes_no_total_and_a_total_no_rate() {
        let total = Quota::total(1, DAY);
        for algorithm in Algorithm::ALL.iter().copied() {
            assert!(total.clone().try_algorithm(algorithm).is_err());
            let rate = Quota::per_day(1).with_algorithm(algorithm);
            assert!(rate.try_algorithm(Algorithm::Total).is_err());
        }
        assert!(total.try_burst(5).is_err());
    }

    #[test]
    fn totals_of_a_key_are_one_count_whatever_their_idle_times() {
        let [short, long] = [DAY, 7 * DAY].map(|idle| Quota::total(1, idle));
        assert!(short.is_same_count(0, &long, 0));
        assert!(!short.is_same_count(0, &Quota::per_day(1), 0));
        let quotas = Quotas::from([long, Quota::total(5, DAY).soft(), short]);
        assert_eq!(quotas.charging(0).count(), 2);
    }
}
