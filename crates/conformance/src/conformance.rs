//! The kit: a store, its clock, and the steps that the rules use.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollgate::store::Store;
use tollgate::store::protocol::{Answer, Answers, Change, Check, Subject};
use tollgate::{Algorithm, Error, ErrorKind, Key, Quota, Quotas};

use crate::run_name::run_name;

/// Tests an implementation of the hidden trait [`Store`] against the rules that limiters rely on, for the stores of this
/// repository. For the rows of your database, take [`RowsConformance`](crate::RowsConformance).
///
/// The rules cover the promise of each [`Algorithm`], checks that are charged to all quotas or to none, exact
/// waits, refunds, credits, resets, charges beyond a limit, blocks, several checks that are decided together, shares of a limit, slots
/// in flight with their holders, keys that are silent and fill again, and threads that compete for the same counts.
///
/// Run it in a test of your store. The store needs room for a few thousand keys. Each run uses random names for
/// limiters and keys, so one store can be tested several times. Checks that are decided together are of keys in one
/// [group](Store::atomic_group).
///
/// # Time
///
/// If the test can move the store's clock, pass a function to [`clock`](Self::clock). All waits are then
/// tested to the microsecond. Without it, the kit sleeps: a run takes 40 seconds, waits are tested within
/// some tens of milliseconds, and the promises of the algorithms are not tested.
///
/// # Examples
///
/// ```
/// use tollgate::MemoryStore;
/// use tollgate::store::TestClock;
/// use tollgate_conformance::Conformance;
///
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// let clock = TestClock::new();
/// let store = MemoryStore::with_clock(clock.clone());
/// let report = Conformance::new(store)
///     .clock(move |step| clock.advance(step))
///     .run()
///     .await;
/// println!("{report}");
/// report.assert_passed();
/// # });
/// ```
#[doc(hidden)]
pub struct Conformance {
    pub(crate) store: Arc<dyn Store>,
    clock: Option<Mutex<Box<ClockFn>>>,
    /// The time by which the kit has moved the clock, in microseconds, without a step in progress.
    elapsed: AtomicU64,
    /// The same with a step in progress.
    upcoming: AtomicU64,
    /// A random part of each name, so that no run finds the counts of another.
    run: String,
    names: AtomicU64,
}

type ClockFn = dyn FnMut(Duration) + Send;

pub(crate) type RuleFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Broken>> + 'a>>;

/// The reason why a rule did not pass.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The store does not support an operation of the rule.
    Unsupported(String),
    Failed(String),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Unsupported => Self::Unsupported(error.to_string()),
            _ => Self::Failed(format!("the store failed: {error}")),
        }
    }
}

/// The most keys that are tried to find some in one group: a cluster has 16 384.
const MAX_TRIES: u32 = 1_000_000;

/// Fails a rule with a text unless a condition holds.
macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err($crate::conformance::Broken::Failed(
                format!($($text)+),
            ));
        }
    };
}

pub(crate) use ensure;

/// A limiter, a key and quotas that one rule uses.
pub(crate) struct ScratchKey {
    pub(crate) limiter: Key,
    pub(crate) key: Key,
    pub(crate) quotas: Quotas,
    /// The share that asks.
    share: Option<&'static str>,
}

impl ScratchKey {
    /// Returns the same key with other quotas, as after a change of its limits.
    pub(crate) fn with_quotas(&self, quotas: impl Into<Quotas>) -> Self {
        Self {
            limiter: self.limiter.clone(),
            key: self.key.clone(),
            quotas: quotas.into(),
            share: self.share,
        }
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        let subject = Subject::new(&self.limiter, &self.key, &self.quotas);
        match self.share {
            Some(share) => subject.in_share(share),
            None => subject,
        }
    }

    pub(crate) fn check(&self, cost: u32) -> Check<'_> {
        self.subject().check(cost)
    }

    /// Returns the same limiter and key with other quotas.
    pub(crate) fn with(&self, quotas: impl Into<Quotas>) -> Self {
        Self {
            limiter: self.limiter.clone(),
            key: self.key.clone(),
            quotas: quotas.into(),
            share: self.share,
        }
    }

    /// Returns the same limiter, key and quotas, of which a share asks.
    pub(crate) fn in_share(&self, share: &'static str) -> Self {
        Self {
            share: Some(share),
            ..self.with(self.quotas.clone())
        }
    }
}

impl Conformance {
    /// Creates the kit for a store. Other processes may use the store at the same time.
    pub fn new(store: impl Store) -> Self {
        Self {
            store: Arc::new(store),
            clock: None,
            elapsed: AtomicU64::new(0),
            upcoming: AtomicU64::new(0),
            run: run_name(),
            names: AtomicU64::new(0),
        }
    }

    /// Sets the function that moves the store's clock forward. Between its calls, the clock must stand still.
    #[must_use]
    pub fn clock(mut self, advance: impl FnMut(Duration) + Send + 'static) -> Self {
        self.clock = Some(Mutex::new(Box::new(advance)));
        self
    }

    /// Returns whether the store's clock stands still between two steps.
    pub(crate) fn is_exact(&self) -> bool {
        self.clock.is_some()
    }

    /// Moves the store's clock forward, or sleeps if the kit cannot move it.
    pub(crate) async fn pass(&self, step: Duration) {
        if self.clock.is_some() {
            self.step(step);
        } else {
            tokio::time::sleep(step).await;
        }
    }

