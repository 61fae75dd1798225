//! The circuit breaker that the limiters of one store share.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use super::breaker::{Breaker, Permit, Transition};
#[cfg(feature = "redis")]
use super::nodes::Nodes;
use super::nodes::{NUMBERS, UNKNOWN};
use super::settings::{Partitions, Settings};
#[cfg(any(feature = "redis", feature = "test-util"))]
use crate::clock::Clock;
#[cfg(feature = "test-util")]
use crate::clock::TestClock;
use crate::error::{Error, ErrorKind};
use crate::store::memory::MemoryCounts;
use crate::store::real_time;
use crate::store::requests::Subject;
use crate::telemetry::{StoreMeter, WaitOutcome};

/// Protects a service from a store that fails or hangs: a deadline, a circuit breaker, and fallback counts.
///
/// - The [`deadline`](Self::deadline) limits how long a check waits for the store.
/// - The circuit breaker stops asking a store that fails, so that checks fail at once. It is described below.
/// - The fallback counts are in the memory of this process, for limiters whose
///   [`FailurePolicy`](crate::FailurePolicy) is to fall back.
///
/// [`RedisStore`](crate::RedisStore) has its own circuit breaker, set by
/// [`RedisStore::deadline`](crate::RedisStore::deadline) and
/// [`RedisStore::fallback_keys`](crate::RedisStore::fallback_keys). Use this type in a store outside this
/// crate: keep one, and return a clone from [`Store::parts`](crate::Store::parts). Clones
/// share their state, so if one limiter finds that the store fails, all limiters of the store know.
///
/// # When it opens and closes
///
/// Errors of the kinds [`Timeout`](ErrorKind::Timeout), [`Unavailable`](ErrorKind::Unavailable) and
/// [`InvalidReply`](ErrorKind::InvalidReply) are failures. A [`QueueTimeout`](ErrorKind::QueueTimeout) tells
/// nothing about the store and is ignored. Other errors, such as a full store or a wrong configuration, are
/// answers and never open the circuit breaker. So is the reply to a call of a [`RedisStore`](crate::RedisStore) that
/// makes no sense for one check only: that check alone fails. It opens
///
/// - after 5 consecutive failures,
/// - when half of at least 20 outcomes in a second are failures,
/// - when 5 callers in a row drop their check without an answer, and together have waited for a whole deadline.
///   A caller that gives up before a quarter of the deadline is not counted.
///
/// While it is open, checks fail at once with [`ErrorKind::Unavailable`], and the store is not asked. After 100
/// to 200 ms, a check triggers a probe: a check of cost 0, which runs in the background inside a tokio runtime.
/// A probe that is answered closes the circuit breaker. After one that fails, the next wait is longer, up to
/// 500 ms. If no check comes for a second, the crate probes with a key of its own, so that the circuit breaker of an
/// idle process closes too. It does so unless the checks that failed were answered at once, or outside a tokio runtime.
///
/// A refusal that the [refusal cache](crate::store::RefusalCache) repeats has no effect on it.
///
/// # Examples
///
/// A remote store with a deadline of 20 ms, whose limiters share a circuit breaker:
///
/// ```
/// use std::time::Duration;
/// use tollgate::store::{Answers, Check, CircuitBreaker, Store, StoreFuture, StoreId, StoreParts};
///
/// struct Remote {
///     id: StoreId,
///     circuit_breaker: CircuitBreaker,
/// }
///
/// impl Remote {
///     fn new() -> Self {
///         let circuit_breaker = CircuitBreaker::new().deadline(Duration::from_millis(20));
///         Self { id: StoreId::unique(), circuit_breaker }
///     }
/// }
///
/// impl Store for Remote {
///     fn id(&self) -> StoreId {
///         self.id
///     }
///
///     fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
///         // …
///         # let _ = checks;
///         # StoreFuture::ready(Ok(Answers::default()))
///     }
///
///     fn parts(&self) -> StoreParts {
///         let mut parts = StoreParts::default();
///         parts.circuit_breaker = self.circuit_breaker.clone();
///         parts
///     }
/// }
/// ```
#[derive(Clone)]
pub struct CircuitBreaker {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    /// The deadline in microseconds, converted once because each check needs it.
    deadline_micros: u64,
    /// One breaker, or on a cluster one for each number of a node.
    breakers: Box<[Breaker]>,
    /// The version of the nodes at which the breakers without slots were reset.
    reset_at: AtomicUsize,
    /// Send probes for the limiters of the store. Probers of limiters that are gone are removed now and then.
    probers: Mutex<Vec<Weak<Prober>>>,
    fallback: OnceLock<MemoryCounts>,
}

