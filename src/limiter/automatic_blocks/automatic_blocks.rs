//! Collects the refusals of a limiter, sends them to the store, and blocks keys.
//!
//! Refusals are joined by key. They are sent at once if none were sent in the last second, and otherwise together,
//! once a second. So a client that is refused a thousand times a second costs a remote store one check a second. A store
//! that answers at once, such as one in memory, counts each refusal on its own.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::sleep;

use super::block_counts::BlockCounts;
use crate::clock::micros;
use crate::decision::{LevelDecision, Source};
use crate::error::{Error, ErrorKind, warning};
use crate::key::{Fingerprint, HashFingerprint, Key};
use crate::lock::Mutex;
use crate::quota::BlockRule;
use crate::runtime::spawn_or_drop;
use crate::store::{Block, BlockList, ProtectedStore, StoreFuture, join_all};
use crate::telemetry::{FailureStreak, LineInterval, Telemetry};

/// The shortest time between two calls of a store that does not answer at once.
const INTERVAL: Duration = Duration::from_secs(1);

/// The most keys with unsent refusals. A key takes about 100 bytes.
const MAX_UNSENT: usize = 10_000;

/// The keys that are sent together, so that the checks of clients are not delayed behind thousands.
const KEYS_AT_ONCE: usize = 100;

/// The automatic blocks of one limiter. Clones of the limiter share them.
pub(in crate::limiter) struct AutomaticBlocks {
    pub(in crate::limiter) counts: BlockCounts,
    limiter: Key,
    telemetry: Arc<Telemetry>,
    unsent: Mutex<Unsent>,
    /// Locked by the thread or the task that sends.
    sending: Arc<tokio::sync::Mutex<()>>,
    /// The times in a row that sending failed.
    failures: FailureStreak,
    /// Whether the store cannot block keys at all.
    is_unsupported: AtomicBool,
    /// The warnings that the block list is full.
    full_list: LineInterval,
}

type Unsent = HashMap<Fingerprint, Refused, HashFingerprint>;

/// Refusals of one key that were not sent.
struct Refused {
    key: Key,
    count: u32,
    /// The time at which the first of their checks began, in microseconds of the clock of this process.
    first_at: u64,
    /// The time at which the last of their checks began.
    last_at: u64,
    /// The time until which the quotas refuse the key.
    until: u64,
}

/// A call of [`AutomaticBlocks::send`].
type Sending = Pin<Box<dyn Future<Output = SendEnd> + Send>>;

/// The end of a call of [`AutomaticBlocks::send`].
enum SendEnd {
    AllSent,
    /// Some are left, because the store of their keys fails.
    SomeLeft,
}

/// `None` if no quota has refused the level, or if no wait would help.
fn counted_wait(level: LevelDecision<'_>) -> Option<Duration> {
    // Not by the fallback: the counts of a process may have a part of the limit only.
    let is_by_store = matches!(
        level.source(),
        Source::Redis | Source::Memory | Source::RefusalCache | Source::Other
    );
    if !is_by_store || !level.is_asked() || level.is_allowed() || level.cost() == 0 {
        return None;
    }
    level
        .quotas()
        .filter(|quota| !quota.is_allowed())
        .map(|quota| quota.retry_after())
        .try_fold(Duration::ZERO, |longest, wait| Some(longest.max(wait?)))
}

impl AutomaticBlocks {
    pub(in crate::limiter) fn new(
        rule: BlockRule,
        store: &ProtectedStore,
        limiter: &Key,
        telemetry: &Arc<Telemetry>,
    ) -> Arc<Self> {
        Arc::new(Self {
            counts: BlockCounts::new(store, limiter, rule),
            limiter: limiter.clone(),
            telemetry: Arc::clone(telemetry),
            unsent: Mutex::default(),
            sending: Arc::default(),
            failures: FailureStreak::default(),
            is_unsupported: AtomicBool::new(false),
            full_list: LineInterval::new(Duration::from_secs(60)),
        })
    }