    /// Moves the store's clock forward, if the kit can move it.
    pub(crate) fn step(&self, step: Duration) {
        if let Some(clock) = &self.clock {
            let mut advance = clock.lock().unwrap_or_else(PoisonError::into_inner);
            let micros = u64::try_from(step.as_micros()).unwrap_or(u64::MAX);
            self.upcoming.fetch_add(micros, Ordering::SeqCst);
            (*advance)(step);
            self.elapsed.fetch_add(micros, Ordering::SeqCst);
        }
    }

    /// Returns the time by which the kit has moved the clock, in microseconds.
    pub(crate) fn elapsed(&self) -> u64 {
        self.elapsed.load(Ordering::SeqCst)
    }

    /// Returns the same with a step in progress.
    pub(crate) fn elapsed_at_most(&self) -> u64 {
        self.upcoming.load(Ordering::SeqCst)
    }

    /// Returns a window: a minute for a clock that the kit moves, and short enough to sleep otherwise.
    pub(crate) fn window(&self) -> Duration {
        if self.is_exact() {
            Duration::from_secs(60)
        } else {
            Duration::from_millis(400)
        }
    }

    /// Returns a limiter and a key that nothing else uses.
    pub(crate) fn scratch_key(&self, quotas: impl Into<Quotas>) -> ScratchKey {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        ScratchKey {
            limiter: Key::from(format!("conformance {} {number}", self.run)),
            key: Key::from(format!("key {number}")),
            quotas: quotas.into(),
            share: None,
        }
    }

    /// Returns a limiter and a key for each list of quotas, which nothing else uses and the store can decide together.
    pub(crate) async fn scratch_keys_together<const N: usize>(
        &self,
        quotas: [Quotas; N],
    ) -> [ScratchKey; N] {
        let subjects = self.in_one_group(&quotas);
        let looks = subjects.each_ref().map(|subject| subject.check(0));
        match self.check_all(&looks).await {
            // A store may learn from such a check that it divides its keys into groups.
            Err(Broken::Unsupported(_)) => self.in_one_group(&quotas),
            _ => subjects,
        }
    }

    /// Returns a limiter and a key for each list of quotas, all in one [group](Store::atomic_group) as far as the store
    /// knows.
    fn in_one_group<const N: usize>(&self, quotas: &[Quotas; N]) -> [ScratchKey; N] {
        let mut group = None;
        let mut tries = 0..MAX_TRIES;
        quotas.each_ref().map(|quotas| {
            let mut subject = self.scratch_key(quotas.clone());
            let own = self.store.atomic_group(subject.subject());
            let group = *group.get_or_insert(own);
            while self.store.atomic_group(subject.subject()) != group && tries.next().is_some() {
                subject = self.scratch_key(subject.quotas);
            }
            subject
        })
    }

    /// Returns a quota with the kit's window.
    pub(crate) fn quota(&self, limit: u32, algorithm: Algorithm) -> Quota {
        Quota::new(limit, self.window()).with_algorithm(algorithm)
    }

    pub(crate) async fn check(&self, subject: &ScratchKey, cost: u32) -> Result<Answer, Broken> {
        self.decide(subject.check(cost)).await
    }

    /// Lets the store decide this check.
    pub(crate) async fn decide(&self, check: Check<'_>) -> Result<Answer, Broken> {
        let answers = self.check_all(&[check]).await?;
        let answer = answers.first().cloned();
        answer.ok_or_else(|| Broken::Failed("no answer to a check".to_owned()))
    }

    /// Lets the store decide these checks together.
    pub(crate) async fn check_all(&self, checks: &[Check<'_>]) -> Result<Answers, Broken> {
        Ok(self.store.check(checks).await?)
    }

    /// Returns the units that count against the first quota.
    pub(crate) async fn used(&self, subject: &ScratchKey) -> Result<u32, Broken> {
        let answer = self.check(subject, 0).await?;
        ensure!(
            answer.quotas().len() == subject.quotas.len(),
            "{} answers to a check of {} quotas",
            answer.quotas().len(),
            subject.quotas.len()
        );
        let first = answer.quotas().first();
        first
            .map(|quota| quota.used())
            .ok_or_else(|| Broken::Failed("no answer to a check of a quota".to_owned()))
    }

    /// Charges a cost, which the store has to admit.
    pub(crate) async fn charge(&self, subject: &ScratchKey, cost: u32) -> Result<Answer, Broken> {
        let answer = self.check(subject, cost).await?;
        ensure!(
            answer.is_admitted(),
            "a cost of {cost} is refused though there is room: {answer:?}"
        );
        Ok(answer)
    }

    pub(crate) async fn refund(
        &self,
        subject: &ScratchKey,
        charged: &Answer,
        cost: u32,
        units: u32,
    ) -> Result<(), Broken> {
        let refund = subject.subject().refund(charged, cost, units);
        Ok(self.store.adjust(refund).await?)
    }

    pub(crate) async fn reset(&self, subject: &ScratchKey) -> Result<(), Broken> {
        let reset = subject.subject().adjust(Change::Reset);
        Ok(self.store.adjust(reset).await?)
    }
}

/// A rule of the kit.
pub(crate) type Rule = fn(&Conformance) -> RuleFuture<'_>;

/// A rule that is tested with each algorithm.
pub(crate) type AlgorithmRule = fn(&Conformance, Algorithm) -> RuleFuture<'_>;

impl fmt::Debug for Conformance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conformance")
            .field("is_exact", &self.is_exact())
            .finish_non_exhaustive()
    }
}

/// Pseudo-random numbers (splitmix64) that are the same in each run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let high = u32::try_from(mixed >> 32).unwrap_or_default();
        u32::try_from((u64::from(high) * u64::from(bound)) >> 32).unwrap_or_default()
    }
}
