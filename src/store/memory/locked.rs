//! A value behind a lock, with a time that never runs backwards.

use std::ops::{Deref, DerefMut};

use super::{Clock, Mutex, MutexGuard, PoisonError};

/// A value that threads share. Aligned so that it shares no cache line with another one.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Locked<T>(Mutex<Timed<T>>);

/// A value and the latest time of its use.
#[derive(Debug)]
struct Timed<T> {
    latest: u64,
    value: T,
}

/// A locked value, until it is dropped.
pub(super) struct Guard<'a, T>(MutexGuard<'a, Timed<T>>);

impl<T> Locked<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Mutex::new(Timed { latest: 0, value }))
    }

    /// Locks the value. Ignores poisoning: the value is consistent between any two steps.
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        Guard(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the value, and returns the time: the clock's, or the latest time of a use if that is later.
    ///
    /// A thread that waited for the lock has an old reading, and so has one whose core's counter lags.
    /// Without the latest time, either would look like a clock that stepped back. Both times lie between
    /// the start and the end of the call, so either is correct for it. The clock is read before the lock
    /// is taken, which would be held a fifth longer otherwise.
    #[inline]
    pub(super) fn lock_now(&self, clock: &Clock) -> (Guard<'_, T>, u64) {
        let mut now = clock.now();
        let mut guard = self.lock();
        let latest = &mut guard.0.latest;
        if now < *latest {
            // No other thread has a later time while this one holds the lock, so an earlier reading now
            // is a step back.
            now = if clock.steps_back() {
                clock.now()
            } else {
                *latest
            };
        }
        *latest = now;
        (guard, now)
    }
}

impl<T> Guard<'_, T> {
    /// Moves the time of the latest use forward.
    pub(super) fn advance_to(&mut self, now: u64) {
        self.0.latest = self.0.latest.max(now);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.value
    }
}
