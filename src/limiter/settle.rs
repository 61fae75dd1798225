//! Refunds, and settlements after the actual cost is known.

use std::time::Duration;

use super::limiter::RateLimiter;
use crate::decision::{ChargedKey, Decision, DecisionView, Source};
use crate::error::{Error, ErrorKind};
use crate::store::Refund;

/// The number of attempts in which other callers took the room first, after which a settlement gives up.
const MAX_LOST_RACES: u32 = 8;

impl RateLimiter {
    /// Refunds up to `units` of the units that a decision of this limiter charged.
    ///
    /// Use it if work failed, or cost less than you reserved. The decision [holds](Decision::held) the units
    /// that it charged, and a refund takes units from it. So no unit is refunded twice, and none of another
    /// decision. Units that are available again are not refunded: because their window has passed, because
    /// the key was reset, or because they have drained from [`Gcra`](crate::Algorithm::Gcra).
    ///
    /// # Errors
    ///
    /// Returns an error
    ///
    /// - if a limiter of another name made the decision: nothing is refunded. Whether the decision was made
    ///   with the same store is not verified;
    /// - if the store fails, or does not support refunds. The units may or may not have been refunded. The
    ///   decision no longer holds them, so they are not refunded again.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let tokens = RateLimiter::new(MemoryStore::new(), Quota::per_minute(10_000));
    ///
    /// // Reserve 1 000, use 640, give back 360.
    /// let mut reserved = tokens.check_n("ada", 1_000).await?;
    /// tokens.refund(&mut reserved, 360).await?;
    /// assert_eq!(reserved.held(), 640);
    /// assert_eq!(tokens.peek("ada").await?.used(), 640);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn refund(&self, decision: &mut Decision, units: u32) -> Result<(), Error> {
        if self.charged_key(decision.view())?.is_none() {
            return Ok(());
        }
        // Before the request is sent: the store may refund the units and its reply may be lost.
        let units = decision.take(units);
        self.give_back(decision.view(), units, decision.held())
            .await
    }

    /// Refunds units of a decision, which still holds `held` units for later refunds.
    async fn give_back(&self, decision: &DecisionView, units: u32, held: u32) -> Result<(), Error> {
        let Some(ChargedKey { key, .. }) = self.charged_key(decision)? else {
            return Ok(());
        };
        let quotas = self.intern_quotas(decision.quota_list());
        if units == 0 || quotas.is_empty() {
            return Ok(());
        }
        let refund = Refund {
            subject: self.subject(&quotas, &key),
            units,
            cost: decision.cost(),
            held,
            answer: decision.answer(),
        };
        self.store.refund(refund).await
    }

    /// Adjusts the charge of a decision to the actual cost: refunds unused units, or charges the missing
    /// ones.
    ///
    /// Use it if the cost is known only at the end of the work, such as the tokens of a language model or
    /// the bytes of a response. It consumes the decision, so that nothing is settled twice. If a decision
    /// is dropped without a settlement, its charge stays.
    ///
    /// Missing units are charged now, but only as many as the quotas have room for: a count never exceeds
    /// its limit. They are not charged
    ///
    /// - if the decision charged nothing: it was refused, its cost was 0, or no store counted it;
    /// - if the decision was made by the [fallback](crate::FailurePolicy::fall_back);
    /// - if the longest window has passed since the decision, by the clock of the store;
    /// - if other callers take the room first in eight attempts.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`refund`](Self::refund), and if the store fails while missing
    /// units are charged.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let tokens = RateLimiter::new(MemoryStore::new(), Quota::per_minute(10_000));
    ///
    /// let reserved = tokens.check_n("ada", 1_000).await?;
    /// tokens.settle(reserved, 640).await?;
    /// let reserved = tokens.check_n("ada", 1_000).await?;
    /// tokens.settle(reserved, 1_500).await?;
    /// assert_eq!(tokens.peek("ada").await?.used(), 640 + 1_500);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn settle(&self, decision: Decision, used: u32) -> Result<(), Error> {
        let held = decision.held();
        if used <= held {
            self.give_back(decision.view(), held - used, 0).await
        } else if decision.view().is_charged() && decision.source() != Source::Fallback {
            self.charge_more(decision.view(), used - held).await
        } else {
            Ok(())
        }
    }

    /// Charges as many of `more` units to the key of a decision as the quotas have room for. If another
    /// caller takes the room first, the next attempt charges half as many.
    async fn charge_more(&self, decision: &DecisionView, more: u32) -> Result<(), Error> {
        let Some(ChargedKey { key, .. }) = self.charged_key(decision)? else {
            return Ok(());
        };
        let quotas = self.intern_quotas(decision.quota_list());
        // Without a fallback: the reservation was not charged there.
        let without_policy = Self {
            on_failure: None,
            ..self.clone()
        };
        let (mut more, mut lost_races) = (more, 0);
        while lost_races < MAX_LOST_RACES {
            let current = without_policy.check_despite_block(&quotas, &key, 0).await?;
            if !still_counts(decision, current.view()) {
                return Ok(());
            }
            let units = more.min(current.remaining()) >> lost_races;
            let units = units.min(quotas.max_cost());
            if units == 0 {
                return Ok(());
            }
            let charged = without_policy
                .check_despite_block(&quotas, &key, units)
                .await?;
            if charged.is_allowed() {
                more -= units;
            } else {
                lost_races += 1;
            }
            if more == 0 || charged.remaining() == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the key that a decision charged.
    ///
    /// # Errors
    ///
    /// Returns an error if a limiter of another name made the decision.
    fn charged_key(&self, decision: &DecisionView) -> Result<Option<ChargedKey>, Error> {
        match decision.charged_key() {
            Some(charged) if charged.limiter.name != self.scope.fingerprint() => Err(Error::new(
                ErrorKind::Misconfigured,
                format!(
                    "cannot settle or refund a decision of another limiter at {:?}",
                    self.name
                ),
            )),
            charged => Ok(charged.cloned()),
        }
    }
}

/// Returns whether an earlier charge still counts: it has the same clock, and the longest window has not
/// passed.
fn still_counts(charged: &DecisionView, current: &DecisionView) -> bool {
    let elapsed = current
        .answer()
        .time()
        .saturating_sub(charged.answer().time());
    let longest = charged.quotas().map(|quota| quota.quota().window()).max();
    current.source() == charged.source()
        && longest.is_some_and(|longest| Duration::from_micros(elapsed) < longest)
}
