//! Counts the requests to the store, and the units that it has charged in advance.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollgate::store::protocol::{
    Adjust, Block, Change, Check, StoreFuture, StoreId, StoreParts, Subject,
};
use tollgate::{DecisionView, Key, Quotas, Source, Store};

/// Bounds the memory: idle keys are forgotten beyond this number.
const MAX_KEYS: usize = 1_000;

/// The counts of all keys.
#[derive(Clone, Default)]
pub(crate) struct Counts(Arc<Mutex<HashMap<(Key, String), Count>>>);

/// The counts of one key and list of quotas in this process.
#[derive(Clone, Copy, Default)]
pub(crate) struct Count {
    /// The checks, requests for units and returns that were sent to the store. Checks of cost 0 are left out: the
    /// page sends them to draw.
    pub(crate) sent: u64,
    /// The units that Redis charged: for one check, or in advance.
    charged: u64,
    /// The units of admitted checks.
    pub(crate) used: u64,
    returned: u64,
}

impl Count {
    /// Returns the units that this process holds: the store has charged them, and no check has used them.
    pub(crate) fn held(self) -> u64 {
        self.charged.saturating_sub(self.used + self.returned)
    }
}

impl Counts {
    pub(crate) fn of(&self, key: &Key, quotas: &Quotas) -> Count {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.get(&(key.clone(), quotas.to_string()));
        count.copied().unwrap_or_default()
    }

    /// Counts the units of a decision, if Redis charged them.
    pub(crate) fn record(&self, key: &Key, quotas: &Quotas, decision: &DecisionView) {
        let is_charged = matches!(decision.source(), Source::Redis | Source::Lease);
        if is_charged && decision.is_allowed() {
            let units = u64::from(decision.cost());
            self.change(key, quotas, |count| count.used += units);
        }
    }

    fn change(&self, key: &Key, quotas: &Quotas, change: impl FnOnce(&mut Count)) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MAX_KEYS {
            counts.retain(|_, count| count.held() > 0);
        }
        change(counts.entry((key.clone(), quotas.to_string())).or_default());
    }
}

/// A store that counts, and passes everything on.
pub(crate) struct CountedStore {
    store: Arc<dyn Store>,
    counts: Counts,
}

impl CountedStore {
    pub(crate) fn new(store: Arc<dyn Store>, counts: Counts) -> Self {
        Self { store, counts }
    }
}

impl Store for CountedStore {
    fn id(&self) -> StoreId {
        self.store.id()
    }

    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        let asked = self.store.check(checks);
        let [check] = checks else {
            return asked;
        };
        if check.cost == 0 {
            return asked;
        }
        let (key, quotas) = (check.key.clone(), check.quotas.clone());
        let counts = self.counts.clone();
        counts.change(&key, &quotas, |count| count.sent += 1);
        let cost = u64::from(check.cost);
        StoreFuture::boxed(async move {
            let answers = asked.await?;
            for answer in answers.iter() {
                if answer.source() == Source::Redis && answer.is_admitted() {
                    let charged = cost + u64::from(answer.extra_units());
                    counts.change(&key, &quotas, |count| count.charged += charged);
                }
            }
            Ok(answers)
        })
    }

    fn refresh_blocks(&self, timeout: Duration) -> StoreFuture<()> {
        self.store.refresh_blocks(timeout)
    }

    fn parts(&self) -> StoreParts {
        self.store.parts()
    }

    fn atomic_group(&self, subject: Subject<'_>) -> u64 {
        self.store.atomic_group(subject)
    }

    fn adjust(&self, adjust: Adjust<'_>) -> StoreFuture<()> {
        if let Change::Refund { units, .. } = adjust.change {
            self.counts.change(adjust.key, adjust.quotas, |count| {
                count.sent += 1;
                // Even if the return fails, this process does not hold them any more.
                count.returned += u64::from(units);
            });
        }
        self.store.adjust(adjust)
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<bool> {
        self.store.block(block)
    }
}
