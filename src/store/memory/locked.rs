//! A value behind a lock, with a time that never runs backwards.

use std::ops::{Deref, DerefMut};

use super::{Clock, Mutex, MutexGuard};

/// A value that threads share. Its alignment keeps two of them off the same cache line.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Locked<T>(Mutex<Timed<T>>);

/// A value, and the latest time at which it was used.
#[derive(Debug)]
struct Timed<T> {
    latest: u64,
    value: T,
}

/// A locked value. Unlocks it on drop.
pub(super) struct Guard<'a, T>(MutexGuard<'a, Timed<T>>);

impl<T> Locked<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Mutex::new(Timed { latest: 0, value }))
    }

    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        Guard(self.0.lock())
    }

    /// Locks the value. Returns it with the time, which never runs backwards: the clock's time, or the time of
    /// the latest use if that is later.
    ///
    /// The clock is read before the lock is taken, so that the lock is not held for the time of a reading. So a
    /// thread that waited for the lock has an old reading. Without the time of the latest use, that would look like a
    /// clock that stepped back. Either time is between the start and the end of this call, so either is correct.
    #[inline]
    pub(super) fn lock_now(&self, clock: &Clock) -> (Guard<'_, T>, u64) {
        let mut now = clock.now();
        let mut guard = self.lock();
        let latest = &mut guard.0.latest;
        if now < *latest {
            // A test clock may have stepped back. Under the lock, a new reading is not old.
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
    /// Moves the time of the latest use forward to `now`.
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
