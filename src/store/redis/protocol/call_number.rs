//! The number of a call, which its reply echoes.
//!
//! RESP pairs replies with commands by their order alone. If a server or a proxy leaves one reply out, or sends one twice, each
//! command behind it gets a well-formed reply to another command. Only an echo tells.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use redis::Value;
use rmp::decode;

use crate::random::random;

/// The number of a call of a script. Unique among the last four billion calls of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallNumber(u32);

/// Begins anywhere, since a proxy may mix up the replies to two processes.
static NEXT: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(random()));

impl CallNumber {
    pub(crate) fn next() -> Self {
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn get(self) -> u32 {
        self.0
    }

    /// Returns the rest of a reply that has this number, or `None` for the reply to another call. The number is the first value
    /// of a packed array, which keeps it, or the last item of an array, or stands alone.
    pub(crate) fn stripped(self, reply: Value) -> Option<Value> {
        match reply {
            Value::BulkString(packed) => {
                let (number, _) = split_packed(&packed)?;
                (number == self.0).then_some(Value::BulkString(packed))
            }
            Value::Array(mut items) => {
                let last = redis::from_redis_value::<String>(items.pop()?).ok()?;
                (last == self.0.to_string()).then_some(Value::Array(items))
            }
            Value::Int(number) => (number == i64::from(self.0)).then_some(Value::Nil),
            _ => None,
        }
    }
}

/// Splits a packed reply into its first value, which is the number of its call, and the others.
pub(super) fn split_packed(packed: &[u8]) -> Option<(u32, &[u8])> {
    let mut rest = packed;
    decode::read_array_len(&mut rest).ok()?;
    let number = decode::read_int(&mut rest).ok()?;
    Some((number, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_echoes_one_call() {
        let number = CallNumber(70_000);
        let packed = |number: u32| {
            let mut packed = vec![0x92, 0xce];
            packed.extend(number.to_be_bytes());
            packed.push(7);
            Value::BulkString(packed)
        };
        let list = |last: &str| {
            let texts = ["a", last].map(|text| Value::BulkString(text.into()));
            Value::Array(texts.into())
        };
        for (reply, rest) in [
            (packed(70_000), packed(70_000)),
            (Value::Int(70_000), Value::Nil),
            (
                list("70000"),
                Value::Array(vec![Value::BulkString(b"a".to_vec())]),
            ),
        ] {
            assert_eq!(number.stripped(reply), Some(rest));
        }
        for reply in [
            packed(70_001),
            Value::Int(70_001),
            list("70001"),
            list(""),
            Value::Array(Vec::new()),
            Value::BulkString(b"70000".to_vec()),
            Value::BulkString(Vec::new()),
            Value::SimpleString("PONG".to_owned()),
            Value::Okay,
            Value::Nil,
        ] {
            assert_eq!(number.stripped(reply), None);
        }
    }

    #[test]
    fn no_two_calls_in_a_row_have_one_number() {
        assert_ne!(CallNumber::next(), CallNumber::next());
    }
}
