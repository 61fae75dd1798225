//! Code that benches share: a load on a limiter, its cost, and tables.
#![allow(dead_code, reason = "each bench uses a part")]

pub(crate) mod args;
#[path = "../../tests/support/costs.rs"]
pub(crate) mod costs;
pub(crate) mod distance;
pub(crate) mod http_client;
pub(crate) mod increx;
pub(crate) mod latencies;
pub(crate) mod load;
#[path = "../../tests/support/redis_server.rs"]
pub(crate) mod redis_server;
pub(crate) mod spent;
pub(crate) mod table;
pub(crate) mod textbook;
