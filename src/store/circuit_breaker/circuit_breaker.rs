//! What stands between limiters and a store that may fail: a deadline, a breaker, and the counts
//! of this process for meanwhile.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;

use super::breaker::{Breaker, Permit, Transition};
use super::recorder::GuardedAnswer;
use super::recorder::OutcomeRecorder;
use crate::clock::Clock;
#[cfg(feature = "test-util")]
use crate::clock::TestClock;
use crate::decision::StoreId;
use crate::decision::{Answer, Source};
use crate::error::{Error, ErrorKind};
use crate::store::future::StoreFuture;
use crate::store::memory::DEFAULT_MAX_KEYS;
use crate::store::memory::MemoryStore;
use crate::store::requests::Check;
use crate::store::requests::Subject;
use crate::store::store::Store;
use crate::telemetry::StoreMeter;

/// What metrics call a store that says nothing.
const UNNAMED: &str = "other";

/// As for Redis: a hundred times a call to a healthy server near by, and little beside what people
/// notice.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

/// What keeps a store's bad day from becoming the service's: a deadline, a breaker, and a place
/// to count in meanwhile.
///
/// Each [`RateLimiter`](crate::RateLimiter) asks its store through the guard that
/// [`Store::circuit_breaker`] gives it. Clones are one guard; a store gives all its limiters the same, so that
/// what one of them learns spares the others. The stores of this crate do.
///
/// # The breaker
///
/// It counts the errors of the kinds [`Timeout`](ErrorKind::Timeout),
/// [`Unavailable`](ErrorKind::Unavailable) and [`InvalidReply`](ErrorKind::InvalidReply). After
/// five in a row, or when half of at least twenty checks in a second failed, the store is not asked
/// any more: checks fail at once. After 100 to 500 ms, longer each time, one check of cost 0 asks
/// again, in the background where a tokio runtime is there, so that no caller waits for it. When it is
/// answered, all ask again. Errors of configuration and a store that is full never open it: they are
/// answers. Nor do refusals from memory close it.
///
/// What comes of a check that failed is the limiter's to say: see
/// [`FailurePolicy`](crate::FailurePolicy).
///
/// # Examples
///
/// A store of one's own, whose limiters share a guard:
///
/// ```
/// use std::time::Duration;
/// use tollgate::store::{Check, CircuitBreaker, Store, StoreFuture};
/// # use tollgate::store::{Answer, Source};
///
/// struct Remote {
///     guard: CircuitBreaker,
/// }
///
/// impl Remote {
///     fn new() -> Self {
///         let guard = CircuitBreaker::new().deadline(Duration::from_millis(20));
///         Self { guard }
///     }
/// }
///
/// impl Store for Remote {
///     fn check(&self, check: Check<'_>) -> StoreFuture {
///         # let _ = check;
///         // …
///         # StoreFuture::ready(Ok(Answer::new(Source::Other, [])))
///     }
///
///     fn circuit_breaker(&self) -> CircuitBreaker {
///         self.guard.clone()
///     }
/// }
/// ```
#[derive(Clone)]
pub struct CircuitBreaker {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    /// The deadline in microseconds, in which breakers count: each check needs it.
    deadline_micros: u64,
    breakers: Box<[Breaker]>,
    fallback: OnceLock<MemoryStore>,
}

#[derive(Clone)]
struct Settings {
    meter: StoreMeter,
    clock: Clock,
    deadline: Duration,
    /// Whether the store keeps the deadline itself.
    keeps_deadline: bool,
    fallback_keys: usize,
    /// Whether the store is the counts of this process.
    is_in_process: bool,
    parts: Parts,
}

/// Of how many servers a store is, which may fail one by one, and which of them a check asks.
#[derive(Clone)]
struct Parts {
    count: usize,
    part_of: Arc<PartOf>,
}

