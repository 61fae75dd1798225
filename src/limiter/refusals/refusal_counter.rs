//! Counts the refusals of a limiter and sends them to the store.
//!
//! Refusals are joined by key. They are sent at once if none were sent in the last second, and otherwise together,
//! once a second. So a client that is refused a thousand times a second costs a remote store one call a second. A store
//! that answers at once, such as one in memory, counts each refusal on its own.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::pending::{PendingRefusals, RefusedOften};
use crate::clock::{Clock, micros};
use crate::error::{Error, ErrorKind};
use crate::key::{Fingerprint, HashFingerprint, Key};
use crate::quota::BlockRule;
use crate::store::{ProtectedStore, RefusalOutcome, Refusals, StoreFuture};
use crate::telemetry::Telemetry;

/// The shortest time between two calls of a store that does not answer at once.
const INTERVAL: Duration = Duration::from_secs(1);

/// The failures in a row after which a warning is logged.
const FAILURES_BEFORE_WARNING: u32 = 3;

/// The time between two warnings that the block list is full, in microseconds.
const WARNING_INTERVAL: u64 = 60_000_000;

/// The most blocked keys whose waits are known. When there are more, the least used are forgotten.
const MAX_WAITS: usize = 10_000;

/// The refusals of one limiter. Clones of the limiter share them.
pub(in crate::limiter) struct RefusalCounter {
    rule: BlockRule,
    limiter: Key,
    store: ProtectedStore,
    telemetry: Arc<Telemetry>,
    clock: Clock,
    pending: PendingRefusals,
    /// The times until which the quotas refuse blocked keys, so that a client is told the later of both ends.
    refused_until: Cache<Fingerprint, u64, UnitWeighter, HashFingerprint>,
    /// Whether a thread or a task sends.
    is_sending: Arc<AtomicBool>,
    /// The calls in a row that failed.
    failures: AtomicU32,
    /// The time of the next warning that the block list is full.
    next_warning_at: AtomicU64,
}

/// Refusals that were sent, and the future of their outcomes.
struct Sent {
    refused: Vec<RefusedOften>,
    future: StoreFuture<Vec<RefusalOutcome>>,
}

/// The result of an attempt to send.
enum Attempt {
    /// The store has answered at once.
    Done,
    Pending(Sent),
    /// Nothing was sent, because the store fails.
    Failing,
}

impl RefusalCounter {
    pub(in crate::limiter) fn new(
        rule: BlockRule,
        store: &ProtectedStore,
        clock: Clock,
        limiter: &Key,
        telemetry: &Arc<Telemetry>,
    ) -> Arc<Self> {
        Arc::new(Self {
            rule,
            limiter: limiter.clone(),
            store: store.clone(),
            telemetry: Arc::clone(telemetry),
            clock,
            pending: PendingRefusals::new(rule.within_micros()),
            refused_until: Cache::with(
                0,
                MAX_WAITS as u64,
                UnitWeighter,
                HashFingerprint::default(),
                DefaultLifecycle::default(),
            ),
            is_sending: Arc::default(),
            failures: AtomicU32::new(0),
            next_warning_at: AtomicU64::new(0),
        })
    }

    pub(in crate::limiter) fn rule(&self) -> BlockRule {
        self.rule
    }

    /// Counts a refusal of a key with this wait.
    pub(super) fn count(self: &Arc<Self>, key: &Key, wait: Duration) {
        let now = self.clock.now();
        self.pending.add(key, now, now.saturating_add(micros(wait)));
        self.send_unless_sending(now);
    }

    /// Returns how long the quotas would go on to refuse a blocked key, by its refusals in this process.
    pub(in crate::limiter) fn wait_of(&self, key: &Key) -> Duration {
        let refused_until = self.refused_until.get(&key.fingerprint());
        let wait = refused_until.map(|until| until.saturating_sub(self.clock.now()));
        Duration::from_micros(wait.unwrap_or_default())
    }

    /// Forgets how long the quotas refuse a key, because an operator changes its counts or its block.
    pub(in crate::limiter) fn forget_wait(&self, key: &Key) {
        self.refused_until.remove(&key.fingerprint());
    }

    /// Sends pending refusals, unless a thread or a task does. If the store does not answer at once, a task goes on.
    fn send_unless_sending(self: &Arc<Self>, now: u64) {
        while !self.pending.is_empty() && self.begin_sending() {
            let sending = Sending(Arc::clone(&self.is_sending));
            let attempt = self.attempt(now);
            if matches!(attempt, Attempt::Done) {
                // Another thread may have left refusals to this one.
                drop(sending);
                continue;
            }
            // Without a runtime, the next refusal tries again.
            if let Ok(runtime) = Handle::try_current() {
                runtime.spawn(send_every_second(Arc::downgrade(self), attempt, sending));
            }
            return;
        }
    }

