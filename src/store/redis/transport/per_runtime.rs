//! One value for each tokio runtime.
//!
//! A task dies with its runtime, but a store may be used from several runtimes, in turn or at once.
//! Whatever is driven by tasks is therefore made once for each runtime, and dropped after the
//! runtime has shut down.

use tokio::runtime::{self, Handle};
use tokio::task::JoinSet;

use crate::lock::RwLock;

/// One value for each runtime that asked for one.
pub(crate) struct PerRuntime<T> {
    // Read by each call, written by the first call of each runtime.
    entries: RwLock<Vec<RuntimeEntry<T>>>,
}

struct RuntimeEntry<T> {
    id: runtime::Id,
    value: T,
    /// A task that ends with the runtime, or with this entry.
    liveness: JoinSet<()>,
}

impl<T: Clone> PerRuntime<T> {
    /// Returns the value of a runtime. Makes it on the first call, and drops the values of ended
    /// runtimes.
    #[inline]
    pub(crate) fn get_or_make(&self, runtime: &Handle, make: impl FnOnce() -> T) -> T {
        let id = runtime.id();
        let entries = self.entries.read();
        if let Some(found) = entries.iter().find(|entry| entry.id == id) {
            return found.value.clone();
        }
        drop(entries);
        self.make(runtime, make)
    }

    fn make(&self, runtime: &Handle, make: impl FnOnce() -> T) -> T {
        let id = runtime.id();
        let mut entries = self.entries.write();
        entries.retain_mut(|entry| entry.liveness.try_join_next().is_none());
        if let Some(found) = entries.iter().find(|entry| entry.id == id) {
            return found.value.clone();
        }
        let value = make();
        let mut liveness = JoinSet::new();
        liveness.spawn_on(std::future::pending(), runtime);
        entries.push(RuntimeEntry {
            id,
            value: value.clone(),
            liveness,
        });
        value
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.read().len()
    }
}

impl<T> Default for PerRuntime<T> {
    fn default() -> Self {
        Self {
            entries: RwLock::default(),
        }
    }
}