    pub(in crate::limiter) fn count_refusal(self: &Arc<Self>, level: LevelDecision<'_>) {
        if let Some(wait) = counted_wait(level)
            && !self.is_unsupported.load(Ordering::Relaxed)
        {
            let record = level.record();
            self.add(&record.key, record.begun_at, wait);
            self.send_unless_sending();
        }
    }

    pub(in crate::limiter) fn forget_unsent(&self, key: &Key) {
        self.unsent.lock().remove(&key.fingerprint());
    }

    /// While there are too many unsent keys, refusals of further keys are dropped.
    fn add(&self, key: &Key, begun_at: u64, wait: Duration) {
        let now = self.now();
        let mut unsent = self.unsent.lock();
        let name = key.fingerprint();
        if unsent.len() >= MAX_UNSENT && !unsent.contains_key(&name) {
            return;
        }
        let refused = unsent.entry(name).or_insert_with(|| Refused {
            key: key.clone(),
            count: 0,
            first_at: begun_at,
            last_at: begun_at,
            until: 0,
        });
        if self.is_outdated(refused, now) {
            refused.count = 0;
            refused.first_at = begun_at;
        }
        refused.count = refused.count.saturating_add(1);
        refused.last_at = begun_at;
        refused.until = now.saturating_add(micros(wait));
    }

    /// Sends unsent refusals, unless a thread or a task does. If the store does not answer at once, a task goes on.
    fn send_unless_sending(self: &Arc<Self>) {
        while !self.unsent.lock().is_empty()
            && let Ok(sending) = Arc::clone(&self.sending).try_lock_owned()
        {
            let mut under_way: Sending = Box::pin(Arc::clone(self).send());
            let mut context = Context::from_waker(Waker::noop());
            let under_way = match under_way.as_mut().poll(&mut context) {
                // Another thread may have left refusals to this one.
                Poll::Ready(SendEnd::AllSent) => continue,
                Poll::Ready(SendEnd::SomeLeft) => None,
                Poll::Pending => Some(under_way),
            };
            // Without a runtime, the next refusal tries again.
            let blocks = Arc::downgrade(self);
            spawn_or_drop(send_every_second(blocks, under_way, sending));
            return;
        }
    }

    /// A store that has failed may have counted the refusals, so they are not sent again.
    async fn send(self: Arc<Self>) -> SendEnd {
        let (mut refused, end) = self.take_unsent();
        if refused.is_empty() {
            return end;
        }
        let mut outcome = Ok(());
        while !refused.is_empty() {
            let rest = refused.split_off(refused.len().min(KEYS_AT_ONCE));
            let sent = refused.into_iter().map(|refused| {
                let blocks = Arc::clone(&self);
                StoreFuture::boxed(async move { blocks.count_or_block(&refused).await })
            });
            let sent: Result<(), Error> = join_all(sent.collect()).await.into_iter().collect();
            outcome = outcome.and(sent);
            refused = rest;
        }
        self.record(&outcome);
        end
    }

    fn take_unsent(&self) -> (Vec<Refused>, SendEnd) {
        let now = self.now();
        let mut unsent = self.unsent.lock();
        unsent.retain(|_, refused| !self.is_outdated(refused, now));
        let refused = unsent
            .extract_if(|_, refused| !self.counts.are_failing(&refused.key))
            .map(|(_, refused)| refused)
            .filter(|refused| !self.is_blocked(&refused.key))
            .collect();
        let end = if unsent.is_empty() {
            SendEnd::AllSent
        } else {
            SendEnd::SomeLeft
        };
        (refused, end)
    }

    /// Refusals of a key that is blocked meanwhile do not count.
    fn is_blocked(&self, key: &Key) -> bool {
        self.list().blocked_for(&self.limiter, key).is_some()
    }

