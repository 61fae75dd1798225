//! The command INCREX of Redis 8.8 and Valkey 9.2: a fixed window of its first request, without a script.

use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;

use super::textbook::connect;

/// Printed where the server has no such command.
pub(crate) const SKIPPED: &str =
    "INCREX was skipped: this server does not have it, Redis has it since 8.8.";

#[derive(Clone)]
pub(crate) struct Increx {
    connection: MultiplexedConnection,
    limit: u32,
    window: Duration,
}

impl Increx {
    /// `None` if the server does not have the command.
    pub(crate) async fn connect(url: &str, limit: u32, window: Duration) -> Option<Self> {
        let mut connection = connect(url).await;
        let info = redis::cmd("COMMAND").arg("INFO").arg("INCREX").to_owned();
        let info: Vec<Value> = info.query_async(&mut connection).await.ok()?;
        (info != [Value::Nil]).then_some(Self {
            connection,
            limit,
            window,
        })
    }

    /// The same connection with another limit.
    pub(crate) fn limited(&self, limit: u32, window: Duration) -> Self {
        Self {
            limit,
            window,
            ..self.clone()
        }
    }

    pub(crate) async fn check(&self, key: &str, cost: u32) -> bool {
        let mut call = redis::cmd("INCREX");
        call.arg(key).arg("BYINT").arg(cost);
        call.arg("UBOUND").arg(self.limit);
        // Without ENX, each request makes the window longer.
        call.arg("PX").arg(self.window.as_millis()).arg("ENX");
        let reply = call.query_async(&mut self.connection.clone()).await;
        let (_, charged): (u32, u32) = reply.expect("the server answers");
        charged == cost
    }
}
