//! Helpers that these tests share with those of the crate.
#![allow(dead_code, reason = "each test uses a part")]

#[path = "../../support/example.rs"]
pub(crate) mod example;
#[path = "../../support/files.rs"]
pub(crate) mod files;
#[path = "../../support/process.rs"]
pub(crate) mod process;
#[path = "../../support/redis_server.rs"]
pub(crate) mod redis_server;
#[path = "../../support/served.rs"]
pub(crate) mod served;
#[path = "../../support/watched.rs"]
pub(crate) mod watched;
