//! Refunds, and settlements once the actual cost is known.

use std::time::Duration;

use super::limiter::RateLimiter;
use crate::decision::{ChargedKey, Decision, DecisionView, Source};
use crate::error::{Error, ErrorKind};
use crate::store::Refund;

/// How often a settlement may find that other callers took the room, until it gives up.
const MAX_LOST_RACES: u32 = 8;

impl RateLimiter {
    /// Takes back up to `units` of those that a decision of this limiter charged.
    ///
    /// For work that cost less than was reserved, or failed. A refund takes back units that this decision
    /// charged and still holds: never more, never twice, and never units of another decision. Units that
    /// have left their window, or whose count was reset since, are available already and are not taken
    /// back. The same holds for units of [`Gcra`](crate::Algorithm::Gcra) that have drained.
    ///
    /// # Errors
    ///
    /// When a limiter of another name made the decision. Whether it was made at the same store is not
    /// verified. When the store fails, or cannot refund units: they may have been taken back, so the
    /// decision does not hold them any more.
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
        // Before the request is sent: the store may refund them and the reply be lost.
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

    /// Adjusts the charge of a decision to the actual cost: refunds the excess, or charges the rest.
    ///
    /// For work whose cost is known at its end: the tokens of a language model, the bytes of a response.
    /// Units beyond the reservation are charged now, as far as there is room: a count never exceeds its
    /// limit. They are not charged while the store fails, nor once the longest window has passed since
    /// the reservation, by the times of the store. A decision that charged nothing stays as it is, one of
    /// cost 0 too.
    ///
    /// It takes the decision, so nothing is settled twice. A decision that is dropped instead leaves its
    /// charge as it is.
    ///
    /// # Errors
    ///
    /// As [`refund`](Self::refund), or when the store fails.
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

    /// Charges more units to the key of a decision, as far as there is room. When another caller takes
    /// the room first, the next attempt asks for half as much.
    async fn charge_more(&self, decision: &DecisionView, more: u32) -> Result<(), Error> {
        let Some(ChargedKey { key, .. }) = self.charged_key(decision)? else {
            return Ok(());
        };
        let quotas = self.intern_quotas(decision.quota_list());
        // The fallback has no share in the reservation.
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

    /// Returns where a decision was charged.
    ///
    /// # Errors
    ///
    /// When a limiter of another name made the decision.
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

/// Returns whether an earlier charge still counts: by the same clock, within the longest window.
fn still_counts(charged: &DecisionView, current: &DecisionView) -> bool {
    let elapsed = current
        .answer()
        .time()
        .saturating_sub(charged.answer().time());
    let longest = charged.quotas().map(|quota| quota.quota().window()).max();
    current.source() == charged.source()
        && longest.is_some_and(|longest| Duration::from_micros(elapsed) < longest)
}