/// Sends a probe of a partition in the background.
pub(in crate::store) type Prober = dyn Fn(usize) + Send + Sync;

/// The time between two looks at whether checks probe.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The kind of a request to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Operation {
    Check,
    /// The check that tests whether the store has recovered.
    Probe,
    /// A refund, a credit or a reset. Its wait is not recorded, nor whether its caller gives up.
    Adjust,
}

impl CircuitBreaker {
    /// Creates a circuit breaker with a deadline of 100 ms, and fallback counts for 100 000 keys.
    #[must_use]
    pub fn new() -> Self {
        Self::build(Settings::default())
    }

    fn build(mut settings: Settings) -> Self {
        // Each circuit breaker has its own share in gauges that are summed by name.
        settings.meter = settings.meter.same_name();
        let breakers = std::iter::repeat_with(Breaker::default);
        let count = settings.partitions.as_ref().map_or(1, |_| NUMBERS);
        let deadline_micros = settings.deadline.as_micros();
        Self {
            inner: Arc::new(Inner {
                deadline_micros: u64::try_from(deadline_micros).unwrap_or(u64::MAX),
                breakers: breakers.take(count).collect(),
                reset_at: AtomicUsize::new(0),
                probers: Mutex::default(),
                fallback: OnceLock::new(),
                settings,
            }),
        }
    }

    fn with(&self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = self.inner.settings.clone();
        change(&mut settings);
        Self::build(settings)
    }

    /// Sets the name of the store in metrics and events. The default is `other`.
    ///
    /// A store outside this crate tells its name so. It is the label `store`, and the `source` of the checks that the store
    /// decides as [`Source::Other`](crate::Source::Other). Choose a name that is no other `source`: see
    /// [the guide](crate::guide::monitoring).
    ///
    /// Returns a new circuit breaker, as all settings do.
    #[must_use]
    pub fn name(self, store: &str) -> Self {
        let meter = StoreMeter::new(store);
        self.with(|settings| (settings.name, settings.meter) = (store.into(), meter))
    }

    pub(in crate::store) fn store_name(&self) -> &Arc<str> {
        &self.inner.settings.name
    }

    pub(crate) fn meter(self, meter: StoreMeter) -> Self {
        self.with(|settings| settings.meter = meter)
    }

