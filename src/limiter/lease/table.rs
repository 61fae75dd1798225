//! The keys of a limiter with a lease: their rate of use, and the units that this process holds.

use std::sync::MutexGuard;
use std::{array, mem};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use smallvec::SmallVec;

use super::grant::Grant;
use super::limit_part::LimitPart;
use super::times::Times;
use super::use_rate::UseRate;
use crate::clock::Clock;
use crate::decision::{Answer, GrantUnits};
use crate::key::{Fingerprint, Key};
use crate::lock::Mutex;
#[cfg(tollgate_simulation)]
use crate::planted::is_planted;
use crate::quota::Quotas;
use crate::store::{OwnedSubject, Subject};

#[cfg(all(test, feature = "test-util"))]
mod tests;

/// The number of shards, each with a lock of its own.
const SHARDS: usize = 64;

/// The most keys of a shard. More keys are not leased until others are idle, so a flood of keys takes a bounded
/// memory: about 10 MB.
const MAX_KEYS_PER_SHARD: usize = 512;

/// How often the rate of use of a key is looked at in the time of a lease, while enough units are held.
const LOOKS: u64 = 16;

/// The keys of a limiter, in shards.
pub(super) struct LeaseTable {
    shards: Box<[Locked; SHARDS]>,
    pub(super) clock: Clock,
}

/// Its alignment keeps two shards off the same cache line.
#[derive(Default)]
#[repr(align(128))]
struct Locked(Mutex<Shard>);

#[derive(Default)]
struct Shard {
    keys: HashTable<LeasedKey>,
    /// Until then, a full shard is not searched for idle keys again.
    sweeps_at: u64,
}

/// One key and list of quotas.
struct LeasedKey {
    fingerprint: Fingerprint,
    subject: OwnedSubject,
    use_rate: UseRate,
    /// When it was checked last.
    checked_at: u64,
    limit_part: LimitPart,
    /// The grants, in the order in which they are used. One without units may get some back.
    grants: SmallVec<[Grant; 2]>,
    /// Whether a request for units is in flight.
    is_asking: bool,
    /// Until then, no units are asked for while at least `enough` are held.
    looks_at: u64,
    enough: u32,
    /// Changes when the grants are void, so that a request in flight adds none.
    generation: u64,
}

/// The units that a check took.
#[derive(Debug, Default)]
pub(in crate::limiter) struct TakenUnits {
    /// Whether the answer to the check was written: all its units came from grants.
    pub(in crate::limiter) is_complete: bool,
    /// The units beyond the answer's or, without an answer, all units.
    pub(in crate::limiter) grants: Vec<GrantUnits>,
    /// The request for units that has to be sent now.
    pub(super) ask: Option<Ask>,
    /// When units were missing, which the store is now asked for. 0 if none were, or if the key is not leased.
    pub(in crate::limiter) asked_at: u64,
}

/// A request for units to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) units: u32,
    /// How many eighths of what is left they may be.
    pub(super) eighths: u32,
    pub(super) generation: u64,
}

