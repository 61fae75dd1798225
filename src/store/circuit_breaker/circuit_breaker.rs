//! The circuit breaker that the limiters of one store share.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::breaker::{Admission, Breaker, Transition};
use super::watch::{Watch, WatchStep};
#[cfg(feature = "test-util")]
use crate::clock::TestClock;
use crate::clock::{Clock, micros};
use crate::error::{Error, ErrorKind};
use crate::runtime::is_in_runtime;
use crate::store::memory::{DEFAULT_MAX_KEYS, MemoryCounts};
use crate::store::real_time::{Deadline, Late};
use crate::telemetry::{OutageLog, StoreMeter, WaitOutcome};

/// Protects a service from a store that fails or hangs: a deadline, a circuit breaker, and fallback counts.
///
/// - The [`deadline`](Self::deadline) limits how long a check waits for the store.
/// - The circuit breaker stops asking a store that fails, so that checks fail at once. It is described below.
/// - The fallback counts are in the memory of this process, for limiters whose
///   [`FailurePolicy`](crate::FailurePolicy) is to fall back.
///
/// [`RedisStore`](crate::RedisStore) has its own circuit breakers, set by
/// [`RedisStore::deadline`](crate::RedisStore::deadline). Use this type in a store outside this
/// crate: keep one, and return a clone from [`Store::parts`](crate::Store::parts). Clones
/// share their state, so if one limiter finds that the store fails, all limiters of the store know. A store of several
/// servers that fail alone keeps one for each: see [`Store::circuit_breaker`](crate::Store::circuit_breaker).
///
/// # Calls
///
/// By default, each check is a call to the store: limiters apply the deadline to it and record its outcome. A store that
/// sends many checks in one call may know better: it [records](Self::recorded_by_store) its calls itself.
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
/// - unless the store records its calls: when 5 callers in a row drop their check without an answer, and together have waited for a whole deadline.
///   A caller that gives up before a quarter of the deadline is not counted.
///
/// While it is open, checks fail at once with [`ErrorKind::Unavailable`], and the store is not asked. After 100
/// to 200 ms, a check triggers a probe: a check of cost 0, which runs in the background inside a tokio runtime.
/// A probe that is answered closes the circuit breaker. After one that fails, the next wait is longer, up to
/// 500 ms. If no check comes for another 100 ms, the circuit breaker asks the store itself, if the store has
/// [said how](Self::probed_by). Otherwise it stays open until the next check, also in an idle process.
///
/// A refusal that the [refusal cache](crate::store::protocol::RefusalCache) repeats has no effect on it.
#[derive(Clone)]
pub struct CircuitBreaker {
    inner: Arc<BreakerInner>,
}

struct BreakerInner {
    settings: BreakerSettings,
    breaker: Breaker,
    fallback: OnceLock<MemoryCounts>,
    watch: Watch,
}

/// The same as for Redis: about a hundred times a call to a healthy server in the same network, and too short
/// for people to notice.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(in crate::store) struct BreakerSettings {
    /// The name of a store outside this crate. A store of this crate only names its meter.
    pub(in crate::store) name: Arc<str>,
    meter: StoreMeter,
    clock: Clock,
    pub(in crate::store) deadline: Duration,
    /// Whether the store applies the deadline and records its calls itself.
    pub(in crate::store) recorded_by_store: bool,
    fallback_keys: usize,
    /// Whether the store is the memory of this process.
    pub(in crate::store) is_in_process: bool,
    /// Asks the server while no check does.
    probe: Option<Arc<StoreProbe>>,
}

/// Boxed, so that this file does not know [`StoreFuture`](crate::store::StoreFuture), which records its end here.
type StoreProbe = dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> + Send + Sync;

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            name: "other".into(),
            meter: StoreMeter::unnamed(),
            clock: Clock::monotonic(),
            deadline: DEFAULT_DEADLINE,
            recorded_by_store: false,
            fallback_keys: DEFAULT_MAX_KEYS,
            is_in_process: false,
            probe: None,
        }
    }
}

/// The longest time between two looks at whether a probe is overdue: a check may have sent one that has failed since.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// The time between two probes while the circuit breaker is closed and an outage in the log may be over.
const OUTAGE_INTERVAL: Duration = Duration::from_secs(1);

impl CircuitBreaker {
    /// Creates a circuit breaker with a deadline of 100 ms, and fallback counts for 100 000 keys.
    #[must_use]
    pub fn new() -> Self {
        Self::build(BreakerSettings::default())
    }

    fn build(mut settings: BreakerSettings) -> Self {
        // Each circuit breaker has its own share in gauges that are summed by name.
        settings.meter = settings.meter.same_name();
        Self {
            inner: Arc::new(BreakerInner {
                breaker: Breaker::default(),
                fallback: OnceLock::new(),
                watch: Watch::default(),
                settings,
            }),
        }
    }

    fn with(&self, change: impl FnOnce(&mut BreakerSettings)) -> Self {
        let mut settings = self.inner.settings.clone();
        change(&mut settings);
        Self::build(settings)
    }

