//! The connections of a store.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::acquired::Connection;
#[cfg(feature = "cluster")]
use super::cluster::ClusterConnection;
use super::link::Connector;
use super::per_runtime::PerRuntime;
use super::reconnecting::ReconnectingConnection;
use crate::store::circuit_breaker::Nodes;
use crate::store::redis::protocol::ServerName;

/// The index of the connection for commands that belong to no limiter and key.
pub(crate) const KEYLESS: usize = 0;

/// The connections of a store, found by index: the same number for each runtime.
pub(crate) struct ConnectionPool {
    connector: Arc<Connector>,
    count: NonZeroUsize,
    per_runtime: PerRuntime<RuntimeConnections>,
}

type RuntimeConnections = Arc<PerConnection<Connection>>;

impl ConnectionPool {
    /// One connection for each runtime, made on first use.
    pub(crate) fn new(connector: Connector) -> Self {
        Self::build(Arc::new(connector), NonZeroUsize::MIN)
    }

    fn build(connector: Arc<Connector>, count: NonZeroUsize) -> Self {
        Self {
            connector,
            count,
            per_runtime: PerRuntime::default(),
        }
    }

    /// Returns a pool of `count` connections to the same deployment. An external connection stays
    /// one.
    pub(crate) fn with_count(&self, count: NonZeroUsize) -> Self {
        let count = match self.connector.is_external() {
            true => NonZeroUsize::MIN,
            false => count,
        };
        Self::build(Arc::clone(&self.connector), count)
    }

    /// The deployment, for errors.
    pub(crate) fn server(&self) -> &ServerName {
        self.connector.server()
    }

    pub(crate) fn count(&self) -> NonZeroUsize {
        self.count
    }

    /// Whether the URL names a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        self.connector.is_cluster()
    }

    /// Returns the nodes of a cluster.
    pub(crate) fn nodes(&self) -> Option<Arc<Nodes>> {
        match &*self.connector {
            #[cfg(feature = "cluster")]
            Connector::Cluster(cluster) => Some(Arc::clone(cluster.nodes())),
            _ => None,
        }
    }

    /// Returns the index of the connection that serves `number`, such as a fingerprint or a slot.
    /// It is always the same.
    pub(crate) fn index_for(&self, number: u64) -> usize {
        usize::try_from(number % self.count.get() as u64).unwrap_or_default()
    }

    /// Returns the connections of a runtime.
    pub(crate) fn of_runtime(&self, runtime: &Handle) -> RuntimeConnections {
        self.per_runtime.get_or_make(runtime, || {
            let connector = self.connector.of_runtime();
            Arc::new(PerConnection::new(self.count, |_| {
                connection(&connector, runtime.clone())
            }))
        })
    }
}

fn connection(connector: &Arc<Connector>, runtime: Handle) -> Connection {
    match &**connector {
        #[cfg(feature = "cluster")]
        Connector::Cluster(cluster) => {
            let connection = ClusterConnection::new(Arc::clone(cluster), runtime);
            Connection::Cluster(Arc::new(connection))
        }
        _ => {
            let connection = ReconnectingConnection::new(Arc::clone(connector), runtime);
            Connection::Server(Arc::new(connection))
        }
    }
}

/// The address, which also names the store in metrics.
impl fmt::Debug for ConnectionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connector.fmt(f)
    }
}

/// One value for each connection, found by the index of the connection. Never empty.
#[derive(Debug)]
pub(crate) struct PerConnection<T> {
    first: T,
    others: Box<[T]>,
}

impl<T> PerConnection<T> {
    /// Makes the value of each index below `count`.
    pub(crate) fn new(count: NonZeroUsize, mut make: impl FnMut(usize) -> T) -> Self {
        Self {
            first: make(0),
            others: (1..count.get()).map(make).collect(),
        }
    }

    /// Returns the value of the connection if there is only one.
    pub(crate) fn only(&self) -> Option<&T> {
        self.others.is_empty().then_some(&self.first)
    }

    /// Returns the value of an index, or the first one if the index is out of range.
    pub(crate) fn get(&self, index: usize) -> &T {
        let other = index
            .checked_sub(1)
            .and_then(|other| self.others.get(other));
        other.unwrap_or(&self.first)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::runtime;

    use super::*;

    fn pool() -> ConnectionPool {
        let connector = Connector::to_server("redis://127.0.0.1");
        ConnectionPool::new(connector).with_count(NonZeroUsize::new(2).unwrap())
    }

    fn runtime() -> runtime::Runtime {
        runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    fn get(pool: &ConnectionPool, index: usize) -> Connection {
        pool.of_runtime(&Handle::current()).get(index).clone()
    }

    #[test]
    fn the_connections_of_ended_runtimes_are_forgotten() {
        let pool = pool();
        let alive = runtime();
        for _ in 0..5 {
            alive.block_on(async { get(&pool, 1) });
            runtime().block_on(async { get(&pool, 1) });
        }
        assert_eq!(pool.per_runtime.len(), 2);
    }

    #[test]
    fn a_store_that_is_dropped_leaves_no_task() {
        let runtime = runtime();
        let pool = pool();
        runtime.block_on(start_connecting(&pool));
        let tasks = || runtime.metrics().num_alive_tasks();
        assert!(tasks() > 0);
        drop(pool);
        let ended = async {
            while tasks() > 0 {
                tokio::task::yield_now().await;
            }
        };
        let within = Duration::from_secs(5);
        let ended = runtime.block_on(async { tokio::time::timeout(within, ended).await });
        assert!(ended.is_ok(), "{} tasks are left", tasks());
    }

    #[test]
    fn waiting_for_a_connection_of_a_runtime_that_ends_fails() {
        // It accepts connections, and never replies.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let pool = ConnectionPool::new(Connector::to_server(&url));
        let (own, other) = (runtime(), runtime());
        own.block_on(start_connecting(&pool));
        let connection = own.block_on(async { get(&pool, 0) });
        drop(own);
        for _ in 0..3 {
            let acquired = connection.acquire(Duration::from_secs(1), None);
            let within = Duration::from_secs(5);
            let acquired = other.block_on(async { tokio::time::timeout(within, acquired).await });
            let error = acquired.expect("an answer").err().unwrap();
            assert!(
                error.error.to_string().contains("has shut down"),
                "{error:?}"
            );
        }
    }

    async fn start_connecting(pool: &ConnectionPool) {
        let connection = get(pool, 0);
        let mut acquired = std::pin::pin!(connection.acquire(Duration::ZERO, None));
        std::future::poll_fn(|context| {
            assert!(acquired.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
    }
}
