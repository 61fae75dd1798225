//! One value for each connection of a runtime.

use std::num::NonZeroUsize;

/// One value for each connection, found by the index of the connection. Never empty.
#[derive(Debug)]
pub(crate) struct PerConnection<T> {
    first: T,
    others: Box<[T]>,
}

impl<T> PerConnection<T> {
    /// Makes the value of each index below `count`.
    pub(crate) fn new(count: NonZeroUsize, mut make: impl FnMut(usize) -> T) -> Self {
        Self {
            first: make(0),
            others: (1..count.get()).map(make).collect(),
        }
    }

    /// Returns the value of the connection if there is only one.
    pub(crate) fn only(&self) -> Option<&T> {
        self.others.is_empty().then_some(&self.first)
    }

    /// Returns the value of an index, or the first one if the index is out of range.
    pub(crate) fn get(&self, index: usize) -> &T {
        let other = index
            .checked_sub(1)
            .and_then(|other| self.others.get(other));
        other.unwrap_or(&self.first)
    }
}
