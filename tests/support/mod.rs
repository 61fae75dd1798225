//! What several tests need: a Redis of their own.
#![allow(dead_code, reason = "each test uses a part")]

pub mod redis_server;
pub mod test_time;