    /// Sets how long a check waits for the store. The default is 100 ms.
    ///
    /// A check that takes longer fails with an [`Error`] of kind [`ErrorKind::Timeout`]. The deadline applies
    /// only inside a tokio runtime. Unless the store answers at once, the runtime must have its time driver
    /// enabled.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with(|settings| settings.deadline = deadline)
    }

    /// Sets the most keys in the fallback counts. The default is 100 000, as in a
    /// [`MemoryStore`](crate::MemoryStore).
    ///
    /// With 0 there is no fallback: limiters whose policy is to fall back are closed while the store fails.
    #[must_use]
    pub fn fallback_keys(self, keys: usize) -> Self {
        self.with(|settings| settings.fallback_keys = keys)
    }

    /// Uses a clock that a test moves.
    ///
    /// It is the clock of the fallback counts, and of the time that the circuit breaker stays open. The
    /// deadline then follows the time of tokio, which a test can pause. Otherwise it follows the real time.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    #[must_use]
    pub fn with_clock(self, clock: TestClock) -> Self {
        self.clock(Clock::Test(clock))
    }

    #[cfg(any(feature = "redis", feature = "test-util"))]
    pub(crate) fn clock(self, clock: Clock) -> Self {
        self.with(|settings| settings.clock = clock)
    }

    /// Sets the deadline of a store that enforces its own deadline.
    #[cfg(feature = "redis")]
    pub(crate) fn deadline_enforced_by_store(self, deadline: Duration) -> Self {
        self.with(|settings| {
            settings.deadline = deadline;
            settings.store_enforces_deadline = true;
        })
    }

    /// Marks the store as one in the memory of this process. If it is full, a fallback in memory does not help.
    pub(crate) fn in_process(self) -> Self {
        self.with(|settings| {
            settings.fallback_keys = 0;
            settings.is_in_process = true;
        })
    }

    pub(crate) fn is_in_process(&self) -> bool {
        self.inner.settings.is_in_process
    }

    /// Gives each node of a store a breaker of its own. Slots whose node is unknown share one.
    ///
    /// A slot that moves to another node has the breaker of that node from then on.
    #[cfg(feature = "redis")]
    pub(crate) fn of_nodes(
        self,
        nodes: Arc<Nodes>,
        slot_of: impl Fn(Subject<'_>) -> u16 + Send + Sync + 'static,
    ) -> Self {
        let slot_of = Arc::new(slot_of);
        self.with(|settings| settings.partitions = Some(Partitions { nodes, slot_of }))
    }

    /// Returns whether both are clones of one circuit breaker.
    pub(in crate::store) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the fallback counts, and creates them on first use.
    pub(in crate::store) fn fallback(&self) -> Option<&MemoryCounts> {
        let Settings {
            fallback_keys,
            clock,
            meter,
            ..
        } = &self.inner.settings;
        let counts = || MemoryCounts::new(*fallback_keys, clock.clone(), meter.clone());
        (*fallback_keys > 0).then(|| self.inner.fallback.get_or_init(counts))
    }

    /// Returns the fallback counts, if a limiter has ever fallen back.
    pub(in crate::store) fn fallback_if_used(&self) -> Option<&MemoryCounts> {
        self.inner.fallback.get()
    }

    /// Returns the deadline of an answer.
    pub(in crate::store) fn deadline_of_answers(&self) -> Duration {
        self.inner.settings.deadline
    }

    /// Returns whether the store applies the deadline to each call.
    pub(in crate::store) fn store_enforces_deadline(&self) -> bool {
        self.inner.settings.store_enforces_deadline
    }

    /// Waits for calls to the store for at most the deadline, which memory does not need. Outside a tokio runtime there are no
    /// timers.
    pub(in crate::store) async fn within_deadline<T>(
        &self,
        calls: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let deadline = self.inner.settings.deadline;
        let has_test_clock = self.inner.settings.clock.steps_back();
        let outcome = match Handle::try_current() {
            Ok(_) if self.is_in_process() => return calls.await,
            Err(_) => return calls.await,
            Ok(_) if has_test_clock => tokio::time::timeout(deadline, calls).await.ok(),
            Ok(_) => real_time::timeout(deadline, calls).await,
        };
        outcome.unwrap_or_else(|| {
            let text = format!("the store did not answer within {deadline:?}");
            Err(Error::new(ErrorKind::Timeout, text))
        })
    }

    /// Returns the partition of a key, and whether a request for the key may be sent.
    #[inline]
    pub(in crate::store) fn permit(&self, subject: Subject<'_>) -> (usize, Permit) {
        let partition = self.partition_of(subject);
        let permit = match self.inner.breakers.get(partition) {
            Some(breaker) => breaker.permit(self.inner.deadline_micros, || self.now()),
            None => Permit::Ask,
        };
        (partition, permit)
    }

    /// Returns the partition of a key: the number of the node that serves it now.
    #[inline]
    pub(in crate::store) fn partition_of(&self, subject: Subject<'_>) -> usize {
        let Some(Partitions { nodes, slot_of }) = &self.inner.settings.partitions else {
            return UNKNOWN;
        };
        let version = nodes.version();
        if self.inner.reset_at.load(Ordering::Relaxed) != version {
            self.inner.reset_at.store(version, Ordering::Relaxed);
            self.reset_unused();
        }
        nodes.of_slot(slot_of(subject))
    }

    /// Resets the breakers of nodes that serve no slots. Without checks, they would stay open.
    #[cold]
    fn reset_unused(&self) {
        let Some(Partitions { nodes, .. }) = &self.inner.settings.partitions else {
            return;
        };
        for (breaker, is_used) in self.inner.breakers.iter().zip(nodes.used()) {
            if !is_used {
                self.count_transition(breaker.reset());
            }
        }
    }

    pub(crate) fn is_open_at(&self, partition: usize) -> bool {
        let breaker = self.inner.breakers.get(partition);
        breaker.is_some_and(Breaker::is_open)
    }

    /// Returns the error that callers get while a partition is open.
    #[cold]
    pub(in crate::store) fn open_error(&self, partition: usize) -> Error {
        let breaker = self.inner.breakers.get(partition);
        breaker.map_or_else(|| Breaker::default().open_error(), Breaker::open_error)
    }

    #[inline]
    pub(in crate::store) fn now(&self) -> u64 {
        self.inner.settings.clock.now()
    }

    /// Records a check that the store answered at once.
    #[inline]
    pub(in crate::store) fn record_success(&self, partition: usize) {
        if let Some(breaker) = self.inner.breakers.get(partition) {
            breaker.record_success(|| self.now());
        }
    }

    /// Adds what sends probes, for as long as the limiter that owns it exists.
    pub(in crate::store) fn add_prober(&self, prober: &Arc<Prober>) {
        let mut probers = self.probers();
        if probers.len() == probers.capacity() {
            probers.retain(|prober| prober.strong_count() > 0);
        }
        probers.push(Arc::downgrade(prober));
    }

    fn probers(&self) -> MutexGuard<'_, Vec<Weak<Prober>>> {
        let probers = self.inner.probers.lock();
        probers.unwrap_or_else(PoisonError::into_inner)
    }

    /// Probes a partition that has just opened, whenever no check does, until its breaker closes. Otherwise the breaker of
    /// an idle process would stay open, and its gauge would tell of an outage that is over.
    pub(in crate::store) fn probe_while_idle(&self, partition: usize) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let Some(opening) = self.opening(partition) else {
            return;
        };
        let inner = Arc::downgrade(&self.inner);
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(WATCH_INTERVAL).await;
                let Some(inner) = inner.upgrade() else {
                    return;
                };
                let circuit_breaker = Self { inner };
                if circuit_breaker.opening(partition) != Some(opening) {
                    return;
                }
                circuit_breaker.probe_if_overdue(partition);
            }
        });
    }

    fn opening(&self, partition: usize) -> Option<u32> {
        self.inner.breakers.get(partition)?.opening()
    }

    fn probe_if_overdue(&self, partition: usize) {
        let breaker = self.inner.breakers.get(partition);
        if breaker.is_some_and(|breaker| breaker.is_probe_overdue(self.now())) {
            let prober = self.probers().iter().find_map(Weak::upgrade);
            if let Some(prober) = prober {
                prober(partition);
            }
        }
    }

    /// Records the outcome of a request. Returns whether it has opened a breaker.
    pub(in crate::store) fn record(
        &self,
        partition: usize,
        operation: Operation,
        outcome: Result<(), &Error>,
    ) -> bool {
        if let Err(error) = &outcome {
            self.inner.settings.meter.record_error(error.kind());
        }
        let Some(breaker) = self.inner.breakers.get(partition) else {
            return false;
        };
        // A check that waited in this process tells nothing about the store. The next caller probes instead.
        let is_unasked = outcome.is_err_and(|error| error.kind() == ErrorKind::QueueTimeout);
        if is_unasked {
            if operation == Operation::Probe {
                self.count_transition(breaker.record_probe(self.now(), None));
            }
            return false;
        }
        // Any other error is an answer of the store.
        let failure = outcome.err().filter(|error| is_failure(error));
        let transition = match (operation, failure) {
            (Operation::Probe, failure) => {
                breaker.record_probe(self.now(), Some(failure.map_or(Ok(()), Err)))
            }
            (_, Some(error)) => breaker.record_failure(self.now(), error),
            (_, None) => {
                breaker.record_success(|| self.now());
                None
            }
        };
        self.count_transition(transition)
    }

    /// Records a request that started at `started_at` and whose caller gave up. Returns whether it has opened a breaker.
    pub(in crate::store) fn record_abandoned(
        &self,
        partition: usize,
        operation: Operation,
        started_at: u64,
    ) -> bool {
        let Some(breaker) = self.inner.breakers.get(partition) else {
            return false;
        };
        let now = self.now();
        let transition = match operation {
            Operation::Check => {
                breaker.record_abandoned(started_at, now, self.inner.deadline_micros)
            }
            Operation::Probe => breaker.record_probe(now, None),
            Operation::Adjust => None,
        };
        self.count_transition(transition)
    }

    /// Records how long a caller has waited since `started_at`, and how the wait ended.
    pub(in crate::store) fn record_wait(&self, started_at: u64, outcome: WaitOutcome) {
        let waited = self.now().saturating_sub(started_at);
        self.inner
            .settings
            .meter
            .record_duration(Duration::from_micros(waited), outcome);
    }

    /// Counts a change in metrics. Returns whether a breaker has opened.
    fn count_transition(&self, transition: Option<Transition>) -> bool {
        let meter = &self.inner.settings.meter;
        match transition {
            None => {}
            Some(Transition::Opened) => {
                meter.record_breaker_opened();
                // The failed call may be older than a failover.
                self.reset_unused();
            }
            Some(Transition::Closed) => meter.record_breaker_closed(),
        }
        transition == Some(Transition::Opened)
    }
}

