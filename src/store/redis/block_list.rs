//! What operators have blocked, in any process: a list in Redis, and what this process knows of it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::Value;

use super::client::Client;
use super::protocol::KeyNames;
use super::redis_store::{SLOTS_OF_PART, Shared, within_deadline};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::store::block_list::BlockList;
use crate::store::block_list::{RefreshTrigger, full};
use crate::store::future::StoreFuture;
use crate::store::redis::protocol::errors::malformed_reply;
use crate::store::requests::Block;

/// How often to look: as long as a refusal is remembered, and nothing to Redis.
pub(crate) const DEFAULT_EVERY: Duration = Duration::from_secs(1);

/// How long a look that nobody waits for may take at least.
const PATIENCE: Duration = Duration::from_secs(1);

/// After so many looks in a row that failed it is said.
const FAILURES_TOLD: u32 = 3;

/// The version of a list that is not there.
const NO_VERSION: &str = "0";

/// The longest that a key is blocked, in microseconds: some 142 years, which stay whole numbers in Lua.
const LONGEST: u64 = 1 << 52;

/// What this process has seen of the list.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    known: Mutex<Known>,
    /// How often in a row it could not be read.
    failed: AtomicU32,
}

/// What this process knows of the list.
#[derive(Clone, Debug)]
struct Known {
    /// Empty where it has another one since this process changed it: one that is lost then is none.
    version: String,
    /// How often this process has changed the list.
    changes: u64,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            version: NO_VERSION.to_owned(),
            changes: 0,
        }
    }
}

/// A list of what is blocked that this process shares with all others.
pub(crate) fn list(of: Weak<Shared>) -> impl Fn(&BlockList, RefreshTrigger) -> StoreFuture<()> {
    move |blocks, look| {
        let Some(shared) = of.upgrade() else {
            return StoreFuture::ready(Ok(()));
        };
        // Who fails is not asked what nobody waits for.
        if look == RefreshTrigger::Beside && shared.guard.is_open_at(shared.part_of_blocks()) {
            return StoreFuture::ready(Ok(()));
        }
        let blocks = blocks.clone();
        StoreFuture::boxed(async move {
            match look {
                RefreshTrigger::Asked => {
                    within_deadline(&shared.client, shared.look(&blocks)).await
                }
                RefreshTrigger::Beside => {
                    let outcome = shared.look_patiently(&blocks).await;
                    if let Err(error) = &outcome {
                        shared.client.meter.failed(error.kind());
                    }
                    shared.seen.looked(&outcome);
                    outcome
                }
            }
        })
    }
}

impl Shared {
    /// The part of the store that has the list.
    fn part_of_blocks(&self) -> usize {
        if self.is_cluster.load(Ordering::Relaxed) {
            usize::from(KeyNames::block_list_slot()) / SLOTS_OF_PART
        } else {
            0
        }
    }

    /// BlockList a key, or not any more.
    pub(crate) async fn block(&self, blocked: BlockedKey) -> Result<(), Error> {
        self.client.block(&blocked).await?;
        // What is on its way to those who look may not tell of this yet.
        let mut known = self.seen.known();
        known.changes += 1;
        known.version.clear();
        self.blocks.put(blocked.block())
    }

    /// Finds out what is blocked, for nobody who waits: a long list may take longer than a check may.
    async fn look_patiently(&self, blocks: &BlockList) -> Result<(), Error> {
        let patience = self.client.deadline.max(PATIENCE);
        let looked = tokio::time::timeout(patience, self.look(blocks)).await;
        looked.unwrap_or_else(|_| {
            let text = format!("Redis did not tell within {patience:?}");
            Err(Error::new(ErrorKind::Timeout, text))
        })
    }

    /// Finds out what is blocked, if that is not known.
    async fn look(&self, blocks: &BlockList) -> Result<(), Error> {
        loop {
            let before = self.seen.known().clone();
            let Some(list) = self.client.blocked(&before.version).await? else {
                return Ok(());
            };
            // Until it is put in place, nothing may change.
            let mut known = self.seen.known();
            if known.changes == before.changes {
                blocks.replace(list.blocked);
                known.version = list.version;
                return Ok(());
            }
        }
    }
}

