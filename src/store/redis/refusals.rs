//! The call that counts refusals of keys, and blocks those that were refused too often.

use std::time::Duration;

use redis::Value;

use super::client::Client;
use super::connection::KEYLESS;
use super::protocol::errors::{from_script, malformed_reply};
use super::protocol::{ServerName, member};
use crate::clock::micros;
use crate::error::Error;
use crate::key::Key;
use crate::quota::BlockRule;
use crate::store::requests::{RefusalOutcome, Refusals};

/// The most keys of a call, which take Redis about 300 µs.
pub(super) const MAX_KEYS_PER_CALL: usize = 100;

/// The arguments of each key.
const ARGUMENTS: usize = 9;

/// [`Refusals`] that outlive the borrow of their caller.
pub(super) struct OwnedRefusals {
    pub(super) limiter: Key,
    pub(super) key: Key,
    rule: BlockRule,
    count: u32,
    age: Duration,
}

impl From<Refusals<'_>> for OwnedRefusals {
    fn from(refusals: Refusals<'_>) -> Self {
        Self {
            limiter: refusals.limiter.clone(),
            key: refusals.key.clone(),
            rule: *refusals.rule,
            count: refusals.count,
            age: refusals.age,
        }
    }
}

impl Client {
    /// Counts refusals of at most [`MAX_KEYS_PER_CALL`] keys. The inner error fails one key.
    pub(super) async fn count_refusals(
        &self,
        refusals: &[OwnedRefusals],
    ) -> Result<Vec<Result<RefusalOutcome, Error>>, Error> {
        let script = &self.scripts.refusals;
        let mut call = script.call(1 + refusals.len(), ARGUMENTS * refusals.len(), 0);
        call.arg(self.names.block_list());
        for OwnedRefusals { limiter, key, .. } in refusals {
            call.arg(self.names.refusals(limiter, key));
        }
        for refusals in refusals {
            let OwnedRefusals {
                limiter,
                key,
                rule,
                count,
                age,
            } = refusals;
            call.arg(member(limiter, key)).arg(count).arg(micros(*age));
            call.arg(rule.max_refusals()).arg(rule.part_micros());
            call.arg(rule.block_micros(0)).arg(rule.longest_micros());
            call.arg(u8::from(rule.is_doubling()));
            call.arg(rule.forgotten_micros());
        }
        let reply = self.run(KEYLESS, script, call).await?;
        decode(reply, refusals.len(), &self.server())
    }
}

/// Decodes the outcome for each of these keys.
fn decode(
    reply: Value,
    keys: usize,
    server: &ServerName,
) -> Result<Vec<Result<RefusalOutcome, Error>>, Error> {
    let malformed = || malformed_reply("no outcomes of refusals", server);
    let Value::Array(values) = reply else {
        return Err(malformed());
    };
    let (outcomes, rest) = values.as_chunks();
    if outcomes.len() != keys || !rest.is_empty() {
        return Err(malformed());
    }
    let outcomes = outcomes.iter().map(|[outcome, blocks, time]| {
        let (Value::Int(blocks), Value::Int(time)) = (blocks, time) else {
            return Err(malformed());
        };
        let blocks = u32::try_from(*blocks).map_err(|_| malformed())?;
        let time = Duration::from_micros(u64::try_from(*time).map_err(|_| malformed())?);
        Ok(match outcome {
            Value::Int(0) => Ok(RefusalOutcome::Counted),
            Value::Int(1) => Ok(RefusalOutcome::Blocked {
                duration: time,
                blocks,
            }),
            Value::Int(2) => Ok(RefusalOutcome::StillBlocked { left: time, blocks }),
            Value::Int(3) => Ok(RefusalOutcome::NoRoom),
            Value::BulkString(text) => {
                let text = String::from_utf8_lossy(text);
                Err(from_script(&text, server))
            }
            _ => return Err(malformed()),
        })
    });
    outcomes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_has_an_outcome_for_each_key_or_is_malformed() {
        let server = &ServerName::UNKNOWN;
        let reply = |values: &[i64]| Value::Array(values.iter().copied().map(Value::Int).collect());
        let decoded = decode(reply(&[0, 0, 0, 1, 2, 7, 2, 3, 8, 3, 0, 0]), 4, server);
        let decoded: Result<Vec<_>, _> = decoded.unwrap().into_iter().collect();
        let time = Duration::from_micros;
        assert_eq!(
            decoded.unwrap(),
            [
                RefusalOutcome::Counted,
                RefusalOutcome::Blocked {
                    duration: time(7),
                    blocks: 2
                },
                RefusalOutcome::StillBlocked {
                    left: time(8),
                    blocks: 3
                },
                RefusalOutcome::NoRoom,
            ]
        );
        for (values, keys) in [
            (&[0, 0, 0][..], 2),
            (&[0, 0], 1),
            (&[4, 0, 0], 1),
            (&[1, -1, 0], 1),
            (&[1, 0, -1], 1),
        ] {
            assert!(decode(reply(values), keys, server).is_err(), "{values:?}");
        }
        assert!(decode(Value::Nil, 0, server).is_err());
    }
}
