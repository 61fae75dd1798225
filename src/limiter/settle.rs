//! Refunds, and settlements after the actual cost is known. Each level is settled by its own limiter.

use super::decision::{Decision, DecisionView, TakenLevel};
use super::limiter::RateLimiter;
use super::line::{forget_room, wake_first};
use crate::decision::{Answer, LevelDecision, Source};
use crate::error::{Code, Error, ErrorKind, warning};
use crate::key::{IntoKey, Key};
use crate::quota::{Quota, Quotas};
use crate::store::{Change, StoreFuture, Subject, join_all};

/// The number of attempts in which other callers took the room first, after which no more is charged by checks.
const MAX_LOST_RACES: u32 = 8;

impl Decision {
    /// Adjusts the charge to the actual cost: refunds unused units, or charges the missing ones.
    ///
    /// Use it if the cost is known only at the end of the work, such as the tokens of a language model or
    /// the bytes of a response. It consumes the decision, so that nothing is settled twice. If a decision
    /// is dropped without a settlement, its charge stays. It needs no limiter: the decision has those that made it.
    ///
    /// Missing units are charged now and in full: also beyond the limit, and also if the window of the decision has
    /// passed. Then more is [used](DecisionView::used) than the limit, and checks wait until enough of it has returned.
    /// [Soft](crate::Quota::soft) quotas are charged too. Nothing is charged if the decision charged nothing: it was refused,
    /// its cost was 0, or no store counted it.
    ///
    /// A store that cannot charge beyond a limit is charged by a check, up to the room of its rates. This is logged once.
    ///
    /// # Several keys
    ///
    /// After a check of [several keys](RateLimiter::check_all), such as the account and the address of a login, `used` is the
    /// cost of **every** level that was not settled before, for any reserved cost. If levels count different things, such as
    /// requests and tokens, call [`settle_level`](Self::settle_level) for each limiter instead.
    ///
    /// All levels are settled at the same time, also if one of them fails. Each is settled where it was charged:
    ///
    /// - Units that came from a [lease](RateLimiter::lease) return to it.
    /// - A level that [fell back](crate::FailurePolicy::fall_back) is settled in the fallback counts of this process.
    /// - Slots [in flight](crate::Quota::in_flight) stay with their [permit](crate::Permit).
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails: the units may or may not have been refunded or charged. After a check of several
    /// keys, it names the limiters whose levels failed. The others are settled.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let store = MemoryStore::new();
    /// let tokens = RateLimiter::new(store.clone(), Quota::per_minute(10_000)).name("tokens");
    ///
    /// let reserved = tokens.check_n("ada", 1_000).await?;
    /// reserved.settle(640).await?;
    /// // More than the limit is counted, too.
    /// let reserved = tokens.check_n("ada", 1_000).await?;
    /// reserved.settle(20_000).await?;
    /// assert_eq!(tokens.peek("ada").await?.used(), 640 + 20_000);
    ///
    /// let account = RateLimiter::new(store.clone(), Quota::per_hour(5)).name("account");
    /// let address = RateLimiter::new(store, Quota::per_minute(20)).name("address");
    ///
    /// let levels = [account.level("ada"), address.level("192.0.2.1")];
    /// let decision = RateLimiter::check_all(levels).await?;
    /// // The password was right, so the login is free.
    /// decision.settle(0).await?;
    /// assert_eq!(account.peek("ada").await?.used(), 0);
    /// assert_eq!(address.peek("192.0.2.1").await?.used(), 0);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn settle(mut self, used: u32) -> Result<(), Error> {
        self.settle_all(used).await
    }

    /// Adjusts the charge of the level of one limiter to its actual cost, as [`settle`](Self::settle) does.
    ///
    /// For decisions on [several keys](RateLimiter::check_all) whose levels count different things. It settles the first level
    /// of the limiter's name that holds units. That level then holds nothing more, and another settlement of it does nothing.
    /// The other levels keep what they hold.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`settle`](Self::settle), and one of kind
    /// [`Misconfigured`](ErrorKind::Misconfigured) if no level has the name of this limiter: then nothing is settled.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let store = MemoryStore::new();
    /// let requests = RateLimiter::new(store.clone(), Quota::per_minute(60)).name("requests");
    /// let tokens = RateLimiter::new(store, Quota::per_minute(10_000)).name("tokens");
    ///
    /// // One request, and 1 000 tokens reserved for it. It used 640.
    /// let levels = [requests.level("ada"), tokens.level("ada").cost(1_000)];
    /// let mut decision = RateLimiter::check_all(levels).await?;
    /// decision.settle_level(&tokens, 640).await?;
    /// assert_eq!(tokens.peek("ada").await?.used(), 640);
    /// assert_eq!(requests.peek("ada").await?.used(), 1);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    #[doc(alias("refund_level"))]
    pub async fn settle_level(&mut self, limiter: &RateLimiter, used: u32) -> Result<(), Error> {
        let index = self.find_level(limiter)?;
        match index.and_then(|index| self.take_all(index, used)) {
            None => Ok(()),
            Some(taken) => settle_taken(self.view(), taken).await,
        }
    }

    /// Refunds up to `units` of the units that each level holds.
    ///
    /// Use it if work failed, or cost less than you reserved, and more may follow. The decision [holds](Self::held) the units
    /// that it charged, and a refund takes units from it. So no unit is refunded twice, and none of another
    /// decision. Units that are available again are not refunded: because their window has passed, because
    /// the key was reset, or because they have drained from [`Gcra`](crate::Algorithm::Gcra).
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, or does not support refunds. The units may or may not have been refunded. The
    /// decision no longer holds them, so they are not refunded again. After a check of several keys, it names the limiters
    /// whose levels failed.
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
    /// reserved.refund(360).await?;
    /// assert_eq!(reserved.held(), 640);
    /// assert_eq!(tokens.peek("ada").await?.used(), 640);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn refund(&mut self, units: u32) -> Result<(), Error> {
        let count = self.levels().len();
        // Before the requests are sent: the store may refund the units and its reply may be lost.
        let taken: Vec<_> = (0..count).map(|index| self.take(index, units)).collect();
        self.settle_taken(&taken).await
    }

    pub(super) async fn settle_all(&mut self, used: u32) -> Result<(), Error> {
        let count = self.levels().len();
        let taken: Vec<_> = (0..count)
            .filter_map(|index| self.take_all(index, used))
            .collect();
        self.settle_taken(&taken).await
    }

    /// Settles levels at the same time. Returns the first error: of several levels, it names those that have failed.
    async fn settle_taken(&self, taken: &[TakenLevel]) -> Result<(), Error> {
        let mut names = Vec::new();
        let mut first_error = None;
        for (taken, outcome) in taken.iter().zip(settle_together(self.view(), taken).await) {
            if let (Some(level), Err(error)) = (self.level(taken.index), outcome) {
                names.push(level.limiter());
                first_error.get_or_insert(error);
            }
        }
        match first_error {
            None => Ok(()),
            Some(error) if self.levels().len() == 1 => Err(error),
            Some(error) => Err(error.within(&format!("failed to settle the levels {names:?}"))),
        }
    }

    /// Of several levels of the limiter's name, it is the first that holds units. `None` if the decision charged no key at
    /// all. Fails if only limiters of other names made the decision.
    pub(super) fn find_level(&self, limiter: &RateLimiter) -> Result<Option<usize>, Error> {
        if self.levels().len() == 0 {
            return Ok(None);
        }
        let facts = &limiter.0.facts;
        let mut own_levels = self
            .levels()
            .enumerate()
            .filter(|(_, level)| level.facts().id.name == facts.id.name)
            .map(|(index, _)| index);
        let Some(first) = own_levels.clone().next() else {
            return Err(Error::coded(
                Code::OTHER_LIMITER,
                format!("the decision has no level of the limiter {:?}", facts.name),
            ));
        };
        let holding = own_levels.find(|index| self.held_at(*index) > 0);
        Ok(Some(holding.unwrap_or(first)))
    }
}

