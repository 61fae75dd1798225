//! A store for tests of a service: it counts, and refuses, fails or hangs on demand.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::TestClock;
use crate::decision::{Answer, QuotaAnswer, Source, StoreId};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::lock::Mutex;
use crate::quota::Quotas;
use crate::store::circuit_breaker::CircuitBreaker;
use crate::store::future::StoreFuture;
use crate::store::memory::MemoryStore;
use crate::store::requests::{Adjust, Block, Check, OwnedCheck};
use crate::store::store::{Store, StoreParts};

/// A store for tests of a service: it refuses, fails or hangs when the test says so.
///
/// By default, it counts like a [`MemoryStore`] on a [clock](Self::clock) that the test moves. The test can
/// choose another behaviour:
///
/// | | for the next checks | until the test chooses another |
/// |---|---|---|
/// | refuse | [`refuse_next`](Self::refuse_next) | [`refuse_all`](Self::refuse_all) |
/// | fail with an error | [`fail_next`](Self::fail_next) | [`fail_all`](Self::fail_all) |
/// | never answer | [`hang_next`](Self::hang_next) | [`hang_all`](Self::hang_all) |
/// | count | | [`recover`](Self::recover) |
///
/// Several checks that are [decided together](Store::check) get one behaviour, as one check does. Counts of refusals by
/// [`block_after`](crate::RateLimiter::block_after) are no checks: they fail and hang as refunds do.
///
/// [`take_checks`](Self::take_checks) returns the checks that the store has received. Deadline, circuit
/// breaker and fallback work as with a remote store, so the service behaves as it does while Redis is
/// unreachable. Clones are the same store.
///
/// # Examples
///
/// A router while its store is down, and after it has recovered:
///
/// ```
/// # #[cfg(feature = "axum-08")]
/// # fn main() {
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use axum::{Router, body::Body, http::Request, routing::get};
/// use tollgate::{ErrorKind, FailurePolicy, Quota, RateLimitLayer, key, store::TestStore};
/// use tower::ServiceExt;
///
/// /// The application takes any store.
/// fn app(store: impl tollgate::Store) -> Router {
///     let limit = RateLimitLayer::new(store, Quota::per_minute(100))
///         .key(key::global())
///         .on_failure(FailurePolicy::closed());
///     Router::new().route("/", get(|| async { "ok" })).layer(limit)
/// }
///
/// let store = TestStore::new();
/// let app = app(store.clone());
/// let respond = async || {
///     let request = Request::get("/").body(Body::empty()).unwrap();
///     app.clone().oneshot(request).await.unwrap()
/// };
///
/// store.fail_next(1, ErrorKind::Unavailable);
/// assert_eq!(respond().await.status(), 503);
/// assert_eq!(respond().await.status(), 200);
/// # });
/// # }
/// # #[cfg(not(feature = "axum-08"))]
/// # fn main() {}
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
#[derive(Clone, Debug)]
pub struct TestStore {
    counts: MemoryStore,
    clock: TestClock,
    circuit_breaker: CircuitBreaker,
    script: Arc<Mutex<TestScript>>,
}

/// The behaviours that the test has chosen, and the checks received so far.
#[derive(Debug, Default)]
struct TestScript {
    /// The behaviours for the next checks, each with a number of checks.
    next: VecDeque<(usize, Behaviour)>,
    /// The behaviour after these.
    lasting: Behaviour,
    checks: Vec<ReceivedCheck>,
}

/// The reaction to a check.
#[derive(Clone, Copy, Debug, Default)]
enum Behaviour {
    #[default]
    Count,
    /// Refuse with this `retry_after`, or with none, as for a cost above the limit.
    Refuse(Option<Duration>),
    Fail(ErrorKind),
    Hang,
}

impl TestStore {
    /// Creates a store that counts, with a deadline of 100 ms as a [`RedisStore`](crate::RedisStore) has.
    #[must_use]
    pub fn new() -> Self {
        let clock = TestClock::new();
        Self {
            counts: MemoryStore::with_clock(clock.clone()),
            circuit_breaker: CircuitBreaker::new().with_clock(clock.clone()).name("test"),
            clock,
            script: Arc::default(),
        }
    }

