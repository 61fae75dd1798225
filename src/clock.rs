//! The clock of this process, for the memory store, caches and logs.

#[cfg(feature = "test-util")]
use std::sync::Arc;
#[cfg(feature = "test-util")]
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "test-util")]
use std::time::Duration;

/// The source of time in this process.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// Counts from the creation of this clock.
    ///
    /// It reads the counter of the processor if that is steady, else the monotonic clock of the system. The
    /// counter may run some millionths faster or slower than the system's clock.
    Monotonic { clock: quanta::Clock, start: u64 },
    #[cfg(feature = "test-util")]
    Test(TestClock),
}

impl Clock {
    pub(crate) fn monotonic() -> Self {
        let clock = quanta::Clock::new();
        let start = clock.raw();
        Self::Monotonic { clock, start }
    }

    /// Returns the current time in microseconds.
    pub(crate) fn now(&self) -> u64 {
        match self {
            Self::Monotonic { clock, start } => clock.delta_as_nanos(*start, clock.raw()) / 1_000,
            #[cfg(feature = "test-util")]
            Self::Test(clock) => clock.now_micros(),
        }
    }

    /// Whether a step back is intended: a test can set its clock back, as a server's clock may be.
    #[inline]
    pub(crate) fn steps_back(&self) -> bool {
        match self {
            Self::Monotonic { .. } => false,
            #[cfg(feature = "test-util")]
            Self::Test(_) => true,
        }
    }
}

#[cfg(feature = "test-util")]
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A clock that stands still until a test moves it, for
/// [`MemoryStore::with_clock`](crate::MemoryStore::with_clock).
///
/// Clones share the time.
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
pub struct TestClock(Arc<AtomicU64>);

#[cfg(feature = "test-util")]
impl TestClock {
    /// A time in 2025, from which a test can step back by years.
    const START: u64 = 1_750_000_000_000_000;

    /// Makes a clock that stands at a time in 2025.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(Self::START)))
    }

    /// Moves the clock forward.
    pub fn advance(&self, duration: Duration) {
        self.0.fetch_add(micros(duration), Ordering::SeqCst);
    }

    /// Moves the clock back, as a correction of a server's clock does.
    pub fn step_back(&self, duration: Duration) {
        self.0.fetch_sub(micros(duration), Ordering::SeqCst);
    }

    /// Returns the current time in microseconds since the Unix epoch.
    #[must_use]
    pub fn now_micros(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

#[cfg(feature = "test-util")]
impl Default for TestClock {
    fn default() -> Self {
        Self::new()
    }
}
