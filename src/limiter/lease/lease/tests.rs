//! No limit is exceeded though the threads of a process read its clock at different offsets.

use proptest::prelude::RngExt;
use proptest::test_runner::{RngAlgorithm, TestRng};

use super::*;
use crate::clock::TestClock;
use crate::limiter::RateLimiter;
use crate::quota::Quota;
use crate::spans::{Admission, Admissions};
use crate::store::MemoryStore;

const WINDOW: Duration = Duration::from_millis(100);
const LEASE: Duration = Duration::from_millis(10);
const LIMIT: u32 = 400;

/// Below the fifth of a lease in which no unit may be used.
const LONGEST_LAG: Duration = Duration::from_micros(1_999);

/// One process over a store in memory. Its clock shows each thread a reading that lags by less than
/// [`LONGEST_LAG`].
struct Process {
    /// The store's clock, which does not lag.
    time: TestClock,
    reading: TestClock,
    limiter: RateLimiter,
    random: TestRng,
    /// The time that has passed, but not for background tasks: a busy runtime runs them late.
    owed: Duration,
    /// Whether a check counts as begun when its reading says, as if its thread had been delayed since. Else it counts
    /// as made now.
    begins_at_its_reading: bool,
    admitted: Vec<Admission>,
    from_memory: u32,
}

impl Process {
    fn new(algorithm: Algorithm) -> Self {
        let time = TestClock::new();
        let reading = TestClock::new();
        let quota = Quota::new(LIMIT, WINDOW).with_algorithm(algorithm);
        let store = MemoryStore::with_clock(time.clone());
        let limiter = RateLimiter::new(store, quota).lease(LEASE);
        let limiter = limiter.with(|inner| {
            let mut lease = Arc::into_inner(inner.lease.take().unwrap()).unwrap();
            lease.holds_units = AtomicBool::new(true);
            lease.table.clock = Clock::Test(reading.clone());
            inner.lease = Some(Arc::new(lease));
        });
        Self {
            time,
            reading,
            limiter,
            random: TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]),
            owed: Duration::ZERO,
            // The units of a fixed window may be used until shortly before its end, not only for a part of a lease.
            begins_at_its_reading: algorithm == Algorithm::FixedWindow,
            admitted: Vec::new(),
            from_memory: 0,
        }
    }

    /// Lets another thread run. Returns by how much its readings lag.
    fn switch_thread(&mut self) -> Duration {
        let lag = self.random.random_range(0..=micros(LONGEST_LAG));
        let now = self.time.now_micros() - lag;
        let before = self.reading.now_micros();
        if now >= before {
            self.reading.advance(Duration::from_micros(now - before));
        } else {
            self.reading.step_back(Duration::from_micros(before - now));
        }
        Duration::from_micros(lag)
    }

    async fn check(&mut self) -> bool {
        let lag = self.switch_thread();
        let decision = self.limiter.check("ada").await.unwrap();
        self.from_memory += u32::from(decision.source() == crate::decision::Source::Lease);
        let now = Duration::from_micros(self.time.now_micros());
        if decision.is_allowed() {
            let start = if self.begins_at_its_reading {
                now - lag
            } else {
                now
            };
            self.admitted.push(Admission {
                start,
                end: now,
                units: 1,
            });
        }
        // So that a request for units is sent, by another thread.
        let _ = self.switch_thread();
        tokio::task::yield_now().await;
        decision.is_allowed()
    }

    /// Lets time pass, for background tasks perhaps later.
    async fn pass(&mut self, micros: u64) {
        let duration = Duration::from_micros(micros);
        self.time.advance(duration);
        self.owed += duration;
        let _ = self.switch_thread();
        if self.random.random_bool(0.02) {
            tokio::time::advance(std::mem::take(&mut self.owed)).await;
        }
    }

    /// A burst for which units are taken, a pause after which those left may be too old, and then as many units as
    /// there are until the units of the burst have left the window.
    async fn attack(&mut self) {
        for _ in 0..self.random.random_range(20..60) {
            self.check().await;
            let step = self.random.random_range(0..200);
            self.pass(step).await;
        }
        let pause = self.random.random_range(0..3 * micros(LEASE));
        self.pass(pause).await;
        let end = self.time.now_micros() + micros(WINDOW + 2 * LEASE);
        while self.time.now_micros() < end {
            while self.check().await {}
            let step = self.random.random_range(0..500);
            self.pass(step).await;
        }
        let rest = self.random.random_range(0..micros(2 * WINDOW));
        self.pass(rest).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_window_exceeds_the_limit_though_the_readings_of_threads_lag() {
    for algorithm in Algorithm::ALL {
        let algorithm = algorithm.with_buckets(10);
        let mut process = Process::new(algorithm);
        for _ in 0..40 {
            process.attack().await;
        }
        let admissions = Admissions::new(process.admitted);
        // A unit that was charged at the start of the window has left it at its end.
        let most = admissions.most_within(WINDOW - Duration::from_micros(1));
        let promised = algorithm.max_units(LIMIT);
        let from_memory = process.from_memory;
        println!(
            "{algorithm}: at most {most} in a window ({promised} promised), {from_memory} from memory"
        );
        assert!(most <= promised, "{algorithm}: {most} of {promised}");
        assert!(
            most >= LIMIT.into() && from_memory > 500,
            "{algorithm}: {most}, {from_memory}"
        );
    }
}