pub(crate) async fn settle_together(
    decision: &DecisionView,
    levels: &[TakenLevel],
) -> Vec<Result<(), Error>> {
    let settling: Vec<_> = levels
        .iter()
        .map(|taken| Box::pin(settle_taken(decision, *taken)))
        .collect();
    join_all(settling).await
}

async fn settle_taken(decision: &DecisionView, taken: TakenLevel) -> Result<(), Error> {
    let Some((limiter, level)) = decision.limiters().nth(taken.index) else {
        return Ok(());
    };
    let TakenLevel {
        held, used, kept, ..
    } = taken;
    if used != held && level.is_charged() {
        limiter.warn_if_total_is_charged(level);
    }
    if used <= held {
        limiter.give_back(level, held - used, kept).await
    } else if level.is_charged() {
        limiter.charge_more(level, used - held).await
    } else {
        Ok(())
    }
}

impl RateLimiter {
    /// Refunds units of a level of this limiter, which still holds `held` units for later refunds.
    async fn give_back(
        &self,
        level: LevelDecision<'_>,
        units: u32,
        held: u32,
    ) -> Result<(), Error> {
        let record = level.record();
        let quotas = record.quotas(&self.0.facts.quotas);
        if units == 0 || quotas.is_empty() {
            return Ok(());
        }
        let subject = self.subject_for(record, quotas);
        // Units return to the charges in their order. These were returned before.
        let mut returned = level.cost().saturating_sub(held.saturating_add(units));
        let mut units = units;
        let mut outcome = Ok(());
        for (answer, charged) in level.charges() {
            let before = returned.min(charged);
            returned -= before;
            let own = units.min(charged - before);
            units -= own;
            if own > 0 {
                let held = held.min(charged - before - own);
                let sent = self.give_back_to_charge(subject, answer, charged, own, held);
                outcome = sent.await.and(outcome);
            }
        }
        self.may_admit_earlier(&record.key, quotas);
        outcome
    }

