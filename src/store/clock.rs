//! The clock of the memory store.

#[cfg(feature = "test-util")]
use std::sync::Arc;
#[cfg(feature = "test-util")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Where the memory store takes its time from.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// Counts from when the store was made, and never steps.
    Monotonic(Instant),
    #[cfg(feature = "test-util")]
    Test(TestClock),
}

/// One reading of a clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// Microseconds of the clock, by which units are charged.
    pub(crate) now: u64,
    /// Milliseconds that have passed, by which counts live; they never step back.
    pub(crate) elapsed: u64,
}

impl Clock {
    pub(crate) fn monotonic() -> Self {
        Self::Monotonic(Instant::now())
    }

    pub(crate) fn read(&self) -> Moment {
        match self {
            Self::Monotonic(start) => {
                let now = micros(start.elapsed());
                Moment {
                    now,
                    elapsed: now / 1_000,
                }
            }
            #[cfg(feature = "test-util")]
            Self::Test(clock) => clock.read(),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A clock that stands still until a test moves it, for
/// [`MemoryStore::with_clock`](crate::MemoryStore::with_clock).
///
/// Clones are the same clock.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use tollgate::store::TestClock;
/// use tollgate::{MemoryStore, Quota, RateLimiter};
///
/// let clock = TestClock::new();
/// let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()), Quota::per_minute(1));
/// assert!(limiter.check("ada").await?.is_allowed());
///
/// let refused = limiter.check("ada").await?;
/// assert_eq!(refused.retry_after(), Some(Duration::from_secs(60)));
///
/// clock.advance(Duration::from_secs(60));
/// assert!(limiter.check("ada").await?.is_allowed());
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
#[derive(Clone, Debug)]
pub struct TestClock(Arc<Hands>);

#[cfg(feature = "test-util")]
#[derive(Debug)]
struct Hands {
    now: AtomicU64,
    elapsed_micros: AtomicU64,
}

#[cfg(feature = "test-util")]
impl TestClock {
    /// Far enough from zero that a test can step back by years.
    const START: u64 = 1_750_000_000_000_000;

    /// A clock that stands at some time in 2025.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Hands {
            now: AtomicU64::new(Self::START),
            elapsed_micros: AtomicU64::new(0),
        }))
    }

    /// Lets time pass.
    pub fn advance(&self, duration: Duration) {
        let passed = micros(duration);
        self.0.now.fetch_add(passed, Ordering::SeqCst);
        self.0.elapsed_micros.fetch_add(passed, Ordering::SeqCst);
    }

    /// Sets the clock back, as a correction of a server's clock does: no time passes.
    pub fn step_back(&self, duration: Duration) {
        self.0.now.fetch_sub(micros(duration), Ordering::SeqCst);
    }

    /// What the clock shows, in microseconds since the Unix epoch.
    #[must_use]
    pub fn now_micros(&self) -> u64 {
        self.0.now.load(Ordering::SeqCst)
    }

    fn read(&self) -> Moment {
        Moment {
            now: self.now_micros(),
            elapsed: self.0.elapsed_micros.load(Ordering::SeqCst) / 1_000,
        }
    }
}

#[cfg(feature = "test-util")]
impl Default for TestClock {
    fn default() -> Self {
        Self::new()
    }
}
