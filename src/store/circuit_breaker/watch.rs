//! The watch over a store that has failed, which goes on while no check asks the store: it probes, and ends the outages in the
//! log.

use std::mem;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::lock::Mutex;
use crate::telemetry::OutageLog;

/// The outages of a store in the logs of its limiters, and the task that watches over the store. Dropped with the circuit
/// breaker, which the task does not keep.
#[derive(Default)]
pub(super) struct Watch(Mutex<WatchState>);

#[derive(Default)]
struct WatchState {
    outages: Vec<LoggedOutage>,
    task: JoinSet<()>,
}

/// An outage in the log of a limiter.
struct LoggedOutage {
    log: Weak<OutageLog>,
    limiter: Arc<str>,
}

/// The next step of a watch.
pub(super) enum WatchStep {
    Wait(Duration),
    Probe,
    /// The store works, and no outage is left.
    End,
}

impl Watch {
    /// Starts the task in the runtime of the caller, unless it runs in one that is alive.
    pub(super) fn start(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut state = self.0.lock();
        while state.task.try_join_next().is_some() {}
        if state.task.is_empty() {
            state.task.spawn(task);
        }
    }

    pub(super) fn add(&self, log: &Arc<OutageLog>, limiter: &Arc<str>) {
        let mut state = self.0.lock();
        state.outages.retain(|outage| {
            let is_other = outage.log.as_ptr() != Arc::as_ptr(log);
            is_other && outage.log.strong_count() > 0
        });
        state.outages.push(LoggedOutage {
            log: Arc::downgrade(log),
            limiter: Arc::clone(limiter),
        });
    }

    /// Returns the next step. `until_probe` is the time until an open circuit breaker wants a probe.
    ///
    /// The task ends in the same step: whatever fails later starts another one.
    pub(super) fn next_step(&self, until_probe: impl FnOnce() -> Option<Duration>) -> WatchStep {
        let mut state = self.0.lock();
        let left = until_probe().or_else(|| {
            state
                .outages
                .retain(|outage| outage.until_quiet().is_some());
            state
                .outages
                .iter()
                .filter_map(LoggedOutage::until_quiet)
                .min()
        });
        match left {
            Some(Duration::ZERO) => WatchStep::Probe,
            Some(left) => WatchStep::Wait(left),
            None => {
                state.task.detach_all();
                WatchStep::End
            }
        }
    }

    pub(super) fn end_outages(&self) {
        let outages = mem::take(&mut self.0.lock().outages);
        for LoggedOutage { log, limiter } in &outages {
            if let Some(log) = log.upgrade() {
                log.record_probe(limiter);
            }
        }
        self.0.lock().outages.extend(outages);
    }
}

impl LoggedOutage {
    /// Returns the time until the outage is over if nothing fails. `None` if it is over, or if only a check can tell.
    fn until_quiet(&self) -> Option<Duration> {
        self.log.upgrade()?.until_quiet()
    }
}
