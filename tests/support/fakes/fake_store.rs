//! A store whose methods a test replaces by closures.

use std::sync::Arc;

use tollgate::store::protocol::{
    Adjust, Answer, Check, CircuitBreaker, QuotaAnswer, StoreFuture, StoreId, StoreParts, Subject,
};
use tollgate::{MemoryStore, Source, Store};

type CheckFn = dyn Fn(&dyn Store, &[Check<'_>]) -> StoreFuture + Send + Sync;
type AdjustFn = dyn Fn(&dyn Store, Adjust<'_>) -> StoreFuture<()> + Send + Sync;

/// A store that checks by another one, and implements nothing else, unless the test says how.
#[derive(Clone)]
pub(crate) struct FakeStore {
    counts: Arc<dyn Store>,
    check: Option<Arc<CheckFn>>,
    adjust: Option<Arc<AdjustFn>>,
    parts: Option<StoreParts>,
}

impl FakeStore {
    pub(crate) fn on(counts: impl Store) -> Self {
        Self {
            counts: Arc::new(counts),
            check: None,
            adjust: None,
            parts: None,
        }
    }

    pub(crate) fn in_memory() -> Self {
        Self::on(MemoryStore::new())
    }

    /// Sets how checks are decided. The closure gets the store that counts.
    pub(crate) fn checks_by(
        mut self,
        check: impl Fn(&dyn Store, &[Check<'_>]) -> StoreFuture + Send + Sync + 'static,
    ) -> Self {
        self.check = Some(Arc::new(check));
        self
    }

    /// Sets how units are changed. The closure gets the store that counts.
    pub(crate) fn adjusts_by(
        mut self,
        adjust: impl Fn(&dyn Store, Adjust<'_>) -> StoreFuture<()> + Send + Sync + 'static,
    ) -> Self {
        self.adjust = Some(Arc::new(adjust));
        self
    }

    /// Sets the parts that all limiters share. Without them, each limiter has its own.
    pub(crate) fn parts(mut self, parts: StoreParts) -> Self {
        self.parts = Some(parts);
        self
    }

    pub(crate) fn circuit_breaker(self, circuit_breaker: CircuitBreaker) -> Self {
        let mut parts = StoreParts::default();
        parts.circuit_breaker = circuit_breaker;
        self.parts(parts)
    }
}

impl Store for FakeStore {
    fn id(&self) -> StoreId {
        self.counts.id()
    }

    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        match &self.check {
            Some(check) => check(&self.counts, checks),
            None => self.counts.check(checks),
        }
    }

    fn adjust(&self, adjust: Adjust<'_>) -> StoreFuture<()> {
        match &self.adjust {
            Some(by) => by(&self.counts, adjust),
            None => OnlyChecks.adjust(adjust),
        }
    }

    fn atomic_group(&self, subject: Subject<'_>) -> u64 {
        self.counts.atomic_group(subject)
    }

    fn parts(&self) -> StoreParts {
        self.parts.clone().unwrap_or_default()
    }
}

/// A store that implements only what each store has to.
struct OnlyChecks;

impl Store for OnlyChecks {
    fn id(&self) -> StoreId {
        StoreId::unique()
    }

    fn check(&self, _: &[Check<'_>]) -> StoreFuture {
        unreachable!("only asked for what it does not implement")
    }
}

/// A store of another crate, which refuses a cost of 2 and admits all else.
pub(crate) fn foreign() -> FakeStore {
    FakeStore::in_memory().checks_by(|_, checks| {
        let answers = checks.iter().map(|check| {
            let quotas = check.quotas.iter().map(|quota| match check.cost {
                2 => QuotaAnswer::refused(1, Some(quota.window()), quota.window()),
                _ => QuotaAnswer::admitted(1, quota.window()),
            });
            Answer::new(Source::Other, quotas)
        });
        StoreFuture::ready(Ok(answers.collect()))
    })
}
