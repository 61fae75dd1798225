//! Refunds, and settlements after the actual cost is known.

use std::sync::Arc;

use super::decision::{Decision, DecisionView, TakenLevel};
use super::limiter::RateLimiter;
use super::line::{forget_room, wake_first};
use crate::decision::{LevelDecision, Source};
use crate::error::{Code, Error, ErrorKind, warning};
use crate::key::{IntoKey, Key};
use crate::quota::Quotas;
use crate::store::{Change, Subject, join_all};

/// The number of attempts in which other callers took the room first, after which no more is charged by checks.
const MAX_LOST_RACES: u32 = 8;

impl RateLimiter {
    /// Refunds up to `units` of the units that a decision of this limiter charged.
    ///
    /// Use it if work failed, or cost less than you reserved. The decision [holds](Decision::held) the units
    /// that it charged, and a refund takes units from it. So no unit is refunded twice, and none of another
    /// decision. Units that are available again are not refunded: because their window has passed, because
    /// the key was reset, or because they have drained from [`Gcra`](crate::Algorithm::Gcra).
    ///
    /// With a decision on [several keys](Self::check_all), it refunds the level of this limiter: the first one of
    /// this name that holds units. The other levels stay charged: [`settle_all`](Self::settle_all) settles all of
    /// them.
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
        let Some(index) = self.level_of(decision)? else {
            return Ok(());
        };
        // Before the request is sent: the store may refund the units and its reply may be lost.
        let units = decision.take(index, units);
        let held = decision.held_at(index);
        self.give_back(decision.level(index), units, held).await
    }

    /// Refunds units of a level, which still holds `held` units for later refunds.
    async fn give_back(
        &self,
        level: Option<LevelDecision<'_>>,
        units: u32,
        held: u32,
    ) -> Result<(), Error> {
        let Some(level) = level else {
            return Ok(());
        };
        let record = level.record();
        let (key, quotas) = (&record.key, record.quotas(&level.facts().quotas));
        if units == 0 || quotas.is_empty() {
            return Ok(());
        }
        let subject = self.subject_of(record, quotas);
        // Units return to the charges in their order. These were returned before.
        let mut returned = level.cost().saturating_sub(held.saturating_add(units));
        let (mut units, mut outcome) = (units, Ok(()));
        for (answer, charged) in level.charges() {
            let before = returned.min(charged);
            returned -= before;
            let own = units.min(charged - before);
            units -= own;
            if own == 0 {
                continue;
            }
            // The other units of a grant may return later, whatever this decision holds.
            let (whole, held) = match answer.grant() {
                0 => (charged, held.min(charged - before - own)),
                _ => {
                    let whole = charged.saturating_add(answer.extra_units());
                    (whole, whole - own)
                }
            };
            let sent = match &self.0.lease {
                Some(lease) if answer.grant() > 0 => lease.give_back(subject, answer, own, whole),
                _ => {
                    let change = Change::Refund {
                        answer,
                        cost: whole,
                        units: own,
                        held,
                    };
                    self.0.store.adjust(subject.adjust(change))
                }
            };
            outcome = sent.await.and(outcome);
        }
        self.may_admit_earlier(key, quotas);
        outcome
    }

    /// Takes in that a key may be admitted earlier than its last refusal said, because its counts or its block have changed:
    /// forgets that wait, and lets the first call of each of its lines ask at once.
    pub(super) fn may_admit_earlier(&self, key: &Key, quotas: &Quotas) {
        self.0.store.block_list().forget_wait(&self.0.scope, key);
        wake_first(self, key, quotas);
    }

    /// Adjusts the charge of a decision to the actual cost: refunds unused units, or charges the missing
    /// ones.
    ///
    /// Use it if the cost is known only at the end of the work, such as the tokens of a language model or
    /// the bytes of a response. It consumes the decision, so that nothing is settled twice. If a decision
    /// is dropped without a settlement, its charge stays.
    ///
    /// Missing units are charged now and in full: also beyond the limit, and also if the window of the decision has
    /// passed. Then more is [used](DecisionView::used) than the limit, and checks wait until enough of it has returned.
    /// [Soft](crate::Quota::soft) quotas are charged too. If the [fallback](crate::FailurePolicy::fall_back) made the
    /// decision, the counts of this process are charged. Nothing is charged if the decision charged nothing: it was refused,
    /// its cost was 0, or no store counted it.
    ///
    /// A store that cannot charge beyond a limit is charged by a check, up to the room of its rates. This is logged once.
    ///
    /// With a decision on [several keys](Self::check_all), it settles only the level of this limiter. **The other
    /// levels stay charged**, and the decision is gone. Call [`settle_all`](Self::settle_all) to settle all levels,
    /// or [`settle_level`](Self::settle_level) for each of them if they count different things. A settlement to 0
    /// that leaves levels of the same cost charged is logged once.
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
    /// // More than the limit is counted, too.
    /// let reserved = tokens.check_n("ada", 1_000).await?;
    /// tokens.settle(reserved, 20_000).await?;
    /// assert_eq!(tokens.peek("ada").await?.used(), 640 + 1_500 + 20_000);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn settle(&self, mut decision: Decision, used: u32) -> Result<(), Error> {
        if let (0, Some(own)) = (used, self.level_of(&decision)?) {
            self.warn_of_charged_levels(&decision, own);
        }
        self.settle_level(&mut decision, used).await
    }

    /// Adjusts the charge of each level of a decision to the actual cost, as [`settle`](Self::settle) does for one.
    ///
    /// Use it for a decision on [several keys](Self::check_all), such as the account and the address of a login:
    /// a success settles both to 0. Call it on any limiter of the decision. `used` is the cost of **every** level
    /// that was not settled before, for any reserved cost. If levels count different things, such as requests
    /// and tokens, call [`settle_level`](Self::settle_level) for each limiter instead.
    ///
    /// All levels are settled at the same time, also if one of them fails. Each is settled where it was charged:
    ///
    /// - Units from the [lease](Self::lease) of this limiter return to the lease, and those of another limiter to
    ///   the store.
    /// - A level that [fell back](crate::FailurePolicy::fall_back) is settled in the fallback counts, which
    ///   limiters of one store [share](crate::Store::parts).
    /// - Slots [in flight](crate::Quota::in_flight) stay with their [permit](crate::Permit).
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`settle`](Self::settle). It names the limiters whose levels failed.
    /// The others are settled.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let store = MemoryStore::new();
    /// let account = RateLimiter::new(store.clone(), Quota::per_hour(5)).name("account");
    /// let address = RateLimiter::new(store, Quota::per_minute(20)).name("address");
    ///
    /// let levels = [account.on("ada"), address.on("192.0.2.1")];
    /// let decision = RateLimiter::check_all(levels).await?;
    /// // The password was right, so the login is free.
    /// account.settle_all(decision, 0).await?;
    /// assert_eq!(account.peek("ada").await?.used(), 0);
    /// assert_eq!(address.peek("192.0.2.1").await?.used(), 0);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn settle_all(&self, mut decision: Decision, used: u32) -> Result<(), Error> {
        self.level_of(&decision)?;
        let limiters: Vec<_> = decision
            .levels()
            .map(|level| self.settling(level))
            .collect();
        let levels = limiters.iter().enumerate();
        let levels =
            levels.filter_map(|(index, limiter)| Some((limiter, decision.take_all(index, used)?)));
        let levels: Vec<_> = levels.collect();
        let outcomes = settle_together(decision.view(), levels.iter().copied()).await;
        let failed = levels.iter().zip(outcomes);
        let failed = failed
            .filter_map(|((limiter, _), outcome)| Some((&limiter.0.facts.name, outcome.err()?)));
        let (names, errors): (Vec<_>, Vec<_>) = failed.unzip();
        let Some(error) = errors.into_iter().next() else {
            return Ok(());
        };
        Err(error.within(&format!("failed to settle the levels {names:?}")))
    }

    /// Adjusts the charge of one level to its actual cost, as [`settle`](Self::settle) does.
    ///
    /// For decisions on [several keys](Self::check_all): each limiter settles its own level. It settles the
    /// first level of this limiter's name that holds units. That level then holds nothing more, and another
    /// settlement of it does nothing. The other levels keep what they hold.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`settle`](Self::settle), and if the decision has no level of
    /// this limiter.
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
    /// let levels = [requests.on("ada"), tokens.on("ada").cost(1_000)];
    /// let mut decision = RateLimiter::check_all(levels).await?;
    /// tokens.settle_level(&mut decision, 640).await?;
    /// assert_eq!(tokens.peek("ada").await?.used(), 640);
    /// assert_eq!(requests.peek("ada").await?.used(), 1);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn settle_level(&self, decision: &mut Decision, used: u32) -> Result<(), Error> {
        let index = self.level_of(decision)?;
        match index.and_then(|index| decision.take_all(index, used)) {
            None => Ok(()),
            Some(taken) => self.settle_taken(decision.view(), taken).await,
        }
    }

    /// Settles a level of this limiter, whose units were taken from the decision.
    async fn settle_taken(&self, decision: &DecisionView, taken: TakenLevel) -> Result<(), Error> {
        let TakenLevel { index, held, used } = taken;
        let Some(level) = decision.level(index) else {
            return Ok(());
        };
        if used <= held {
            self.give_back(Some(level), held - used, 0).await
        } else if level.is_charged() {
            self.charge_more(level, used - held).await
        } else {
            Ok(())
        }
    }

    /// Charges units that were used without a decision, also beyond the limits.
    ///
    /// For usage that is reported later: after a restart, by a batch, or by a webhook. Units that a decision has reserved are
    /// [settled](Self::settle) instead. A limit bounds what is admitted: what is charged here is counted in full, and the next
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
        let (key, quotas) = (key.into_key(), rates_of(&self.0.facts.quotas));
        self.charge_used(self.subject(&quotas, &key), units).await
    }

    /// Charges more units to the key of a level, where the level was charged.
    async fn charge_more(&self, level: LevelDecision<'_>, more: u32) -> Result<(), Error> {
        let record = level.record();
        let quotas = rates_of(record.quotas(&level.facts().quotas));
        let subject = self.subject_of(record, &quotas);
        if level.source() == Source::Fallback {
            let charge = subject.adjust(Change::Charge { units: more });
            if let Some(counts) = self.0.store.fallback_if_used() {
                counts.adjust(charge);
            }
            return Ok(());
        }
        self.charge_used(subject, more).await
    }

    /// Charges units in the store: those first that this process holds and the store has charged already.
    async fn charge_used(&self, subject: Subject<'_>, units: u32) -> Result<(), Error> {
        let (key, quotas) = (subject.key, subject.quotas);
        // Units of another lease are counted apart.
        let has_lease = subject.lease_micros == self.lease_of(quotas);
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
                "usage beyond a limit is not counted: {error}; implement `Change::Charge` in `Store::adjust`"
            );
        }
        let (mut more, mut lost_races, mut halvings) = (units, 0, 0);
        while lost_races < MAX_LOST_RACES {
            let looked = store.check_uncached(subject.check(0)).await?;
            let room = looked.room(subject.quotas).min(subject.quotas.max_cost());
            let room = room.min(more);
            if room == 0 {
                break;
            }
            let units = (room >> halvings).max(1);
            let charged = store.check_uncached(subject.check(units)).await?;
            if charged.is_admitted() {
                (more, halvings) = (more - units, 0);
            } else {
                (lost_races, halvings) = (lost_races + 1, halvings + 1);
            }
        }
        Ok(())
    }

    /// Returns the limiter that settles a level: this one, or another one of the same store, without its lease.
    fn settling(&self, level: LevelDecision<'_>) -> Self {
        if level.facts().id.name == self.0.facts.id.name {
            return self.clone();
        }
        self.clone().with(|inner| {
            inner.facts = level.facts().clone();
            inner.scope = Key::from(level.limiter());
            inner.lease = None;
            // It is no limiter of the program, which others are compared with.
            inner.first_check = Arc::new(true.into());
        })
    }

    /// Warns once if a settlement of this limiter's level to 0 leaves levels of the same cost charged.
    fn warn_of_charged_levels(&self, decision: &Decision, own: usize) {
        let cost = decision.level(own).map(|level| level.cost());
        let others = decision.levels().enumerate().filter(|(index, level)| {
            *index != own
                && Some(level.cost()) == cost
                && level.counts_units()
                && decision.held_at(*index) > 0
        });
        let others: Vec<_> = others.map(|(_, level)| level.limiter()).collect();
        if !others.is_empty() && self.0.telemetry.settled_alone.first_time() {
            tracing::warn!(target: "tollgate::diagnostics",
                code = warning::SETTLED_ALONE,
                limiter = &*self.0.facts.name,
                "a settlement of one level to 0 leaves the levels {others:?} charged: call `settle_all` to settle all \
                 levels"
            );
        }
    }

    /// Returns the index of the level of this limiter: of several, the first that holds units. `None` if the
    /// decision charged no key at all.
    ///
    /// # Errors
    ///
    /// Returns an error if only limiters of other names made the decision.
    fn level_of(&self, decision: &Decision) -> Result<Option<usize>, Error> {
        let name = self.0.facts.id.name;
        let levels = decision.levels().enumerate();
        let own = levels.filter(|(_, level)| level.facts().id.name == name);
        let mut own = own.map(|(index, _)| index);
        let first = own.clone().next();
        let holding = own.find(|index| decision.held_at(*index) > 0);
        match holding.or(first) {
            Some(index) => Ok(Some(index)),
            None if decision.levels().len() == 0 => Ok(None),
            None => Err(Error::coded(
                Code::OTHER_LIMITER,
                format!(
                    "cannot settle or refund a decision of another limiter at {:?}",
                    self.0.facts.name
                ),
            )),
        }
    }
}

