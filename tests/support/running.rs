//! Work that counts how much of it runs at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How much runs now, and the most that ever did. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Running(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    now: AtomicU32,
    most: AtomicU32,
}

impl Running {
    /// Runs for this long.
    pub(crate) async fn run(&self, lasts: Duration) {
        let Counts { now, most } = &*self.0;
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        tokio::time::sleep(lasts).await;
        now.fetch_sub(1, Ordering::SeqCst);
    }

    /// The most that ran at the same time.
    pub(crate) fn most(&self) -> u32 {
        self.0.most.load(Ordering::SeqCst)
    }
}
