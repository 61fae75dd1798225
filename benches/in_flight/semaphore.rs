//! The textbook's semaphore, called with care: by EVALSHA, on one multiplexed connection with `TCP_NODELAY`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::support::textbook::connect;

const TEXT: &str = include_str!("../semaphore.lua");

#[derive(Clone)]
pub(crate) struct Semaphore {
    connection: MultiplexedConnection,
    hash: String,
    limit: u32,
    lease: Duration,
    permits: Arc<AtomicU64>,
}

impl Semaphore {
    pub(crate) async fn connect(url: &str, limit: u32, lease: Duration) -> Self {
        let mut connection = connect(url).await;
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(TEXT).to_owned();
        Self {
            hash: load.query_async(&mut connection).await.expect("a script"),
            connection,
            limit,
            lease,
            permits: Arc::default(),
        }
    }

    /// Returns the member of the permit if there was a slot.
    pub(crate) async fn acquire(&self, key: &str) -> Option<String> {
        // As long as the random members of tutorials.
        let member = self.permits.fetch_add(1, Ordering::Relaxed);
        let member = format!("{member:032x}");
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.hash).arg(1).arg(key);
        call.arg(self.limit)
            .arg(self.lease.as_millis())
            .arg(&member);
        let reply = call.query_async(&mut self.connection.clone()).await;
        let is_free: bool = reply.expect("the server answers");
        is_free.then_some(member)
    }

    pub(crate) async fn release(&self, key: &str, member: &str) {
        let mut call = redis::cmd("ZREM");
        call.arg(key).arg(member);
        let reply = call.exec_async(&mut self.connection.clone()).await;
        reply.expect("the server answers");
    }
}
