//! The counts that keys share while a store is full.
//!
//! A key for which the store has no room is counted together with the other keys of its network. If the key
//! has no network, or there is no room for the network, it is counted in one of a few shared counts. A count
//! is active while any of its units count. Until then, each new key that belongs to the count is counted in
//! it, so that no client gets a second limit.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::table::{ShardGuard, Table};
use crate::clock::Clock;
use crate::decision::{Answer, CountScope, Source};
use crate::key::{Fingerprint, Key};
use crate::store::requests::{Check, Subject};

/// The number of keys in the store for each network that it has room for. It has room for at least
/// [`MIN_NETWORKS`].
const KEYS_PER_NETWORK: usize = 8;

const MIN_NETWORKS: usize = 64;

/// The number of shared counts of one limiter for keys with a network. There are as many for other keys.
const SHARED_COUNTS: u64 = 64;

/// The most shared counts of all limiters.
const MAX_SHARED_COUNTS: usize = 4_096;

/// The shortest time between two warnings of a full store, in microseconds.
const WARNING_INTERVAL: u64 = 60_000_000;

/// The shared counts of a store.
#[derive(Debug)]
pub(super) struct Overflow {
    networks: Table,
    shared: Table,
    /// The number of counts in both tables. While it is 0, new keys skip the lookup.
    len: AtomicUsize,
    /// The time from which a full store may warn again.
    warns_at: AtomicU64,
}

impl Overflow {
    pub(super) fn new(max_keys: usize) -> Self {
        let networks = (max_keys / KEYS_PER_NETWORK).max(MIN_NETWORKS);
        Self {
            // An active count is never evicted, because its keys would get a second limit.
            networks: Table::new(networks, 0),
            shared: Table::new(MAX_SHARED_COUNTS, 0),
            len: AtomicUsize::new(0),
            warns_at: AtomicU64::new(0),
        }
    }

    /// Returns whether there are any counts.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        self.len.load(Ordering::Acquire) > 0
    }

    /// Decides a check of a key that belongs to an active count. `None` if it belongs to none.
    pub(super) fn check_active(&self, check: &Check<'_>, clock: &Clock) -> Option<Answer> {
        let (mut shard, now, shared) = self.active(check.subject, clock)?;
        let counters = shard.get_mut(shared.name)?;
        let mut answer = counters.check(*check, Source::Memory, now);
        answer.set_scope(shared.scope);
        Some(answer)
    }

    /// Decides a check of a key for which the store has no room. `None` if there is no room here either.
    pub(super) fn check(&self, check: &Check<'_>, clock: &Clock) -> Option<Answer> {
        let candidates = SharedCount::candidates(check.subject);
        candidates.into_iter().flatten().rev().find_map(|shared| {
            let (mut shard, now) = self.table(shared).lock_now(shared.name, clock);
            let len_before = shard.len();
            shard.sweep_occasionally(now);
            let answer = shard.check(shared.name, check, now);
            self.update_len(len_before, shard.len());
            let mut answer = answer?;
            answer.set_scope(shared.scope);
            Some(answer)
        })
    }

    /// Locks the active count that a key belongs to, if there is one.
    pub(super) fn active(
        &self,
        subject: Subject<'_>,
        clock: &Clock,
    ) -> Option<(ShardGuard<'_>, u64, SharedCount)> {
        if !self.is_used() {
            return None;
        }
        let candidates = SharedCount::candidates(subject);
        candidates.into_iter().flatten().find_map(|shared| {
            let (mut shard, now) = self.table(shared).lock_now(shared.name, clock);
            let len_before = shard.len();
            shard.sweep_occasionally(now);
            self.update_len(len_before, shard.len());
            shard.active(shared.name, now)?;
            Some((shard, now, shared))
        })
    }

    /// Locks the count in which a key was counted before.
    pub(super) fn lock_now(
        &self,
        subject: Subject<'_>,
        scope: CountScope,
        clock: &Clock,
    ) -> Option<(ShardGuard<'_>, u64, Fingerprint)> {
        let mut candidates = SharedCount::candidates(subject).into_iter().flatten();
        let shared = candidates.find(|shared| shared.scope == scope)?;
        let (shard, now) = self.table(shared).lock_now(shared.name, clock);
        Some((shard, now, shared.name))
    }

    /// Drops all counts that have expired.
    pub(super) fn remove_dead(&self, clock: &Clock) {
        for shard in self.networks.shards().chain(self.shared.shards()) {
            let (mut shard, now) = shard.lock_now(clock);
            let len_before = shard.len();
            shard.remove_dead(now);
            self.update_len(len_before, shard.len());
        }
    }

    /// Returns whether a full store should warn now: at most once in each [`WARNING_INTERVAL`].
    pub(super) fn should_warn(&self, now: u64) -> bool {
        let next = now.saturating_add(WARNING_INTERVAL);
        let due = |at| (at <= now).then_some(next);
        let updated = self
            .warns_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, due);
        updated.is_ok()
    }

    fn table(&self, shared: SharedCount) -> &Table {
        match shared.scope {
            CountScope::Network => &self.networks,
            CountScope::Own | CountScope::Shared => &self.shared,
        }
    }

    /// Adds the change in the length of a locked shard to the number of counts.
    fn update_len(&self, before: usize, now: usize) {
        // This cannot overflow: each length fits, and only lengths that were added are subtracted.
        if now >= before {
            self.len.fetch_add(now - before, Ordering::AcqRel);
        } else {
            self.len.fetch_sub(before - now, Ordering::AcqRel);
        }
    }
}

/// A count that a key shares while the store is full.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedCount {
    pub(super) name: Fingerprint,
    scope: CountScope,
}

impl SharedCount {
    /// Returns the counts that a key may share: one of the few, and then the count of its network.
    ///
    /// The first one comes first because a key that was counted there, without room for its network, stays
    /// there.
    fn candidates(subject: Subject<'_>) -> [Option<Self>; 2] {
        let limiter = subject.limiter.fingerprint();
        let network = subject.key.network();
        let shared = Self {
            name: shared_name(subject.key, network).within(limiter),
            scope: CountScope::Shared,
        };
        let of_network = network.map(|network| Self {
            name: network.within(limiter),
            scope: CountScope::Network,
        });
        [Some(shared), of_network]
    }
}

/// Returns the name of the shared count of a key, which is the same for all keys of a network.
fn shared_name(key: &Key, network: Option<Fingerprint>) -> Fingerprint {
    let hash = network.unwrap_or_else(|| key.fingerprint()).hash();
    let kind = if network.is_some() { SHARED_COUNTS } else { 0 };
    Fingerprint::of_number(kind + hash % SHARED_COUNTS)
}

#[cfg(all(test, feature = "test-util"))]
mod tests;
