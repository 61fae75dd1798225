//! Ways to Redis: those that this crate makes and keeps, or the one that the application has.

use std::fmt;
use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisResult, Value};

use super::pool::ConnectionPool;
use crate::error::ConfigError;
use crate::store::redis::connection::reconnecting as slot;
use crate::store::redis::url as address;

type Reply<'a> = Pin<Box<dyn Future<Output = RedisResult<Value>> + Send + 'a>>;

/// A connection of the application, whatever its type.
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

/// Where commands are sent.
pub(crate) enum Connection {
    /// Made when first used, and again when lost.
    Made(ConnectionPool),
    /// The application's.
    ExternalConnection(Arc<dyn ExternalConnection>),
}

impl Connection {
    pub(crate) fn open(url: &str, deadline: Duration) -> Result<Self, ConfigError> {
        let source = Arc::new(address::source(url)?);
        Ok(Self::Made(ConnectionPool::new(
            source,
            NonZeroUsize::MIN,
            deadline,
        )))
    }

    #[cfg(feature = "redis-1")]
    pub(crate) fn given<C>(connection: C) -> Self
    where
        C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
    {
        Self::ExternalConnection(Arc::new(connection))
    }

    /// So many connections to the same place. Of what the application gave there is one.
    pub(crate) fn with_count(&self, count: NonZeroUsize) -> Self {
        match self {
            Self::Made(pool) => Self::Made(pool.with_count(count)),
            Self::ExternalConnection(given) => Self::ExternalConnection(Arc::clone(given)),
        }
    }

    /// Connections that suit calls that take so long at most. One to a cluster fails what takes longer
    /// than the calls for which it was made; any other one leaves it to the callers.
    pub(crate) fn with_deadline(self: &Arc<Self>, deadline: Duration) -> Arc<Self> {
        match &**self {
            Self::Made(pool) if pool.source().is_cluster() && pool.deadline() != deadline => {
                Arc::new(Self::Made(pool.with_deadline(deadline)))
            }
            _ => Arc::clone(self),
        }
    }

    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Made(pool) => pool.count(),
            Self::ExternalConnection(_) => 1,
        }
    }

    pub(crate) fn is_of_cluster(&self) -> bool {
        match self {
            Self::Made(pool) => pool.source().is_cluster(),
            Self::ExternalConnection(_) => false,
        }
    }

    /// The connection of a way if it is there, for calls that take so long at most.
    pub(crate) fn get(&self, way: ConnectionIndex, deadline: Duration) -> Option<ConnectionHandle> {
        match self {
            Self::Made(pool) => {
                let slot = pool.slot(way.connection);
                slot.get(deadline).map(ConnectionHandle::Made)
            }
            Self::ExternalConnection(given) => {
                Some(ConnectionHandle::ExternalConnection(Arc::clone(given)))
            }
        }
    }

    /// The same as soon as it is there, or why there is none.
    pub(crate) async fn wait(
        &self,
        way: ConnectionIndex,
        deadline: Duration,
    ) -> RedisResult<ConnectionHandle> {
        match self {
            Self::Made(pool) => {
                let slot = pool.slot(way.connection);
                slot.wait(deadline).await.map(ConnectionHandle::Made)
            }
            Self::ExternalConnection(given) => {
                Ok(ConnectionHandle::ExternalConnection(Arc::clone(given)))
            }
        }
    }
}

/// Over which connection calls go.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnectionIndex {
    connection: usize,
}

impl ConnectionIndex {
    /// One of so many, always the same for a number.
    pub(crate) fn of(number: u64, connections: usize) -> Self {
        let connection = number % connections.max(1) as u64;
        Self::over(usize::try_from(connection).unwrap_or_default())
    }

    /// Over the connection of this number.
    pub(crate) fn over(connection: usize) -> Self {
        Self { connection }
    }

    pub(crate) fn connection(self) -> usize {
        self.connection
    }
}

/// A connection that is in use.
pub(crate) enum ConnectionHandle {
    Made(slot::Acquired),
    ExternalConnection(Arc<dyn ExternalConnection>),
}

impl ConnectionHandle {
    /// Sends a command, once.
    pub(crate) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Made(live) => live.send(command).await,
            Self::ExternalConnection(given) => given.send(command).await,
        }
    }

    /// Has the next call begin with a new connection, where this crate makes them.
    pub(crate) fn give_up(&self) {
        if let Self::Made(live) = self {
            live.give_up();
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Made(pool) => pool.source().fmt(f),
            Self::ExternalConnection(_) => f.write_str("given"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::redis_store::RedisStore;

    /// How long the calls may take that its connections are made for.
    #[cfg(feature = "cluster")]
    fn made_for(store: &RedisStore) -> Duration {
        match &*store.shared.client.connection {
            Connection::Made(pool) => pool.slot(0).deadline(),
            Connection::ExternalConnection(_) => unreachable!(),
        }
    }

    #[tokio::test]
    #[cfg(feature = "cluster")]
    async fn connections_to_a_cluster_are_made_for_the_deadline_of_their_store() {
        let (short, long) = (Duration::from_millis(20), Duration::from_secs(5));
        let two = NonZeroUsize::new(2).unwrap();
        let store = RedisStore::open("redis+cluster://127.0.0.1:1").unwrap();
        let short_of = store.clone().deadline(short).connections(two);
        let long_of = short_of.clone().deadline(long);
        // Whichever connects first, and whoever asks meanwhile, as the doctor does.
        let _ = short_of.doctor().await;
        assert_eq!((made_for(&short_of), made_for(&long_of)), (short, long));
        assert_eq!(made_for(&store), Duration::from_millis(100));
        assert_eq!(long_of.shared.client.connection.count(), 2);
    }

    #[tokio::test]
    async fn stores_of_one_server_share_its_connection_whatever_their_deadlines() {
        let store = RedisStore::open("redis://127.0.0.1:1").unwrap();
        let patient = store.clone().deadline(Duration::from_secs(5));
        let (one, other) = (&store.shared.client, &patient.shared.client);
        assert!(Arc::ptr_eq(&one.connection, &other.connection));
    }
}