    #[cfg(feature = "redis")]
    pub(crate) fn another(&self) -> Self {
        self.with(|_| ())
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

    pub(crate) fn meter(self, meter: StoreMeter) -> Self {
        self.with(|settings| settings.meter = meter)
    }

    /// Sets how long a check waits for the store. The default is 100 ms.
    ///
    /// A check that takes longer fails with an [`Error`] of kind [`ErrorKind::Timeout`]. Only the time in which this process
    /// runs counts, as in [`store::timeout`](crate::store::protocol::timeout). The deadline applies only inside a tokio runtime. Unless
    /// the store answers at once, the runtime must have its time driver enabled.
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

    /// Leaves the deadline to the store, which then [records](Self::record) each of its calls.
    ///
    /// For a store that sends many checks in one call: an error of the call then counts once, and an answer too. The store
    /// applies the [`deadline`](Self::deadline) to each check itself. It waits for each call until its end, also for callers
    /// that gave up, so that a server that hangs is noticed. By default, limiters do both for each check.
    #[must_use]
    pub fn recorded_by_store(self) -> Self {
        self.with(|settings| settings.recorded_by_store = true)
    }

    /// Sets what asks the server after a failure while no check comes. By default, nothing does: the circuit breaker of an
    /// idle process then stays open until the next check, and the log tells of an outage until then.
    ///
    /// A cheap request without a key, such as PING or `SELECT 1`. If it succeeds, the circuit breaker closes, and the
    /// [log](crate::guide::failures#log-lines) and the [gauge](crate::guide::monitoring) no longer tell of an outage. It is
    /// called in the tokio runtime in which a call failed, at most once in 100 ms, and may take as long as the deadline.
    ///
    /// The circuit breaker keeps the closure. So the closure must not keep the circuit breaker.
    #[must_use]
    pub fn probed_by<F>(self, probe: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        self.with(|settings| settings.probe = Some(Arc::new(move || Box::pin(probe()))))
    }

    /// Marks the store as one in the memory of this process. If it is full, a fallback in memory does not help.
    pub(crate) fn in_process(self) -> Self {
        self.with(|settings| {
            settings.fallback_keys = 0;
            settings.is_in_process = true;
        })
    }

    pub(in crate::store) fn settings(&self) -> &BreakerSettings {
        &self.inner.settings
    }

    /// Creates the counts on first use.
    pub(in crate::store) fn fallback(&self) -> Option<&MemoryCounts> {
        let settings = &self.inner.settings;
        if settings.fallback_keys == 0 {
            return None;
        }
        let counts = self.inner.fallback.get_or_init(|| {
            MemoryCounts::new(
                settings.fallback_keys,
                settings.clock.clone(),
                settings.meter.clone(),
            )
        });
        Some(counts)
    }

    pub(in crate::store) fn fallback_if_used(&self) -> Option<&MemoryCounts> {
        self.inner.fallback.get()
    }

    /// Waits for calls to the store for at most the deadline, which memory does not need. Outside a tokio runtime there are no
    /// timers.
    pub(in crate::store) async fn within_deadline<T>(
        &self,
        calls: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let deadline = self.inner.settings.deadline;
        if self.inner.settings.is_in_process || !is_in_runtime() {
            return calls.await;
        }
        let has_test_clock = self.inner.settings.clock.steps_back();
        let outcome = if has_test_clock {
            tokio::time::timeout(deadline, calls)
                .await
                .map_err(|_| None)
        } else {
            Deadline::new(deadline)
                .wait(calls)
                .await
                .map_err(|late| late.standstill_within(deadline))
        };
        outcome.unwrap_or_else(|standstill| {
            let text = match standstill {
                Some(standstill) => format!(
                    "the store did not answer within {deadline:?}, and {standstill}: {}",
                    Late::NEEDS_CPU
                ),
                None => format!("the store did not answer within {deadline:?}"),
            };
            Err(Error::new(ErrorKind::Timeout, text))
        })
    }

    /// Returns a number that no other circuit breaker has at the same time.
    pub(in crate::store) fn number(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    #[inline]
    pub(in crate::store) fn admit(&self) -> Admission {
        let breaker = &self.inner.breaker;
        breaker.admit(micros(self.inner.settings.deadline), || self.now())
    }

    #[inline]
    pub(in crate::store) fn is_open(&self) -> bool {
        self.inner.breaker.is_open()
    }

    #[cfg(feature = "redis")]
    pub(in crate::store) fn is_calm(&self) -> bool {
        self.inner.breaker.is_calm()
    }

    #[cold]
    pub(in crate::store) fn open_error(&self) -> Error {
        self.inner.breaker.open_error()
    }

    #[inline]
    pub(in crate::store) fn now(&self) -> u64 {
        self.inner.settings.clock.now()
    }

    /// Records the outcome of a call: for a store that [records](Self::recorded_by_store) its calls.
    ///
    /// The kind of an error decides whether it is a failure: see [above](Self#when-it-opens-and-closes). An error that is
    /// recorded several times, as a clone, counts once.
    pub fn record(&self, outcome: Result<(), &Error>) {
        let breaker = &self.inner.breaker;
        match store_outcome(outcome) {
            Some(Err(error)) => self.take_in(breaker.record_failure(self.now(), error)),
            Some(Ok(())) => breaker.record_success(|| self.now()),
            None => {}
        }
    }

    /// Returns whether the store or the connection failed. Other errors are answers of the store.
    pub(in crate::store) fn is_failure(error: &Error) -> bool {
        use ErrorKind::{InvalidReply, Timeout, Unavailable};
        matches!(error.kind(), Timeout | Unavailable | InvalidReply) && !error.concerns_one_check()
    }

    pub(in crate::store) fn record_check(&self, outcome: Result<(), &Error>, is_probe: bool) {
        if let Err(error) = outcome {
            self.inner.settings.meter.record_error(error.kind());
        }
        if is_probe {
            let outcome = store_outcome(outcome);
            self.take_in(self.inner.breaker.record_probe(self.now(), outcome));
            if self.is_open() {
                // The runtime of the watch may have ended.
                self.watch();
            }
        } else if !self.inner.settings.recorded_by_store {
            self.record(outcome);
        }
    }

    #[inline]
    pub(in crate::store) fn record_success(&self) {
        self.inner.breaker.record_success(|| self.now());
    }

    pub(in crate::store) fn record_abandoned(&self, started_at: u64, is_probe: bool) {
        let breaker = &self.inner.breaker;
        let now = self.now();
        if is_probe {
            self.take_in(breaker.record_probe(now, None));
        } else if !self.inner.settings.recorded_by_store {
            let deadline = micros(self.inner.settings.deadline);
            self.take_in(breaker.record_abandoned(started_at, now, deadline));
        }
    }

    pub(in crate::store) fn record_wait(&self, started_at: u64, outcome: WaitOutcome) {
        let waited = Duration::from_micros(self.now().saturating_sub(started_at));
        self.inner.settings.meter.record_duration(waited, outcome);
    }

    fn take_in(&self, transition: Option<Transition>) {
        let meter = &self.inner.settings.meter;
        match transition {
            None => {}
            Some(Transition::Opened) => {
                meter.record_breaker_opened();
                self.watch();
            }
            Some(Transition::Closed) => meter.record_breaker_closed(),
        }
    }

    #[cold]
    pub(in crate::store) fn watch_outage(&self, log: &Arc<OutageLog>, limiter: &Arc<str>) {
        if self.inner.settings.probe.is_some() {
            self.inner.watch.add(log, limiter);
            self.watch();
        }
    }

    /// Starts a task that probes whenever no check does, until the breaker is closed and no outage is left. Otherwise the
    /// breaker of an idle process would stay open, and the log and the gauge would tell of an outage that is over.
    fn watch(&self) {
        let probe = self.inner.settings.probe.as_ref();
        if let Some(probe) = probe
            && is_in_runtime()
        {
            let watching = watch(Arc::downgrade(&self.inner), Arc::downgrade(probe));
            self.inner.watch.start(watching);
        }
    }

    /// Takes the next step of the watch. Returns the time until the one after it; `None` at the end.
    async fn step(&self, probe: &StoreProbe) -> Option<Duration> {
        let next = self.inner.watch.next_step(|| {
            let overdue = self.inner.breaker.until_overdue(self.now())?;
            Some(Duration::from_micros(overdue).min(WATCH_INTERVAL))
        });
        match next {
            WatchStep::End => return None,
            WatchStep::Wait(wait) => return Some(wait),
            WatchStep::Probe => {}
        }
        let was_open = self.is_open();
        if was_open && self.admit() != Admission::Probe {
            return Some(WATCH_INTERVAL);
        }
        let outcome = self.within_deadline(probe()).await;
        if was_open {
            self.record_check(outcome.as_ref().map(drop), true);
        }
        if outcome.is_ok() {
            self.inner.watch.end_outages();
        }
        if was_open {
            Some(Duration::ZERO)
        } else {
            Some(OUTAGE_INTERVAL)
        }
    }
}

async fn watch(inner: Weak<BreakerInner>, probe: Weak<StoreProbe>) {
    loop {
        let wait = {
            let Some(inner) = inner.upgrade() else { return };
            let Some(probe) = probe.upgrade() else { return };
            CircuitBreaker { inner }.step(&*probe).await
        };
        match wait {
            Some(wait) => tokio::time::sleep(wait).await,
            None => return,
        }
    }
}

/// The outcome of a call as the store sees it: only its failures are errors. `None` if the store was not asked: the
/// call waited in this process.
fn store_outcome(outcome: Result<(), &Error>) -> Option<Result<(), &Error>> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::QueueTimeout => None,
        Err(error) if CircuitBreaker::is_failure(error) => Some(Err(error)),
        Ok(()) | Err(_) => Some(Ok(())),
    }
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for CircuitBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.inner.settings;
        f.debug_struct("CircuitBreaker")
            .field("deadline", &settings.deadline)
            .field("fallback_keys", &settings.fallback_keys)
            .finish_non_exhaustive()
    }
}
