//! Threads that wait for a store behind a network.

use super::adversary::Wait;

/// A runtime for each thread, and so a connection for each.
pub(crate) struct Runtime(tokio::runtime::Runtime);

impl Runtime {
    pub(crate) fn new(_: usize) -> Self {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        Self(runtime.enable_all().build().expect("a runtime"))
    }
}

impl Wait for Runtime {
    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.0.block_on(future)
    }
}
