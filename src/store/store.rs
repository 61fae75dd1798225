//! Where the counts are kept: the [`Store`] trait, and the stores of this crate.
//!
//! [`RedisStore`](crate::RedisStore) shares its counts between all processes,
//! [`MemoryStore`](crate::MemoryStore) keeps them in this one, by the same rules.

use std::sync::Arc;

use super::block_list::BlockList;
use super::circuit_breaker::CircuitBreaker;
use super::future::StoreFuture;
use super::requests::{Block, Check, Credit, Refund, Reset};

use crate::error::{Error, ErrorKind};

/// Keeps counts, and decides over a check in one atomic step.
///
/// A check is admitted if every quota admits it, and then charged to all of them; otherwise it is
/// charged to none, and nothing is written. A cost of 0 only looks. Time is the store's own.
///
/// # Examples
///
/// A store that refuses whatever costs something, to see how a service takes it:
///
/// ```
/// use std::time::Duration;
/// use tollgate::store::{Answer, Check, QuotaAnswer, Source, Store, StoreFuture};
///
/// struct Closed;
///
/// impl Store for Closed {
///     fn check(&self, check: Check<'_>) -> StoreFuture {
///         let wait = Some(Duration::from_secs(1));
///         let answers = check.quotas().iter().map(|quota| match check.cost() {
///             0 => QuotaAnswer::admitted(quota.limit(), quota.window()),
///             _ => QuotaAnswer::refused(quota.limit(), wait, quota.window()),
///         });
///         StoreFuture::ready(Ok(Answer::new(Source::Other, answers)))
///     }
/// }
/// ```
pub trait Store: Send + Sync + 'static {
    /// Decides over a check, and charges it if it is admitted.
    ///
    /// The future owns what it needs. A store that can answer without waiting does so here, with
    /// [`StoreFuture::ready`]: the middleware then neither boxes nor awaits.
    fn check(&self, check: Check<'_>) -> StoreFuture;

    /// Does what [`check`](Self::check) does, and where that takes no waiting puts the answer into its
    /// place: to pass on a future of it takes a store in memory as long as to decide. `None` says that
    /// it is there.
    ///
    /// Unless a store says otherwise, this is the future of `check`.
    fn check_in_place(&self, check: Check<'_>, answer: &mut Answer) -> Option<StoreFuture> {
        let _ = answer;
        Some(self.check(check))
    }

    /// Forgets what is charged to a key.
    ///
    /// Unless a store says otherwise, it answers an [`Error`] of kind [`ErrorKind::Unsupported`].
    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        let _ = reset;
        StoreFuture::ready(Err(Error::new(
            ErrorKind::Unsupported,
            "this store cannot reset a key",
        )))
    }

    /// Takes back units that it charged, as far as they still count: never another's.
    ///
    /// Unless a store says otherwise, it answers an [`Error`] of kind [`ErrorKind::Unsupported`].
    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        let _ = refund;
        StoreFuture::ready(Err(Error::new(
            ErrorKind::Unsupported,
            "this store cannot take units back",
        )))
    }

    /// Counts so many units fewer than were charged, in each of the stored counts, whoever charged them.
    ///
    /// Unless a store says otherwise, it answers an [`Error`] of kind [`ErrorKind::Unsupported`].
    fn credit(&self, give: Credit<'_>) -> StoreFuture<()> {
        let _ = give;
        StoreFuture::ready(Err(Error::new(
            ErrorKind::Unsupported,
            "this store cannot give units",
        )))
    }

    /// BlockList a key of a limiter for a time, or not any more, and says so in its [`blocks`](Self::block_list).
    ///
    /// Unless a store says otherwise, it answers an [`Error`] of kind [`ErrorKind::Unsupported`].
    fn block(&self, block: Block<'_>) -> StoreFuture<()> {
        let _ = block;
        StoreFuture::ready(Err(Error::new(
            ErrorKind::Unsupported,
            "this store cannot block a key",
        )))
    }

    /// What is blocked, where limiters look before they ask.
    ///
    /// Unless a store says otherwise, that is nothing.
    fn block_list(&self) -> BlockList {
        BlockList::new()
    }

    /// What limiters ask the store through: a deadline, a breaker, and the counts of this process to
    /// fall back on.
    ///
    /// Unless a store says otherwise, each limiter has one of its own. A store that keeps one
    /// and gives it to all has what one limiter learns spare the others.
    fn circuit_breaker(&self) -> CircuitBreaker {
        CircuitBreaker::new()
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn check(&self, check: Check<'_>) -> StoreFuture {
        (**self).check(check)
    }

    fn check_in_place(&self, check: Check<'_>, answer: &mut Answer) -> Option<StoreFuture> {
        (**self).check_in_place(check, answer)
    }

    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        (**self).reset(reset)
    }

    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        (**self).refund(refund)
    }

    fn credit(&self, give: Credit<'_>) -> StoreFuture<()> {
        (**self).credit(give)
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<()> {
        (**self).block(block)
    }

    fn block_list(&self) -> BlockList {
        (**self).block_list()
    }

    fn circuit_breaker(&self) -> CircuitBreaker {
        (**self).circuit_breaker()
    }
}

impl<S: Store + ?Sized> Store for Box<S> {
    fn check(&self, check: Check<'_>) -> StoreFuture {
        (**self).check(check)
    }

    fn check_in_place(&self, check: Check<'_>, answer: &mut Answer) -> Option<StoreFuture> {
        (**self).check_in_place(check, answer)
    }

    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        (**self).reset(reset)
    }

    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        (**self).refund(refund)
    }

    fn credit(&self, give: Credit<'_>) -> StoreFuture<()> {
        (**self).credit(give)
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<()> {
        (**self).block(block)
    }

    fn block_list(&self) -> BlockList {
        (**self).block_list()
    }

    fn circuit_breaker(&self) -> CircuitBreaker {
        (**self).circuit_breaker()
    }
}

use crate::decision::Answer;
