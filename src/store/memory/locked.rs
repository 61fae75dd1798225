//! A value behind a lock, with a time that never runs backwards.

use std::ops::{Deref, DerefMut};

use super::{Clock, Mutex, MutexGuard, PoisonError};

/// A value that threads share, on cache lines of its own: its neighbours are for other threads.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Locked<T>(Mutex<Timed<T>>);

/// A value and the latest time at which it was used.
#[derive(Debug)]
pub(super) struct Timed<T> {
    latest: u64,
    value: T,
}

impl<T> Locked<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Mutex::new(Timed { latest: 0, value }))
    }

    /// Locks the value. A panic elsewhere does not taint it: it is whole between any two steps.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Timed<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the value, and then reads the clock. A thread that read it before would, after waiting for
    /// the lock, look like a clock that stepped back. So would a core whose counter lags behind: its time
    /// is the latest that was seen here.
    #[inline]
    pub(super) fn lock_now(&self, clock: &Clock) -> (MutexGuard<'_, Timed<T>>, u64) {
        let mut guard = self.lock();
        let mut now = clock.now();
        if now < guard.latest && !clock.steps_back() {
            now = guard.latest;
        }
        guard.latest = now;
        (guard, now)
    }
}

impl<T> Deref for Timed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Timed<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}
