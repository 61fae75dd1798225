//! What an operator does with the keys of a limiter.

use std::time::Duration;

use super::limiter::RateLimiter;
use crate::decision::Decision;
use crate::error::Error;
use crate::key::Key;
use crate::quota::Quotas;
use crate::store::Subject;
use crate::store::{Block, Credit, Reset, Store};

impl RateLimiter {
    pub(crate) async fn look_by(&self, quotas: &Quotas, key: &Key) -> Result<Decision, Error> {
        self.check_by(quotas, key, 0).await
    }

    pub(crate) async fn reset_by(&self, quotas: &Quotas, key: &Key) -> Result<(), Error> {
        if quotas.is_empty() {
            return Ok(());
        }
        let subject = self.subject(quotas, key);
        if let Some(fallback) = self.guard.fallback_if_made() {
            fallback.reset(Reset { subject }).await?;
        }
        let reset = || self.store.reset(Reset { subject });
        self.guard.give_back(subject, reset).await
    }

    /// As [`Admin::credit`](crate::Admin::credit).
    pub(crate) async fn credit(&self, quotas: &Quotas, key: &Key, units: u32) -> Result<(), Error> {
        if quotas.is_empty() || units == 0 {
            return Ok(());
        }
        // A sorted set takes half a microsecond for each, while which Redis serves nobody.
        if units > quotas.max_cost() {
            return Err(Error::cost_too_large(units, quotas.max_cost()));
        }
        if let Some(fallback) = self.guard.fallback_if_made() {
            let shares = match &self.on_failure {
                Some(on_failure) => on_failure.shares_of(quotas, &self.quotas),
                None => quotas.clone(),
            };
            let subject = self.subject(&shares, key);
            fallback.credit(Credit { subject, units }).await?;
        }
        let subject = self.subject(quotas, key);
        let give = || self.store.credit(Credit { subject, units });
        self.guard.give_back(subject, give).await
    }

    /// BlockList a key for so long from now on. Whether the store fails for that key is nothing to its list of
    /// those that are blocked.
    pub(crate) async fn block(&self, key: &Key, duration: Duration) -> Result<(), Error> {
        let block = Block {
            limiter: &self.scope,
            key,
            duration,
        };
        self.guard.in_time(self.store.block(block)).await
    }

    /// Finds out what other processes have blocked.
    pub(crate) async fn look_for_blocks(&self) -> Result<(), Error> {
        self.blocks.look().await
    }

    pub(crate) fn blocked_for(&self, key: &Key) -> Option<Duration> {
        let subject: Subject<'_> = self.subject(&self.quotas, key);
        self.blocks.known_left_of(subject)
    }

    /// What is blocked, longest first.
    pub(crate) fn blocked(&self) -> Vec<(Key, Duration)> {
        let mut blocked = self.blocks.of_limiter(&self.scope);
        blocked.sort_by(|(one, left), (two, other)| other.cmp(left).then_with(|| one.cmp(two)));
        blocked
    }
}
