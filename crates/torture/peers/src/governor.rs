//! governor: GCRA in memory. `tower_governor` decides by the same limiter.

use std::future::ready;
use std::num::NonZeroU32;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tollgate_torture::{Bound, Contestant, Description, Entry, Failure, Offer, Reply, Verdict};

pub(crate) fn entry() -> Entry {
    // `NotUntil::wait_time_from` is the minimum amount of time that must pass.
    let description = Description::new("governor", "0.10.4", Bound::Bucket)
        .offers(&[Offer::Costs, Offer::Waits, Offer::ExactWaits])
        .promises(&["threads", "edges", "costs", "waits"]);
    Entry::new(description, |setup| async move {
        let limit = NonZeroU32::new(setup.limit).ok_or_else(|| Failure::new("no limit"))?;
        let quota = Quota::with_period(setup.window / setup.limit);
        let quota = quota.ok_or_else(|| Failure::new("no period"))?;
        Ok(Governor(RateLimiter::keyed(quota.allow_burst(limit))))
    })
}

struct Governor(DefaultKeyedRateLimiter<String>);

impl Contestant for Governor {
    fn check<'a>(&'a self, key: &'a str, cost: u32) -> Reply<'a, Verdict> {
        let decided = match NonZeroU32::new(cost).map(|cost| self.0.check_key_n(&key.into(), cost))
        {
            Some(Ok(Ok(()))) => Ok(Verdict::admitted()),
            Some(Ok(Err(not_until))) => {
                let wait = not_until.wait_time_from(DefaultClock::default().now());
                Ok(Verdict::refused(Some(wait)))
            }
            other => Err(Failure::new(format!("{other:?}"))),
        };
        Box::pin(ready(decided))
    }
}
