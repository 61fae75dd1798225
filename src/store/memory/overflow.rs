//! The counts that keys share while a store is full.
//!
//! A key for which the store has no room is counted together with the other keys of its network. If the key
//! has no network, or there is no room for the network, it is counted in one of a few shared counts. A count
//! is active while any of its units count. Until then, each new key that belongs to the count is counted in
//! it, so that no client gets a second limit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::shard::Shard;
use super::table::{ShardGuard, Table};
use crate::clock::Clock;
use crate::decision::{Answer, CountScope, Source};
use crate::key::{Fingerprint, Key};
use crate::store::requests::{Adjust, Check, Subject};
use crate::telemetry::LineInterval;

/// The number of keys in the store for each network that it has room for. It has room for at least
/// [`MIN_NETWORKS`].
const KEYS_PER_NETWORK: usize = 8;

const MIN_NETWORKS: usize = 64;

/// The number of shared counts of one limiter for keys with a network. There are as many for other keys.
const SHARED_COUNTS: u64 = 64;

/// The most shared counts of all limiters.
const MAX_SHARED_COUNTS: usize = 4_096;

/// The shortest time between two warnings of a full store.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The shared counts of a store.
#[derive(Debug)]
pub(super) struct Overflow {
    networks: Table,
    shared: Table,
    /// The number of counts in both tables. While it is 0, new keys skip the lookup.
    len: AtomicUsize,
    /// The warnings of a full store.
    pub(super) warnings: LineInterval,
}

impl Overflow {
    pub(super) fn new(max_keys: usize) -> Self {
        let networks = (max_keys / KEYS_PER_NETWORK).max(MIN_NETWORKS);
        Self {
            // An active count is never evicted, because its keys would get a second limit.
            networks: Table::new(networks, 0),
            shared: Table::new(MAX_SHARED_COUNTS, 0),
            len: AtomicUsize::new(0),
            warnings: LineInterval::new(WARNING_INTERVAL),
        }
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
        SharedCount::candidates(check.subject)
            .rev()
            .find_map(|shared| {
                let (mut shard, now) = self.table(shared).lock_now(shared.name, clock);
                let mut answer = self.change(&mut shard, |shard| {
                    shard.sweep_occasionally(now);
                    shard.update(shared.name, now, |counters| {
                        counters.check(*check, Source::Memory, now)
                    })
                })?;
                answer.set_scope(shared.scope);
                Some(answer)
            })
    }

    pub(super) fn active(
        &self,
        subject: Subject<'_>,
        clock: &Clock,
    ) -> Option<(ShardGuard<'_>, u64, SharedCount)> {
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        SharedCount::candidates(subject).find_map(|shared| {
            let (mut shard, now) = self.table(shared).lock_now(shared.name, clock);
            self.change(&mut shard, |shard| shard.sweep_occasionally(now));
            let is_active = !shard.get_mut(shared.name)?.is_idle(now);
            is_active.then_some((shard, now, shared))
        })
    }

    pub(super) fn adjust(&self, adjust: Adjust<'_>, scope: CountScope, clock: &Clock) {
        let mut candidates = SharedCount::candidates(adjust.subject);
        if let Some(shared) = candidates.find(|shared| shared.scope == scope) {
            let (mut shard, now) = self.table(shared).lock_now(shared.name, clock);
            shard.adjust(shared.name, adjust, now);
        }
    }

    pub(super) fn remove_dead(&self, clock: &Clock) {
        for shard in self.networks.shards().chain(self.shared.shards()) {
            let (mut shard, now) = shard.lock_now(clock);
            self.change(&mut shard, |shard| shard.remove_dead(now));
        }
    }

    fn table(&self, shared: SharedCount) -> &Table {
        match shared.scope {
            CountScope::Network => &self.networks,
            CountScope::Own | CountScope::Shared => &self.shared,
        }
    }

    /// Changes a shard, and adds the change in its length to the number of counts.
    fn change<T>(&self, shard: &mut Shard, change: impl FnOnce(&mut Shard) -> T) -> T {
        let before = shard.len();
        let changed = change(shard);
        // Wraps around if the shard has fewer counts than before: to add that number subtracts them.
        let added = shard.len().wrapping_sub(before);
        self.len.fetch_add(added, Ordering::AcqRel);
        changed
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
    fn candidates(subject: Subject<'_>) -> impl DoubleEndedIterator<Item = Self> {
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
        [Some(shared), of_network].into_iter().flatten()
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