type PartOf = dyn Fn(&Check<'_>) -> usize + Send + Sync;

impl CircuitBreaker {
    /// A guard with a deadline of 100 ms, and room for 100 000 keys to fall back on.
    #[must_use]
    pub fn new() -> Self {
        Self::build(Settings {
            meter: StoreMeter::new(UNNAMED),
            clock: Clock::monotonic(),
            deadline: DEFAULT_DEADLINE,
            keeps_deadline: false,
            fallback_keys: DEFAULT_MAX_KEYS,
            is_in_process: false,
            parts: Parts {
                count: 1,
                part_of: Arc::new(|_| 0),
            },
        })
    }

    fn build(mut settings: Settings) -> Self {
        // What it holds is told apart from what another one of the same name does.
        settings.meter = settings.meter.same_name();
        let breakers = std::iter::repeat_with(Breaker::default);
        let deadline_micros = settings.deadline.as_micros();
        Self {
            inner: Arc::new(Inner {
                deadline_micros: u64::try_from(deadline_micros).unwrap_or(u64::MAX),
                breakers: breakers.take(settings.parts.count).collect(),
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

    /// What metrics call the store: `other` unless said otherwise.
    #[must_use]
    pub fn named(self, store: &str) -> Self {
        self.metered(StoreMeter::new(store))
    }

    pub(crate) fn metered(self, meter: StoreMeter) -> Self {
        self.with(|settings| settings.meter = meter)
    }

    /// Bounds how long a check waits for the store: 100 ms unless said otherwise. What takes longer is
    /// an [`Error`] of kind [`ErrorKind::Timeout`]. In a tokio runtime only, which must have its time
    /// enabled unless the store answers at once.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with(|settings| settings.deadline = deadline)
    }

    /// How many keys are counted in this process at most while the store fails: 100 000 unless said
    /// otherwise, as in a [`MemoryStore`]. With 0, nothing is: limiters that fall back are closed.
    #[must_use]
    pub fn fallback_keys(self, keys: usize) -> Self {
        self.with(|settings| settings.fallback_keys = keys)
    }

    /// A guard whose time a test moves by hand: how long the breaker stays open, and what counts to fall
    /// back on. Not the deadline.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    #[must_use]
    pub fn with_clock(self, clock: TestClock) -> Self {
        self.clock(Clock::Test(clock))
    }

    pub(crate) fn clock(self, clock: Clock) -> Self {
        self.with(|settings| settings.clock = clock)
    }

    /// For a store that keeps this deadline itself.
    pub(crate) fn kept_deadline(self, deadline: Duration) -> Self {
        self.with(|settings| {
            settings.deadline = deadline;
            settings.keeps_deadline = true;
        })
    }

    /// For the counts of this process: of a memory that is full, another one is no relief.
    pub(crate) fn in_process(self) -> Self {
        self.with(|settings| {
            settings.fallback_keys = 0;
            settings.is_in_process = true;
        })
    }

    pub(crate) fn is_in_process(&self) -> bool {
        self.inner.settings.is_in_process
    }

    /// A breaker each for so many parts of the store, where one may fail and the others not.
    pub(crate) fn in_parts(
        self,
        count: usize,
        part_of: impl Fn(&Check<'_>) -> usize + Send + Sync + 'static,
    ) -> Self {
        let part_of = Arc::new(part_of);
        self.with(|settings| settings.parts = Parts { count, part_of })
    }

    /// Tells the stores apart that give all their limiters one guard.
    pub(crate) fn store_id(&self) -> StoreId {
        StoreId(Arc::as_ptr(&self.inner).addr())
    }

    /// Asks the store, if it has not failed just now: as
    /// [`check_in_place`](Store::check_in_place) does.
    #[inline]
    pub(crate) fn check_in_place(
        &self,
        store: &dyn Store,
        check: Check<'_>,
        answer: &mut Answer,
    ) -> Option<GuardedAnswer> {
        let part = self.part_of(&check);
        match self.enter(part, store, check) {
            Permit::Ask => {
                let Some(later) = store.check_in_place(check, answer) else {
                    self.note(part, Ok(answer.source()));
                    return None;
                };
                Some(self.watch(later, part, false))
            }
            Permit::Probe => Some(self.watch(store.check(check), part, true)),
            Permit::Refuse => Some(GuardedAnswer::ready(Err(self.not_asked(part)))),
        }
    }

    /// The counts of this process, for while the store fails; made when first wanted.
    pub(crate) fn fallback(&self) -> Option<&MemoryStore> {
        let Settings {
            fallback_keys: keys,
            clock,
            meter,
            ..
        } = &self.inner.settings;
        let made = || MemoryStore::build_metered(*keys, clock.clone(), meter.clone());
        (*keys > 0).then(|| self.inner.fallback.get_or_init(made))
    }

    /// The same, if it was ever wanted.
    pub(crate) fn fallback_if_made(&self) -> Option<&MemoryStore> {
        self.inner.fallback.get()
    }

    /// Where the breaker has somebody ask again, that is done in the background if it can be.
    #[inline]
    fn enter(&self, part: usize, store: &dyn Store, check: Check<'_>) -> Permit {
        let Some(breaker) = self.inner.breakers.get(part) else {
            return Permit::Ask;
        };
        match breaker.enter(self.inner.deadline_micros, || {
            self.inner.settings.clock.now()
        }) {
            Permit::Probe => self.probe(part, store, check),
            entry => entry,
        }
    }

    #[cold]
    fn probe(&self, part: usize, store: &dyn Store, check: Check<'_>) -> Permit {
        let Ok(runtime) = Handle::try_current() else {
            return Permit::Probe;
        };
        let look = Check { cost: 0, ..check };
        drop(runtime.spawn(self.watch(store.check(look), part, true)));
        // Who came with the check does not wait for that.
        Permit::Refuse
    }

    fn watch(&self, answer: StoreFuture, part: usize, is_probe: bool) -> GuardedAnswer {
        match answer.try_ready() {
            Ok(answer) => {
                self.note_end(part, is_probe, &answer);
                GuardedAnswer::ready(answer)
            }
            Err(later) => {
                let began = self.inner.settings.clock.now();
                let watch = OutcomeRecorder::new(self, part, is_probe, began);
                GuardedAnswer::watched(self.in_time(later), watch)
            }
        }
    }

    /// Asks the store to forget or to take back, unless it has failed just now.
    pub(crate) fn give_back(
        &self,
        subject: Subject<'_>,
        ask: impl FnOnce() -> StoreFuture<()>,
    ) -> StoreFuture<()> {
        let part = self.part_of(&Check { subject, cost: 0 });
        let Some(breaker) = self.inner.breakers.get(part) else {
            return ask();
        };
        if breaker.is_open() {
            return StoreFuture::ready(Err(breaker.refusal()));
        }
        let later = match ask().try_ready() {
            Ok(outcome) => return StoreFuture::ready(outcome),
            Err(later) => self.in_time(later),
        };
        let guard = self.clone();
        StoreFuture::boxed(async move {
            let outcome = later.await;
            if let Err(error) = &outcome {
                guard.inner.settings.meter.record_error(error.kind());
            }
            guard.note(part, outcome.as_ref().map(|()| Source::Other));
            outcome
        })
    }

    /// Bounds the time that a store takes which keeps no deadline itself.
    pub(crate) fn in_time<T: Send + 'static>(&self, later: StoreFuture<T>) -> StoreFuture<T> {
        let Settings {
            deadline,
            keeps_deadline,
            ..
        } = self.inner.settings;
        // Without tokio there is no telling when it is late.
        if keeps_deadline || Handle::try_current().is_err() {
            return later;
        }
        let later = match later.try_ready() {
            Ok(outcome) => return StoreFuture::ready(outcome),
            Err(later) => later,
        };
        StoreFuture::boxed(async move {
            let answered = tokio::time::timeout(deadline, later).await;
            answered.unwrap_or_else(|_| {
                let text = format!("the store did not answer within {deadline:?}");
                Err(Error::new(ErrorKind::Timeout, text))
            })
        })
    }

    /// Tells how long who began then has waited for the store.
    pub(crate) fn note_time(&self, began: u64) {
        let Settings { meter, clock, .. } = &self.inner.settings;
        let waited = clock.now().saturating_sub(began);
        meter.record_duration(Duration::from_micros(waited));
    }

    /// Tells the breaker what came of a check, or of its probe.
    pub(crate) fn note_end(&self, part: usize, is_probe: bool, answer: &Result<Answer, Error>) {
        let outcome = answer.as_ref().map(Answer::source);
        if let Err(error) = &outcome {
            self.inner.settings.meter.record_error(error.kind());
        }
        if is_probe {
            self.note_probe(part, Some(outcome));
        } else {
            self.note(part, outcome);
        }
    }

    /// Tells the breaker what came of a check.
    #[inline]
    fn note(&self, part: usize, outcome: Result<Source, &Error>) {
        let Some(breaker) = self.inner.breakers.get(part) else {
            return;
        };
        let now = || self.inner.settings.clock.now();
        match outcome {
            Ok(Source::RefusalCache) => {}
            Err(error) if is_failure(error) => self.turned(breaker.failed(now(), error)),
            Ok(_) | Err(_) => breaker.succeeded(now),
        }
    }

    /// Tells the breaker of a check that began then and that nobody waited for.
    pub(crate) fn note_given_up(&self, part: usize, began: u64) {
        if let Some(breaker) = self.inner.breakers.get(part) {
            let now = self.inner.settings.clock.now();
            self.turned(breaker.given_up(began, now, self.inner.deadline_micros));
        }
    }

    /// Tells the breaker what came of its probe, if anything did.
    pub(crate) fn note_probe(&self, part: usize, outcome: Option<Result<Source, &Error>>) {
        let Some(breaker) = self.inner.breakers.get(part) else {
            return;
        };
        let outcome = match outcome {
            None => None,
            // Redis was not asked.
            Some(Ok(Source::RefusalCache)) => None,
            Some(Err(error)) if is_failure(error) => Some(Err(error)),
            Some(_) => Some(Ok(())),
        };
        self.turned(breaker.probed(self.inner.settings.clock.now(), outcome));
    }

    /// Tells that one breaker more is open, or one less.
    fn turned(&self, turn: Option<Transition>) {
        let meter = &self.inner.settings.meter;
        match turn {
            None => {}
            Some(Transition::Opened) => meter.record_breaker_opened(),
            Some(Transition::Closed) => meter.record_breaker_closed(),
        }
    }

    /// Whether this part of the store is not asked.
    pub(crate) fn is_open_at(&self, part: usize) -> bool {
        let breaker = self.inner.breakers.get(part);
        breaker.is_some_and(Breaker::is_open)
    }

    #[inline]
    fn part_of(&self, check: &Check<'_>) -> usize {
        let Parts { count, part_of } = &self.inner.settings.parts;
        if *count == 1 { 0 } else { part_of(check) }
    }

    #[cold]
    fn not_asked(&self, part: usize) -> Error {
        let breaker = self.inner.breakers.get(part);
        breaker.map_or_else(|| Breaker::default().refusal(), Breaker::refusal)
    }
}

/// Whether the store, or the way to it, has failed; else it has answered.
fn is_failure(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::InvalidReply
    )
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for CircuitBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings {
            meter: _,
            clock: _,
            deadline,
            keeps_deadline: _,
            fallback_keys,
            is_in_process: _,
            parts: _,
        } = &self.inner.settings;
        f.debug_struct("Guard")
            .field("deadline", deadline)
            .field("fallback_keys", fallback_keys)
            .finish_non_exhaustive()
    }
}
