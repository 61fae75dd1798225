//! A pool of values for each thread, which reuses them instead of freeing and allocating them.
//!
//! A decision is about 300 bytes. Moving it by value through several functions takes longer than deciding,
//! and so does allocating it. So each thread keeps the last few decisions that were dropped on it, and
//! overwrites one of them for the next check.

use std::cell::RefCell;
use std::ops::Deref;
use std::thread::LocalKey;

use arrayvec::ArrayVec;
use triomphe::{Arc, UniqueArc};

/// The most spare values of a thread. Each check that waits for a store holds one.
const MAX_SPARES: usize = 64;

/// The spare values of a thread.
pub(super) type Spares<T> = RefCell<ArrayVec<UniqueArc<T>, MAX_SPARES>>;

/// A value that each thread reuses.
pub(super) trait Reuse: Clone + Default + 'static {
    /// Returns the spare values of this thread.
    fn spares() -> &'static LocalKey<Spares<Self>>;

    /// Returns the value that an empty holder dereferences to.
    fn empty() -> &'static Self;

    /// Drops the parts that a spare value must not hold.
    fn release(&mut self);

    /// Returns the value to the pool. If the thread is ending or its pool is full, the value is freed.
    #[inline(never)]
    fn spare(mut value: UniqueArc<Self>) {
        value.release();
        let _ =
            Self::spares().try_with(|spares| spares.try_borrow_mut().ok()?.try_push(value).ok());
    }
}

/// A value of the pool that has no other holder. Empty by default.
#[derive(Default)]
pub(super) struct Unshared<T: Reuse>(Option<UniqueArc<T>>);

impl<T: Reuse> Unshared<T> {
    /// Returns a spare value of this thread, or a new one.
    #[inline(always)]
    pub(super) fn take() -> Self {
        let spare = T::spares().try_with(|spares| spares.try_borrow_mut().ok()?.pop());
        let spare = spare.ok().flatten();
        Self(Some(spare.unwrap_or_else(|| UniqueArc::new(T::default()))))
    }

    #[inline]
    pub(super) fn get_mut(&mut self) -> &mut T {
        self.0.get_or_insert_with(|| UniqueArc::new(T::default()))
    }

    /// Returns the value for sharing.
    #[inline]
    pub(super) fn share(mut self) -> Pooled<T> {
        Pooled(self.0.take().map(UniqueArc::shareable))
    }
}

impl<T: Reuse> Deref for Unshared<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or_else(|| T::empty())
    }
}

impl<T: Reuse> Drop for Unshared<T> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            T::spare(value);
        }
    }
}

/// A shared value that returns to its thread's pool when its last holder drops it. Empty only while it is dropped.
#[derive(Clone)]
pub(super) struct Pooled<T: Reuse>(Option<Arc<T>>);

impl<T: Reuse> Pooled<T> {
    /// Returns the value for writing. Copies it first if there are other holders.
    #[inline]
    pub(super) fn make_mut(&mut self) -> &mut T {
        Arc::make_mut(self.0.get_or_insert_with(|| Arc::new(T::default())))
    }
}

impl<T: Reuse> Deref for Pooled<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or_else(|| T::empty())
    }
}

impl<T: Reuse> Drop for Pooled<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // If the last two holders drop the value at the same time, each may see the other: it is then freed.
        if let Some(value) = self.0.take().and_then(Arc::into_unique) {
            T::spare(value);
        }
    }
}