    /// Sets the [deadline](CircuitBreaker::deadline) of checks. The default is 100 ms.
    ///
    /// It applies to limiters that are created with the returned store. The deadline follows the time of tokio,
    /// which a test can [pause](https://docs.rs/tokio/latest/tokio/time/fn.pause.html), not the
    /// [clock](Self::clock).
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        let circuit_breaker = self.circuit_breaker.deadline(deadline);
        Self {
            circuit_breaker,
            ..self
        }
    }

    /// Returns the clock of the counts, of the fallback and of the circuit breaker.
    ///
    /// An open circuit breaker sends a probe after at most half a second of this clock.
    #[must_use]
    pub fn clock(&self) -> &TestClock {
        &self.clock
    }

    /// Refuses the next `checks` checks with a cost, regardless of the counts.
    ///
    /// The refusals have this `retry_after`. `None` means that no wait helps, as for a cost above the limit.
    /// Meanwhile, a check of cost 0 sees a key without units left, and does not use up a refusal. Behaviours
    /// that the test chose earlier for next checks come first.
    pub fn refuse_next(&self, checks: usize, retry_after: impl Into<Option<Duration>>) {
        self.push(checks, Behaviour::Refuse(retry_after.into()));
    }

    /// Fails the next `checks` checks with an error of this kind.
    ///
    /// Behaviours that the test chose earlier for next checks come first. Refunds, resets, credits and blocks
    /// do not fail, and do not use up a failure.
    pub fn fail_next(&self, checks: usize, kind: ErrorKind) {
        self.push(checks, Behaviour::Fail(kind));
    }

    /// Never answers the next `checks` checks.
    ///
    /// Behaviours that the test chose earlier for next checks come first. Refunds, resets, credits and blocks
    /// are answered.
    pub fn hang_next(&self, checks: usize) {
        self.push(checks, Behaviour::Hang);
    }

    /// Refuses all checks with a cost, as [`refuse_next`](Self::refuse_next) does, until the test chooses
    /// another behaviour.
    pub fn refuse_all(&self, retry_after: impl Into<Option<Duration>>) {
        self.set(Behaviour::Refuse(retry_after.into()));
    }

    /// Fails all checks, refunds, resets, credits and blocks with an error of this kind, until the test chooses
    /// another behaviour.
    pub fn fail_all(&self, kind: ErrorKind) {
        self.set(Behaviour::Fail(kind));
    }

    /// Answers no checks, refunds, resets, credits and blocks until the test chooses another behaviour.
    ///
    /// Requests that were sent before that are never answered.
    pub fn hang_all(&self) {
        self.set(Behaviour::Hang);
    }

    /// Counts again, and drops all behaviours that the test chose before.
    ///
    /// An open circuit breaker stays open. Move the [clock](Self::clock) by half a second: the next check then
    /// sends a probe, which closes it.
    pub fn recover(&self) {
        self.set(Behaviour::Count);
    }

    /// Returns the checks that were received since the last call, including checks of cost 0.
    #[must_use]
    pub fn take_checks(&self) -> Vec<ReceivedCheck> {
        std::mem::take(&mut self.script.lock().checks)
    }

    fn push(&self, checks: usize, behaviour: Behaviour) {
        self.script.lock().next.push_back((checks, behaviour));
    }

    fn set(&self, behaviour: Behaviour) {
        let mut script = self.script.lock();
        script.next.clear();
        script.lasting = behaviour;
    }

    /// Returns the behaviour of a request that is not a check. Those for next checks do not apply to it.
    fn lasting(&self) -> Behaviour {
        self.script.lock().lasting
    }
}

/// A check that a [`TestStore`] has received.
#[derive(Clone, Debug)]
pub struct ReceivedCheck(OwnedCheck);

