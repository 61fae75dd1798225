//! Locks that ignore poison: a thread that panics under a lock leaves the value consistent, as each step does. So other threads
//! go on.

use std::sync::{self, MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard};

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    #[inline]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_that_panics_under_a_lock_leaves_it_to_others() {
        let mutex = Mutex::new(1);
        let rw_lock = RwLock::new(2);
        thread::scope(|scope| {
            let panicking = scope.spawn(|| {
                let _mutex_guard = mutex.lock();
                let _rw_lock_guard = rw_lock.write();
                panic!("under both locks");
            });
            assert!(panicking.join().is_err());
        });
        assert!(mutex.0.is_poisoned() && rw_lock.0.is_poisoned());
        assert_eq!(*mutex.lock(), 1);
        assert_eq!(*rw_lock.read(), 2);
        assert_eq!(*rw_lock.write(), 2);
    }
}
