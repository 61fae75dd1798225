//! A connection of the pool that is kept between two changes.

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnection;
use sqlx::{PgPool, Postgres};
use tokio::runtime::Handle;
use tollgate::{Error, ErrorKind};

use crate::error::failed;

/// A connection in use, or kept. On drop it goes back to its pool, unless its change has failed or was given up: then a
/// transaction may be open, or a reply be under way, and it is closed.
pub(crate) struct OwnConnection {
    connection: Option<PoolConnection<Postgres>>,
    /// The pool starts a task for each connection that comes back.
    runtime: Handle,
    is_clean: bool,
}

impl OwnConnection {
    pub(crate) async fn acquire(pool: &PgPool) -> Result<Self, Error> {
        Ok(Self {
            connection: Some(pool.acquire().await.map_err(failed)?),
            runtime: Handle::try_current().map_err(|_| gone())?,
            is_clean: true,
        })
    }

    /// Begins a change. Until [`end`](Self::end), a drop closes the connection.
    pub(crate) fn begin(&mut self) -> Result<&mut PgConnection, Error> {
        self.is_clean = false;
        self.connection.as_deref_mut().ok_or_else(gone)
    }

    pub(crate) fn end(&mut self) {
        self.is_clean = true;
    }
}

impl Drop for OwnConnection {
    fn drop(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            // The last handle of a store may be dropped outside a runtime.
            let _guard = self.runtime.enter();
            if !self.is_clean {
                connection.close_on_drop();
            }
            drop(connection);
        }
    }
}

fn gone() -> Error {
    let text = "the connection of the Postgres store is gone: use the store inside a tokio runtime";
    Error::new(ErrorKind::Misconfigured, text)
}
