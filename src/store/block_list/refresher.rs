//! Finds out now and then what other processes have blocked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::runtime::Handle;

use super::block_list::BlockList;
use crate::clock::Clock;
use crate::store::future::StoreFuture;

/// For whom somebody looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefreshTrigger {
    /// For an operator, who is told what failed.
    Asked,
    /// For checks, which do not wait for it.
    Beside,
}

type LookFn = dyn Fn(&BlockList, RefreshTrigger) -> StoreFuture<()> + Send + Sync;

pub(super) struct Refresher {
    look: Box<LookFn>,
    /// How often, in microseconds; 0 for not unless asked.
    every: u64,
    /// When to look again.
    next: AtomicU64,
    /// Whether somebody looks for checks.
    looks: Arc<AtomicBool>,
}

impl Refresher {
    pub(super) fn new(
        every: u64,
        look: impl Fn(&BlockList, RefreshTrigger) -> StoreFuture<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            look: Box::new(look),
            every,
            next: AtomicU64::new(0),
            looks: Arc::default(),
        }
    }

    pub(super) fn look(&self, blocks: &BlockList, whom: RefreshTrigger) -> StoreFuture<()> {
        (self.look)(blocks, whom)
    }

    pub(super) fn look_if_due(&self, blocks: &BlockList, clock: &Clock) {
        if self.every == 0 {
            return;
        }
        let now = clock.now();
        let next = self.next.load(Ordering::Relaxed);
        let then = now.saturating_add(self.every);
        // Later than it can be is what a clock says that has stepped back.
        if now >= next || next > then {
            self.look_beside(blocks, next, then);
        }
    }

    #[cold]
    fn look_beside(&self, blocks: &BlockList, next: u64, then: u64) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let (of, relaxed) = (&self.next, Ordering::Relaxed);
        let is_first = of.compare_exchange(next, then, relaxed, relaxed).is_ok();
        // One that takes long is not overtaken.
        if is_first && !self.looks.swap(true, Ordering::Acquire) {
            let looking = Looking(Arc::clone(&self.looks));
            let look = self.look(blocks, RefreshTrigger::Beside);
            drop(runtime.spawn(async move {
                let _looking = looking;
                // Who looks says what there is to say.
                let _ = look.await;
            }));
        }
    }
}

/// Somebody looks, until it is dropped, with its runtime too.
struct Looking(Arc<AtomicBool>);

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
