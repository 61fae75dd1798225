//! The counts behind automatic blocks, which are units of ordinary quotas in any store.
//!
//! A limiter has a second name for them, so that a key has these units beside those of its own quotas:
//!
//! - its refusals, in buckets: a charge that this quota refuses is one too many, and a block is due;
//! - its blocks, in a log: all of them are charged together when the last one starts, so the log has one time.

use std::time::Duration;

use crate::decision::CountScope;
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::quota::{BlockRule, MAX_WINDOW, Quota, Quotas};
use crate::store::{Check, ProtectedStore, Reset, Subject};

/// The refusals and the automatic blocks of the keys of a limiter.
pub(in crate::limiter) struct BlockCounts {
    store: ProtectedStore,
    name: Key,
    rule: BlockRule,
    refusals: Quotas,
    /// Finds the blocks of any rule.
    blocks: Quotas,
    both: Quotas,
}

impl BlockCounts {
    /// Creates the counts of a limiter. Without a rule, only the blocks of keys are found.
    pub(in crate::limiter) fn new(
        store: &ProtectedStore,
        limiter: &Key,
        rule: Option<BlockRule>,
    ) -> Self {
        let rule = rule.unwrap_or(BlockRule::refusals(1));
        let (refusals, blocks) = (rule.refusals_quota(), Quota::new(u32::MAX, MAX_WINDOW));
        Self {
            store: store.clone(),
            name: limiter.blocks_of_limiter(),
            rule,
            both: Quotas::from([refusals.clone(), blocks.clone()]),
            refusals: refusals.into(),
            blocks: blocks.into(),
        }
    }

    pub(super) fn rule(&self) -> BlockRule {
        self.rule
    }

    /// Returns whether the circuit breaker of a key is open.
    pub(super) fn are_failing(&self, key: &Key) -> bool {
        self.store.is_failing(Subject {
            limiter: &self.name,
            key,
            quotas: &self.refusals,
        })
    }

    /// Counts refusals of a key. Returns whether a block is due: then these were not counted.
    pub(super) async fn count_refusals(&self, key: &Key, refusals: u32) -> Result<bool, Error> {
        let check = Check::new(&self.name, key, &self.refusals, refusals);
        let answer = self.store.check_uncached(check).await?;
        // In a full memory store, other keys share the count: nobody is blocked for their refusals.
        Ok(!answer.is_admitted() && answer.scope() == CountScope::Own)
    }

    /// Returns the number of blocks of a key, and the time since the last one started.
    pub(in crate::limiter) async fn blocks(&self, key: &Key) -> Result<(u32, Duration), Error> {
        let check = Check::new(&self.name, key, &self.blocks, 0);
        let answer = self.store.check_uncached(check).await?;
        let own = answer
            .quotas()
            .first()
            .filter(|_| answer.scope() == CountScope::Own);
        let blocks =
            own.map(|quota| (quota.used(), MAX_WINDOW.saturating_sub(quota.reset_after())));
        Ok(blocks.unwrap_or_default())
    }

    /// Returns the number of blocks of a key that are not forgotten.
    pub(super) async fn earlier_blocks(&self, key: &Key) -> Result<u32, Error> {
        let (blocks, age) = self.blocks(key).await?;
        let is_forgotten = age >= self.rule.forgotten_after(blocks);
        Ok(if is_forgotten { 0 } else { blocks })
    }

    /// Forgets the refusals of a key, and sets the number of its blocks. The last one starts now.
    pub(super) async fn set_blocks(&self, key: &Key, blocks: u32) -> Result<(), Error> {
        self.forget(key).await?;
        let quotas = self.rule.blocks_quota(blocks).into();
        let check = Check::new(&self.name, key, &quotas, blocks);
        self.store.check_uncached(check).await.map(drop)
    }

    /// Forgets the refusals and the blocks of a key.
    pub(in crate::limiter) async fn forget(&self, key: &Key) -> Result<(), Error> {
        let forgotten = self.store.reset(Reset::new(&self.name, key, &self.both));
        match forgotten.await {
            Err(error) if error.kind() != ErrorKind::Unsupported => Err(error),
            _ => Ok(()),
        }
    }
}
