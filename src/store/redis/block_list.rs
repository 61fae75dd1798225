//! The block list in Redis, which all processes share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;

use super::client::Client;
use super::connection::{KEYLESS, noting_asked};
use super::protocol::errors::{self, malformed_reply};
use super::protocol::{KeyNames, member};
use super::refusals::{MAX_KEYS_PER_CALL, OwnedRefusals};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::store::block_list::{BlockList, RefreshTrigger, full};
use crate::store::circuit_breaker::CircuitBreaker;
use crate::store::future::StoreFuture;
use crate::store::requests::{Block, RefusalOutcome, Refusals};

/// The default of the refresh interval: as long as a refusal is remembered, and no load for Redis.
pub(super) const DEFAULT_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// The least that a background refresh may take.
const MIN_REFRESH_TIMEOUT: Duration = Duration::from_secs(1);

/// The failures in a row after which a warning is logged.
const FAILURES_BEFORE_WARNING: u32 = 3;

/// The version of a list that does not exist.
const NO_VERSION: &str = "0";

/// The longest time that a key is blocked, in microseconds: about 142 years, which Lua holds
/// exactly.
const MAX_BLOCK_MICROS: u64 = 1 << 52;

/// The block list in Redis, and the version that this process has seen.
pub(super) struct SharedBlockList {
    client: Client,
    circuit_breaker: CircuitBreaker,
    known: Mutex<KnownVersion>,
    /// The background refreshes in a row that failed.
    failures: AtomicU32,
}

#[derive(Clone, Debug)]
struct KnownVersion {
    /// Empty once this process has changed the list: its new version is unknown, and no list at all
    /// would be a change as well.
    version: String,
    /// The number of changes by this process.
    changes: u64,
}

impl Default for KnownVersion {
    fn default() -> Self {
        Self {
            version: NO_VERSION.to_owned(),
            changes: 0,
        }
    }
}

impl SharedBlockList {
    pub(super) fn new(client: Client, circuit_breaker: CircuitBreaker) -> Arc<Self> {
        Arc::new(Self {
            client,
            circuit_breaker,
            known: Mutex::default(),
            failures: AtomicU32::new(0),
        })
    }

    /// Returns the function with which a [`BlockList`] refreshes itself, for as long as the store
    /// lives.
    pub(super) fn refresher(
        self: &Arc<Self>,
    ) -> impl Fn(&BlockList, RefreshTrigger) -> StoreFuture<()> + use<> {
        let shared = Arc::downgrade(self);
        move |blocks, trigger| {
            let Some(shared) = shared.upgrade() else {
                return StoreFuture::ready(Ok(()));
            };
            // A background refresh spares a store that fails.
            if trigger == RefreshTrigger::Background
                && shared.circuit_breaker.is_open_at(shared.breaker())
            {
                return StoreFuture::ready(Ok(()));
            }
            let blocks = blocks.clone();
            StoreFuture::boxed(async move {
                match trigger {
                    RefreshTrigger::Operator => {
                        let refresh = shared.refresh(&blocks);
                        shared.client.within_deadline(refresh).await
                    }
                    RefreshTrigger::Background => {
                        let outcome = shared.refresh_in_background(&blocks).await;
                        if let Err(error) = &outcome {
                            shared.client.meter.record_error(error.kind());
                        }
                        shared.log(&outcome);
                        outcome
                    }
                }
            })
        }
    }

    /// Blocks a key in Redis and in `blocks`. A duration of zero unblocks it.
    pub(super) fn block(self: &Arc<Self>, blocks: BlockList, block: Block<'_>) -> StoreFuture<()> {
        let (shared, block) = (Arc::clone(self), OwnedBlock::from(block));
        StoreFuture::boxed(async move {
            let blocked = async {
                shared.client.block(&block).await?;
                shared.change(&blocks, block.block())
            };
            shared.client.within_deadline(blocked).await
        })
    }

