//! The clock of this process, which the memory store, the caches and the logs read.

#[cfg(test)]
use std::cell::Cell;
#[cfg(feature = "test-util")]
use std::sync::Arc;
#[cfg(feature = "test-util")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// The source of time in this process.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// The time since this clock was created, beyond its first time.
    ///
    /// Reads the monotonic clock of the system, whose kernel stops using a processor's counter when the counters of
    /// the cores disagree. `benches/RESULTS.md` says what that costs a check.
    Monotonic { start: Instant, first: u64 },
    #[cfg(feature = "test-util")]
    Test(TestClock),
}

#[cfg(test)]
thread_local! {
    /// How much older than the time this thread's readings of monotonic clocks are, in microseconds. So is a reading
    /// of a thread that was delayed after it had read the clock.
    pub(crate) static LAG: Cell<u64> = const { Cell::new(0) };
}

impl Clock {
    pub(crate) fn monotonic() -> Self {
        Self::starting_at(0)
    }

    /// Creates a clock that shows the time since 1970: the system's time when it is created, and from then on the time
    /// that passes. It does not follow later corrections of the system's clock, so that it never steps.
    pub(crate) fn since_1970() -> Self {
        Self::starting_at(system_time())
    }

    fn starting_at(first: u64) -> Self {
        Self::Monotonic {
            start: Instant::now(),
            first,
        }
    }

    /// In microseconds.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match self {
            #[cfg(test)]
            Self::Monotonic { start, first } if LAG.get() > 0 => {
                (first + micros(start.elapsed())).saturating_sub(LAG.get())
            }
            Self::Monotonic { start, first } => first + micros(start.elapsed()),
            #[cfg(feature = "test-util")]
            Self::Test(clock) => clock.now_micros(),
        }
    }

    #[inline]
    pub(crate) fn steps_back(&self) -> bool {
        match self {
            Self::Monotonic { .. } => false,
            #[cfg(feature = "test-util")]
            Self::Test(_) => true,
        }
    }
}

/// In microseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "windows of a calendar follow the system's time, unless a server reports another one"
)]
pub(crate) fn system_time() -> u64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    micros(since_1970.unwrap_or_default())
}

/// Rounded down to whole microseconds.
#[inline]
pub(crate) fn micros(duration: Duration) -> u64 {
    let whole = duration.as_secs().saturating_mul(1_000_000);
    whole.saturating_add(duration.subsec_micros().into())
}

/// Rounded up to whole microseconds. Saturates.
pub(crate) const fn micros_rounded_up(duration: Duration) -> u64 {
    let fraction: u64 = if duration.subsec_nanos().is_multiple_of(1_000) {
        0
    } else {
        1
    };
    duration
        .as_secs()
        .saturating_mul(1_000_000)
        .saturating_add(duration.subsec_micros() as u64 + fraction)
}

/// Returns the part of a time of the server's clock that has certainly not passed there when it has passed here.
///
/// While 1 s passes, a clock that is slewed by 8.3 % shows at least 0.917 s or at most 1.083 s. 0.8 is less than
/// 0.917 / 1.083.
pub(crate) fn certain_part(micros: u64) -> u64 {
    micros / 5 * 4
}

/// A clock for tests, which stands still until the test moves it.
///
/// Pass a clone to [`MemoryStore::with_clock`](crate::MemoryStore::with_clock), and move the other clone. Clones share
/// the time. The deadline of a store with such a clock follows the time of tokio, which the test can pause.
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
    /// A time in June 2025: late enough for a test to step back by years.
    const START: u64 = 1_750_000_000_000_000;

    /// Creates a clock that stands at a time in June 2025.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(Self::START)))
    }

    /// Moves the clock forward.
    pub fn advance(&self, duration: Duration) {
        self.0.fetch_add(micros(duration), Ordering::SeqCst);
    }

    /// Moves the clock back, to test a server whose clock is corrected.
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
