//! The [`Store`] trait.

use std::sync::Arc;
use std::time::Duration;

use super::block_list::BlockList;
use super::circuit_breaker::CircuitBreaker;
use super::future::StoreFuture;
use super::refusal_cache::RefusalCache;
use super::requests::{Adjust, Block, Change, Check, Subject};
use crate::decision::{Holding, StoreId};
use crate::error::{Error, ErrorKind};

/// Keeps the counts of limiters, and decides their checks.
///
/// [`RateLimiter`](crate::RateLimiter) and [`RateLimitLayer`](crate::RateLimitLayer) take any `impl Store`, also an
/// `Arc<dyn Store>`: [`RedisStore`](crate::RedisStore), [`MemoryStore`](crate::MemoryStore), and
/// [`StoreOn`](super::StoreOn) the rows of a database.
///
/// To count in a database of your own, implement [`Rows`](super::Rows), not this trait. Its methods are hidden, and may change in
/// any release.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    label = "expected a store, such as `MemoryStore::new()`",
    note = "for a URL, write `RedisStore::open(\"redis://127.0.0.1:6379\")?` or `tollgate::store::from_url(url)?`",
    note = "a `Result` needs a `?` after the call that returns it, and a reference a `.clone()`: handles of one store \
            share their counts"
)]
pub trait Store: Send + Sync + 'static {
    /// Returns the identity of the store, which is the same for all handles that share their counts.
    ///
    /// A store creates one with [`StoreId::unique`] and keeps it for its lifetime.
    #[doc(hidden)]
    fn id(&self) -> StoreId;

    /// Decides checks together in one atomic step: all of them are charged, or none.
    ///
    /// Most calls have one check. A check of [several keys](crate::RateLimiter::check_all) has one for each level,
    /// and each has another limiter or another key. Otherwise a store may fail with an [`Error`] of kind
    /// [`ErrorKind::Misconfigured`]. A store that cannot decide several checks together fails with
    /// [`ErrorKind::Unsupported`]. If [`atomic_group`](Self::atomic_group) divides the keys of the store, limiters
    /// pass checks of one group.
    ///
    /// Limiters with [`block_after`](crate::RateLimiter::block_after) also count refusals and blocks, in checks of another
    /// limiter: its stored name is `blocks=` and the name.
    ///
    /// A check of quotas [in flight](crate::Quota::in_flight) may have a [`Holding`](crate::store::protocol::Holding), with rules of its
    /// own. [`Counters`](crate::store::protocol::Counters) follow them; the answers to slots also have a note for limiters. A store that
    /// keeps no holders fails such checks with [`ErrorKind::Unsupported`].
    ///
    /// A [soft](crate::Quota::soft) quota refuses no check. It has a count of its own, which is charged for an admitted check if it
    /// has room, and its answer is [`exceeded`](crate::store::protocol::QuotaAnswer::exceeded) otherwise.
    ///
    /// The future has one answer for each check, in their order, and borrows nothing from the checks. A store that answers
    /// without waiting returns a [ready](StoreFuture::ready) one.
    ///
    /// If one check is refused, the answers to the others still say whether each would be admitted, with the units
    /// used before.
    #[doc(hidden)]
    fn check(&self, checks: &[Check<'_>]) -> StoreFuture;

    /// Returns the group of a subject: [`check`](Self::check) decides checks of the same group in one atomic step.
    ///
    /// For a store whose keys are divided among servers, such as a cluster. Limiters call `check` once for each
    /// group of a check of several keys, in turn. If a later group refuses, they refund what the earlier
    /// groups charged.
    ///
    /// The default implementation returns 0 for each subject: all of them are in one group.
    #[doc(hidden)]
    fn atomic_group(&self, subject: Subject<'_>) -> u64 {
        let _ = subject;
        0
    }

    /// Changes the units that count against a key: see [`Change`](super::Change).
    ///
    /// The default implementation fails with an [`Error`] of kind [`ErrorKind::Unsupported`].
    #[doc(hidden)]
    fn adjust(&self, adjust: Adjust<'_>) -> StoreFuture<()> {
        unsupported(match adjust.change {
            Change::Reset => "this store cannot reset keys",
            Change::Refund { .. } => "this store cannot refund units",
            Change::Credit { .. } => "this store cannot credit units",
            Change::Charge { .. } => "this store cannot charge units beyond a limit",
        })
    }

    /// Blocks a key of a limiter for a time, or unblocks it, and updates the
    /// [block list](StoreParts::block_list). Returns whether it took effect.
    ///
    /// Limiters refuse a blocked key without asking the store. A key that an
    /// [upstream](crate::RateLimiter::observe) has paused is blocked for another limiter: its stored name is `paused=` or
    /// `exhausted=`, and the name.
    ///
    /// An [automatic](Block::is_automatic) block takes effect only if the key is not blocked, so that only one of several
    /// processes blocks it. This is decided in one atomic step. If 1 000 keys of the limiter are blocked, or 9 000 of all
    /// limiters, it fails with an [`Error`] of kind [`ErrorKind::Full`]. The rest of the list is for operators.
    ///
    /// The default implementation fails with an [`Error`] of kind [`ErrorKind::Unsupported`].
    #[doc(hidden)]
    fn block(&self, block: Block<'_>) -> StoreFuture<bool> {
        let _ = block;
        unsupported("this store cannot block keys")
    }

    /// Reads the blocked keys of all processes into the [block list](StoreParts::block_list), within this time.
    ///
    /// Limiters call it in the background, at most once in the interval of a [shared](BlockList::shared) list, and log when
    /// it keeps failing. They also call it before an operator sees the list, and before a key is paused for all
    /// processes: who waits gets its error.
    ///
    /// The default implementation does nothing, for a store with a list of this process alone.
    #[doc(hidden)]
    fn refresh_blocks(&self, timeout: Duration) -> StoreFuture<()> {
        let _ = timeout;
        StoreFuture::ready(Ok(()))
    }

    /// Returns the holders of the slots of a key, for quotas [in flight](crate::Quota::in_flight): for each that holds any, its
    /// slots, and what is left of its lease.
    ///
    /// For operators: [`Admin::status`](crate::Admin::status) calls it. The sequences may be 0.
    ///
    /// The default implementation fails with an [`Error`] of kind [`ErrorKind::Unsupported`].
    #[doc(hidden)]
    fn holders(&self, subject: Subject<'_>) -> StoreFuture<Vec<Holding>> {
        let _ = subject;
        unsupported("this store cannot list holders of slots")
    }

    /// Returns the circuit breaker of the server that has a key now. `None` stands for the one of the
    /// [parts](StoreParts::circuit_breaker).
    ///
    /// For a store of several servers that fail alone, such as a cluster: a server that fails then costs its own keys only.
    /// Limiters call it before each check, so return a clone of one that is kept. The keys of a
    /// [group](Self::atomic_group) are on one server. The deadline of checks and the fallback counts are always those of the
    /// parts. A store that wraps another one returns what that one does.
    ///
    /// The default implementation returns `None`.
    #[doc(hidden)]
    fn circuit_breaker(&self, subject: Subject<'_>) -> Option<CircuitBreaker> {
        let _ = subject;
        None
    }

    /// Returns the parts of the store that its limiters share: block list, circuit breaker, refusal cache.
    ///
    /// Each limiter calls it once. Keep the parts and return clones: if one limiter then finds that the store fails, all
    /// limiters know. The default implementation returns new ones for each limiter.
    #[doc(hidden)]
    fn parts(&self) -> StoreParts {
        StoreParts::default()
    }
}

/// The parts of a [`Store`] that its limiters share. Clones share them, too.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StoreParts {
    /// The blocked keys, which limiters read before they ask the store. The default is an empty list.
    pub block_list: BlockList,
    /// The circuit breaker through which limiters ask the store, unless the server of a key has
    /// [another](Store::circuit_breaker). It also has the deadline of a check, and the fallback counts of this process.
    pub circuit_breaker: CircuitBreaker,
    /// The refusals that limiters repeat without asking the store. For a store whose answers take long. The default is
    /// `None`: limiters always ask.
    pub refusal_cache: Option<RefusalCache>,
    /// Whether [`check`](Store::check) charges more than the cost if a check asks for
    /// [extra units](Check::extra_units): a limiter with a [lease](crate::RateLimiter::lease) holds these units. False by
    /// default, and for a store in the memory of the process, where holding units would not be faster.
    pub supports_leases: bool,
    /// Whether the counts are in the memory of the process. Then the futures of [`check`](Store::check) have to be
    /// [ready](StoreFuture::ready), and [slots](crate::Quota::in_flight) need no lease: nobody has them when the process has
    /// ended. By default, a [thread](crate::Permit#the-thread-of-a-store) renews them.
    pub ends_with_process: bool,
}