    fn warn_if_total_is_charged(&self, level: LevelDecision<'_>) {
        let has_total = level.quota_list().iter().any(Quota::is_total);
        if has_total && self.0.telemetry.total_reserved.first_time() {
            tracing::warn!(target: "tollgate::diagnostics",
                code = warning::TOTAL_RESERVED,
                limiter = &*self.0.facts.name,
                "a total is charged what is reserved: if this process dies before it settles, the units stay charged for \
                 ever; set `reserve_lease`, and take a permit"
            );
        }
    }

    /// Refunds units of one charge of `charged` units, of which the decision still holds `held`.
    fn give_back_to_charge(
        &self,
        subject: Subject<'_>,
        answer: &Answer,
        charged: u32,
        units: u32,
        held: u32,
    ) -> StoreFuture<()> {
        if answer.grant() == 0 {
            let refund = Change::Refund {
                answer,
                cost: charged,
                units,
                held,
            };
            return self.0.store.adjust(subject.adjust(refund));
        }
        let granted = charged.saturating_add(answer.extra_units());
        if let Some(lease) = &self.0.lease {
            return lease.give_back(subject, answer, units, granted);
        }
        let refund = Change::Refund {
            answer,
            cost: granted,
            units,
            // The other units of a grant may return later, whatever this decision holds.
            held: granted - units,
        };
        self.0.store.adjust(subject.adjust(refund))
    }

    /// Takes in that a key may be admitted earlier than its last refusal said, because its counts or its block have changed:
    /// forgets that wait, and lets the first call of each of its lines ask at once.
    pub(super) fn may_admit_earlier(&self, key: &Key, quotas: &Quotas) {
        self.0.store.block_list().forget_wait(&self.0.scope, key);
        wake_first(self, key, quotas);
    }