/// Settles levels of a decision at the same time, each by its limiter. Returns the outcomes in the same order.
pub(crate) async fn settle_together<'a>(
    decision: &DecisionView,
    levels: impl IntoIterator<Item = (&'a RateLimiter, TakenLevel)>,
) -> Vec<Result<(), Error>> {
    let levels = levels.into_iter();
    let settling = levels.map(|(limiter, taken)| Box::pin(limiter.settle_taken(decision, taken)));
    join_all(settling.collect()).await
}

/// Returns the quotas without those in flight, which no settlement changes.
fn rates_of(quotas: &Quotas) -> Quotas {
    if !quotas.has_slots() {
        return quotas.clone();
    }
    quotas.rates().cloned().collect()
}

impl Decision {
    /// Gives all units of an admitted check back.
    pub(super) async fn give_back(&mut self) -> Result<(), Error> {
        let indexes = 0..self.levels().len();
        let taken: Vec<_> = indexes
            .filter_map(|index| self.take_all(index, 0))
            .collect();
        let settling = taken.into_iter().filter_map(|taken| {
            let (limiter, _) = self.limiters().nth(taken.index)?;
            Some((limiter, taken))
        });
        let outcomes = settle_together(self.view(), settling).await;
        outcomes.into_iter().collect()
    }
}
