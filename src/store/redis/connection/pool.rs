//! The connections of a store: each runtime has so many of its own.

use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::link::Connector;
use super::per_runtime::PerRuntime;
use super::reconnecting::ReconnectingConnection;

#[derive(Debug)]
pub(crate) struct ConnectionPool {
    source: Arc<Connector>,
    /// For calls that take so long at most.
    deadline: Duration,
    first: PerRuntime<Arc<ReconnectingConnection>>,
    others: Box<[PerRuntime<Arc<ReconnectingConnection>>]>,
}

impl ConnectionPool {
    pub(crate) fn new(source: Arc<Connector>, count: NonZeroUsize, deadline: Duration) -> Self {
        Self {
            source,
            deadline,
            first: PerRuntime::default(),
            others: (1..count.get()).map(|_| PerRuntime::default()).collect(),
        }
    }

    /// So many connections to the same place.
    pub(crate) fn with_count(&self, count: NonZeroUsize) -> Self {
        Self::new(Arc::clone(&self.source), count, self.deadline)
    }

    /// As many connections to the same place, for calls that take so long at most.
    pub(crate) fn with_deadline(&self, deadline: Duration) -> Self {
        let count = NonZeroUsize::MIN.saturating_add(self.others.len());
        Self::new(Arc::clone(&self.source), count, deadline)
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    pub(crate) fn source(&self) -> &Connector {
        &self.source
    }

    pub(crate) fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// The connection of this number, which the runtime that calls has.
    pub(crate) fn slot(&self, number: usize) -> Arc<ReconnectingConnection> {
        let other = number
            .checked_sub(1)
            .and_then(|other| self.others.get(other));
        let slots = other.unwrap_or(&self.first);
        let runtime = Handle::current();
        let slot = slots.get_or_make(&runtime, || {
            let slot = ReconnectingConnection::new(
                Arc::clone(&self.source),
                runtime.clone(),
                self.deadline,
            );
            Ok::<_, Infallible>(Arc::new(slot))
        });
        slot.unwrap_or_else(|never| match never {})
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime;

    use super::*;
    use crate::store::redis::url as address;

    const DEADLINE: Duration = Duration::from_millis(100);

    fn pool() -> ConnectionPool {
        let source = address::source("redis://127.0.0.1").unwrap();
        let count = NonZeroUsize::new(2).unwrap();
        ConnectionPool::new(Arc::new(source), count, DEADLINE)
    }

    fn runtime() -> runtime::Runtime {
        runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn the_connections_of_ended_runtimes_are_forgotten() {
        let pool = pool();
        let living = runtime();
        for _ in 0..5 {
            living.block_on(async { pool.slot(1) });
            runtime().block_on(async { pool.slot(1) });
        }
        assert_eq!((pool.first.len(), pool.others[0].len()), (0, 2));
    }

    #[test]
    fn a_store_that_is_dropped_leaves_no_task() {
        let runtime = runtime();
        let pool = pool();
        runtime.block_on(begin_to_connect(&pool));
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
    fn who_waits_for_a_connection_of_a_runtime_that_ends_is_told() {
        // It takes connections, and never says anything.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let source = address::source(&format!("redis://{}", listener.local_addr().unwrap()));
        let pool = ConnectionPool::new(Arc::new(source.unwrap()), NonZeroUsize::MIN, DEADLINE);
        let (own, other) = (runtime(), runtime());
        own.block_on(begin_to_connect(&pool));
        let slot = own.block_on(async { pool.slot(0) });
        drop(own);
        for _ in 0..3 {
            let wait = slot.wait(Duration::from_secs(1));
            let within = Duration::from_secs(5);
            let told = other.block_on(async { tokio::time::timeout(within, wait).await });
            let error = told.expect("an answer").unwrap_err();
            assert!(error.to_string().contains("has ended"), "{error}");
        }
    }

    async fn begin_to_connect(pool: &ConnectionPool) {
        let slot = pool.slot(0);
        let mut wait = std::pin::pin!(slot.wait(Duration::ZERO));
        std::future::poll_fn(|context| {
            assert!(wait.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
    }
}
