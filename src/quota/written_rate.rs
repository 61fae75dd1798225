//! The rate of a token bucket as it was written.

use std::hash::{Hash, Hasher};

/// The limit and the window, in microseconds, that [`Quota::burst`](super::Quota::burst) was called on.
///
/// All are equal: quotas that were written in different ways may have the same count.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrittenRate(pub(super) Option<(u32, u64)>);

impl PartialEq for WrittenRate {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for WrittenRate {}

impl Hash for WrittenRate {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
