//! A store for the tests of an application: it counts, and refuses, fails or hangs when it is told to.

use std::collections::VecDeque;
use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::TestClock;
use crate::decision::{Answer, QuotaAnswer, Source};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::quota::Quotas;
use crate::store::block_list::BlockList;
use crate::store::circuit_breaker::CircuitBreaker;
use crate::store::future::StoreFuture;
use crate::store::memory::MemoryStore;
use crate::store::requests::{Block, Check, Credit, Refund, Reset};
use crate::store::store::Store;

/// A store that does what a test wants to see its service bear: it refuses, fails or never answers,
/// for so many checks or until it [recovers](Self::recover).
///
/// Told nothing, it counts as a [`MemoryStore`] does, by a [clock](Self::clock) that the test moves. What
/// it was asked is [told](Self::take_checks). Deadline, breaker and the counts to fall back on are those of
/// any other remote store, so that a service is seen as it is when Redis is away. Clones are one store.
///
/// # Examples
///
/// What becomes of a router while Redis is down, and what when it is back:
///
/// ```
/// # #[cfg(feature = "axum-08")]
/// # fn main() {
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use axum::{Router, body::Body, http::Request, routing::get};
/// use tollgate::{ErrorKind, FailurePolicy, Quota, RateLimitLayer, key, store::TestStore};
/// use tower::ServiceExt;
///
/// /// As in the service, which takes any store.
/// fn app(store: impl tollgate::Store) -> Router {
///     let limit = RateLimitLayer::new(store, Quota::per_minute(100))
///         .key(key::global())
///         .on_failure(FailurePolicy::closed());
///     Router::new().route("/", get(|| async { "ok" })).layer(limit)
/// }
///
/// let store = TestStore::new();
/// let app = app(store.clone());
/// let answer = async || {
///     let request = Request::get("/").body(Body::empty()).unwrap();
///     app.clone().oneshot(request).await.unwrap()
/// };
///
/// store.fail_next(1, ErrorKind::Unavailable);
/// assert_eq!(answer().await.status(), 503);
/// assert_eq!(answer().await.status(), 200);
/// # });
/// # }
/// # #[cfg(not(feature = "axum-08"))]
/// # fn main() {}
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
#[derive(Clone)]
pub struct TestStore {
    counts: MemoryStore,
    clock: TestClock,
    guard: CircuitBreaker,
    told: Arc<Mutex<Told>>,
}

/// What a store was told by its test, and what it was asked.
#[derive(Debug, Default)]
struct Told {
    /// What becomes of the next checks, and of how many.
    next: VecDeque<(usize, Mood)>,
    /// What becomes of all that come after them.
    then: Mood,
    checks: Vec<Checked>,
}

/// What becomes of a check.
#[derive(Clone, Copy, Debug, Default)]
enum Mood {
    #[default]
    Counts,
    /// With this wait; without one, it is refused for good.
    Refuses(Option<Duration>),
    Fails(ErrorKind),
    Hangs,
}

/// A check that a [`TestStore`] was asked.
#[derive(Clone, Debug)]
pub struct Checked {
    limiter: Key,
    key: Key,
    cost: u32,
    quotas: Quotas,
}

impl TestStore {
    /// A store that counts, with a deadline of 100 ms, as Redis has it.
    #[must_use]
    pub fn new() -> Self {
        let clock = TestClock::new();
        Self {
            counts: MemoryStore::with_clock(clock.clone()),
            guard: CircuitBreaker::new()
                .with_clock(clock.clone())
                .named("test"),
            clock,
            told: Arc::default(),
        }
    }