impl ReceivedCheck {
    pub(crate) fn check(&self) -> Check<'_> {
        self.0.check()
    }

    /// Returns the name of the limiter as a key: `Key::from(name)`.
    #[must_use]
    pub fn limiter(&self) -> &Key {
        self.check().subject.limiter
    }

    /// Returns the key that is counted.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.check().subject.key
    }

    /// Returns the quotas that apply.
    #[must_use]
    pub fn quotas(&self) -> &Quotas {
        self.check().subject.quotas
    }

    /// Returns the number of units to charge.
    #[must_use]
    pub fn cost(&self) -> u32 {
        self.check().cost
    }
}

impl Behaviour {
    fn unless_failing<T: Send + 'static>(
        self,
        count: impl FnOnce() -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        match self {
            Self::Count | Self::Refuse(_) => count(),
            Self::Fail(kind) => StoreFuture::ready(Err(failure(kind))),
            Self::Hang => StoreFuture::boxed(pending()),
        }
    }
}

impl TestScript {
    /// Records checks that are decided together, and returns the behaviour for them.
    fn next_behaviour(&mut self, checks: &[Check<'_>]) -> Behaviour {
        let received = checks.iter().map(|check| ReceivedCheck(check.owned()));
        self.checks.extend(received);
        while self.next.front().is_some_and(|(left, _)| *left == 0) {
            self.next.pop_front();
        }
        let Some((left, behaviour)) = self.next.front_mut() else {
            return self.lasting;
        };
        // A check that charges nothing is not refused, so it does not use up a refusal.
        if checks.iter().any(is_charge) || !matches!(behaviour, Behaviour::Refuse(_)) {
            *left -= 1;
        }
        *behaviour
    }
}

impl Store for TestStore {
    fn id(&self) -> StoreId {
        self.counts.id()
    }

    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        let mut script = self.script.lock();
        // A count of refusals by `block_after` is no check of the test. Nor is a message about slots that are held.
        let is_internal = checks.iter().any(|check| {
            let states = check.holding.is_some_and(|holding| holding.wanted == 0);
            check.limiter.is_blocks_name() || states && check.cost == 0
        });
        let behaviour = match script.lasting {
            Behaviour::Count | Behaviour::Refuse(_) if is_internal => Behaviour::Count,
            lasting if is_internal => lasting,
            _ => script.next_behaviour(checks),
        };
        drop(script);
        if let Behaviour::Refuse(retry_after) = behaviour {
            let refusals = checks.iter().map(|check| refusal(*check, retry_after));
            return StoreFuture::ready(Ok(refusals.collect()));
        }
        behaviour.unless_failing(|| self.counts.check(checks))
    }

    fn adjust(&self, adjust: Adjust<'_>) -> StoreFuture<()> {
        self.lasting().unless_failing(|| self.counts.adjust(adjust))
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<bool> {
        self.lasting().unless_failing(|| self.counts.block(block))
    }

    fn parts(&self) -> StoreParts {
        StoreParts {
            circuit_breaker: self.circuit_breaker.clone(),
            // It may hang.
            ends_with_process: false,
            ..self.counts.parts()
        }
    }
}

fn is_charge(check: &Check<'_>) -> bool {
    check.cost > 0 || check.holding.is_some_and(|holding| holding.wanted > 0)
}

/// Returns the answer of a store in which every quota of the check is used up.
fn refusal(check: Check<'_>, retry_after: Option<Duration>) -> Answer {
    let answers = check.quotas.iter().map(|quota| {
        let reset_after = retry_after.unwrap_or_else(|| quota.window());
        if is_charge(&check) {
            QuotaAnswer::refused(quota.limit(), retry_after, reset_after)
        } else {
            QuotaAnswer::admitted(quota.limit(), reset_after)
        }
    });
    Answer::new(Source::Other, answers)
}

fn failure(kind: ErrorKind) -> Error {
    Error::new(kind, format!("the test store fails on demand: {kind:?}"))
}

impl Default for TestStore {
    fn default() -> Self {
        Self::new()
    }
}
