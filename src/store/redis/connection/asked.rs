//! The server that the current call waits for, for its errors.
//!
//! A call to a cluster may go to several nodes: by redirects, or because it asks all masters. A call that is not
//! answered in time is dropped before its error is made, so the name is kept beside the call.

use std::cell::RefCell;
use std::future::Future;

use crate::store::redis::protocol::ServerName;

tokio::task_local! {
    static ASKED: RefCell<Option<ServerName>>;
}

/// Runs a call, so that [`last`] returns the server that it asked last.
pub(crate) fn scope<T>(call: impl Future<Output = T>) -> impl Future<Output = T> {
    ASKED.scope(RefCell::default(), call)
}

/// Notes the server that the current call asks now.
#[cfg(feature = "cluster")]
pub(super) fn note(server: &ServerName) {
    // Fails in background tasks, whose errors name their server themselves.
    let _ = ASKED.try_with(|asked| asked.replace(Some(server.clone())));
}

/// Returns the node of a cluster that the current call has asked last.
pub(crate) fn last() -> Option<ServerName> {
    ASKED.try_with(|asked| asked.borrow().clone()).ok()?
}