/// Returns whether the store or the connection failed. Other errors are answers of the store.
fn is_failure(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::InvalidReply
    ) && !error.is_of_one_check()
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for CircuitBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings {
            deadline,
            fallback_keys,
            ..
        } = &self.inner.settings;
        f.debug_struct("CircuitBreaker")
            .field("deadline", deadline)
            .field("fallback_keys", fallback_keys)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::quota::Quotas;

    /// A circuit breaker whose keys are the numbers of their slots.
    fn of_nodes(nodes: &Arc<Nodes>) -> CircuitBreaker {
        let slot_of = |subject: Subject<'_>| subject.key.as_str().parse().unwrap();
        CircuitBreaker::new().of_nodes(Arc::clone(nodes), slot_of)
    }

    fn with_subject<T>(slot: u16, run: impl FnOnce(Subject<'_>) -> T) -> T {
        let (limiter, key) = (Key::from("l"), Key::from(slot.to_string()));
        let quotas = Quotas::from([]);
        run(Subject::new(&limiter, &key, &quotas))
    }

    fn partition(breaker: &CircuitBreaker, slot: u16) -> usize {
        with_subject(slot, |subject| breaker.partition_of(subject))
    }

    fn is_open(breaker: &CircuitBreaker, slot: u16) -> bool {
        breaker.is_open_at(partition(breaker, slot))
    }

    /// Five requests that were sent to a partition fail.
    fn fail(breaker: &CircuitBreaker, partition: usize) {
        for _ in 0..5 {
            let error = Error::new(ErrorKind::Timeout, "too late");
            breaker.record(partition, Operation::Check, Err(&error));
        }
    }

    #[test]
    fn the_failures_of_a_node_open_the_breaker_of_all_its_slots_and_of_no_other() {
        let nodes = Arc::new(Nodes::new(100));
        nodes.replace([(&(0..=49), "a", 1), (&(50..=99), "b", 1)]);
        let breaker = of_nodes(&nodes);
        fail(&breaker, partition(&breaker, 49));
        let open = [0, 49, 50, 99].map(|slot| is_open(&breaker, slot));
        assert_eq!(open, [true, true, false, false]);
        // A slot that moves has the breaker of its new node at once.
        nodes.set(49, "b", 1);
        let open = [48, 49].map(|slot| is_open(&breaker, slot));
        assert_eq!(open, [true, false]);
    }

    #[test]
    fn slots_whose_nodes_are_unknown_share_a_breaker_until_they_are_known() {
        let nodes = Arc::new(Nodes::new(100));
        let breaker = of_nodes(&nodes);
        fail(&breaker, partition(&breaker, 7));
        assert!(is_open(&breaker, 7) && is_open(&breaker, 70));
        nodes.replace([(&(0..=99), "a", 1)]);
        assert!(!is_open(&breaker, 7) && !is_open(&breaker, 70));
        assert!(!breaker.is_open_at(UNKNOWN));
    }

    #[test]
    fn a_node_that_serves_nothing_any_more_has_a_closed_breaker_also_after_late_failures() {
        let nodes = Arc::new(Nodes::new(100));
        nodes.replace([(&(0..=99), "master", 1)]);
        let breaker = of_nodes(&nodes);
        let lost = partition(&breaker, 0);
        fail(&breaker, lost);
        assert!(breaker.is_open_at(lost));
        nodes.replace([(&(0..=99), "replica", 1)]);
        assert!(!is_open(&breaker, 0) && !breaker.is_open_at(lost));
        // These requests were sent before.
        fail(&breaker, lost);
        assert!(!breaker.is_open_at(lost));
        nodes.replace([(&(0..=99), "master", 1)]);
        assert!(partition(&breaker, 0) == lost && !is_open(&breaker, 0));
    }

    #[test]
    fn limiters_that_are_gone_leave_no_probers() {
        let breaker = CircuitBreaker::new();
        let prober = || -> Arc<Prober> { Arc::new(|_| {}) };
        let kept: Vec<_> = (0..10).map(|_| prober()).collect();
        kept.iter().for_each(|prober| breaker.add_prober(prober));
        for _ in 0..10_000 {
            breaker.add_prober(&prober());
        }
        let probers = breaker.probers();
        assert!(probers.len() <= 32, "{}", probers.len());
        let alive = probers.iter().filter_map(Weak::upgrade);
        assert_eq!(alive.count(), kept.len());
    }

    #[test]
    fn a_breaker_without_nodes_is_one_for_all_keys() {
        let breaker = CircuitBreaker::new();
        fail(&breaker, partition(&breaker, 7));
        assert!(is_open(&breaker, 70));
    }
}
