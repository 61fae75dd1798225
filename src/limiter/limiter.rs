//! A name, a store and quotas: the limiter, without HTTP.

use std::fmt;
use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;

use super::admin::Admin;
use super::failure_policy::FailureHandler;
use super::failure_policy::FailurePolicy;
use crate::decision::{Answer, DecisionBuilder, LimiterId, QuotaAnswer, Source};
use crate::decision::{Decision, DecisionView};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::quota::{Quota, Quotas};
use crate::store::{BlockList, Check, CircuitBreaker, GuardedAnswer, Store, Subject};
use crate::telemetry::Telemetry;

/// Limits how often something is done, by key.
///
/// This is the core of the crate, without HTTP: for jobs, for the quota of an upstream API, for
/// anything that costs units. [`RateLimitLayer`](crate::RateLimitLayer) puts it before a service,
/// and [`RateLimitLayer::from`](crate::RateLimitLayer) lets a layer and a job share one limiter.
///
/// Cloning is cheap; clones are the same limiter.
///
/// # All or nothing
///
/// A check with a cost is admitted if every quota admits it, and then charged to all of them;
/// otherwise it is charged to none, in one atomic step at the store. A refused check costs nothing,
/// writes nothing and extends nothing.
///
/// # Examples
///
/// An upstream API that grants 9 500 units a day, where a search costs 100:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use tollgate::{MemoryStore, Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_day(9_500)).name("video-api");
///
/// let decision = limiter.check_n("key1", 100).await?;
/// if decision.is_allowed() {
///     println!("searching, {} units are left", decision.remaining());
/// } else {
///     println!("again in {:?}", decision.retry_after());
/// }
/// # assert_eq!(decision.remaining(), 9_400);
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct RateLimiter {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) guard: CircuitBreaker,
    pub(crate) blocks: BlockList,
    pub(crate) quotas: Quotas,
    pub(crate) name: Arc<str>,
    /// The name as it is stored.
    pub(crate) scope: Key,
    /// Without, the caller gets the error.
    pub(crate) on_failure: Option<Arc<FailureHandler>>,
    pub(crate) telemetry: Arc<Telemetry>,
}

/// A check that was started.
pub(crate) enum CheckProgress {
    Done(Result<Decision, Error>),
    /// To be polled with [`RateLimiter::poll_check`].
    Pending(PendingCheck),
}

/// A check that waits for its store.
pub(crate) struct PendingCheck {
    builder: DecisionBuilder,
    answer: GuardedAnswer,
}

/// For how long who waits for room believes a refusal: others may give units back, and a store that was
/// away may be back.
const NAP: Duration = Duration::from_secs(1);

/// What a limiter is called unless it is given a name.
const DEFAULT_NAME: &str = "default";

impl RateLimiter {
    /// A limiter of the name `default`.
    ///
    /// `quotas` is one [`Quota`] or a list of them. An empty list admits everything.
    pub fn new(store: impl Store, quotas: impl Into<Quotas>) -> Self {
        let name: Arc<str> = DEFAULT_NAME.into();
        Self {
            guard: store.circuit_breaker(),
            blocks: store.block_list(),
            store: Arc::new(store),
            quotas: quotas.into(),
            telemetry: Arc::new(Telemetry::new(&name, None)),
            name,
            scope: Key::from(DEFAULT_NAME),
            on_failure: None,
        }
    }

