//! Threads that check one key as fast as they can, and refund some of it.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use proptest::prelude::RngExt;
use proptest::test_runner::{RngAlgorithm, TestRng};
use tollgate::store::Store;
use tollgate::{Algorithm, Decision, Quota, RateLimiter};

use crate::spans::{Admission, Admissions};

/// The traffic of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    pub(crate) threads: usize,
    /// The limits of the key: the threads take them in turn.
    pub(crate) limits: &'static [u32],
    pub(crate) window: Duration,
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

    /// Runs all threads against a store. `wait` makes what waits for its answers.
    pub(crate) fn run<S, W>(&self, algorithm: Algorithm, store: &S, wait: fn() -> W) -> Outcome
    where
        S: Store + Clone,
        W: Wait,
    {
        let barrier = Barrier::new(self.threads);
        let origin = Instant::now();
        let (mut admissions, mut refused) = (Vec::new(), 0);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let limit = self.limits[thread % self.limits.len()];
                    let quota = Quota::new(limit, self.window).algorithm(algorithm);
                    let asking = Asking {
                        traffic: self,
                        limiter: RateLimiter::new(store.clone(), quota).name("contended"),
                        origin,
                        wait: wait(),
                        random: random(thread),
                        most_cost: limit.min(3),
                        rests: limit == self.limit(),
                    };
                    let barrier = &barrier;
                    scope.spawn(move || {
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

/// How a thread waits for an answer.
pub(crate) trait Wait: Send {
    fn wait<T>(&self, future: impl Future<Output = T>) -> T;
}

fn random(seed: usize) -> TestRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

/// One thread.
struct Asking<'a, W> {
    traffic: &'a Traffic,
    limiter: RateLimiter,
    origin: Instant,
    wait: W,
    random: TestRng,
    most_cost: u32,
    rests: bool,
}

impl<W: Wait> Asking<'_, W> {
    /// Asks until the time is over. Units that were given back are not admitted.
    fn ask(mut self) -> (Vec<Admission>, u64) {
        let (mut admissions, mut refused) = (Vec::new(), 0);
        // Decisions that hold units which may be given back, and which admission each is.
        let mut open: Vec<(Decision, usize)> = Vec::new();
        let end = self.origin.elapsed() + self.traffic.duration;
        loop {
            let start = self.origin.elapsed();
            if start >= end {
                return (admissions, refused);
            }
            let units = self.random.random_range(1..=self.most_cost);
            let decision = self.wait.wait(self.limiter.check_n("ada", units));
            let decision = decision.expect("an answer");
            if decision.is_allowed() {
                let end = self.origin.elapsed();
                open.push((decision, admissions.len()));
                admissions.push(Admission { start, end, units });
            } else {
                refused += 1;
                if self.rests {
                    std::thread::sleep(self.traffic.rest);
                }
            }
            if self.traffic.refunds && !open.is_empty() && self.random.random_bool(0.3) {
                let (mut decision, index) =
                    open.swap_remove(self.random.random_range(0..open.len()));
                let units = self.random.random_range(1..=decision.held());
                let refunded = self.wait.wait(self.limiter.refund(&mut decision, units));
                refunded.expect("a refund");
                admissions[index].units -= units;
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
