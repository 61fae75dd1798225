//! The counts of a memory store: a bounded number of keys, and shared counts for keys without room.

use super::overflow::Overflow;
use super::shard::Shard;
use super::table::{LockedShards, Table};
use crate::clock::Clock;
use crate::decision::{Answer, Answers, CountScope, Holding, Source};
use crate::error::{Error, ErrorKind, warning};
use crate::key::Fingerprint;
use crate::store::counters::{Counters, DROPPABLE_PART};
use crate::store::requests::{Adjust, Change, Check, Subject};
use crate::telemetry::{HAS_METRICS, StoreMeter};

/// The most keys of a store by default. With a quota of 100 units, these take up to 260 MB if every key is at
/// its limit, and 15 to 30 MB if keys have few units.
pub(crate) const DEFAULT_MAX_KEYS: usize = 100_000;

/// The counts of a bounded number of keys, by the same rules as in Redis.
///
/// A [`MemoryStore`](crate::MemoryStore) has one, and so has the circuit breaker of any other store for its
/// fallback.
pub(crate) struct MemoryCounts {
    meter: StoreMeter,
    pub(super) clock: Clock,
    pub(super) max_keys: usize,
    pub(super) keys: Table,
    overflow: Overflow,
}

impl MemoryCounts {
    /// Creates empty counts for at most `max_keys` keys. 0 is taken as 1.
    pub(crate) fn new(max_keys: usize, clock: Clock, meter: StoreMeter) -> Self {
        let max_keys = max_keys.max(1);
        Self {
            meter,
            clock,
            max_keys,
            keys: Table::new(max_keys, DROPPABLE_PART),
            overflow: Overflow::new(max_keys),
        }
    }

