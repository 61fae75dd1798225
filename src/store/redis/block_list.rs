//! The block list in Redis, which all processes share.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::client::Client;
use super::protocol::errors::malformed_reply;
use super::protocol::member;
use super::transport::Route;
use crate::clock::micros_rounded_up;
use crate::error::Error;
use crate::key::Key;
use crate::lock::Mutex;
use crate::store::block_list::{BlockList, SharedReading};
use crate::store::future::StoreFuture;
use crate::store::requests::Block;

/// The default of the refresh interval: as long as a refusal is remembered, and no load for Redis.
pub(super) const DEFAULT_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// The longest time that a key is blocked, in microseconds: about 142 years, which Lua holds
/// exactly.
const MAX_BLOCK_MICROS: u64 = 1 << 52;

/// The version of no list.
const NO_LIST: &str = "0";

/// The block list in Redis, the copy in this process, and its version.
pub(super) struct SharedBlockList {
    client: Arc<Client>,
    pub(super) copy: BlockList,
    known: Mutex<KnownVersion>,
}

#[derive(Clone, Debug, Default)]
struct KnownVersion {
    /// Empty before the first refresh, and once this process has changed the list: its new version is unknown, and no
    /// list at all would be a change as well.
    version: String,
    /// The number of changes by this process.
    changes: u64,
}

/// The list as the server has it.
struct ServerList {
    version: String,
    /// The time of the server, in microseconds.
    now: u64,
    /// Limiters, keys, and how long they stay blocked.
    blocks: Vec<(Key, Key, Duration)>,
}

impl SharedBlockList {
    pub(super) fn new(client: Arc<Client>, copy: BlockList) -> Arc<Self> {
        Arc::new(Self {
            client,
            copy,
            known: Mutex::default(),
        })
    }

    /// Blocks a key in Redis and in this process. A duration of zero unblocks it.
    pub(super) fn block(self: &Arc<Self>, block: Block<'_>) -> StoreFuture<bool> {
        let shared = Arc::clone(self);
        let client = &self.client;
        let limiter = block.limiter.clone();
        let key = block.key.clone();
        let duration = block.duration;
        let micros = micros_rounded_up(duration);
        let asked_at = self.copy.clock().now();
        let mut call = client.scripts.block.call(1, 4, 0);
        call.command.arg(client.names.block_list());
        call.command.arg(member(&limiter, &key));
        call.command.arg(micros.min(MAX_BLOCK_MICROS));
        call.command.arg(u8::from(block.is_automatic));
        call.command.arg(call.number.get());
        client.start(client.block_list_slot(), move |client, route| async move {
            let reply = client.run(&route, &client.scripts.block, call).await?;
            match reply.as_sequence() {
                Some([Value::Int(0)]) => return Err(BlockList::full()),
                Some([Value::Int(1)]) => {}
                Some([Value::Int(2)]) => return Ok(false),
                _ => return Err(malformed_reply("no outcome of a block", &route.server())),
            }
            // A refresh in flight may not include this change.
            let mut known = shared.known.lock();
            known.changes += 1;
            known.version.clear();
            // Redis has decided, so that the list of this process does not.
            let block = Block::new(&limiter, &key, duration);
            shared.copy.put_shared(block, asked_at)
        })
    }

    /// Refreshes the list, if the server answers within `timeout`. Operators wait for the deadline, the background for at
    /// least a second.
    pub(super) fn refresh(self: Arc<Self>, timeout: Duration) -> StoreFuture<()> {
        let client = Arc::new(Client {
            deadline: timeout,
            ..Client::clone(&self.client)
        });
        client.start(client.block_list_slot(), move |client, route| async move {
            self.read(&client, &route)
                .await
                .inspect_err(|error| client.meter.record_error(error.kind()))
        })
    }

    async fn read(&self, client: &Client, route: &Route) -> Result<(), Error> {
        loop {
            let before = self.known.lock().clone();
            let asked_at = self.copy.clock().now();
            let Some(list) = client.read_blocks(route, &before.version).await? else {
                return Ok(());
            };
            // Locked until the list is replaced, so that no change by this process is overwritten.
            let mut known = self.known.lock();
            if known.changes == before.changes {
                self.copy.replace_shared(SharedReading {
                    blocks: list.blocks,
                    read_at: list.now,
                    asked_at,
                    // A list that ends with its last key outlives it, so none at all was lost with its server's data.
                    may_be_lost: list.version == NO_LIST,
                });
                known.version = list.version;
                return Ok(());
            }
        }
    }
}

impl Client {
    /// Reads the list and its version, unless it is `version`.
    async fn read_blocks(&self, route: &Route, version: &str) -> Result<Option<ServerList>, Error> {
        let script = &self.scripts.blocked;
        let mut call = script.call(1, 2, 0);
        call.command.arg(self.names.block_list()).arg(version);
        call.command.arg(call.number.get());
        let reply = self.run(route, script, call).await?;
        match parse_list(reply) {
            ListReply::List(list) => Ok(Some(list)),
            ListReply::Unchanged => Ok(None),
            ListReply::Malformed => Err(malformed_reply("no block list", &route.server())),
        }
    }
}

/// The reply to a question for the list that is newer than a version.
enum ListReply {
    List(ServerList),
    Unchanged,
    Malformed,
}

fn parse_list(reply: Value) -> ListReply {
    let Ok(texts) = redis::from_redis_value::<Vec<String>>(reply) else {
        return ListReply::Malformed;
    };
    match texts.as_slice() {
        [_] => ListReply::Unchanged,
        [members @ .., now, version] => match now.parse() {
            Ok(now) => ListReply::List(ServerList {
                version: version.clone(),
                now,
                blocks: parse_members(members, now),
            }),
            Err(_) => ListReply::Malformed,
        },
        [] => ListReply::Malformed,
    }
}

/// Leaves out the members that are no blocks.
fn parse_members(members: &[String], now: u64) -> Vec<(Key, Key, Duration)> {
    let (pairs, _) = members.as_chunks();
    pairs
        .iter()
        .filter_map(|[member, ends_at]| parse_member(member, ends_at, now))
        .collect()
}

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