    /// Charges units that were used without a decision, also beyond the limits.
    ///
    /// For usage that is reported later: after a restart, by a batch, or by a webhook. Units that a decision has reserved are
    /// [settled](Decision::settle) instead. A limit bounds what is admitted: what is charged here is counted in full, and the next
    /// checks wait for it. The page [costs](crate::guide::costs#usage-beyond-a-limit) has how long.
    ///
    /// It charges the quotas of this limiter, for a request without a [share](crate::Quota::shares). Slots
    /// [in flight](crate::Quota::in_flight) are not charged, and a block of the key has no effect.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails: the units may or may not have been charged. The fallback counts of this
    /// process are not charged.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let tokens = RateLimiter::new(MemoryStore::new(), Quota::per_minute(10_000));
    ///
    /// // A batch reports its usage when it ends.
    /// tokens.charge("ada", 12_000).await?;
    /// let looked = tokens.peek("ada").await?;
    /// assert_eq!((looked.used(), looked.remaining()), (12_000, 0));
    /// assert!(!tokens.check("ada").await?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn charge(&self, key: impl IntoKey, units: u32) -> Result<(), Error> {
        let key = key.into_key();
        let quotas = only_rates(&self.0.facts.quotas);
        self.charge_used(self.subject(&quotas, &key), units).await
    }

    async fn charge_more(&self, level: LevelDecision<'_>, more: u32) -> Result<(), Error> {
        let record = level.record();
        let quotas = only_rates(record.quotas(&self.0.facts.quotas));
        let subject = self.subject_for(record, &quotas);
        if level.source() == Source::Fallback {
            let charge = subject.adjust(Change::Charge { units: more });
            if let Some(counts) = self.0.store.fallback_if_used() {
                counts.adjust(charge);
            }
            return Ok(());
        }
        self.charge_used(subject, more).await
    }

    /// The units that this process holds are used first: the store has charged them already.
    async fn charge_used(&self, subject: Subject<'_>, units: u32) -> Result<(), Error> {
        let key = subject.key;
        let quotas = subject.quotas;
        // Units of another lease are counted apart.
        let has_lease = subject.lease_micros == self.lease_micros(quotas);
        let lease = self.0.lease.as_ref().filter(|_| has_lease);
        let units = lease.map_or(units, |lease| lease.use_up(subject, units));
        if units == 0 || quotas.is_empty() {
            return Ok(());
        }
        let voided = match lease {
            Some(lease) => lease.void(key).await,
            None => Ok(()),
        };
        let charge = subject.adjust(Change::Charge { units });
        let charged = match self.0.store.adjust(charge).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.charge_room(subject, units, &error).await
            }
            charged => charged,
        };
        forget_room(self, key, quotas);
        charged.and(voided)
    }

    /// Charges by checks as many units as the rates have room for, because the store charges none beyond. If another caller
    /// takes the room first, the next check is of half as many.
    async fn charge_room(
        &self,
        subject: Subject<'_>,
        units: u32,
        error: &Error,
    ) -> Result<(), Error> {
        let store = &self.0.store;
        if self.0.telemetry.charged_to_limit.first_time() {
            tracing::warn!(target: "tollgate::diagnostics",
                code = warning::CHARGED_TO_LIMIT,
                limiter = &*self.0.facts.name,
                "usage beyond a limit is not counted: {error}; take a store that charges beyond a limit"
            );
        }
        let mut missing = units;
        let mut lost_races = 0;
        let mut halvings = 0;
        while lost_races < MAX_LOST_RACES {
            let looked = store.check_uncached(subject.check(0)).await?;
            let room = looked
                .room(subject.quotas)
                .min(subject.quotas.max_cost())
                .min(missing);
            if room == 0 {
                break;
            }
            let units = (room >> halvings).max(1);
            let charged = store.check_uncached(subject.check(units)).await?;
            if charged.is_admitted() {
                missing -= units;
                halvings = 0;
            } else {
                lost_races += 1;
                halvings += 1;
            }
        }
        Ok(())
    }
}

/// No settlement changes quotas in flight, or what processes hold.
fn only_rates(quotas: &Quotas) -> Quotas {
    if !quotas.have_holders() {
        return quotas.clone();
    }
    quotas.rates().cloned().collect()
}
