//! The counts behind automatic blocks, which are units of ordinary quotas in any store.
//!
//! A limiter has a second name for them, so that a key has these units beside the units of its own quotas:
//!
//! - its refusals, in buckets: if the quota refuses a charge, these are too many, and a block is due;
//! - its blocks, in a log. All of them are charged together when the last one starts, so that the log has one time;
//! - its last unblock, as one unit whose age says when that was.

use std::time::Duration;

use crate::decision::{Answer, CountScope, QuotaAnswer};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::quota::{Algorithm, BlockRule, MAX_WINDOW, Quota, Quotas};
use crate::store::{Change, ProtectedStore, Subject};

/// Finds the blocks of any rule: it counts as far back as the quota that they were charged to.
const ALL_BLOCKS: Quota = Quota::new(u32::MAX, MAX_WINDOW);

/// How long an unblock is known: longer than refusals wait to be sent while the store answers.
const UNBLOCK_WINDOW: Duration = Duration::from_secs(3_600);

/// One unit since the last unblock. Its algorithm is not that of the refusals or the blocks, so that it
/// is a value of its own.
const UNBLOCK: Quota = Quota::new(1, UNBLOCK_WINDOW).with_algorithm(Algorithm::Gcra);

/// The refusals and the automatic blocks of the keys of a limiter.
pub(in crate::limiter) struct BlockCounts {
    pub(super) store: ProtectedStore,
    pub(in crate::limiter) rule: BlockRule,
    name: Key,
    refusals: Quotas,
}

impl BlockCounts {
    pub(in crate::limiter) fn new(store: &ProtectedStore, limiter: &Key, rule: BlockRule) -> Self {
        Self {
            store: store.clone(),
            rule,
            name: limiter.blocks_name(),
            refusals: rule.refusals_quota().into(),
        }
    }

    pub(super) fn are_failing(&self, key: &Key) -> bool {
        let subject = Subject::new(&self.name, key, &self.refusals);
        self.store.is_failing(subject)
    }

    /// Returns whether a block is due: then these refusals were not counted.
    pub(super) async fn count_refusals(&self, key: &Key, refusals: u32) -> Result<bool, Error> {
        let answer = self.check(key, &self.refusals, refusals).await?;
        // In a full memory store, other keys share the count: a key is not blocked for their refusals.
        Ok(!answer.is_admitted() && answer.scope() == CountScope::Own)
    }

    pub(in crate::limiter) async fn blocks(&self, key: &Key) -> Result<u32, Error> {
        let own = self.own_count(key, ALL_BLOCKS).await?;
        Ok(own.map_or(0, |own| own.used()))
    }

    /// Also forgets the refusals of the key. Its last block starts now.
    pub(super) async fn set_blocks(&self, key: &Key, blocks: u32) -> Result<(), Error> {
        self.forget(key).await?;
        let quotas = self.rule.blocks_quota(blocks).into();
        self.check(key, &quotas, blocks).await.map(drop)
    }

    /// Notes that a key is unblocked now, for refusals that were not sent yet. Other processes may have some, too.
    pub(in crate::limiter) async fn note_unblock(&self, key: &Key) -> Result<(), Error> {
        self.reset(key, &UNBLOCK.into()).await?;
        match self.check(key, &UNBLOCK.into(), 1).await {
            // A full server takes no automatic block either.
            Err(error) if error.kind() == ErrorKind::Full => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// `None` if the last unblock is not known.
    pub(super) async fn since_unblock(&self, key: &Key) -> Result<Option<Duration>, Error> {
        let own = self.own_count(key, UNBLOCK).await?;
        Ok(own
            .filter(|own| own.used() > 0)
            .map(|own| UNBLOCK_WINDOW.saturating_sub(own.reset_after())))
    }

    pub(in crate::limiter) async fn forget(&self, key: &Key) -> Result<(), Error> {
        let both = Quotas::from([self.rule.refusals_quota(), ALL_BLOCKS]);
        self.reset(key, &both).await
    }

    async fn reset(&self, key: &Key, quotas: &Quotas) -> Result<(), Error> {
        let reset = Subject::new(&self.name, key, quotas).adjust(Change::Reset);
        match self.store.adjust(reset).await {
            // Such a store has no automatic blocks.
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
            outcome => outcome,
        }
    }

    /// `None` if other keys share the count.
    async fn own_count(&self, key: &Key, quota: Quota) -> Result<Option<QuotaAnswer>, Error> {
        let answer = self.check(key, &quota.into(), 0).await?;
        let own = answer.quotas().first().copied();
        Ok(own.filter(|_| answer.scope() == CountScope::Own))
    }

    async fn check(&self, key: &Key, quotas: &Quotas, cost: u32) -> Result<Answer, Error> {
        let check = Subject::new(&self.name, key, quotas).check(cost);
        self.store.check_uncached(check).await
    }
}