    /// Names the limiter, as a part of the stored key: limiters of one name, store and key share
    /// their counts, those of different names do not. Any text will do.
    #[must_use]
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self.scope = Key::from(&*self.name);
        self.telemetry = Arc::new(Telemetry::new(&self.name, self.telemetry.tracked_keys()));
        if let Some(on_failure) = self.on_failure.take() {
            self = self.on_failure(on_failure.policy);
        }
        self
    }

    /// Keeps so many of the keys that are refused most, for
    /// [`Admin::busiest_refused`](crate::Admin::busiest_refused); none unless said otherwise.
    ///
    /// 100 tell about any key that makes up a hundredth of all refusals. Each takes about 150 bytes, and
    /// a refusal a lock and on average a few steps, whatever the number of keys that are refused; one may
    /// look at all places twice.
    #[must_use]
    pub fn track_refused(mut self, keys: NonZeroUsize) -> Self {
        self.telemetry = Arc::new(Telemetry::new(&self.name, Some(keys)));
        self
    }

    /// What this handle answers while the store fails. One that is told nothing answers the error.
    ///
    /// Other clones keep theirs: they count together all the same.
    #[must_use]
    pub fn on_failure(mut self, policy: FailurePolicy) -> Self {
        self.on_failure = Some(Arc::new(FailureHandler::new(policy, &self.quotas)));
        self
    }

    /// Charges one unit to `key`, if every quota has room for it.
    ///
    /// # Errors
    ///
    /// As [`check_n`](Self::check_n).
    pub fn check(&self, key: impl Into<Key>) -> impl Future<Output = Result<Decision, Error>> {
        self.check_n(key, 1)
    }

    /// Charges `cost` units to `key`, if every quota has room for all of them.
    ///
    /// A cost of 0 only looks. If the future is dropped while a remote store is being asked, the
    /// units may have been charged: they return when their window has passed.
    ///
    /// # Errors
    ///
    /// [`CostExceedsLimit`](crate::ErrorKind::CostExceedsLimit) when the cost is above a limit, so
    /// that waiting would never help, and [`CostTooLarge`](crate::ErrorKind::CostTooLarge) above
    /// 100 000 units at once in a log; the store is not asked then. Else when the store fails, unless
    /// [`on_failure`](Self::on_failure) says otherwise.
    pub async fn check_n(&self, key: impl Into<Key>, cost: u32) -> Result<Decision, Error> {
        let checked = match self.begin_within_limits(key, cost) {
            CheckProgress::Done(decided) => decided,
            CheckProgress::Pending(mut check) => {
                poll_fn(|cx| self.poll_check(&mut check, cx)).await
            }
        };
        self.telemetry.record_check(&checked);
        checked
    }

    /// Asks only about what could pass some time.
    #[inline(always)]
    fn begin_within_limits(&self, key: impl Into<Key>, cost: u32) -> CheckProgress {
        match limit_below(&self.quotas, cost) {
            None => self.start_check(key, cost),
            Some(limit) => CheckProgress::Done(Err(Error::cost_exceeds_limit(cost, limit))),
        }
    }

    /// Checks against these quotas rather than its own, and whether or not the key is blocked.
    pub(crate) async fn check_by(
        &self,
        quotas: &Quotas,
        key: impl Into<Key>,
        cost: u32,
    ) -> Result<Decision, Error> {
        self.end(self.ask(quotas, key, cost, None)).await
    }

    async fn end(&self, begun: CheckProgress) -> Result<Decision, Error> {
        match begun {
            CheckProgress::Done(decided) => decided,
            CheckProgress::Pending(mut check) => {
                poll_fn(|cx| self.poll_check(&mut check, cx)).await
            }
        }
    }

    /// Looks at `key` without charging it: what is used, what remains, when it resets.
    ///
    /// It is a check of cost 0, so [`is_allowed`](crate::DecisionView::is_allowed) says little;
    /// [`remaining`](crate::DecisionView::remaining) says what would be admitted now. Whether the key is
    /// blocked is for [`Admin::peek`](crate::Admin::peek) to say.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn peek(&self, key: impl Into<Key>) -> Result<Decision, Error> {
        self.check_by(&self.quotas, key, 0).await
    }

    /// Takes units only when there is room, and waits for it: as long as
    /// [`retry_after`](crate::DecisionView::retry_after) says, and again if somebody else was faster. It
    /// asks again each second at least, since units may be given back.
    ///
    /// For jobs that would rather be late than fail. When the wait would end later than `max_wait`
    /// from the call, it is not begun: the refusal is returned at once, and says how long it would
    /// have been.
    ///
    /// # Errors
    ///
    /// As [`check_n`](Self::check_n).
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(MemoryStore::new(), Quota::new(1, Duration::from_millis(20)));
    /// let patience = Duration::from_secs(5);
    /// for _ in 0..3 {
    ///     assert!(limiter.until_ready("ada", 1, patience).await?.is_allowed());
    /// }
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn until_ready(
        &self,
        key: impl Into<Key>,
        cost: u32,
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        let key = key.into();
        let begin = Instant::now();
        loop {
            let checked = self.end(self.begin_within_limits(&key, cost)).await;
            let left = max_wait.saturating_sub(begin.elapsed());
            match checked.as_ref().ok().and_then(|it| backoff_after(it, left)) {
                Some(nap) => tokio::time::sleep(nap).await,
                None => {
                    self.telemetry.record_check(&checked);
                    return checked;
                }
            }
        }
    }

    /// Forgets what is charged to `key` under this limiter's quotas.
    ///
    /// # Errors
    ///
    /// When the store fails, or cannot reset a key.
    pub async fn reset(&self, key: impl Into<Key>) -> Result<(), Error> {
        self.reset_by(&self.quotas, &key.into()).await
    }

    /// What this limiter allows.
    #[must_use]
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// What operators do: look at a key, reset it, give it units, block it.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }

    pub(crate) fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    pub(crate) fn label(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn has_policy(&self) -> bool {
        self.on_failure.is_some()
    }

    /// Asks the store. Unlike [`check_n`](Self::check_n) it also asks about a cost above a limit,
    /// which the store refuses for good, with the numbers as they are.
    #[inline(always)]
    pub(crate) fn start_check(&self, key: impl Into<Key>, cost: u32) -> CheckProgress {
        self.start_check_with(&self.quotas, key, cost)
    }

    /// Asks about these quotas rather than its own.
    #[inline(always)]
    pub(crate) fn start_check_with(
        &self,
        quotas: &Quotas,
        key: impl Into<Key>,
        cost: u32,
    ) -> CheckProgress {
        self.ask(quotas, key, cost, Some(&self.blocks))
    }

    #[inline(always)]
    fn ask(
        &self,
        quotas: &Quotas,
        key: impl Into<Key>,
        cost: u32,
        blocks: Option<&BlockList>,
    ) -> CheckProgress {
        let mut draft = DecisionBuilder::new();
        let (key, answer) = draft.start(quotas, cost, self.charger(), key);
        let later = match answer_without_store(quotas, cost) {
            Some(answer) => Some(GuardedAnswer::ready(answer)),
            None => {
                let subject = self.subject(quotas, key);
                match blocks.and_then(|blocks| blocks.left_of(subject)) {
                    None => {
                        let check = Check { subject, cost };
                        self.guard.check_in_place(&*self.store, check, answer)
                    }
                    Some(left) => Some(GuardedAnswer::ready(Ok(blocked(quotas, cost, left)))),
                }
            }
        };
        match later.map(GuardedAnswer::try_ready) {
            None => CheckProgress::Done(self.conclude(draft)),
            Some(Ok(answer)) => CheckProgress::Done(self.finish(draft, answer)),
            Some(Err(answer)) => CheckProgress::Pending(PendingCheck {
                builder: draft,
                answer,
            }),
        }
    }

    /// Polls a check that waits for its store. To be called until it is ready, and not again.
    pub(crate) fn poll_check(
        &self,
        check: &mut PendingCheck,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Decision, Error>> {
        let answer = ready!(Pin::new(&mut check.answer).poll(cx));
        Poll::Ready(self.finish(std::mem::take(&mut check.builder), answer))
    }

    /// Makes of the answer of the store what the check came to; without one, does what the policy says.
    fn finish(
        &self,
        mut draft: DecisionBuilder,
        answer: Result<Answer, Error>,
    ) -> Result<Decision, Error> {
        match answer {
            Ok(answer) => {
                draft.set_answer(answer);
                self.conclude(draft)
            }
            Err(error) => self.without_store(draft, error),
        }
    }

    #[inline(always)]
    pub(crate) fn conclude(&self, mut draft: DecisionBuilder) -> Result<Decision, Error> {
        if let Err(answers) = draft.decide() {
            let error = mismatch(answers, draft.quota_list().len());
            return self.without_store(draft, error);
        }
        let decision = draft.finish();
        if let Some(on_failure) = &self.on_failure {
            on_failure
                .store_notices
                .record_decision(&self.name, decision.source());
        }
        Ok(decision)
    }

    /// These quotas as a list: its own, where they are.
    pub(crate) fn quotas_of(&self, quotas: &[Quota]) -> Quotas {
        if self.quotas.equals(quotas) {
            self.quotas.clone()
        } else {
            quotas.iter().cloned().collect()
        }
    }

    #[inline(always)]
    pub(crate) fn charger(&self) -> LimiterId {
        LimiterId {
            name: self.scope.fingerprint(),
            store: self.guard.store_id(),
        }
    }

    pub(crate) fn subject<'a>(&'a self, quotas: &'a Quotas, key: &'a Key) -> Subject<'a> {
        Subject {
            limiter: &self.scope,
            key,
            quotas,
        }
    }
}

