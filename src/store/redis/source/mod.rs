//! Where connections come from: one file for each kind of deployment.

mod server;

use std::fmt;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};

pub(super) use server::Server;

/// Makes connections.
#[derive(Debug)]
pub(super) enum Source {
    Server(Server),
}

/// What is to be told when a connection is lost.
pub(super) type OnLoss = Box<dyn Fn() + Send + Sync>;

/// A connection, which does not make itself anew.
#[derive(Clone)]
pub(super) enum Link {
    One(MultiplexedConnection),
}

impl Source {
    /// Makes one connection, or says why there is none. Bounded in time.
    pub(super) async fn connect(&self, on_loss: OnLoss) -> RedisResult<Link> {
        match self {
            Self::Server(server) => server.connect(on_loss).await.map(Link::One),
        }
    }
}

impl Link {
    pub(super) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let reply = match self {
            Self::One(connection) => connection.clone().send_packed_command(command).await,
        };
        match reply? {
            Value::ServerError(error) => Err(error.into()),
            reply => Ok(reply),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(_) => f.write_str("one"),
        }
    }
}
