//! Threads that check one key as fast as they can, and refund some of it.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::RngExt;
use proptest::test_runner::{RngAlgorithm, TestRng};
use tollgate::store::Store;
use tollgate::{Algorithm, Decision, Quota, RateLimiter};

use super::promised;
use crate::spans::{Admission, Admissions};

/// The traffic of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    pub(crate) threads: usize,
    /// The limits of the key: the threads take them in turn.
    pub(crate) limits: &'static [u32],
    pub(crate) window: Duration,
    /// How long the threads ask. On a machine that is too busy for them to be refused by then, up to ten times as long.
    pub(crate) duration: Duration,
    /// How long a thread works between two checks.
    pub(crate) work: Duration,
    /// How long a thread with the largest limit rests after a refusal: so a lower limit gets its turn.
    pub(crate) rest: Duration,
    /// Whether a part of the units is given back.
    pub(crate) refunds: bool,
}

/// The result of one run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) admissions: Admissions,
    pub(crate) refused: u64,
}

impl Traffic {
    pub(crate) fn limit(&self) -> u32 {
        *self.limits.iter().max().expect("a limit")
    }

    /// Runs all threads against a store. `wait` makes what waits for the answers of a thread.
    pub(crate) fn run<S, W>(&self, algorithm: Algorithm, store: &S, wait: fn(usize) -> W) -> Outcome
    where
        S: Store + Clone,
        W: Wait,
    {
        let barrier = Barrier::new(self.threads);
        // So that no check began before it, however much the readings of a thread lag.
        let origin = Instant::now() - LONGEST_LAG;
        let (mut admissions, mut refused) = (Vec::new(), 0);
        let progress = Progress::default();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let limit = self.limits[thread % self.limits.len()];
                    let quota = Quota::new(limit, self.window).with_algorithm(algorithm);
                    let asking = Asking {
                        traffic: self,
                        limiter: RateLimiter::new(store.clone(), quota).name("contended"),
                        origin,
                        progress: &progress,
                        wait: wait(thread),
                        random: random(thread),
                        most_cost: limit.min(3),
                        rests: limit == self.limit(),
                    };
                    let barrier = &barrier;
                    scope.spawn(move || {
                        asking.connect();
                        barrier.wait();
                        asking.ask()
                    })
                })
                .collect();
            for thread in threads {
                let (of_thread, not) = thread.join().expect("a thread ends");
                admissions.extend(of_thread);
                refused += not;
            }
        });
        Outcome {
            admissions: Admissions::new(admissions),
            refused,
        }
    }
}

/// The most units in a span of this many windows. An algorithm that promises about the limit for steady
/// traffic also keeps the limit in each aligned window.
fn max_in_windows(algorithm: Algorithm, windows: u64, limit: u32) -> u64 {
    let spare = u64::from(promised(algorithm, limit) > u64::from(limit));
    (windows + spare) * u64::from(limit)
}

/// Returns what a run showed as an error if it broke the promise of its algorithm, or did not try to.
pub(crate) fn is_kept(
    algorithm: Algorithm,
    traffic: &Traffic,
    outcome: &Outcome,
) -> Result<(), String> {
    let Outcome {
        admissions,
        refused,
    } = outcome;
    let in_window = promised(algorithm, traffic.limit());
    // The clocks of Redis and of this test differ by some millionths, and a store's is one of
    // whole microseconds.
    let window = traffic.window - traffic.window / 2_000 - Duration::from_micros(2);
    let most = admissions.most_within(window);
    // This number of windows covers all admissions, including the last one.
    let windows = admissions.lasted().as_micros() / window.as_micros() + 1;
    let windows = u64::try_from(windows).expect("few");
    let (total, most_in_all) = (
        admissions.total(),
        max_in_windows(algorithm, windows, traffic.limit()),
    );
    let said = format!(
        "{algorithm}: at most {most} in a window ({in_window} promised), {total} in {windows} windows \
         ({most_in_all}), {refused} refused; {traffic:?}"
    );
    println!("{said}");
    let is_tried = *refused > 0 && total >= u64::from(traffic.limit());
    if is_tried && most <= in_window && total <= most_in_all {
        Ok(())
    } else {
        Err(said)
    }
}

