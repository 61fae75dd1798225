//! What an operator gives to a key.

use super::RateLimiter;
use crate::store::{Give, Store};
use crate::{Error, Key, Quotas};

impl RateLimiter {
    /// Has `units` fewer count for a key by these quotas, as if they had never been charged, whoever
    /// charged them; none where fewer count than that.
    ///
    /// In each stored count, once: also where quotas share it. What is left leaves when it would have.
    /// Which units go is told by what goes on:
    ///
    /// - of the logs and of [`SlidingBuckets`](crate::Algorithm::SlidingBuckets) the oldest, which would
    ///   be back soonest. [`Gcra`](crate::Algorithm::Gcra) has one level, which falls;
    /// - of [`SlidingCounter`](crate::Algorithm::SlidingCounter) those of this window, then as few of
    ///   the one before as it takes;
    /// - a decision from before still gives back what it holds, as far as that is there. Of the logs and
    ///   of `Gcra` that is what was not given; the other algorithms do not tell units of one window or
    ///   bucket apart, so that it may be what was charged after the gift: what is used is what was
    ///   charged, less what was taken back, less what was given.
    ///
    /// # Errors
    ///
    /// When the store fails, or cannot give. Then it may have given: its answer may be lost.
    #[cfg_attr(
        not(feature = "test-util"),
        expect(dead_code, reason = "for operators")
    )]
    pub(crate) async fn give(&self, quotas: &Quotas, key: &Key, units: u32) -> Result<(), Error> {
        if quotas.is_empty() || units == 0 {
            return Ok(());
        }
        if let Some(fallback) = self.guard.fallback_if_made() {
            let shares = match &self.on_failure {
                Some(on_failure) => on_failure.shares_of(quotas, &self.quotas),
                None => quotas.clone(),
            };
            let subject = self.subject(&shares, key);
            fallback.give(Give { subject, units }).await?;
        }
        let subject = self.subject(quotas, key);
        let give = || self.store.give(Give { subject, units });
        self.guard.give_back(subject, give).await
    }

    /// The same by its own quotas: for tests, which see no more than is public.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub async fn give_units(&self, key: impl Into<Key>, units: u32) -> Result<(), Error> {
        self.give(&self.quotas, &key.into(), units).await
    }
}