    /// Returns whether no other thread or task is sending.
    fn begin_sending(&self) -> bool {
        !self.is_sending.load(Ordering::Relaxed) && !self.is_sending.swap(true, Ordering::AcqRel)
    }

    /// Sends all pending refusals.
    fn attempt(&self, now: u64) -> Attempt {
        let Some(first) = self.pending.first_key(now) else {
            return Attempt::Done;
        };
        if self.store.is_failing(&self.limiter, &first) {
            return Attempt::Failing;
        }
        let refused = self.pending.take(now);
        let refusals: Vec<_> = refused
            .iter()
            .map(|refused| {
                let age = Duration::from_micros(now.saturating_sub(refused.first_at));
                Refusals::new(&self.limiter, &refused.key, &self.rule, refused.count).aged(age)
            })
            .collect();
        match self.store.count_refusals(&refusals).try_ready() {
            Ok(outcomes) => {
                self.finish(&refused, outcomes);
                Attempt::Done
            }
            Err(future) => Attempt::Pending(Sent { refused, future }),
        }
    }

    /// Records what the store made of refusals. If it failed, it may have counted them, so they are not sent again.
    fn finish(&self, refused: &[RefusedOften], outcomes: Result<Vec<RefusalOutcome>, Error>) {
        match outcomes {
            Ok(outcomes) => {
                self.record_success();
                self.telemetry.record_blocks(0);
                for (refused, outcome) in refused.iter().zip(outcomes) {
                    self.record(refused, outcome);
                }
            }
            Err(error) => self.record_failure(&error),
        }
    }

    fn record(&self, refused: &RefusedOften, outcome: RefusalOutcome) {
        let RefusedOften {
            key, refused_until, ..
        } = refused;
        let note_wait = || self.refused_until.insert(key.fingerprint(), *refused_until);
        match outcome {
            RefusalOutcome::Counted => {}
            RefusalOutcome::StillBlocked { .. } => note_wait(),
            RefusalOutcome::Blocked { duration, blocks } => {
                note_wait();
                self.telemetry.record_blocks(1);
                self.telemetry.log_block(key, duration, blocks);
            }
            RefusalOutcome::NoRoom => self.warn_of_full_list(),
        }
    }

    fn warn_of_full_list(&self) {
        let (now, due_at) = (
            self.clock.now(),
            self.next_warning_at.load(Ordering::Relaxed),
        );
        if now < due_at {
            return;
        }
        self.next_warning_at
            .store(now.saturating_add(WARNING_INTERVAL), Ordering::Relaxed);
        tracing::warn!(
            target: "tollgate::diagnostics",
            limiter = self.limiter.as_str(),
            "cannot block a key that was refused too often: the limiter or the store has no room for more automatic blocks; \
             unblock keys, or block after more refusals"
        );
    }

    fn record_failure(&self, error: &Error) {
        let failures = self
            .failures
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        let is_lasting = matches!(
            error.kind(),
            ErrorKind::Unsupported | ErrorKind::Misconfigured
        );
        let logged_at = if is_lasting {
            1
        } else {
            FAILURES_BEFORE_WARNING
        };
        if failures == logged_at {
            tracing::warn!(
                target: "tollgate::diagnostics",
                limiter = self.limiter.as_str(),
                "failed to count refusals, so no key is blocked automatically: {error}"
            );
        }
    }

    fn record_success(&self) {
        if self.failures.swap(0, Ordering::Relaxed) >= FAILURES_BEFORE_WARNING {
            tracing::info!(
                target: "tollgate::diagnostics",
                limiter = self.limiter.as_str(),
                "refusals are counted again"
            );
        }
    }
}

/// Sends what is pending once a second, until nothing is or the limiter is gone.
async fn send_every_second(counter: Weak<RefusalCounter>, mut attempt: Attempt, sending: Sending) {
    loop {
        if let Attempt::Pending(Sent { refused, future }) = attempt {
            let outcomes = future.await;
            let Some(counter) = counter.upgrade() else {
                return;
            };
            counter.finish(&refused, outcomes);
        }
        sleep(INTERVAL).await;
        let Some(counter) = counter.upgrade() else {
            return;
        };
        let now = counter.clock.now();
        if counter.pending.is_empty() {
            drop(sending);
            // A refusal that came just before has left the sending to this task.
            counter.send_unless_sending(now);
            return;
        }
        attempt = counter.attempt(now);
    }
}

/// Marks a thread or a task as sending until it ends, or its runtime shuts down.
struct Sending(Arc<AtomicBool>);

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
