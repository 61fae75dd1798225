//! One connection to send on: made by this crate, or passed in by the application.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, RedisResult, Value};

use super::established::Established;
use super::reconnecting::ReconnectingConnection;

type Reply<'a> = Pin<Box<dyn Future<Output = RedisResult<Value>> + Send + 'a>>;

/// A connection of the application, of any type.
pub(crate) trait ExternalConnection: Send + Sync {
    fn send<'a>(&self, command: &'a Cmd) -> Reply<'a>;
}

#[cfg(feature = "redis-1")]
impl<C> ExternalConnection for C
where
    C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
{
    fn send<'a>(&self, command: &'a Cmd) -> Reply<'a> {
        let mut connection = self.clone();
        Box::pin(async move { command.query_async(&mut connection).await })
    }
}

/// One connection. Clones are the same connection.
#[derive(Clone)]
pub(crate) enum Connection {
    Reconnecting(Arc<ReconnectingConnection>),
    External(Arc<dyn ExternalConnection>),
}

impl Connection {
    /// Returns the connection, for calls of this deadline, if it is established.
    pub(crate) fn try_acquire(&self, deadline: Duration) -> Option<Acquired> {
        match self {
            Self::Reconnecting(connection) => Some(Acquired::Reconnecting {
                established: connection.try_acquire()?,
                connection: Arc::clone(connection),
                deadline,
            }),
            Self::External(external) => Some(Acquired::External(Arc::clone(external))),
        }
    }

    /// Waits until the connection is established, for calls of this deadline, or until an attempt
    /// fails.
    pub(crate) async fn acquire(&self, deadline: Duration) -> RedisResult<Acquired> {
        match self {
            Self::Reconnecting(connection) => Ok(Acquired::Reconnecting {
                established: connection.acquire().await?,
                connection: Arc::clone(connection),
                deadline,
            }),
            Self::External(external) => Ok(Acquired::External(Arc::clone(external))),
        }
    }
}

/// An established connection that a caller sends on. It is not replaced under the caller.
pub(crate) enum Acquired {
    Reconnecting {
        connection: Arc<ReconnectingConnection>,
        established: Arc<Established>,
        /// The deadline of the calls: decides when an unanswered command is silence.
        deadline: Duration,
    },
    External(Arc<dyn ExternalConnection>),
}

impl Acquired {
    /// Sends a command, once.
    pub(crate) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let (connection, established, deadline) = match self {
            Self::External(external) => return external.send(command).await,
            Self::Reconnecting {
                connection,
                established,
                deadline,
            } => (connection, established, *deadline),
        };
        let mut in_flight = InFlight {
            connection,
            established,
            deadline,
            command,
            sent_at: Instant::now(),
            is_answered: false,
        };
        let reply = established.link.send(command).await;
        in_flight.is_answered = true;
        if let Err(failure) = &reply {
            connection.on_failure(established, failure, deadline, command);
        }
        reply
    }

    /// Reconnects before the next call, because this server is not the one to ask. Does nothing to
    /// a connection of the application.
    pub(crate) fn give_up(&self) {
        if let Self::Reconnecting {
            connection,
            established,
            ..
        } = self
        {
            connection.give_up(established);
        }
    }
}

/// A command in flight. Has the connection probed if it is dropped before the reply.
struct InFlight<'a> {
    connection: &'a Arc<ReconnectingConnection>,
    established: &'a Arc<Established>,
    deadline: Duration,
    command: &'a Cmd,
    sent_at: Instant,
    is_answered: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.connection.on_unanswered(
                self.established,
                self.sent_at.elapsed(),
                self.deadline,
                self.command,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Poll;

    use tokio::runtime::Handle;
    use tokio::time;

    use super::*;
    use crate::store::redis::connection::Connector;
    use crate::store::redis::test_server::RedisServer;

    /// Sends a command, and does not wait for its reply.
    async fn send_and_give_up(acquired: &Acquired) {
        let command = redis::cmd("PING");
        let mut sent = pin!(acquired.send(&command));
        std::future::poll_fn(|context| {
            assert!(sent.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
    }

    #[tokio::test]
    async fn commands_that_are_given_up_early_do_not_suspend_a_connection_that_answers() {
        let server = RedisServer::start();
        let deadline = Duration::from_secs(1);
        let reconnecting = Arc::new(ReconnectingConnection::new(
            Arc::new(Connector::to_server(&server.url())),
            Handle::current(),
            deadline,
        ));
        let connection = Connection::Reconnecting(Arc::clone(&reconnecting));
        let acquired = connection.acquire(deadline).await.unwrap();
        let has_changed = reconnecting.watch_state();
        for _ in 0..3 {
            send_and_give_up(&acquired).await;
            // Longer than half of the deadline: without an answer, the connection would be silent
            // by now.
            time::sleep(deadline * 6 / 10).await;
        }
        assert!(!has_changed());
    }
}