/// How long who has so much time left waits before it asks again; not at all where that would not help.
pub(crate) fn backoff_after(decision: &DecisionView, left: Duration) -> Option<Duration> {
    let wait = decision.retry_after().filter(|wait| *wait <= left)?;
    Some(wait.min(NAP))
}

/// What is said of a blocked key, whatever it has used. What never passes does not pass then either.
#[cold]
pub(crate) fn blocked(quotas: &Quotas, cost: u32, left: Duration) -> Answer {
    let wait = limit_below(quotas, cost).is_none().then_some(left);
    let refused = |quota: &Quota| QuotaAnswer::refused(quota.limit(), wait, left);
    Answer::new(Source::Block, quotas.iter().map(refused))
}

/// What the store need not be asked about.
#[inline(always)]
fn answer_without_store(quotas: &Quotas, cost: u32) -> Option<Result<Answer, Error>> {
    if quotas.is_empty() {
        return Some(Ok(Answer::new(Source::None, [])));
    }
    let most = quotas.max_cost();
    if cost <= most {
        return None;
    }
    // What no limit admits is refused rather than split.
    if limit_below(quotas, cost).is_some() {
        return None;
    }
    Some(Err(Error::cost_too_large(cost, most)))
}

/// The least limit, if no wait makes `cost` fit into it.
#[inline(always)]
pub(crate) fn limit_below(quotas: &Quotas, cost: u32) -> Option<u32> {
    quotas.min_limit().filter(|limit| cost > *limit)
}

#[cold]
pub(crate) fn mismatch(answers: usize, quotas: usize) -> Error {
    Error::new(
        ErrorKind::InvalidReply,
        format!("the store answered for {answers} of {quotas} quotas"),
    )
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            store: _,
            guard: _,
            blocks: _,
            quotas,
            name,
            scope: _,
            on_failure,
            telemetry: _,
        } = self;
        f.debug_struct("RateLimiter")
            .field("name", name)
            .field(
                "quotas",
                &quotas.iter().map(Quota::to_string).collect::<Vec<_>>(),
            )
            .field("on_failure", &on_failure.as_ref().map(|then| then.policy))
            .finish_non_exhaustive()
    }
}
