//! An established connection.

use std::pin::Pin;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, PushInfo, RedisResult, Value};
use tokio::task::JoinSet;

use super::failure::Failure;

pub(super) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The node of a connection, as the tasks of the connection know it.
pub(super) trait ConnectionOwner: Send + Sync {
    /// Replaces the connection, which is lost.
    fn lost(&self);

    /// Replaces the connection once another one is established. Until then, calls use this one.
    fn renew(&self) -> Boxed<'_, Result<(), Failure>>;
}

/// Called with each message that a server pushes. With RESP2, it pushes none.
pub(super) type OnPush = Box<dyn Fn(&PushInfo) + Send + Sync>;

/// Carries the commands and replies of a connection, until it is lost.
pub(super) type Driver = Boxed<'static, ()>;

/// For a connection that is made for one question.
impl ConnectionOwner for () {
    fn lost(&self) {}

    fn renew(&self) -> Boxed<'_, Result<(), Failure>> {
        Box::pin(async { Ok(()) })
    }
}

/// A connection of the application, of any type.
pub(crate) trait GivenConnection: Send + Sync {
    fn send<'a>(&self, command: &'a Cmd) -> Boxed<'a, RedisResult<Value>>;
}

#[cfg(feature = "redis-1")]
impl<C> GivenConnection for C
where
    C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
{
    fn send<'a>(&self, command: &'a Cmd) -> Boxed<'a, RedisResult<Value>> {
        let mut connection = self.clone();
        Box::pin(async move { command.query_async(&mut connection).await })
    }
}

/// An established connection.
pub(super) enum Connection {
    /// With the tasks that end with it: one drives it, one renews its credentials, one watches whether the master stays the
    /// master.
    Own(MultiplexedConnection, JoinSet<()>),
    Given(Arc<dyn GivenConnection>),
}

impl Connection {
    /// Drives a connection in a task, and tells its owner when it is lost.
    pub(super) fn driven(
        connection: MultiplexedConnection,
        driver: Driver,
        owner: Arc<dyn ConnectionOwner>,
    ) -> Self {
        let own = Self::Own(connection, JoinSet::new());
        own.with_task(async move {
            driver.await;
            owner.lost();
        })
    }

    /// Spawns a task that ends with the connection.
    pub(super) fn with_task(mut self, task: impl Future<Output = ()> + Send + 'static) -> Self {
        if let Self::Own(_, tasks) = &mut self {
            tasks.spawn(task);
        }
        self
    }

    /// Sends a command. An error reply of the server is an `Err`.
    pub(super) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Own(connection, _) => {
                match connection.clone().send_packed_command(command).await? {
                    Value::ServerError(error) => Err(error.into()),
                    reply => Ok(reply),
                }
            }
            Self::Given(given) => given.send(command).await,
        }
    }

    #[cfg(feature = "sentinel")]
    pub(super) async fn subscribe(&self, channels: &[&str]) -> RedisResult<()> {
        match self {
            Self::Own(connection, _) => connection.clone().subscribe(channels).await,
            Self::Given(_) => Ok(()),
        }
    }

    /// Sends a command to a node of a cluster that is about to get the slot of its keys.
    #[cfg(feature = "cluster")]
    pub(super) async fn send_asking(&self, command: &Cmd) -> RedisResult<Value> {
        let Self::Own(connection, _) = self else {
            return self.send(command).await;
        };
        // The node takes both together, so no other command comes in between.
        let mut both = redis::Pipeline::with_capacity(2);
        both.cmd("ASKING").add_command(command.clone());
        let replies = connection.clone().send_packed_commands(&both, 0, 2).await?;
        // The reply to ASKING is of no interest: without it, the node redirects the command.
        let reply = replies.into_iter().next_back();
        reply.unwrap_or(Value::Nil).extract_error()
    }
}
