//! Commands as the client of Redis sends them.

use redis::{Arg, Cmd};

/// Returns the name and the arguments of a command.
#[must_use]
pub fn arguments(command: &Cmd) -> Vec<Vec<u8>> {
    let texts = command.args_iter().map(|arg| match arg {
        Arg::Simple(bytes) => bytes.to_vec(),
        // The cursor of SCAN, which the store does not send.
        _ => b"0".to_vec(),
    });
    texts.collect()
}