    /// Counts refusals in Redis. Adds the keys that these have blocked to `blocks`.
    ///
    /// No caller waits, so a call has more time than a check. Keys that fail alone are errors at the end.
    pub(super) fn count_refusals(
        self: &Arc<Self>,
        blocks: BlockList,
        refusals: &[Refusals<'_>],
    ) -> StoreFuture<Vec<RefusalOutcome>> {
        let (shared, breaker) = (Arc::clone(self), self.breaker());
        let refusals: Vec<_> = refusals.iter().copied().map(OwnedRefusals::from).collect();
        if shared.circuit_breaker.is_open_at(breaker) {
            return StoreFuture::ready(Err(shared.circuit_breaker.open_error(breaker)));
        }
        StoreFuture::boxed(async move {
            let mut outcomes = Vec::with_capacity(refusals.len());
            for refusals in refusals.chunks(MAX_KEYS_PER_CALL) {
                let timeout = shared.background_timeout();
                let counted = shared.client.count_refusals(refusals);
                let counted = noting_asked(async {
                    let counted = tokio::time::timeout(timeout, counted).await;
                    let late = || errors::timeout(&shared.client.server(), timeout);
                    counted.unwrap_or_else(|_| Err(late()))
                });
                let counted = counted.await?;
                for (refusals, outcome) in refusals.iter().zip(counted) {
                    if let Ok(RefusalOutcome::Blocked { duration, .. }) = outcome {
                        let OwnedRefusals { limiter, key, .. } = refusals;
                        shared.change(&blocks, Block::new(limiter, key, duration))?;
                    }
                    outcomes.push(outcome);
                }
            }
            outcomes.into_iter().collect()
        })
    }

    /// Makes a change in this process that was made in Redis.
    fn change(&self, blocks: &BlockList, block: Block<'_>) -> Result<(), Error> {
        // A refresh in flight may not include this change.
        let mut known = self.known();
        known.changes += 1;
        known.version.clear();
        blocks.put(block)
    }

    /// Returns the index of the circuit breaker for the list.
    fn breaker(&self) -> usize {
        let nodes = self.client.connections.nodes();
        nodes.map_or(0, |nodes| nodes.of_slot(KeyNames::block_list_slot()))
    }

    /// Refreshes with a longer timeout: no caller waits, and a long list may take longer than a
    /// check may.
    async fn refresh_in_background(&self, blocks: &BlockList) -> Result<(), Error> {
        let timeout = self.background_timeout();
        noting_asked(async {
            let refreshed = tokio::time::timeout(timeout, self.refresh(blocks)).await;
            refreshed.unwrap_or_else(|_| {
                let server = self.client.server();
                let text = format!("{server} did not send the block list within {timeout:?}");
                Err(Error::new(ErrorKind::Timeout, text))
            })
        })
        .await
    }

    fn background_timeout(&self) -> Duration {
        self.client.deadline.max(MIN_REFRESH_TIMEOUT)
    }

    /// Reads the list if its version is another one than known.
    async fn refresh(&self, blocks: &BlockList) -> Result<(), Error> {
        loop {
            let before = self.known().clone();
            let Some(list) = self.client.read_blocks(&before.version).await? else {
                return Ok(());
            };
            // Locked until the list is replaced, so that no change by this process is overwritten.
            let mut known = self.known();
            if known.changes == before.changes {
                blocks.replace(list.blocks);
                known.version = list.version;
                return Ok(());
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, KnownVersion> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs once when refreshing keeps failing, and once when it works again. If the store fails as
    /// a whole, the checks log that first, and no background refresh runs.
    fn log(&self, outcome: &Result<(), Error>) {
        match outcome {
            Err(error) => {
                let before = self.failures.fetch_add(1, Ordering::Relaxed);
                if before.saturating_add(1) == FAILURES_BEFORE_WARNING {
                    tracing::warn!(
                        target: "tollgate::diagnostics",
                        "failed to refresh the block list: {error}"
                    );
                }
            }
            Ok(()) => {
                if self.failures.swap(0, Ordering::Relaxed) >= FAILURES_BEFORE_WARNING {
                    tracing::info!(
                        target: "tollgate::diagnostics",
                        "the block list is refreshed again"
                    );
                }
            }
        }
    }
}

/// A [`Block`] that outlives its caller's borrow.
struct OwnedBlock {
    limiter: Key,
    key: Key,
    duration: Duration,
}

impl OwnedBlock {
    fn block(&self) -> Block<'_> {
        Block {
            limiter: &self.limiter,
            key: &self.key,
            duration: self.duration,
        }
    }
}

impl From<Block<'_>> for OwnedBlock {
    fn from(block: Block<'_>) -> Self {
        Self {
            limiter: block.limiter.clone(),
            key: block.key.clone(),
            duration: block.duration,
        }
    }
}

/// The list as Redis has it.
struct ListReply {
    version: String,
    /// Limiters, keys, and how long they stay blocked.
    blocks: Vec<(Key, Key, Duration)>,
}

impl Client {
    async fn block(&self, block: &OwnedBlock) -> Result<(), Error> {
        let micros = u64::try_from(block.duration.as_nanos().div_ceil(1_000));
        let micros = micros.map_or(MAX_BLOCK_MICROS, |micros| micros.min(MAX_BLOCK_MICROS));
        let script = &self.scripts.block;
        let mut call = script.call(2, 2, 0);
        call.arg(self.names.block_list());
        call.arg(self.names.refusals(&block.limiter, &block.key));
        call.arg(member(&block.limiter, &block.key)).arg(micros);
        match self.run(KEYLESS, script, call).await? {
            Value::Int(1) => Ok(()),
            Value::Int(0) => Err(full()),
            _ => Err(malformed_reply("neither 0 nor 1", &self.server())),
        }
    }

    /// Reads the list, unless its version is `version`.
    async fn read_blocks(&self, version: &str) -> Result<Option<ListReply>, Error> {
        let malformed = || malformed_reply("no block list", &self.server());
        let script = &self.scripts.blocked;
        let mut call = script.call(1, 1, 0);
        call.arg(self.names.block_list()).arg(version);
        let reply = self.run(KEYLESS, script, call).await?;
        let texts: Vec<String> = redis::from_redis_value(reply).map_err(|_| malformed())?;
        let (now, version, members) = match texts.as_slice() {
            [_] => return Ok(None),
            [members @ .., now, version] => (now, version, members),
            [] => return Err(malformed()),
        };
        let now: u64 = now.parse().map_err(|_| malformed())?;
        let (pairs, _) = members.as_chunks();
        let reply = ListReply {
            version: version.clone(),
            blocks: pairs
                .iter()
                .filter_map(|[member, ends_at]| parse_member(member, ends_at, now))
                .collect(),
        };
        Ok(Some(reply))
    }
}

/// Parses a member and its score: limiter, key, and the time left.
fn parse_member(member: &str, ends_at: &str, now: u64) -> Option<(Key, Key, Duration)> {
    // The name of a limiter has its commas escaped.
    let (limiter, key) = member.split_once(',')?;
    let left = Duration::from_micros(parse_score(ends_at)?.checked_sub(now)?);
    Some((Key::from_stored(limiter)?, Key::from_stored(key)?, left))
}

/// Parses a score that is a whole number. Servers may write it as `1.8e+15`.
fn parse_score(score: &str) -> Option<u64> {
    score.parse().ok().or_else(|| {
        let score: f64 = score.parse().ok()?;
        format!("{score:.0}").parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_parsed_in_each_notation_of_its_score() {
        let now = 1_795_371_000_000_000;
        for ends_at in ["1795371100000000", "1.7953711e+15", "1.7953711e15"] {
            let parsed = parse_member("a%2Cb,ip=192.0.2.1,x", ends_at, now);
            let (limiter, key, left) = parsed.unwrap();
            assert_eq!(limiter, Key::from("a,b"));
            assert_eq!(key.as_str(), "ip=192.0.2.1,x");
            assert_eq!(left, Duration::from_secs(100));
        }
        for ends_at in ["", "-1", "inf", "nan", "1795370999999999"] {
            assert!(parse_member("a,b", ends_at, now).is_none(), "{ends_at}");
        }
        assert!(parse_member("#", "1795371100000000", now).is_none());
    }
}