/// How a thread waits for an answer.
pub(crate) trait Wait: Send {
    fn wait<T>(&self, future: impl Future<Output = T>) -> T;

    /// How much older than the time the thread's readings of the store's clock are. A check counts as begun that much
    /// earlier, as if the thread had been delayed after it had read the clock. At most [`LONGEST_LAG`].
    fn lag(&self) -> Duration {
        Duration::ZERO
    }
}

const LONGEST_LAG: Duration = Duration::from_secs(1);

fn random(seed: usize) -> TestRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

/// The progress of all threads together.
#[derive(Default)]
struct Progress {
    /// The units that were admitted and not given back.
    units: AtomicU64,
    refused: AtomicU64,
}

impl Progress {
    /// Whether the limit was tried.
    fn is_enough(&self, limit: u32) -> bool {
        self.refused.load(Ordering::Relaxed) > 0
            && self.units.load(Ordering::Relaxed) >= u64::from(limit)
    }
}

/// One thread.
struct Asking<'a, W> {
    traffic: &'a Traffic,
    limiter: RateLimiter,
    origin: Instant,
    progress: &'a Progress,
    wait: W,
    random: TestRng,
    most_cost: u32,
    rests: bool,
}

impl<W: Wait> Asking<'_, W> {
    /// Looks at another key, so that the traffic does not wait for connections.
    fn connect(&self) {
        let look = self.wait.wait(self.limiter.peek("nobody"));
        let _ = look.expect("an answer");
    }

    /// Asks until the time is over. Units that were given back are not admitted.
    fn ask(mut self) -> (Vec<Admission>, u64) {
        let (mut admissions, mut refused) = (Vec::new(), 0);
        // Decisions that hold units which may be given back, and which admission each is.
        let mut open: Vec<(Decision, usize)> = Vec::new();
        let began = self.origin.elapsed();
        loop {
            let start = self.origin.elapsed();
            let lasted = start - began;
            if lasted >= self.traffic.duration
                && (self.progress.is_enough(self.traffic.limit())
                    || lasted >= 10 * self.traffic.duration)
            {
                return (admissions, refused);
            }
            let units = self.random.random_range(1..=self.most_cost);
            let decision = self.wait.wait(self.limiter.check_n("ada", units));
            let decision = decision.expect("an answer");
            if decision.is_allowed() {
                let (start, end) = (start - self.wait.lag(), self.origin.elapsed());
                open.push((decision, admissions.len()));
                admissions.push(Admission { start, end, units });
                let units = u64::from(units);
                self.progress.units.fetch_add(units, Ordering::Relaxed);
            } else {
                refused += 1;
                self.progress.refused.fetch_add(1, Ordering::Relaxed);
                if self.rests {
                    std::thread::sleep(self.traffic.rest);
                }
            }
            if self.traffic.refunds && !open.is_empty() && self.random.random_bool(0.3) {
                let (mut decision, index) =
                    open.swap_remove(self.random.random_range(0..open.len()));
                let units = self.random.random_range(1..=decision.held());
                let refunded = self.wait.wait(decision.refund(units));
                refunded.expect("a refund");
                admissions[index].units -= units;
                let units = u64::from(units);
                self.progress.units.fetch_sub(units, Ordering::Relaxed);
            }
            // The oldest stay as they are.
            let surplus = open.len().saturating_sub(8);
            open.drain(..surplus);
            self.work();
        }
    }

    fn work(&self) {
        let start = Instant::now();
        while start.elapsed() < self.traffic.work {
            std::hint::spin_loop();
        }
    }
}
