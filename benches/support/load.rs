//! A load on a limiter without HTTP: tasks that send the next check as soon as the previous one is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::latencies::Latencies;

/// A limiter and its keys, which go by numbers.
pub(crate) trait Decide: Send + Sync + 'static {
    /// Whether one unit is admitted. A limiter that fails ends the bench.
    fn decide(&self, key: usize) -> impl Future<Output = bool> + Send;

    /// Rests between two checks of a task, which is not measured. Whether it did.
    fn rest(&self) -> impl Future<Output = bool> + Send {
        async { false }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) tasks: usize,
    pub(crate) keys: usize,
    pub(crate) span: Duration,
}

pub(crate) struct Done {
    pub(crate) decisions: u64,
    pub(crate) admitted: u64,
    pub(crate) elapsed: Duration,
    pub(crate) latencies: Latencies,
}

impl Done {
    pub(crate) fn per_second(&self) -> f64 {
        self.decisions as f64 / self.elapsed.as_secs_f64()
    }
}

/// Where the walk over the keys goes on, so that no run sees only the keys of the one before.
static WALKED: AtomicUsize = AtomicUsize::new(0);

/// Shares no factor with any number of keys here, so that the walk visits all of them, and none is
/// near the one before.
const STRIDE: usize = 611_953;

pub(crate) async fn run<D: Decide>(limiter: &Arc<D>, load: Load) -> Done {
    let first = WALKED.load(Ordering::Relaxed);
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..load.tasks {
        tasks.spawn(ask(Arc::clone(limiter), load, first + task, begin));
    }
    let (mut admitted, mut latencies) = (0, Latencies::new());
    for (of_task, times) in tasks.join_all().await {
        admitted += of_task;
        latencies.add(&times);
    }
    let decisions = latencies.len();
    WALKED.fetch_add(usize::try_from(decisions).unwrap_or(0), Ordering::Relaxed);
    Done {
        decisions,
        admitted,
        elapsed: begin.elapsed(),
        latencies,
    }
}

async fn ask<D: Decide>(
    limiter: Arc<D>,
    load: Load,
    first: usize,
    begin: Instant,
) -> (u64, Latencies) {
    let (mut admitted, mut latencies) = (0, Latencies::new());
    let mut turn = first;
    let mut asked = Instant::now();
    loop {
        let key = turn.wrapping_mul(STRIDE) % load.keys;
        admitted += u64::from(limiter.decide(key).await);
        let answered = Instant::now();
        latencies.record(answered - asked);
        if answered - begin >= load.span {
            return (admitted, latencies);
        }
        asked = match limiter.rest().await {
            true => Instant::now(),
            false => answered,
        };
        turn += load.tasks;
        // A limiter in memory never waits, and would keep the thread from the other tasks.
        tokio::task::coop::consume_budget().await;
    }
}