    /// Counts refusals of a key, or blocks it if they are too many. An unblock in between undoes them.
    async fn count_or_block(&self, refused: &Refused) -> Result<(), Error> {
        let Refused { key, count, .. } = refused;
        let _under_way = self.list().begin_automatic().await;
        // Other keys may have delayed it.
        let is_outdated = self.is_outdated(refused, self.now());
        if is_outdated || !self.counts.count_refusals(key, *count).await? {
            return Ok(());
        }
        if self.is_undone(refused).await? {
            return Ok(());
        }
        let earlier = self.counts.blocks(key).await?;
        let duration = self.counts.rule.duration_after(earlier);
        let block = Block::new(&self.limiter, key, duration).automatic();
        let has_blocked = match self.counts.store.block(block).await {
            Err(error) if error.kind() == ErrorKind::Full => {
                self.warn_that_list_is_full();
                return Ok(());
            }
            outcome => outcome?,
        };
        let Refused { last_at, until, .. } = *refused;
        self.list().set_wait(&self.limiter, key, last_at, until);
        // Another process may have unblocked the key since the first look.
        if has_blocked && self.is_undone(refused).await? {
            let unblock = Block::new(&self.limiter, key, Duration::ZERO);
            return self.counts.store.block(unblock).await.map(drop);
        }
        // Otherwise another process has blocked the key, and so its blocks grow once.
        if has_blocked {
            let blocks = earlier.saturating_add(1);
            self.telemetry.counts.count_blocks(1);
            self.telemetry.events.log_block(key, duration, blocks);
            self.counts.set_blocks(key, blocks).await?;
        }
        Ok(())
    }

    fn warn_that_list_is_full(&self) {
        if self.full_list.is_due() {
            tracing::warn!(
                target: "tollgate::diagnostics",
                code = warning::NO_ROOM_TO_BLOCK,
                limiter = self.limiter.as_str(),
                "cannot block a key that was refused too often: the limiter or the store has no room for more \
                 automatic blocks; unblock keys, or block after more refusals"
            );
        }
    }

    async fn is_undone(&self, refused: &Refused) -> Result<bool, Error> {
        let since = self.counts.since_unblock(&refused.key).await?;
        let unblocked_at = since.map(|since| self.now().saturating_sub(micros(since)));
        Ok(unblocked_at.is_some_and(|at| at > refused.first_at))
    }

    fn record(&self, outcome: &Result<(), Error>) {
        let limiter = self.limiter.as_str();
        match outcome {
            Ok(()) => {
                // The series begins at 0.
                self.telemetry.counts.count_blocks(0);
                if self.failures.end() {
                    tracing::info!(target: "tollgate::diagnostics", limiter, "refusals are counted again");
                }
            }
            Err(error) => {
                let is_unsupported = error.kind() == ErrorKind::Unsupported;
                self.is_unsupported
                    .fetch_or(is_unsupported, Ordering::Relaxed);
                let is_lasting = is_unsupported || error.kind() == ErrorKind::Misconfigured;
                if self.failures.fail(is_lasting) {
                    tracing::warn!(
                        target: "tollgate::diagnostics",
                        code = warning::REFUSALS_NOT_COUNTED,
                        limiter,
                        "failed to count refusals, so no key is blocked automatically: {error}"
                    );
                }
            }
        }
    }

    /// Refusals that are sent late would count for too long.
    fn is_outdated(&self, refused: &Refused, now: u64) -> bool {
        now.saturating_sub(refused.first_at) >= micros(self.counts.rule.max_age())
    }

    /// In microseconds of the clock of the block list.
    pub(in crate::limiter) fn now(&self) -> u64 {
        self.list().clock().now()
    }

    fn list(&self) -> &BlockList {
        self.counts.store.block_list()
    }
}

/// Ends when nothing is unsent, or with the limiter.
async fn send_every_second(
    blocks: Weak<AutomaticBlocks>,
    mut under_way: Option<Sending>,
    sending: OwnedMutexGuard<()>,
) {
    loop {
        if let Some(under_way) = under_way.take() {
            under_way.await;
        }
        sleep(INTERVAL).await;
        let Some(blocks) = blocks.upgrade() else {
            return;
        };
        if blocks.unsent.lock().is_empty() {
            drop(sending);
            // A refusal that came just before has left the sending to this task.
            blocks.send_unless_sending();
            return;
        }
        under_way = Some(Box::pin(blocks.send()));
    }
}
