//! Whether a server runs scripts by their hash, as its replies show.
//!
//! A server that renames or disables EVALSHA quotes the arguments of a call in its error. If they are not text,
//! the client cannot read the reply and closes the connection, and all calls in flight fail with an error that
//! says nothing about EVALSHA. So after such a failure the server is asked with arguments that are text.

use std::sync::atomic::{AtomicU8, Ordering};

use redis::{Arg, Cmd, RedisResult, Value};

use crate::store::redis::protocol::errors as error;

/// Whether a server runs scripts by their hash.
#[derive(Debug, Default)]
pub(super) struct ScriptSupport(AtomicU8);

const DOUBTED: u8 = 1;
const PROVEN: u8 = 2;

impl ScriptSupport {
    /// Learns from the reply to a command. `may_be_lost` tells whether a call may fail with the connection, because
    /// the reply to another one was unreadable.
    pub(super) fn note(&self, command: &Cmd, reply: &RedisResult<Value>, may_be_lost: bool) {
        if self.0.load(Ordering::Relaxed) == PROVEN
            || command.args_iter().next() != Some(Arg::Simple(b"EVALSHA"))
        {
            return;
        }
        let state = match reply {
            Err(failure) if error::is_unknown_command(failure) || error::is_unreadable(failure) => {
                DOUBTED
            }
            Err(failure) if failure.code().is_none() => {
                if !may_be_lost || failure.is_timeout() {
                    return;
                }
                DOUBTED
            }
            _ => PROVEN,
        };
        self.0.store(state, Ordering::Relaxed);
    }

    /// Whether calls have failed without a reply, and none was ever answered.
    pub(super) fn is_doubted(&self) -> bool {
        self.0.load(Ordering::Relaxed) == DOUBTED
    }
}

/// An EVALSHA of no script, which has no effect. Its arguments are text. Proxies that choose a server by the keys of a
/// call refuse one without keys.
pub(super) fn probe() -> Cmd {
    let mut probe = redis::cmd("EVALSHA");
    probe.arg("0".repeat(40)).arg(1).arg("tollgate");
    probe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_has_a_key_as_proxies_ask_for() {
        let probe = probe();
        let arguments: Vec<_> = probe.args_iter().collect();
        let [_, _, Arg::Simple(keys), Arg::Simple(_)] = arguments.as_slice() else {
            panic!("{arguments:?}");
        };
        assert_eq!(*keys, b"1");
    }
}