fn unsupported<T>(text: &'static str) -> StoreFuture<T> {
    StoreFuture::ready(Err(Error::new(ErrorKind::Unsupported, text)))
}

/// Implements the methods of [`Store`] by the methods of another store, which the closure returns.
macro_rules! delegate_to_store {
    (|$self:ident| $store:expr) => {
        fn id(&$self) -> StoreId {
            $store.id()
        }

        fn check(&$self, checks: &[Check<'_>]) -> StoreFuture {
            $store.check(checks)
        }

        fn atomic_group(&$self, subject: Subject<'_>) -> u64 {
            $store.atomic_group(subject)
        }

        fn adjust(&$self, adjust: Adjust<'_>) -> StoreFuture<()> {
            $store.adjust(adjust)
        }

        fn block(&$self, block: Block<'_>) -> StoreFuture<bool> {
            $store.block(block)
        }

        fn refresh_blocks(&$self, timeout: Duration) -> StoreFuture<()> {
            $store.refresh_blocks(timeout)
        }

        fn holders(&$self, subject: Subject<'_>) -> StoreFuture<Vec<Holding>> {
            $store.holders(subject)
        }

        fn circuit_breaker(&$self, subject: Subject<'_>) -> Option<CircuitBreaker> {
            $store.circuit_breaker(subject)
        }

        fn parts(&$self) -> StoreParts {
            $store.parts()
        }
    };
}

pub(super) use delegate_to_store;

impl<S: Store + ?Sized> Store for Arc<S> {
    delegate_to_store!(|self| **self);
}

impl<S: Store + ?Sized> Store for Box<S> {
    delegate_to_store!(|self| **self);
}
