//! The block list in Redis, which all processes share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;

use super::client::Client;
use super::connection::KEYLESS;
use super::protocol::errors::malformed_reply;
use super::protocol::{KeyNames, member};
use crate::clock::Clock;
use crate::error::Error;
use crate::key::Key;
use crate::store::block_list::{BlockList, Refresher, full};
use crate::store::circuit_breaker::CircuitBreaker;
use crate::store::future::StoreFuture;
use crate::store::requests::Block;
use crate::telemetry::FailureStreak;

/// The default of the refresh interval: as long as a refusal is remembered, and no load for Redis.
pub(super) const DEFAULT_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// The least that a background refresh may take.
const MIN_REFRESH_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest time that a key is blocked, in microseconds: about 142 years, which Lua holds
/// exactly.
const MAX_BLOCK_MICROS: u64 = 1 << 52;

/// The version of no list.
const NO_LIST: &str = "0";

/// The block list in Redis, and the version that this process has seen.
pub(super) struct SharedBlockList {
    client: Client,
    circuit_breaker: CircuitBreaker,
    known: Mutex<KnownVersion>,
    /// The background refreshes in a row that failed.
    failures: FailureStreak,
}

#[derive(Clone, Debug, Default)]
struct KnownVersion {
    /// Empty before the first refresh, and once this process has changed the list: its new version is unknown, and no
    /// list at all would be a change as well.
    version: String,
    /// The number of changes by this process.
    changes: u64,
}

/// Limiters, keys, and how long they stay blocked.
type Blocks = Vec<(Key, Key, Duration)>;

impl SharedBlockList {
    pub(super) fn new(client: Client, circuit_breaker: CircuitBreaker) -> Arc<Self> {
        Arc::new(Self {
            client,
            circuit_breaker,
            known: Mutex::default(),
            failures: FailureStreak::default(),
        })
    }

    /// Creates the list of this process. It refreshes itself for as long as the store lives.
    pub(super) fn block_list(self: &Arc<Self>, clock: Clock, interval: Duration) -> BlockList {
        let refresher = |refresh: fn(Arc<Self>, BlockList) -> StoreFuture<()>| {
            let shared = Arc::downgrade(self);
            Arc::new(move |blocks: &BlockList| match shared.upgrade() {
                Some(shared) => refresh(shared, blocks.clone()),
                None => StoreFuture::ready(Ok(())),
            })
        };
        let for_operators = refresher(Self::refresh_for_operator);
        let in_background = refresher(Self::refresh_in_background);
        let refresher = Refresher::new(interval, for_operators, in_background);
        BlockList::on_clock(clock, Some(refresher))
    }

    /// Blocks a key in Redis and in `blocks`. A duration of zero unblocks it.
    pub(super) fn block(
        self: &Arc<Self>,
        blocks: BlockList,
        block: Block<'_>,
    ) -> StoreFuture<bool> {
        let shared = Arc::clone(self);
        let (limiter, key) = (block.limiter.clone(), block.key.clone());
        let (duration, is_automatic) = (block.duration, block.is_automatic);
        StoreFuture::boxed(async move {
            let Self { client, .. } = &*shared;
            let asked = client.block(member(&limiter, &key), duration, is_automatic);
            if !client.within_deadline(asked).await? {
                return Ok(false);
            }
            // A refresh in flight may not include this change.
            let mut known = shared.known();
            known.changes += 1;
            known.version.clear();
            // Redis has decided, so that the list of this process does not.
            blocks.put(Block::new(&limiter, &key, duration))
        })
    }

    fn refresh_for_operator(self: Arc<Self>, blocks: BlockList) -> StoreFuture<()> {
        StoreFuture::boxed(async move {
            let refresh = self.refresh(&blocks);
            self.client.within_deadline(refresh).await
        })
    }

    /// Refreshes with a longer timeout: no caller waits, and a long list may take longer than a
    /// check may. Spares a store that fails.
    fn refresh_in_background(self: Arc<Self>, blocks: BlockList) -> StoreFuture<()> {
        let nodes = self.client.connections.nodes();
        let node = nodes.map_or(0, |nodes| nodes.of_slot(KeyNames::block_list_slot()));
        if self.circuit_breaker.is_open_at(node) {
            return StoreFuture::ready(Err(self.circuit_breaker.open_error(node)));
        }
        StoreFuture::boxed(async move {
            let mut client = self.client.clone();
            client.deadline = client.deadline.max(MIN_REFRESH_TIMEOUT);
            let outcome = client.within_deadline(self.refresh(&blocks)).await;
            if let Err(error) = &outcome {
                client.meter.record_error(error.kind());
            }
            self.log(&outcome);
            outcome
        })
    }

    /// Reads the list if its version is another one than known.
    async fn refresh(&self, blocks: &BlockList) -> Result<(), Error> {
        loop {
            let before = self.known().clone();
            let Some((version, list)) = self.client.read_blocks(&before.version).await? else {
                return Ok(());
            };
            // Locked until the list is replaced, so that no change by this process is overwritten.
            let mut known = self.known();
            if known.changes == before.changes {
                // A list that ends with its last key outlives it, so none at all was lost with its server's data.
                blocks.replace_by(list, version == NO_LIST);
                known.version = version;
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
            Err(error) if self.failures.fail(false) => tracing::warn!(
                target: "tollgate::diagnostics",
                "failed to refresh the block list: {error}"
            ),
            Ok(()) if self.failures.end() => tracing::info!(
                target: "tollgate::diagnostics",
                "the block list is refreshed again"
            ),
            _ => {}
        }
    }
}

impl Client {
    /// Returns whether the block took effect.
    async fn block(
        &self,
        member: String,
        duration: Duration,
        is_automatic: bool,
    ) -> Result<bool, Error> {
        let micros = duration.as_nanos().div_ceil(1_000);
        let micros =
            u64::try_from(micros).map_or(MAX_BLOCK_MICROS, |micros| micros.min(MAX_BLOCK_MICROS));
        let script = &self.scripts.block;
        let mut call = script.call(1, 3, 0);
        call.arg(self.names.block_list());
        call.arg(member).arg(micros).arg(u8::from(is_automatic));
        match self.run(KEYLESS, script, call).await? {
            Value::Int(0) => Err(full()),
            Value::Int(1) => Ok(true),
            Value::Int(2) => Ok(false),
            _ => Err(malformed_reply("no outcome of a block", &self.server())),
        }
    }

    /// Reads the list and its version, unless it is `version`.
    async fn read_blocks(&self, version: &str) -> Result<Option<(String, Blocks)>, Error> {
        let malformed = || malformed_reply("no block list", &self.server());
        let script = &self.scripts.blocked;
        let mut call = script.call(1, 1, 0);
        call.arg(self.names.block_list()).arg(version);
        let reply = self.run(KEYLESS, script, call).await?;
        let texts: Vec<String> = redis::from_redis_value(reply).map_err(|_| malformed())?;
        let (members, now, version) = match texts.as_slice() {
            [_] => return Ok(None),
            [members @ .., now, version] => (members, now, version),
            [] => return Err(malformed()),
        };
        let now: u64 = now.parse().map_err(|_| malformed())?;
        let (pairs, _) = members.as_chunks();
        let blocks = pairs.iter();
        let blocks = blocks.filter_map(|[member, ends_at]| parse_member(member, ends_at, now));
        Ok(Some((version.clone(), blocks.collect())))
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