impl Seen {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Said once when it keeps failing, and when it does no more: where the store fails altogether, those
    /// who need it say so first, and nobody looks.
    fn looked(&self, outcome: &Result<(), Error>) {
        match outcome {
            Err(error) => {
                let before = self.failed.fetch_add(1, Ordering::Relaxed);
                if before.saturating_add(1) == FAILURES_TOLD {
                    tracing::warn!(
                        target: "tollgate::diagnostics",
                        "what other processes block is not known here: {error}"
                    );
                }
            }
            Ok(()) => {
                if self.failed.swap(0, Ordering::Relaxed) >= FAILURES_TOLD {
                    tracing::info!(
                        target: "tollgate::diagnostics",
                        "what other processes block is known here again"
                    );
                }
            }
        }
    }
}

/// A key to be blocked, kept until Redis knows.
pub(crate) struct BlockedKey {
    limiter: Key,
    key: Key,
    duration: Duration,
}

impl BlockedKey {
    fn block(&self) -> Block<'_> {
        Block {
            limiter: &self.limiter,
            key: &self.key,
            duration: self.duration,
        }
    }
}

impl From<Block<'_>> for BlockedKey {
    fn from(block: Block<'_>) -> Self {
        Self {
            limiter: block.limiter().clone(),
            key: block.key().clone(),
            duration: block.duration(),
        }
    }
}

/// What is blocked, and the version of the list that says so.
struct List {
    version: String,
    blocked: Vec<(Key, Key, Duration)>,
}

impl Client {
    async fn block(&self, blocked: &BlockedKey) -> Result<(), Error> {
        let micros = u64::try_from(blocked.duration.as_nanos().div_ceil(1_000));
        let micros = micros.map_or(LONGEST, |micros| micros.min(LONGEST));
        let script = &self.scripts.block;
        let mut call = script.call(1, 2, 0);
        call.arg(self.names.block_list());
        call.arg(format!(
            "{},{}",
            blocked.limiter.as_str(),
            blocked.key.as_str()
        ));
        call.arg(micros);
        match self.run_anywhere(script, call).await? {
            Value::Int(1) => Ok(()),
            Value::Int(0) => Err(full()),
            _ => Err(malformed_reply("to block")),
        }
    }

    /// What is blocked; nothing where that is known by this version.
    async fn blocked(&self, version: &str) -> Result<Option<List>, Error> {
        let script = &self.scripts.blocked;
        let mut call = script.call(1, 1, 0);
        call.arg(self.names.block_list()).arg(version);
        let reply = self.run_anywhere(script, call).await?;
        let texts: Vec<String> =
            redis::from_redis_value(reply).map_err(|_| malformed_reply("what is blocked"))?;
        let (present, version, blocked) = match texts.as_slice() {
            [_] => return Ok(None),
            [blocked @ .., present, version] => (present, version, blocked),
            [] => return Err(malformed_reply("what is blocked")),
        };
        let now = present.parse();
        let now: u64 = now.map_err(|_| malformed_reply("what is blocked"))?;
        let (pairs, _) = blocked.as_chunks();
        let list = List {
            version: version.clone(),
            blocked: pairs
                .iter()
                .filter_map(|[member, ends]| read(member, ends, now))
                .collect(),
        };
        Ok(Some(list))
    }
}

/// The limiter and the key of a member, and how long it stays blocked.
fn read(member: &str, ends: &str, now: u64) -> Option<(Key, Key, Duration)> {
    // In a limiter's name a comma is escaped.
    let (limiter, key) = member.split_once(',')?;
    let left = Duration::from_micros(whole(ends)?.checked_sub(now)?);
    Some((Key::from_stored(limiter)?, Key::from_stored(key)?, left))
}

/// A score that is a whole number, which servers may write as `1.8e+15`.
fn whole(score: &str) -> Option<u64> {
    score.parse().ok().or_else(|| {
        let score: f64 = score.parse().ok()?;
        format!("{score:.0}").parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_read_however_its_score_is_written() {
        let now = 1_795_371_000_000_000;
        for ends in ["1795371100000000", "1.7953711e+15", "1.7953711e15"] {
            let read = read("a%2Cb,ip=192.0.2.1,x", ends, now);
            let (limiter, key, left) = read.unwrap();
            assert_eq!(limiter, Key::from("a,b"));
            assert_eq!(key.as_str(), "ip=192.0.2.1,x");
            assert_eq!(left, Duration::from_secs(100));
        }
        for ends in ["", "-1", "inf", "nan", "1795370999999999"] {
            assert!(read("a,b", ends, now).is_none(), "{ends}");
        }
        assert!(read("#", "1795371100000000", now).is_none());
    }
}
