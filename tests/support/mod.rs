//! What several tests need: a Redis of their own.
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod log;
pub(crate) mod redis_server;
#[cfg(feature = "test-util")]
pub(crate) mod test_time;
