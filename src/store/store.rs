//! The [`Store`] trait.

use std::sync::Arc;

use super::block_list::BlockList;
use super::circuit_breaker::CircuitBreaker;
use super::future::StoreFuture;
use super::refusal_cache::RefusalCache;
use super::requests::{Block, Check, Credit, Refund, Reset};
use crate::decision::{Answer, StoreId};
use crate::error::{Error, ErrorKind};

/// Keeps counts, and decides each check in one atomic step.
///
/// A check is admitted if every quota admits it, and then charged to all of them. Otherwise it is
/// charged to none, and nothing is written. A check of cost 0 charges nothing. Time is the store's own.
///
/// # Examples
///
/// A store that refuses every check with a cost, to see how a service reacts:
///
/// ```
/// use std::time::Duration;
/// use tollgate::store::{Answer, Check, QuotaAnswer, Source, Store, StoreFuture, StoreId};
///
/// struct Closed {
///     id: StoreId,
/// }
///
/// impl Store for Closed {
///     fn id(&self) -> StoreId {
///         self.id
///     }
///
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
///
/// A store that counts needs neither algorithms nor a circuit breaker of its own: [`Counters`](super::Counters)
/// decide, and [`circuit_breaker`](Self::circuit_breaker), [`refusal_cache`](Self::refusal_cache) and
/// [`block_list`](Self::block_list) say what limiters put around the store. The conformance kit of the feature
/// `test-util` proves an implementation.
pub trait Store: Send + Sync + 'static {
    /// Returns the identity of the store: the same for handles that share their counts, such as clones.
    ///
    /// A store keeps a [`StoreId::unique`] for its lifetime.
    fn id(&self) -> StoreId;

    /// Decides a check, and charges it if it is admitted.
    ///
    /// The future owns what it needs. A store that can answer without waiting returns
    /// [`StoreFuture::ready`]: the middleware then neither boxes nor awaits.
    fn check(&self, check: Check<'_>) -> StoreFuture;

    /// Decides as [`check`](Self::check) does, and writes an immediate answer to `answer`.
    ///
    /// Returns `None` if the answer was written, else the future of the answer. To move a future of the
    /// answer takes a store in memory as long as to decide.
    ///
    /// The default implementation returns the future of `check`.
    fn check_in_place(&self, check: Check<'_>, answer: &mut Answer) -> Option<StoreFuture> {
        let _ = answer;
        Some(self.check(check))
    }

    /// Decides several checks together, in one atomic step: they are charged if every one of them is
    /// admitted, and otherwise none is. Returns an answer to each check, in their order.
    ///
    /// No two of the checks may have both limiter and key in common: a store may fail with an [`Error`] of kind
    /// [`ErrorKind::Misconfigured`]. A check that is admitted while another is
    /// refused has an answer that admits it, with the units used as they were.
    ///
    /// The default implementation decides a single check by [`check`](Self::check). Several fail with an
    /// [`Error`] of kind [`ErrorKind::Unsupported`].
    fn check_all(&self, checks: &[Check<'_>]) -> StoreFuture<Vec<Answer>> {
        match checks {
            [] => StoreFuture::ready(Ok(Vec::new())),
            [check] => {
                let answer = self.check(*check);
                StoreFuture::boxed(async move { Ok(vec![answer.await?]) })
            }
            _ => unsupported("this store cannot decide several checks together"),
        }
    }

    /// Forgets what is charged to a key.
    ///
    /// The default implementation fails with an [`Error`] of kind [`ErrorKind::Unsupported`].
    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        let _ = reset;
        unsupported("this store cannot reset keys")
    }

    /// Takes back units that the store charged, if they still count, and never units of another charge.
    ///
    /// The default implementation fails with an [`Error`] of kind [`ErrorKind::Unsupported`].
    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        let _ = refund;
        unsupported("this store cannot refund units")
    }

    /// Counts fewer units than were charged, in each stored count and whichever check charged them.
    ///
    /// The default implementation fails with an [`Error`] of kind [`ErrorKind::Unsupported`].
    fn credit(&self, credit: Credit<'_>) -> StoreFuture<()> {
        let _ = credit;
        unsupported("this store cannot credit units")
    }

    /// Blocks a key of a limiter for a time, or unblocks it, and updates the
    /// [block list](Self::block_list).
    ///
    /// The default implementation fails with an [`Error`] of kind [`ErrorKind::Unsupported`].
    fn block(&self, block: Block<'_>) -> StoreFuture<()> {
        let _ = block;
        unsupported("this store cannot block keys")
    }

    /// Returns the blocked keys, which limiters look up before they ask the store.
    ///
    /// The default implementation returns an empty list.
    fn block_list(&self) -> BlockList {
        BlockList::new()
    }

    /// Returns the circuit breaker through which limiters ask the store: with a deadline, and counts in
    /// this process to fall back on.
    ///
    /// The default implementation returns a new one to each limiter. A store that returns clones of one
    /// circuit breaker shares what one limiter learns with the others.
    fn circuit_breaker(&self) -> CircuitBreaker {
        CircuitBreaker::new()
    }

    /// Returns the refusals that limiters repeat without asking the store.
    ///
    /// The default implementation returns `None`: the store is asked each time. A store that returns
    /// clones of one cache shares it between all its limiters.
    fn refusal_cache(&self) -> Option<RefusalCache> {
        None
    }
}

fn unsupported<T>(text: &'static str) -> StoreFuture<T> {
    StoreFuture::ready(Err(Error::new(ErrorKind::Unsupported, text)))
}

/// Implements [`Store`] for a pointer to a store.
macro_rules! impl_store_for_pointer {
    ($($pointer:ident)*) => {$(
        impl<S: Store + ?Sized> Store for $pointer<S> {
            fn id(&self) -> StoreId {
                (**self).id()
            }

            fn check(&self, check: Check<'_>) -> StoreFuture {
                (**self).check(check)
            }

            fn check_in_place(&self, check: Check<'_>, answer: &mut Answer) -> Option<StoreFuture> {
                (**self).check_in_place(check, answer)
            }

            fn check_all(&self, checks: &[Check<'_>]) -> StoreFuture<Vec<Answer>> {
                (**self).check_all(checks)
            }

            fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
                (**self).reset(reset)
            }

            fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
                (**self).refund(refund)
            }

            fn credit(&self, credit: Credit<'_>) -> StoreFuture<()> {
                (**self).credit(credit)
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

            fn refusal_cache(&self) -> Option<RefusalCache> {
                (**self).refusal_cache()
            }
        }
    )*};
}

impl_store_for_pointer!(Arc Box);
