//! Refreshes the block list with what other processes have blocked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::runtime::Handle;

use crate::clock::Clock;
use crate::store::future::StoreFuture;

/// The reason for a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefreshTrigger {
    /// An operator waits for the list, and learns what failed.
    Operator,
    /// Checks need a recent list, and do not wait for it.
    Background,
}

/// Refreshes a list of type `L`.
type RefreshFn<L> = dyn Fn(&L, RefreshTrigger) -> StoreFuture<()> + Send + Sync;

/// Refreshes a list on request, and in the background while checks come.
pub(super) struct Refresher<L> {
    refresh: Box<RefreshFn<L>>,
    /// In microseconds; 0 for no refreshes in the background.
    interval: u64,
    /// When the next refresh in the background is due.
    next_at: AtomicU64,
    /// Whether a refresh in the background is running.
    is_running: Arc<AtomicBool>,
}

impl<L> Refresher<L> {
    pub(super) fn new(
        interval: u64,
        refresh: impl Fn(&L, RefreshTrigger) -> StoreFuture<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            refresh: Box::new(refresh),
            interval,
            next_at: AtomicU64::new(0),
            is_running: Arc::default(),
        }
    }

    /// Refreshes the list for an operator.
    pub(super) fn refresh(&self, list: &L) -> StoreFuture<()> {
        (self.refresh)(list, RefreshTrigger::Operator)
    }

    /// Starts a refresh in the background if one is due.
    pub(super) fn refresh_if_due(&self, list: &L, clock: &Clock) {
        if self.interval == 0 {
            return;
        }
        let now = clock.now();
        let due_at = self.next_at.load(Ordering::Relaxed);
        let next_at = now.saturating_add(self.interval);
        // A time further ahead than that means that the clock has stepped back.
        if now >= due_at || due_at > next_at {
            self.start_refresh(list, due_at, next_at);
        }
    }

    #[cold]
    fn start_refresh(&self, list: &L, due_at: u64, next_at: u64) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let moved =
            self.next_at
                .compare_exchange(due_at, next_at, Ordering::Relaxed, Ordering::Relaxed);
        // A slow refresh finishes before the next one starts.
        if moved.is_ok() && !self.is_running.swap(true, Ordering::Acquire) {
            let running = Running(Arc::clone(&self.is_running));
            let refresh = (self.refresh)(list, RefreshTrigger::Background);
            drop(runtime.spawn(async move {
                let _running = running;
                // The refresh logs its own errors.
                let _ = refresh.await;
            }));
        }
    }
}

/// Marks a refresh as running until it ends, or its runtime shuts down.
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