    /// Decides checks together: charges all of them if each is admitted, and otherwise none.
    ///
    /// # Errors
    ///
    /// An error of kind [`ErrorKind::Full`] if there is no room for a new key.
    #[inline]
    pub(crate) fn check(&self, checks: &[Check<'_>]) -> Result<Answers, Error> {
        let [check] = checks else {
            return self.check_several(checks);
        };
        let name = check.fingerprint();
        let (mut shard, now) = self.keys.lock_now(name, &self.clock);
        match self.check_locked(&mut shard, name, check, now) {
            Some(answer) => Ok(Answers::from(answer)),
            None => Err(self.full()),
        }
    }

    /// Decides several checks. Two of them may share a count if the store is full. So the checks are charged one by
    /// one, and refunded if a later one does not fit.
    fn check_several(&self, checks: &[Check<'_>]) -> Result<Answers, Error> {
        let names = checks.iter().map(|check| check.fingerprint());
        let (mut shards, now) = self.keys.lock_all(names, &self.clock);
        let answers: Answers = checks
            .iter()
            .map(|check| self.decide(&mut shards, *check, now))
            .collect();
        if !answers.are_admitted() {
            for check in checks.iter().filter(|check| check.holding.is_some()) {
                self.state(&mut shards, *check, now);
            }
            return Ok(answers);
        }
        let mut charged = Vec::with_capacity(checks.len());
        for check in checks {
            let name = check.fingerprint();
            let decided = shards
                .get_mut(name)
                .and_then(|shard| self.check_locked(shard, name, check, now));
            let refused = match decided {
                Some(answer) if answer.is_admitted() => {
                    charged.push(answer);
                    continue;
                }
                refused => refused,
            };
            for (check, answer) in checks.iter().zip(&charged) {
                self.take_back(&mut shards, check, answer, now);
            }
            let refused = refused.ok_or_else(|| self.full())?;
            return Ok(checks
                .iter()
                .map(|other| {
                    if other.fingerprint() == name {
                        refused.clone()
                    } else {
                        self.decide(&mut shards, *other, now)
                    }
                })
                .collect());
        }
        Ok(charged.into_iter().collect())
    }

    /// Takes back what a check was charged before a later one was refused.
    fn take_back(
        &self,
        shards: &mut LockedShards<'_>,
        check: &Check<'_>,
        answer: &Answer,
        now: u64,
    ) {
        let name = check.fingerprint();
        let units = check.cost.saturating_add(answer.extra_units());
        let refund = check.refund(answer, units, units);
        match (answer.scope(), shards.get_mut(name)) {
            _ if check.unit_holding().is_some() => {}
            (CountScope::Own, Some(shard)) => shard.adjust(name, refund, now),
            (CountScope::Own, None) => {}
            (scope, _) => self.overflow.adjust(refund, scope, &self.clock),
        }
        let counters = shards.get_mut(name).and_then(|shard| shard.get_mut(name));
        if let (Some(counters), Some(holding)) = (counters, check.holding) {
            counters.take_back(check, holding, now);
        }
    }

    fn decide(&self, shards: &mut LockedShards<'_>, check: Check<'_>, now: u64) -> Answer {
        let name = check.fingerprint();
        if let Some(counters) = shards.get_mut(name).and_then(|shard| shard.get_mut(name)) {
            return counters.decide(check, Source::Memory, now);
        }
        if let Some((mut shard, now, shared)) = self.overflow.active(check.subject, &self.clock)
            && let Some(counters) = shard.get_mut(shared.name)
        {
            return counters.decide(check, Source::Memory, now);
        }
        Counters::new().decide(check, Source::Memory, now)
    }

    /// Writes the slots that the holder of a check states although the check is refused.
    fn state(&self, shards: &mut LockedShards<'_>, check: Check<'_>, now: u64) {
        let name = check.fingerprint();
        let Some(shard) = shards.get_mut(name) else {
            return;
        };
        self.change(shard, |shard| {
            shard.update(name, now, |counters| counters.state(check, now))
        });
    }

    #[inline]
    fn check_locked(
        &self,
        shard: &mut Shard,
        name: Fingerprint,
        check: &Check<'_>,
        now: u64,
    ) -> Option<Answer> {
        self.change(shard, |shard| {
            shard.sweep_occasionally(now);
            match shard.get_mut(name) {
                Some(counters) => Some(counters.check(*check, Source::Memory, now)),
                None => self.check_new_key(shard, check, now),
            }
        })
    }

    /// Decides a check of a key that has no counts. `None` if there is no room for it.
    ///
    /// The shard of the key stays locked, so that no other check of the key makes room for it
    /// meanwhile.
    #[inline(never)]
    fn check_new_key(&self, shard: &mut Shard, check: &Check<'_>, now: u64) -> Option<Answer> {
        let Self {
            overflow, clock, ..
        } = self;
        // Slots of several keys in one count could not be distinguished.
        let is_alone = check.holding.is_some();
        let active = if is_alone {
            None
        } else {
            overflow.check_active(check, clock)
        };
        let decided = active.or_else(|| {
            shard.add(check.fingerprint(), now, |counters| {
                counters.check(*check, Source::Memory, now)
            })
        });
        if decided.is_some() || is_alone {
            return decided;
        }
        if overflow.warnings.is_due() {
            tracing::warn!(target: "tollgate::diagnostics",
                code = warning::MEMORY_FULL,
                "the memory store is full of {} keys near their limits: new keys share one count \
                 per network (IPv4 /24, IPv6 /48) or one of a few other counts; raise `max_keys` if the keys \
                 belong to real clients",
                self.max_keys
            );
        }
        overflow.check(check, clock)
    }

    /// Changes the units of a key. A refund changes the count that was charged, even if the key is counted elsewhere now.
    pub(crate) fn adjust(&self, adjust: Adjust<'_>) {
        match adjust.change {
            Change::Charge { units } => self.charge(adjust, units),
            Change::Reset | Change::Credit { .. } => {
                self.with_counts(adjust.subject, |shard, name, now| {
                    shard.adjust(name, adjust, now);
                });
            }
            Change::Refund { answer, .. } if answer.scope() == CountScope::Own => {
                let name = adjust.fingerprint();
                let (mut shard, now) = self.keys.lock_now(name, &self.clock);
                shard.adjust(name, adjust, now);
            }
            Change::Refund { answer, .. } => {
                self.overflow.adjust(adjust, answer.scope(), &self.clock);
            }
        }
    }

    /// Charges units that were used without a check. A count that strangers share is charged only up to its room.
    fn charge(&self, adjust: Adjust<'_>, units: u32) {
        let subject = adjust.subject;
        let name = adjust.fingerprint();
        let (mut shard, now) = self.keys.lock_now(name, &self.clock);
        let is_shared =
            shard.get_mut(name).is_none() && self.overflow.active(subject, &self.clock).is_some();
        let charged = if is_shared {
            None
        } else {
            self.change(&mut shard, |shard| {
                shard.update(name, now, |counters| counters.adjust(adjust, now))
            })
        };
        drop(shard);
        if charged.is_some() {
            return;
        }
        if let Ok(looked) = self.check(&[subject.check(0)]) {
            let room = looked
                .iter()
                .map(|answer| answer.room(subject.quotas))
                .min()
                .unwrap_or(0);
            let _ = self.check(&[subject.check(units.min(room))]);
        }
    }

    pub(crate) fn holders(&self, subject: Subject<'_>) -> Vec<Holding> {
        self.with_counts(subject, |shard, name, now| {
            shard
                .get_mut(name)
                .map_or_else(Vec::new, |counters| counters.holders(now))
        })
    }

    pub(super) fn remove_dead(&self) {
        for shard in self.keys.shards() {
            let (mut shard, now) = shard.lock_now(&self.clock);
            self.change(&mut shard, |shard| shard.remove_dead(now));
        }
        self.overflow.remove_dead(&self.clock);
    }

    /// Changes the counts of a key, or the shared count in which it is counted now.
    fn with_counts<T>(
        &self,
        subject: Subject<'_>,
        change: impl FnOnce(&mut Shard, Fingerprint, u64) -> T,
    ) -> T {
        let name = subject.fingerprint();
        let (mut shard, now) = self.keys.lock_now(name, &self.clock);
        if shard.get_mut(name).is_none()
            && let Some((mut shared, now, place)) = self.overflow.active(subject, &self.clock)
        {
            return change(&mut shared, place.name, now);
        }
        self.change(&mut shard, |shard| change(shard, name, now))
    }

    /// Changes a shard, and records the number of its keys if that changed.
    #[inline]
    fn change<T>(&self, shard: &mut Shard, change: impl FnOnce(&mut Shard) -> T) -> T {
        let before = shard.len();
        let changed = change(shard);
        if HAS_METRICS && before != shard.len() {
            self.meter.record_keys(before, shard.len());
        }
        changed
    }

    #[cold]
    fn full(&self) -> Error {
        Error::new(
            ErrorKind::Full,
            format!(
                "the memory store is full of {} keys near their limits, and no shared count has room: \
                 raise `max_keys`",
                self.max_keys
            ),
        )
    }
}
