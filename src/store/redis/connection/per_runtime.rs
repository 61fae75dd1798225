//! One of something for each tokio runtime.
//!
//! A task dies with its runtime, while a store may be used from several, one after the other or at
//! once. So what tasks drive is made once for each runtime, and forgotten when the runtime has ended.

use std::fmt;
use std::sync::{PoisonError, RwLock};

use tokio::runtime;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// Of each runtime that asks, its own.
pub(crate) struct PerRuntime<T> {
    // Read on each call, written on the first of each runtime.
    list: RwLock<Vec<OfRuntime<T>>>,
}

struct OfRuntime<T> {
    id: runtime::Id,
    value: T,
    /// A task that lives as long as the runtime, or this entry.
    life: AbortHandle,
}

impl<T: Clone> PerRuntime<T> {
    /// What the runtime of this handle has, made now if it has nothing yet.
    pub(crate) fn get_or_make<E>(
        &self,
        runtime: &Handle,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let id = runtime.id();
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = list.iter().find(|of| of.id == id) {
            return Ok(found.value.clone());
        }
        drop(list);
        self.make(runtime, make)
    }

    fn make<E>(&self, runtime: &Handle, make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let id = runtime.id();
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        list.retain(|of| !of.life.is_finished());
        if let Some(found) = list.iter().find(|of| of.id == id) {
            return Ok(found.value.clone());
        }
        let value = make()?;
        let life = runtime.spawn(std::future::pending::<()>()).abort_handle();
        list.push(OfRuntime {
            id,
            value: value.clone(),
            life,
        });
        Ok(value)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.list.read().unwrap().len()
    }
}

impl<T> fmt::Debug for PerRuntime<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerRuntime").finish_non_exhaustive()
    }
}

impl<T> Default for PerRuntime<T> {
    fn default() -> Self {
        Self {
            list: RwLock::default(),
        }
    }
}

impl<T> Drop for OfRuntime<T> {
    fn drop(&mut self) {
        self.life.abort();
    }
}
