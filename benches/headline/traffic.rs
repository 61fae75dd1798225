//! Callers that check at random moments, at a rate that does not depend on the answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::spans::{Admission, Admissions};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Refused,
    Admitted,
    /// Admitted from the units that the process held.
    FromLease,
}

/// A check and its answer. Times are since the traffic began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) key: usize,
    pub(crate) start: Duration,
    pub(crate) end: Duration,
    pub(crate) answer: Answer,
}

impl Call {
    pub(crate) fn is_admitted(&self) -> bool {
        self.answer != Answer::Refused
    }

    pub(crate) fn began_within(&self, from: Duration, until: Duration) -> bool {
        (from..until).contains(&self.start)
    }
}

/// The callers of one process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    /// Checks a second, of all callers together.
    pub(crate) rate: u32,
    /// Enough that a caller rarely waits for an answer when its next check is due.
    pub(crate) callers: u32,
    /// Each check is for a random one of so many keys.
    pub(crate) keys: usize,
    pub(crate) from: Duration,
    pub(crate) until: Duration,
}

impl Traffic {
    /// Starts the callers. They stop at the end of the traffic, and return their calls.
    pub(crate) fn start<F, R>(self, begin: Instant, check: F) -> JoinSet<Vec<Call>>
    where
        F: Fn(usize) -> R + Clone + Send + 'static,
        R: Future<Output = Answer> + Send + 'static,
    {
        let mut callers = JoinSet::new();
        for _ in 0..self.callers {
            callers.spawn(self.call(begin, check.clone(), Random::new()));
        }
        callers
    }

    async fn call<F, R>(self, begin: Instant, check: F, mut random: Random) -> Vec<Call>
    where
        F: Fn(usize) -> R,
        R: Future<Output = Answer>,
    {
        let mean = Duration::from_secs(self.callers.into()) / self.rate;
        let mut due = self.from + mean.mul_f64(random.exponential());
        let mut calls = Vec::new();
        while due < self.until {
            tokio::time::sleep_until((begin + due).into()).await;
            let (key, start) = (random.below(self.keys), begin.elapsed());
            let answer = check(key).await;
            calls.push(Call {
                key,
                start,
                end: begin.elapsed(),
                answer,
            });
            due += mean.mul_f64(random.exponential());
        }
        calls
    }
}

/// Waits for the callers of several processes.
pub(crate) async fn join(processes: Vec<JoinSet<Vec<Call>>>) -> Vec<Call> {
    let mut calls = Vec::new();
    for callers in processes {
        calls.extend(callers.join_all().await.into_iter().flatten());
    }
    calls
}

/// The admissions among the calls, for a limit of a window.
pub(crate) fn admissions<'a>(calls: impl IntoIterator<Item = &'a Call>) -> Admissions {
    let admitted = calls.into_iter().filter(|call| call.is_admitted());
    let admission = |call: &Call| Admission {
        start: call.start,
        end: call.end,
        units: 1,
    };
    Admissions::new(admitted.map(admission).collect())
}

/// A generator for each caller: `SplitMix64`.
struct Random(u64);

impl Random {
    /// One that no other caller of this run has.
    fn new() -> Self {
        static CALLERS: AtomicU64 = AtomicU64::new(1);
        let number = CALLERS.fetch_add(1, Ordering::Relaxed);
        Self(number.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        let bounded = self.next() % (bound as u64);
        usize::try_from(bounded).expect("below a usize")
    }

    /// A time between random events, of which the mean is 1.
    fn exponential(&mut self) -> f64 {
        let part = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        -(1.0 - part).ln()
    }
}