impl LeaseTable {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            shards: Box::new(array::from_fn(|_| Locked::default())),
            clock,
        }
    }

    #[inline]
    pub(super) fn take(
        &self,
        subject: Subject<'_>,
        cost: u32,
        times: Times,
        answer: &mut Answer,
    ) -> TakenUnits {
        let fingerprint = subject.key.fingerprint();
        let mut shard = self.shard(fingerprint).lock();
        // Under the lock, so that a thread that has waited for it uses no unit after its end.
        let now = self.clock.now();
        let Some(key) = shard.find_or_insert(fingerprint, subject, now, times.period) else {
            return TakenUnits::default();
        };
        key.use_rate.record(cost, now, times.period);
        let gap = now.saturating_sub(mem::replace(&mut key.checked_at, now));
        let held = key.held(now);
        let mut result = key.take(cost, held, now, answer);
        // If the check asks the store for many units, a request at the same time could take them away.
        let left = held.saturating_sub(cost);
        if key.may_ask(left, now) && (result.is_complete || key.is_small(cost, now, times)) {
            result.ask = key.ask(now, gap, times);
        }
        if !result.is_complete {
            result.asked_at = now;
        }
        result
    }

    /// Records units that the store charged to this process.
    pub(super) fn record_charge(&self, subject: Subject<'_>, units: u32) {
        self.with(subject, |key, now| key.record_charge(units, now));
    }

    /// Returns units to their grant. Returns false if it has ended.
    pub(super) fn put_back(&self, subject: Subject<'_>, grant: u64, units: u32) -> bool {
        let put_back = self.with(subject, |key, now| {
            #[cfg(tollgate_simulation)]
            let grant = match key.grants.last() {
                Some(latest) if is_planted("ReturnIntoLaterGrant") => latest.number,
                _ => grant,
            };
            let grant = key
                .grants
                .iter_mut()
                .find(|known| known.number == grant && known.is_live(now))?;
            grant.left = grant.left.saturating_add(units).min(grant.units);
            Some(())
        });
        put_back.flatten().is_some()
    }

    /// Returns false if the units of the key have become void since the request was sent.
    pub(super) fn add(&self, subject: Subject<'_>, ask: Ask, grant: Grant) -> bool {
        let added = self.with(subject, |key, now| {
            let is_current = key.generation == ask.generation;
            if is_current {
                key.record_charge(grant.units, now);
                key.grants.push(grant);
            }
            is_current
        });
        added.unwrap_or(false)
    }

    /// Ends a request for units. No other is sent for `pause` microseconds.
    pub(super) fn end_request(&self, subject: Subject<'_>, pause: u64) {
        self.with(subject, |key, now| {
            key.is_asking = false;
            key.looks_at = now.saturating_add(pause);
            key.enough = 0;
        });
    }

    /// Returns the units that are left of the grant. `None` if it has ended before.
    pub(super) fn end(&self, subject: Subject<'_>, grant: u64) -> Option<u32> {
        let left = self.with(subject, |key, _| {
            let index = key.grants.iter().position(|known| known.number == grant)?;
            Some(key.grants.remove(index).left)
        });
        left.flatten()
    }

    pub(super) fn void(&self, key: &Key) -> Vec<(OwnedSubject, Grant)> {
        let fingerprint = key.fingerprint();
        let mut shard = self.shard(fingerprint).lock();
        shard
            .keys
            .iter_hash_mut(fingerprint.hash())
            .filter(|key| key.fingerprint == fingerprint)
            .flat_map(LeasedKey::end_all)
            .collect()
    }

    pub(super) fn end_all(&self) -> Vec<(OwnedSubject, Grant)> {
        let mut ended = Vec::new();
        for shard in &*self.shards {
            ended.extend(shard.lock().keys.iter_mut().flat_map(LeasedKey::end_all));
        }
        ended
    }

    fn with<T>(
        &self,
        subject: Subject<'_>,
        change: impl FnOnce(&mut LeasedKey, u64) -> T,
    ) -> Option<T> {
        let fingerprint = subject.key.fingerprint();
        let mut shard = self.shard(fingerprint).lock();
        let now = self.clock.now();
        shard
            .find(fingerprint, subject.quotas)
            .map(|key| change(key, now))
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "the first six bits are the index of one of 64 shards"
    )]
    fn shard(&self, name: Fingerprint) -> &Locked {
        // The map in the shard uses the other half of the fingerprint.
        let [_, half] = name.halves();
        let index = usize::try_from(half >> 58).unwrap_or(0);
        &self.shards[index]
    }
}

impl Locked {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, Shard> {
        self.0.lock()
    }
}

impl Shard {
    #[inline]
    fn find(&mut self, fingerprint: Fingerprint, quotas: &Quotas) -> Option<&mut LeasedKey> {
        self.keys
            .find_mut(fingerprint.hash(), |key| key.is(fingerprint, quotas))
    }

    /// `None` if the key is new and there is no room for it.
    #[inline]
    fn find_or_insert(
        &mut self,
        fingerprint: Fingerprint,
        subject: Subject<'_>,
        now: u64,
        period: u64,
    ) -> Option<&mut LeasedKey> {
        if self.keys.len() >= MAX_KEYS_PER_SHARD {
            self.sweep(now, period);
            if self.keys.len() >= MAX_KEYS_PER_SHARD {
                return self.find(fingerprint, subject.quotas);
            }
        }
        let entry = self.keys.entry(
            fingerprint.hash(),
            |key| key.is(fingerprint, subject.quotas),
            |key| key.fingerprint.hash(),
        );
        match entry {
            Entry::Occupied(key) => Some(key.into_mut()),
            Entry::Vacant(vacant) => {
                let key = vacant.insert(LeasedKey::new(fingerprint, subject, now));
                Some(key.into_mut())
            }
        }
    }

    /// Removes idle keys from a full shard, at most once in a period.
    #[cold]
    fn sweep(&mut self, now: u64, period: u64) {
        if now >= self.sweeps_at {
            self.sweeps_at = now.saturating_add(period);
            self.keys.retain(|key| !key.is_idle(now, period));
        }
    }
}

