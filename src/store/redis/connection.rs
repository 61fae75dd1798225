//! A way to Redis: one that this crate manages, or one that the application has.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use redis::{Cmd, RedisResult, Value};

use super::managed::Managed;
use crate::ConfigError;

type Reply<'a> = Pin<Box<dyn Future<Output = RedisResult<Value>> + Send + 'a>>;

/// A connection of the application, whatever its type.
pub(super) trait Given: Send + Sync {
    fn send<'a>(&self, command: &'a Cmd) -> Reply<'a>;
}

#[cfg(feature = "redis-1")]
impl<C> Given for C
where
    C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
{
    fn send<'a>(&self, command: &'a Cmd) -> Reply<'a> {
        let mut connection = self.clone();
        Box::pin(async move { command.query_async(&mut connection).await })
    }
}

/// Where commands are sent.
pub(super) enum Connection {
    /// Made when first used, and again when lost.
    Managed(Managed),
    /// The application's.
    #[cfg_attr(
        not(feature = "redis-1"),
        expect(dead_code, reason = "only redis-1 gives one")
    )]
    Given(Box<dyn Given>),
}

impl Connection {
    pub(super) fn open(url: &str) -> Result<Self, ConfigError> {
        Managed::open(url).map(Self::Managed)
    }

    #[cfg(feature = "redis-1")]
    pub(super) fn given<C>(connection: C) -> Self
    where
        C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
    {
        Self::Given(Box::new(connection))
    }

    /// Sends a command, once.
    pub(super) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Managed(managed) => command.query_async(&mut managed.connection()?).await,
            Self::Given(given) => given.send(command).await,
        }
    }

    /// Begins with a new connection, where this crate makes them.
    pub(super) fn give_up(&self) {
        if let Self::Managed(managed) = self {
            managed.give_up();
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Managed(managed) => managed.fmt(f),
            Self::Given(_) => f.write_str("given"),
        }
    }
}
