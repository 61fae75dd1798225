//! What becomes of a charge once it is known what the work has cost.

use std::time::Duration;

use super::limiter::RateLimiter;
use crate::decision::ChargedKey;
use crate::decision::{Decision, DecisionView, Source};
use crate::error::{Error, ErrorKind};
use crate::store::{Refund, Store};

/// How often others may be faster, and take what was left, until no more is asked for.
const ROUNDS: u32 = 8;

impl RateLimiter {
    /// Takes back up to `units` of those that a decision of this limiter charged.
    ///
    /// For work that cost less than was reserved, or came to nothing. What is taken back is what
    /// this decision charged and still holds: never more, never twice, and never another's. Units
    /// that have left their window, or whose count was reset since, are not taken back: they are
    /// there already. Of [`Gcra`](crate::Algorithm::Gcra), what has drained since is.
    ///
    /// # Errors
    ///
    /// When the decision is of a limiter of another name; that it is of the same store is for the
    /// caller to see to. When the store fails, or cannot take units back: the
    /// decision does not hold them any more then, since they may have been taken back.
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
        if self.where_charged(decision)?.is_none() {
            return Ok(());
        }
        // Before the store is asked: it may take them back and its answer be lost.
        let units = decision.take(units);
        self.give_back(decision, units, decision.held()).await
    }

    /// Gives back units that a decision held, of which so many more may be given back later.
    async fn give_back(&self, decision: &DecisionView, units: u32, held: u32) -> Result<(), Error> {
        let Some(charged_to) = self.where_charged(decision)? else {
            return Ok(());
        };
        let quotas = self.quotas_of(decision.quota_list());
        if units == 0 || quotas.is_empty() {
            return Ok(());
        }
        let subject = self.subject(&quotas, &charged_to.key);
        let answer = decision.answer();
        let refund = Refund {
            subject,
            units,
            cost: decision.cost(),
            held,
            answer,
        };
        match answer.source() {
            Source::Fallback => match self.guard.fallback_if_made() {
                Some(fallback) => fallback.refund(refund).await,
                None => Ok(()),
            },
            _ => {
                let refund = || self.store.refund(refund);
                self.guard.give_back(subject, refund).await
            }
        }
    }

    /// Makes the charge of a decision what the work has cost: gives back what was reserved in
    /// excess, or charges what was reserved too little.
    ///
    /// For work whose cost is known at its end: the tokens of a language model, the bytes of an
    /// answer. More than was reserved is charged now, as far as there is room: a count never stands
    /// above its limit. It is not charged when the longest window has passed since the reservation, as far
    /// as the store tells times, nor while the store fails. A decision that charged nothing, of cost 0
    /// too, stays as it is.
    ///
    /// It takes the decision, so that nothing is settled twice; one that is dropped instead keeps
    /// what it reserved.
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
            self.give_back(&decision, held - used, 0).await
        } else if decision.is_charged() && decision.source() != Source::Fallback {
            self.charge_more(&decision, used - held).await
        } else {
            Ok(())
        }
    }

    /// Charges more to what a decision has charged, as far as there is room. Others may take that in
    /// between; then less is asked for.
    async fn charge_more(&self, decision: &Decision, more: u32) -> Result<(), Error> {
        let Some(ChargedKey { key, .. }) = self.where_charged(decision)? else {
            return Ok(());
        };
        let quotas = self.quotas_of(decision.quota_list());
        // What this process would count in place of the store has nothing to do with the reservation.
        let store_alone = Self {
            on_failure: None,
            ..self.clone()
        };
        let (mut more, mut lost) = (more, 0);
        while lost < ROUNDS {
            let now = store_alone.check_by(&quotas, &key, 0).await?;
            if !counts_still(decision, &now) {
                return Ok(());
            }
            let room = now.remaining();
            let units = (more.min(room) >> lost).min(quotas.max_cost());
            if units == 0 {
                return Ok(());
            }
            let charged = store_alone.check_by(&quotas, &key, units).await?;
            if charged.is_allowed() {
                more -= units;
            } else {
                lost += 1;
            }
            if more == 0 || charged.remaining() == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    fn where_charged(&self, decision: &DecisionView) -> Result<Option<ChargedKey>, Error> {
        match decision.charged_key() {
            Some(charged_to) if charged_to.limiter.name != self.scope.fingerprint() => {
                Err(Error::new(
                    ErrorKind::Misconfigured,
                    format!(
                        "a decision of another limiter was given back to {:?}",
                        self.name
                    ),
                ))
            }
            charged_to => Ok(charged_to.cloned()),
        }
    }
}

/// Whether what was charged then counts now: by the same clock, within the longest window.
fn counts_still(then: &DecisionView, now: &DecisionView) -> bool {
    let passed = now.answer().time().saturating_sub(then.answer().time());
    let longest = then.quotas().map(|quota| quota.quota().window()).max();
    now.source() == then.source()
        && longest.is_some_and(|longest| Duration::from_micros(passed) < longest)
}