    /// The same store with another [deadline](CircuitBreaker::deadline), for those who are given it from now on.
    ///
    /// It runs by the time of tokio, which a test can [pause](https://docs.rs/tokio/latest/tokio/time/fn.pause.html),
    /// and not by the [clock](Self::clock).
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        let guard = self.guard.deadline(deadline);
        Self { guard, ..self }
    }

    /// The clock of what is counted here, of the counts to fall back on, and of the breaker, which is
    /// open for half a second at most.
    #[must_use]
    pub fn clock(&self) -> &TestClock {
        &self.clock
    }

    /// Refuses the next checks that cost something, whatever is counted: they are told to wait as long,
    /// or with `None` that no wait helps. Those that only look see a key that has nothing left.
    ///
    /// What was told before comes first.
    pub fn refuse_next(&self, checks: usize, retry_after: impl Into<Option<Duration>>) {
        self.next(checks, Mood::Refuses(retry_after.into()));
    }

    /// Answers the next checks with an error of this kind. What was told before comes first. Refunds,
    /// resets, gifts and blocks are no checks: they do not fail by this, nor use it up.
    pub fn fail_next(&self, checks: usize, kind: ErrorKind) {
        self.next(checks, Mood::Fails(kind));
    }

    /// Never answers the next checks. What was told before comes first. Refunds, resets, gifts and blocks
    /// are answered, and do not use it up.
    pub fn hang_next(&self, checks: usize) {
        self.next(checks, Mood::Hangs);
    }

    /// Refuses all checks that cost something, as [`refuse_next`](Self::refuse_next) does, until it is
    /// told otherwise.
    pub fn refuse_all(&self, retry_after: impl Into<Option<Duration>>) {
        self.hold(Mood::Refuses(retry_after.into()));
    }

    /// Answers everything with an error of this kind until it is told otherwise: refunds, resets,
    /// gifts and blocks, too.
    pub fn fail_all(&self, kind: ErrorKind) {
        self.hold(Mood::Fails(kind));
    }

    /// Never answers anything until it is told otherwise, and then what is asked from then on.
    pub fn hang_all(&self) {
        self.hold(Mood::Hangs);
    }

    /// Counts again, whatever it was told.
    ///
    /// The breaker knows nothing of that: where it is open, the next check sends a look ahead, when the
    /// [clock](Self::clock) has moved by half a second.
    pub fn recover(&self) {
        self.hold(Mood::Counts);
    }

    /// What it was asked since this was called last: also the looks, which cost nothing.
    #[must_use]
    pub fn take_checks(&self) -> Vec<Checked> {
        std::mem::take(&mut self.told().checks)
    }

    fn next(&self, checks: usize, mood: Mood) {
        self.told().next.push_back((checks, mood));
    }

    fn hold(&self, mood: Mood) {
        let mut told = self.told();
        told.next.clear();
        told.then = mood;
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is answered to all that is no check: it is none of the next checks.
    fn change(&self, count: impl FnOnce() -> StoreFuture<()>) -> StoreFuture<()> {
        let then = self.told().then;
        match then {
            Mood::Counts | Mood::Refuses(_) => count(),
            Mood::Fails(kind) => StoreFuture::ready(Err(failure(kind))),
            Mood::Hangs => StoreFuture::boxed(pending()),
        }
    }
}

impl Told {
    /// What becomes of this check.
    fn ask(&mut self, check: Check<'_>) -> Mood {
        self.checks.push(Checked {
            limiter: check.limiter().clone(),
            key: check.key().clone(),
            cost: check.cost(),
            quotas: check.quotas().clone(),
        });
        while self.next.front().is_some_and(|(left, _)| *left == 0) {
            self.next.pop_front();
        }
        let Some((left, mood)) = self.next.front_mut() else {
            return self.then;
        };
        // A look is refused nothing, and so is none of those that are to be.
        if check.cost() > 0 || !matches!(mood, Mood::Refuses(_)) {
            *left -= 1;
        }
        *mood
    }
}

impl Checked {
    /// The name of the limiter that asked: the same as `Key::from` makes of the name.
    #[must_use]
    pub fn limiter(&self) -> &Key {
        &self.limiter
    }

    /// Who was to be charged.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// How much; 0 for a look.
    #[must_use]
    pub fn cost(&self) -> u32 {
        self.cost
    }

    /// By which quotas.
    #[must_use]
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }
}

impl Store for TestStore {
    fn check(&self, check: Check<'_>) -> StoreFuture {
        let mood = self.told().ask(check);
        match mood {
            Mood::Counts => self.counts.check(check),
            Mood::Refuses(wait) => StoreFuture::ready(Ok(refusal(check, wait))),
            Mood::Fails(kind) => StoreFuture::ready(Err(failure(kind))),
            Mood::Hangs => StoreFuture::boxed(pending()),
        }
    }

    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        self.change(|| self.counts.reset(reset))
    }

    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        self.change(|| self.counts.refund(refund))
    }

    fn credit(&self, give: Credit<'_>) -> StoreFuture<()> {
        self.change(|| self.counts.credit(give))
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<()> {
        self.change(|| self.counts.block(block))
    }

    fn block_list(&self) -> BlockList {
        self.counts.block_list()
    }

    fn circuit_breaker(&self) -> CircuitBreaker {
        self.guard.clone()
    }
}

/// What a check is answered where every quota is used up, for so long.
fn refusal(check: Check<'_>, wait: Option<Duration>) -> Answer {
    let answers = check.quotas().iter().map(|quota| {
        let reset_after = wait.unwrap_or_else(|| quota.window());
        match check.cost() {
            0 => QuotaAnswer::admitted(quota.limit(), reset_after),
            _ => QuotaAnswer::refused(quota.limit(), wait, reset_after),
        }
    });
    Answer::new(Source::Other, answers)
}

fn failure(kind: ErrorKind) -> Error {
    Error::new(kind, format!("a test has the store fail: {kind:?}"))
}

impl Default for TestStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TestStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            counts,
            clock: _,
            guard,
            told,
        } = self;
        f.debug_struct("TestStore")
            .field("counts", counts)
            .field("guard", guard)
            .field("told", told)
            .finish_non_exhaustive()
    }
}