impl LeasedKey {
    fn new(fingerprint: Fingerprint, subject: Subject<'_>, now: u64) -> Self {
        Self {
            fingerprint,
            subject: subject.into(),
            use_rate: UseRate::starting_at(now),
            checked_at: now,
            limit_part: LimitPart::starting_at(now),
            grants: SmallVec::new(),
            is_asking: false,
            looks_at: 0,
            enough: 0,
            generation: 0,
        }
    }

    #[inline]
    fn is(&self, fingerprint: Fingerprint, quotas: &Quotas) -> bool {
        self.fingerprint == fingerprint && self.subject.subject().quotas == quotas
    }

    fn is_idle(&self, now: u64, period: u64) -> bool {
        self.grants.is_empty() && !self.is_asking && self.use_rate.is_idle(now, period)
    }

    /// Ends all grants. A request in flight adds none.
    fn end_all(&mut self) -> impl Iterator<Item = (OwnedSubject, Grant)> {
        self.generation += 1;
        let grants = self.grants.drain(..);
        grants.map(|grant| (self.subject.clone(), grant))
    }

    fn held(&self, now: u64) -> u32 {
        self.grants
            .iter()
            .filter(|grant| grant.is_live(now))
            .map(|grant| grant.left)
            .fold(0, u32::saturating_add)
    }

    #[inline]
    fn take(&mut self, cost: u32, held: u32, now: u64, answer: &mut Answer) -> TakenUnits {
        if held == 0 {
            return TakenUnits::default();
        }
        let first = self
            .grants
            .iter_mut()
            .find(|grant| grant.left > 0 && grant.is_live(now));
        let Some(first) = first.filter(|first| first.left >= cost) else {
            return self.take_from_several(cost, now, answer);
        };
        // The usual case.
        first.take(cost, now, answer);
        TakenUnits {
            is_complete: true,
            ..TakenUnits::default()
        }
    }

    /// Takes all units of one or more grants, and perhaps some of the last. They may be fewer than the cost.
    #[cold]
    fn take_from_several(&mut self, cost: u32, now: u64, answer: &mut Answer) -> TakenUnits {
        let mut missing = cost;
        let mut grants = Vec::new();
        for grant in self.grants.iter_mut().filter(|grant| grant.is_live(now)) {
            let units = grant.left.min(missing);
            if units > 0 {
                let mut answer = Answer::default();
                grant.take(units, now, &mut answer);
                grants.push(GrantUnits { answer, units });
                missing -= units;
            }
        }
        // The answer of the last grant counts the units of all.
        if missing == 0
            && let Some(last) = grants.pop()
        {
            *answer = last.answer;
        }
        TakenUnits {
            is_complete: missing == 0,
            grants,
            ..TakenUnits::default()
        }
    }

    fn record_charge(&mut self, units: u32, now: u64) {
        let subject = self.subject.subject();
        self.limit_part
            .record(units, subject.quotas, subject.lease_micros, now);
    }

    fn is_small(&self, cost: u32, now: u64, times: Times) -> bool {
        let uses = self.use_rate.uses(now, times.period);
        times.is_worth_a_grant(uses.units / u64::from(cost.max(1)))
    }

    #[inline]
    fn may_ask(&self, held: u32, now: u64) -> bool {
        !self.is_asking && (now >= self.looks_at || held < self.enough)
    }

    /// `None` if what is at hand will last. `gap` is the time since the last check: the next one may take as long.
    fn ask(&mut self, now: u64, gap: u64, times: Times) -> Option<Ask> {
        let uses = self.use_rate.uses(now, times.period);
        if !times.is_worth_a_grant(uses.checks) {
            return None;
        }
        // A grant that ends within this time has to be replaced.
        let ahead = times.ahead(gap);
        let held = u64::from(self.held(now + ahead));
        let needed = times.uses_within(ahead, uses.units) + 1;
        if held > needed {
            let last_end = self
                .grants
                .iter()
                .filter(|grant| grant.left > 0)
                .map(|grant| grant.ends_at)
                .max();
            let replaced_at = last_end.unwrap_or(now).saturating_sub(ahead);
            self.looks_at = replaced_at.min(now + times.period / LOOKS);
            self.enough = u32::try_from(needed).unwrap_or(u32::MAX);
            return None;
        }
        let used_until_reply = times.uses_within(times.round_trip, uses.units);
        let left_then = held.saturating_sub(used_until_reply);
        let units = times.served(uses.units).saturating_sub(left_then);
        let units = u32::try_from(units).ok()?;
        self.is_asking = units > 0;
        let subject = self.subject.subject();
        self.is_asking.then(|| Ask {
            units,
            eighths: self
                .limit_part
                .eighths(subject.quotas, subject.lease_micros, now),
            generation: self.generation,
        })
    }
}
