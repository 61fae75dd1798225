//! Checks of several keys: all of them are charged, or none.
//!
//! 1. A level is a limiter, a key, a cost and quotas. A check has one or more levels.
//! 2. All levels have the same store, and no two have the same limiter and key.
//! 3. The check is admitted if every level admits its cost. Then every level is charged.
//! 4. If one level refuses, no level is charged.
//! 5. A level without quotas admits. It is not counted.
//! 6. If a key is blocked, or remembered as refused, the store is not asked.
//! 7. The store decides all levels in one atomic step, if their keys are in one [group](crate::Store::atomic_group).
//! 8. On a cluster, groups are asked in turn, each is charged, and refunded if a later one refuses. A task does
//!    this, so that it goes on if the caller is dropped. A lost reply or a crash strands a charge for its window.
//! 9. If a group fails, a closed level fails the check. Open levels admit. Levels that fall back are decided
//!    together by the counts of this process.
//! 10. The waits and counts of a level that was not asked are unknown, so the reported wait is a lower bound.

use std::borrow::Borrow;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::check::{
    CheckProgress, answer_without_store, backoff_after, blocked, exceeded_limit, mismatch,
};
use super::failure::{admit_uncounted, is_store_failure};
use super::failure_policy::FailureAction;
use super::limiter::RateLimiter;
use crate::decision::{Answer, Decision, DecisionBuilder, DecisionView, Source};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::quota::Quotas;
use crate::store::{Check, PendingAnswers, Refund, SendMark, StoreFuture, Subject};
use crate::telemetry::OutcomeLabel;

/// The longest time that a refusal is remembered if the levels of a check are in several groups.
///
/// The refusal may come from another such check, which was charged in one group and refunded when the next
/// group refused.
const MAX_AGE_IN_SEVERAL_GROUPS: Duration = Duration::from_millis(100);

/// One level of a check of several keys: a limiter, a key and a cost.
///
/// [`RateLimiter::on`] creates it, and [`RateLimiter::check_all`] takes it.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use tollgate::{MemoryStore, Quota, RateLimiter};
///
/// let store = MemoryStore::new();
/// let user = RateLimiter::new(store.clone(), Quota::per_minute(60)).name("user");
/// let tenant = RateLimiter::new(store, Quota::per_minute(100)).name("tenant");
///
/// // The plan of this tenant allows more than the limiter's own quota.
/// let gold = Quota::per_minute(10_000);
/// let levels = [user.on("ada"), tenant.on("acme").cost(900).quotas(gold)];
/// assert!(RateLimiter::check_all(levels).await?.is_allowed());
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "a level does nothing unless it is checked"]
pub struct LevelCheck<'a> {
    limiter: &'a RateLimiter,
    key: Key,
    cost: u32,
    /// The quotas in place of the limiter's own.
    quotas: Option<Quotas>,
    /// The error of the lookup of the quotas.
    error: Option<Error>,
}

impl<'a> LevelCheck<'a> {
    /// Sets the cost at this level, in units. The default is 1.
    pub fn cost(self, cost: u32) -> Self {
        Self { cost, ..self }
    }

    /// Sets the quotas of the key, in place of those of the limiter.
    pub fn quotas(self, quotas: impl Into<Quotas>) -> Self {
        let quotas = Some(quotas.into());
        Self { quotas, ..self }
    }

    /// Marks the level as one whose quotas were not found. It follows its failure policy with the limiter's own
    /// quotas.
    pub(crate) fn without_quotas(self, error: Error) -> Self {
        Self {
            quotas: None,
            error: Some(error),
            ..self
        }
    }

    fn exceeded_limit(&self) -> Option<u32> {
        let quotas = self.quotas.as_ref().unwrap_or(&self.limiter.quotas);
        exceeded_limit(quotas, self.cost)
    }
}

/// Leaves out the key, which may identify a person.
impl fmt::Debug for LevelCheck<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LevelCheck")
            .field("limiter", &self.limiter)
            .field("cost", &self.cost)
            .field("quotas", &self.quotas)
            .finish_non_exhaustive()
    }
}

/// The state of a check of several keys after it was started.
pub(crate) enum LevelsProgress {
    Done(Result<Decision, LevelsError>),
    /// Waits for the store.
    Pending(PendingLevels),
}

/// A check of several keys that waits for the store.
pub(crate) type PendingLevels = Pin<Box<dyn Future<Output = Result<Decision, LevelsError>> + Send>>;

/// The error of a check of several keys.
#[derive(Debug)]
pub(crate) struct LevelsError {
    pub(crate) error: Error,
    /// The indices of the levels that failed. The first level if the check as a whole is wrong.
    pub(crate) failed: Indices,
}

/// Indices of levels.
pub(crate) type Indices = SmallVec<[usize; 4]>;

impl LevelsError {
    fn at(index: usize, error: Error) -> Self {
        let failed = smallvec![index];
        Self { error, failed }
    }
}

impl RateLimiter {
    /// Returns a level for [`check_all`](Self::check_all): this limiter, a key, and a cost of 1.
    pub fn on(&self, key: impl Into<Key>) -> LevelCheck<'_> {
        LevelCheck {
            limiter: self,
            key: key.into(),
            cost: 1,
            quotas: None,
            error: None,
        }
    }

    /// Checks several keys together: charges each level if all of them admit their cost, and else none.
    ///
    /// For example, the limits of a user, of the tenant and of the whole service. One level is the same as
    /// [`check_n`](Self::check_n), and no level admits.
    ///
    /// The decision has [a part for each level](Decision::levels). The reported numbers are those of the
    /// refusing quota with the longest wait, over all levels. Each limiter [refunds](Self::refund) and
    /// [settles](Self::settle_level) its own level.
    ///
    /// The store decides all levels in one atomic step. On Redis, that is one call. On a cluster, it is one call
    /// if the keys are in one slot. Else the slots are asked in turn. Each is charged, and refunded if a later
    /// one refuses, so that no count ever exceeds its limit. These calls go on if the future is dropped. Another
    /// check may be refused because of a charge that is refunded later, and that refusal may be remembered for
    /// up to 100 ms. If a reply is lost or the process ends, such a charge stays for its window.
    ///
    /// A level that was [not asked](crate::LevelDecision::is_asked), because another one refused, may need a
    /// longer wait than [`retry_after`](Decision::retry_after).
    ///
    /// # When the store fails
    ///
    /// Each level follows the [policy](Self::on_failure) of its limiter. If one of them has no policy or is
    /// closed, the check returns the error. Levels that fall back are decided together by the counts of this
    /// process: all of them are charged, or none. Open levels admit.
    ///
    /// # Errors
    ///
    /// Returns an error
    ///
    /// - of kind [`Misconfigured`](ErrorKind::Misconfigured) if limiters have different stores, or if two levels
    ///   have the same limiter and key. No failure policy applies. The [source](std::error::Error::source) is a
    ///   [`ConfigError`](crate::ConfigError);
    /// - for each level in the same cases as [`check_n`](Self::check_n).
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{Key, MemoryStore, Quota, RateLimiter};
    ///
    /// let store = MemoryStore::new();
    /// let user = RateLimiter::new(store.clone(), Quota::per_minute(60)).name("user");
    /// let tenant = RateLimiter::new(store.clone(), Quota::per_minute(1_000)).name("tenant");
    /// let service = RateLimiter::new(store, Quota::per_second(20_000)).name("service");
    ///
    /// let levels = [user.on("ada"), tenant.on("acme").cost(900), service.on(Key::global())];
    /// let decision = RateLimiter::check_all(levels).await?;
    /// assert!(decision.is_allowed());
    ///
    /// // The tenant has 100 units left, so the user is not charged either.
    /// let levels = [user.on("bob"), tenant.on("acme").cost(900), service.on(Key::global())];
    /// let decision = RateLimiter::check_all(levels).await?;
    /// assert!(!decision.is_allowed());
    /// assert_eq!(decision.limit(), 1_000);
    /// assert_eq!(user.peek("bob").await?.used(), 0);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn check_all<'a>(
        levels: impl IntoIterator<Item = LevelCheck<'a>>,
    ) -> impl Future<Output = Result<Decision, Error>> + Send {
        let levels: LevelChecks<'a> = levels.into_iter().collect();
        async move {
            let limiters = limiters_of(&levels);
            let checked = complete(start_within_limits(levels)).await;
            record(&limiters, &checked);
            checked.map_err(|failure| failure.error)
        }
    }

    /// Waits until every level admits its cost, then charges all of them.
    ///
    /// It waits as [`until_ready`](Self::until_ready) does, and checks as [`check_all`](Self::check_all) does.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`check_all`](Self::check_all).
    ///
    /// # Panics
    ///
    /// Panics if it has to wait outside of a tokio runtime, or in a runtime without timers.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use tollgate::{Key, MemoryStore, Quota, RateLimiter};
    ///
    /// let store = MemoryStore::new();
    /// let short = Quota::new(1, Duration::from_millis(20));
    /// let user = RateLimiter::new(store.clone(), Quota::per_minute(60)).name("user");
    /// let service = RateLimiter::new(store, short).name("service");
    /// for name in ["ada", "bob"] {
    ///     let levels = [user.on(name), service.on(Key::global())];
    ///     let decision = RateLimiter::until_all_ready(levels, Duration::from_secs(5)).await?;
    ///     assert!(decision.is_allowed());
    /// }
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn until_all_ready<'a>(
        levels: impl IntoIterator<Item = LevelCheck<'a>>,
        max_wait: Duration,
    ) -> impl Future<Output = Result<Decision, Error>> + Send {
        let levels: LevelChecks<'a> = levels.into_iter().collect();
        async move {
            let limiters = limiters_of(&levels);
            let started_at = Instant::now();
            loop {
                let checked = complete(start_within_limits(levels.clone())).await;
                let time_left = max_wait.saturating_sub(started_at.elapsed());
                let decision = checked.as_ref().ok();
                match decision.and_then(|decision| backoff_after(decision.view(), time_left)) {
                    Some(backoff) => sleep(backoff).await,
                    None => {
                        record(&limiters, &checked);
                        return checked.map_err(|failure| failure.error);
                    }
                }
            }
        }
    }
}

type LevelChecks<'a> = SmallVec<[LevelCheck<'a>; 4]>;

fn limiters_of<'a>(levels: &[LevelCheck<'a>]) -> SmallVec<[&'a RateLimiter; 4]> {
    levels.iter().map(|level| level.limiter).collect()
}

/// Records the result of a check without HTTP: see [`record_levels`].
fn record(limiters: &[&RateLimiter], checked: &Result<Decision, LevelsError>) {
    match checked {
        Ok(decision) if decision.is_allowed() => {
            record_levels(limiters, OutcomeLabel::Admitted, decision.view());
        }
        Ok(decision) => record_levels(limiters, OutcomeLabel::Refused, decision.view()),
        Err(failure) => {
            // The store did not fail: the check can never be admitted, which is a refusal.
            let outcome = match failure.error.kind() {
                ErrorKind::CostExceedsLimit => OutcomeLabel::Refused,
                _ => OutcomeLabel::Failed,
            };
            record_failed_levels(limiters, outcome, failure);
        }
    }
}

/// Records a decision: an admission at each level's limiter, and a refusal only at that of the reported level.
pub(crate) fn record_levels(
    limiters: &[&RateLimiter],
    outcome: OutcomeLabel,
    decision: &DecisionView,
) {
    if outcome != OutcomeLabel::Admitted || limiters.len() == 1 {
        if let Some(limiter) = limiters.get(decision.reported_level()) {
            limiter.telemetry.record_decision(outcome, decision);
        }
        return;
    }
    for (limiter, level) in limiters.iter().zip(decision.levels()) {
        limiter.telemetry.record_admitted_level(level);
    }
}

/// Records an error at the limiter of each level that failed.
pub(crate) fn record_failed_levels(
    limiters: &[&RateLimiter],
    outcome: OutcomeLabel,
    failure: &LevelsError,
) {
    let LevelsError { error, failed } = failure;
    for limiter in failed.iter().filter_map(|index| limiters.get(*index)) {
        let kind = error.kind().text();
        limiter.telemetry.record_failure(outcome, error, kind);
    }
}

async fn complete(started: LevelsProgress) -> Result<Decision, LevelsError> {
    match started {
        LevelsProgress::Done(checked) => checked,
        LevelsProgress::Pending(check) => check.await,
    }
}

/// Starts a check, unless a cost is above a limit.
fn start_within_limits(levels: LevelChecks<'_>) -> LevelsProgress {
    if let Err(failure) = verify(&levels) {
        return LevelsProgress::Done(Err(failure));
    }
    for (index, level) in levels.iter().enumerate() {
        if let Some(limit) = level.exceeded_limit() {
            let error = Error::cost_exceeds_limit(level.cost, limit);
            return LevelsProgress::Done(Err(LevelsError::at(index, error)));
        }
    }
    start_verified(levels)
}

/// Starts a check of several keys. Answers at once if the store does.
///
/// It sends a cost above a limit to the store, so that the refusal has the current numbers.
pub(crate) fn start_levels<'a>(levels: impl IntoIterator<Item = LevelCheck<'a>>) -> LevelsProgress {
    let levels: LevelChecks<'a> = levels.into_iter().collect();
    match verify(&levels) {
        Ok(()) => start_verified(levels),
        Err(failure) => LevelsProgress::Done(Err(failure)),
    }
}

/// Fails if the store cannot decide the levels together.
fn verify(levels: &[LevelCheck<'_>]) -> Result<(), LevelsError> {
    let [first, others @ ..] = levels else {
        return Ok(());
    };
    for level in others {
        if level.limiter.id.store != first.limiter.id.store {
            let error = different_stores(first.limiter, level.limiter);
            return Err(LevelsError::at(0, error));
        }
    }
    for (index, level) in others.iter().enumerate() {
        let earlier = levels.iter().take(index + 1);
        let is_same = |other: &&LevelCheck<'_>| {
            other.limiter.id.name == level.limiter.id.name && other.key == level.key
        };
        if let Some(other) = earlier.into_iter().find(is_same) {
            return Err(LevelsError::at(0, same_count(other.limiter, level.limiter)));
        }
    }
    Ok(())
}

fn different_stores(one: &RateLimiter, other: &RateLimiter) -> Error {
    Error::levels(
        &one.name,
        &other.name,
        "their stores differ",
        "create both limiters with clones of one store",
    )
}

fn same_count(one: &RateLimiter, other: &RateLimiter) -> Error {
    Error::levels(
        &one.name,
        &other.name,
        "they count the same key under the same name",
        "give each limiter its own name, or check the key once with the sum of the costs",
    )
}

fn start_verified(levels: LevelChecks<'_>) -> LevelsProgress {
    if levels.len() > 1 {
        return Levels::new(levels).start();
    }
    match levels.into_iter().next() {
        None => LevelsProgress::Done(Ok(Decision::unlimited())),
        Some(level) => start_one(level),
    }
}

fn start_one(level: LevelCheck<'_>) -> LevelsProgress {
    let LevelCheck {
        limiter,
        key,
        cost,
        quotas,
        error,
    } = level;
    let failed = |error| LevelsError::at(0, error);
    if let Some(error) = error {
        let checked = limiter.check_without_quotas(key, cost, error);
        return LevelsProgress::Done(checked.map_err(failed));
    }
    let quotas = quotas.as_ref().unwrap_or(&limiter.quotas);
    match limiter.start_check_with(quotas, key, cost) {
        CheckProgress::Done(checked) => LevelsProgress::Done(checked.map_err(failed)),
        CheckProgress::Pending(mut check) => {
            let limiter = limiter.clone();
            LevelsProgress::Pending(Box::pin(async move {
                let checked = poll_fn(|cx| limiter.poll_check(&mut check, cx)).await;
                checked.map_err(failed)
            }))
        }
    }
}

/// Two or more levels, and what is known of each. `L` is a limiter, or a reference to one.
struct Levels<L>(SmallVec<[Level<L>; 4]>);

struct Level<L> {
    limiter: L,
    key: Key,
    cost: u32,
    /// The quotas in place of the limiter's own.
    quotas: Option<Quotas>,
    state: LevelState,
}

enum LevelState {
    NotAsked,
    Answered(Answer),
    /// The store, or the lookup of the quotas, has failed, and no policy was applied yet.
    Failed(Error),
    /// The level falls back because of this error, and was not decided yet.
    FallsBack(Error),
}

/// The outcome of one group of levels.
enum GroupOutcome {
    Admitted,
    Refused,
    Failed,
}

impl<L: Borrow<RateLimiter>> Level<L> {
    fn limiter(&self) -> &RateLimiter {
        self.limiter.borrow()
    }

    fn quotas(&self) -> &Quotas {
        match &self.quotas {
            Some(quotas) => quotas,
            None => &self.limiter().quotas,
        }
    }

    fn subject(&self) -> Subject<'_> {
        self.limiter().subject(self.quotas(), &self.key)
    }

    fn check(&self) -> Check<'_> {
        Check {
            subject: self.subject(),
            cost: self.cost,
        }
    }

    fn answer(&self) -> Option<&Answer> {
        match &self.state {
            LevelState::Answered(answer) => Some(answer),
            LevelState::NotAsked | LevelState::Failed(_) | LevelState::FallsBack(_) => None,
        }
    }

    fn is_refused(&self) -> bool {
        self.answer().is_some_and(|answer| !answer.is_admitted())
    }

    /// Logs that the store or the lookup of the quotas failed, and what the policy does.
    fn record_failure(&self, error: &Error, action: FailureAction) {
        let limiter = self.limiter();
        if let Some(on_failure) = &limiter.on_failure {
            let outages = on_failure.outages_of(error);
            outages.record_failure(&limiter.name, action.text(), error);
        }
    }
}

impl<'a> Levels<&'a RateLimiter> {
    fn new(levels: LevelChecks<'a>) -> Self {
        let levels = levels.into_iter().map(|level| Level {
            limiter: level.limiter,
            key: level.key,
            cost: level.cost,
            quotas: level.quotas,
            state: match level.error {
                None => LevelState::NotAsked,
                Some(error) => LevelState::Failed(error),
            },
        });
        Self(levels.collect())
    }

    fn into_owned(self) -> Levels<RateLimiter> {
        let levels = self.0.into_iter().map(|level| Level {
            limiter: level.limiter.clone(),
            key: level.key,
            cost: level.cost,
            quotas: level.quotas,
            state: level.state,
        });
        Levels(levels.collect())
    }

    fn start(mut self) -> LevelsProgress {
        match self.decide_without_store() {
            Err(failure) => return LevelsProgress::Done(Err(failure)),
            Ok(()) if self.0.iter().any(Level::is_refused) => {
                return LevelsProgress::Done(Ok(self.decide()));
            }
            Ok(()) => {}
        }
        let mut groups = self.groups();
        let falls_back = !self.falling_back().is_empty();
        if groups.len() > 1 || (falls_back && !groups.is_empty()) {
            return detach(self.into_owned().ask_in_turn(groups));
        }
        let Some(group) = groups.pop() else {
            return LevelsProgress::Done(self.fall_back().map(|_| self.decide()));
        };
        let PendingAnswers { future, sent } = self.ask(&group);
        match future.try_ready() {
            Ok(answers) => LevelsProgress::Done(self.finish(&group, &sent, answers)),
            Err(future) => {
                let levels = self.into_owned();
                LevelsProgress::Pending(Box::pin(async move {
                    let answers = future.await;
                    levels.finish(&group, &sent, answers)
                }))
            }
        }
    }
}

impl<L: Borrow<RateLimiter>> Levels<L> {
    /// Answers the levels that need no store, and refuses those that are blocked or remembered as refused.
    fn decide_without_store(&mut self) -> Result<(), LevelsError> {
        let mut lookups_failed = false;
        for (index, level) in self.0.iter_mut().enumerate() {
            lookups_failed |= matches!(level.state, LevelState::Failed(_));
            match answer_without_store(level.quotas(), level.cost) {
                None => {}
                Some(Ok(answer)) => level.state = LevelState::Answered(answer),
                Some(Err(error)) => return Err(LevelsError::at(index, error)),
            }
        }
        if self.refuse(|level| {
            let left = level.limiter().block_list.lookup(level.subject())?;
            Some(blocked(level.quotas(), level.cost, left))
        }) {
            return Ok(());
        }
        if lookups_failed {
            let all: Indices = (0..self.0.len()).collect();
            self.apply_policies(&all)?;
        }
        self.refuse(|level| match level.state {
            LevelState::NotAsked => level.limiter().store.remembered(level.check()),
            _ => None,
        });
        Ok(())
    }

    /// Answers with the refusals that `refusal` returns. Returns whether there are any.
    fn refuse(&mut self, refusal: impl Fn(&Level<L>) -> Option<Answer>) -> bool {
        let mut is_refused = false;
        for level in &mut self.0 {
            if level.answer().is_none()
                && let Some(answer) = refusal(level)
            {
                level.state = LevelState::Answered(answer);
                is_refused = true;
            }
        }
        is_refused
    }

    /// Returns the levels to ask, by groups, in the order in which the groups first occur.
    fn groups(&self) -> SmallVec<[Indices; 1]> {
        let mut groups: SmallVec<[(u64, Indices); 1]> = SmallVec::new();
        for (index, level) in self.0.iter().enumerate() {
            if !matches!(level.state, LevelState::NotAsked) {
                continue;
            }
            let id = level.limiter().store.atomic_group(level.check());
            match groups.iter_mut().find(|(other, _)| *other == id) {
                Some((_, group)) => group.push(index),
                None => groups.push((id, smallvec![index])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    fn at<'a>(&'a self, indices: &'a [usize]) -> impl Iterator<Item = &'a Level<L>> {
        indices.iter().filter_map(|index| self.0.get(*index))
    }

    fn checks(&self, indices: &[usize]) -> SmallVec<[Check<'_>; 4]> {
        let levels = indices.iter().filter_map(|index| self.0.get(*index));
        levels.map(Level::check).collect()
    }

    /// Asks the store to decide one group.
    fn ask(&self, group: &[usize]) -> PendingAnswers {
        let checks = self.checks(group);
        match self.at(group).next() {
            Some(first) => first.limiter().store.check_all(&checks),
            None => StoreFuture::ready(Ok(Vec::new())).into(),
        }
    }

    /// Stores the answers to one group.
    fn answered(
        &mut self,
        group: &[usize],
        sent: &[SendMark],
        answers: Result<Vec<Answer>, Error>,
        max_age: Duration,
    ) -> GroupOutcome {
        let answers = answers.and_then(|answers| self.verify_answers(group, answers));
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => {
                for index in group {
                    if let Some(level) = self.0.get_mut(*index) {
                        level.state = LevelState::Failed(error.clone());
                    }
                }
                return GroupOutcome::Failed;
            }
        };
        if let Some(first) = self.at(group).next() {
            let checks = self.checks(group);
            let store = &first.limiter().store;
            store.remember_all(&checks, sent, &answers, max_age);
        }
        let mut outcome = GroupOutcome::Admitted;
        for (index, answer) in group.iter().zip(answers) {
            if !answer.is_admitted() {
                outcome = GroupOutcome::Refused;
            }
            if let Some(level) = self.0.get_mut(*index) {
                level.state = LevelState::Answered(answer);
            }
        }
        outcome
    }

    /// Fails if there is not one answer for each quota.
    fn verify_answers(&self, group: &[usize], answers: Vec<Answer>) -> Result<Vec<Answer>, Error> {
        let quotas = || self.at(group).map(|level| level.quotas().len());
        let answered = || answers.iter().map(|answer| answer.quotas().len());
        if quotas().eq(answered()) {
            return Ok(answers);
        }
        Err(mismatch(answered().sum(), quotas().sum()))
    }

    /// Decides after the only group was asked.
    fn finish(
        mut self,
        group: &[usize],
        sent: &[SendMark],
        answers: Result<Vec<Answer>, Error>,
    ) -> Result<Decision, LevelsError> {
        match self.answered(group, sent, answers, Duration::MAX) {
            GroupOutcome::Admitted | GroupOutcome::Refused => {}
            GroupOutcome::Failed => {
                self.apply_policies(group)?;
                self.fall_back()?;
            }
        }
        Ok(self.decide())
    }

    /// Applies the failure policies of levels that have failed.
    ///
    /// # Errors
    ///
    /// Fails if one of them has no policy or is closed.
    fn apply_policies(&mut self, indices: &[usize]) -> Result<(), LevelsError> {
        let mut closed: Option<LevelsError> = None;
        for index in indices {
            let Some(level) = self.0.get_mut(*index) else {
                continue;
            };
            let LevelState::Failed(error) = &level.state else {
                continue;
            };
            let error = error.clone();
            let on_failure = level.limiter().on_failure.as_deref();
            let policy = on_failure.filter(|_| is_store_failure(&error));
            let action = policy.map_or(FailureAction::Closed, |policy| policy.policy.action);
            let is_in_process = level.limiter().store.is_in_process();
            let state = match action {
                FailureAction::Open => {
                    let (_, answer) = admit_uncounted(level.quotas().clone());
                    Some(LevelState::Answered(answer))
                }
                FailureAction::FallBack if !is_in_process => {
                    Some(LevelState::FallsBack(error.clone()))
                }
                // Such a store fails only if it is full. If the lookup of quotas has failed, the store still works.
                FailureAction::FallBack if error.kind() == ErrorKind::QuotasUnknown => {
                    Some(LevelState::NotAsked)
                }
                FailureAction::FallBack | FailureAction::Closed => None,
            };
            // A level that falls back logs the failure when it is decided.
            match state {
                Some(state @ LevelState::FallsBack(_)) => level.state = state,
                Some(state) => {
                    level.record_failure(&error, action);
                    level.state = state;
                }
                None => {
                    if is_store_failure(&error) {
                        level.record_failure(&error, FailureAction::Closed);
                    }
                    match &mut closed {
                        Some(closed) => closed.failed.push(*index),
                        None => closed = Some(LevelsError::at(*index, error)),
                    }
                }
            }
        }
        closed.map_or(Ok(()), Err)
    }

    /// Returns the levels that fall back.
    fn falling_back(&self) -> Indices {
        let levels = self.0.iter().enumerate();
        levels
            .filter(|(_, level)| matches!(level.state, LevelState::FallsBack(_)))
            .map(|(index, _)| index)
            .collect()
    }

    /// Decides the levels that fall back together, by the counts of this process. Returns whether they are
    /// admitted.
    ///
    /// # Errors
    ///
    /// Fails if this process cannot decide.
    fn fall_back(&mut self) -> Result<bool, LevelsError> {
        let mut left = self.falling_back();
        self.apply_shares(&left)?;
        let mut charged = Indices::new();
        while let Some(first) = left.first().and_then(|index| self.0.get(*index)) {
            // Limiters of a store without a circuit breaker of its own have counts of their own.
            let store = first.limiter().store.clone();
            let has_same = |index: &usize| {
                let level = self.0.get(*index);
                level.is_some_and(|level| level.limiter().store.has_same_fallback(&store))
            };
            let (together, others): (Indices, Indices) = left.into_iter().partition(has_same);
            left = others;
            let answers = store.check_all_fallback(&self.checks(&together));
            let Some(answers) = answers else {
                self.refund_fallback(&charged);
                return Err(self.cannot_fall_back(&together));
            };
            let is_admitted = answers.iter().all(Answer::is_admitted);
            for (index, answer) in together.iter().zip(answers) {
                if let Some(level) = self.0.get_mut(*index) {
                    if let LevelState::FallsBack(error) = &level.state {
                        level.record_failure(error, FailureAction::FallBack);
                    }
                    level.state = LevelState::Answered(answer);
                }
            }
            if !is_admitted {
                self.refund_fallback(&charged);
                return Ok(false);
            }
            charged.extend(together);
        }
        Ok(true)
    }

    /// Divides the limits of levels that fall back by the number of replicas.
    fn apply_shares(&mut self, indices: &[usize]) -> Result<(), LevelsError> {
        let mut too_expensive = Indices::new();
        for index in indices {
            let Some(level) = self.0.get_mut(*index) else {
                continue;
            };
            let limiter = level.limiter.borrow();
            let Some(on_failure) = &limiter.on_failure else {
                continue;
            };
            let quotas = level.quotas.as_ref().unwrap_or(&limiter.quotas);
            let shares = on_failure.shares_of(quotas, &limiter.quotas);
            // A cost above its share, but within the limit, will pass again when the store recovers. A refusal
            // without a wait would be wrong.
            if exceeded_limit(&shares, level.cost).is_some()
                && exceeded_limit(quotas, level.cost).is_none()
            {
                too_expensive.push(*index);
            }
            level.quotas = Some(shares);
        }
        if too_expensive.is_empty() {
            Ok(())
        } else {
            Err(self.cannot_fall_back(&too_expensive))
        }
    }

    /// Returns the error of levels that this process cannot decide: they are closed.
    fn cannot_fall_back(&self, indices: &[usize]) -> LevelsError {
        let mut failure: Option<LevelsError> = None;
        for index in indices {
            let Some(level) = self.0.get(*index) else {
                continue;
            };
            if let LevelState::FallsBack(error) = &level.state {
                level.record_failure(error, FailureAction::Closed);
                match &mut failure {
                    Some(failure) => failure.failed.push(*index),
                    None => failure = Some(LevelsError::at(*index, error.clone())),
                }
            }
        }
        failure.unwrap_or_else(|| LevelsError::at(0, mismatch(0, indices.len())))
    }

    /// Returns the refund of all that a level was charged. `None` if it was not charged.
    fn refund(&self, index: usize) -> Option<StoreFuture<()>> {
        let level = self.0.get(index)?;
        let answer = level.answer()?;
        if level.cost == 0 || answer.source() == Source::None {
            return None;
        }
        let refund = Refund::new(level.check(), answer, level.cost);
        Some(level.limiter().store.refund(refund))
    }

    /// Refunds what fallback counts have charged, which is done at once.
    fn refund_fallback(&mut self, charged: &[usize]) {
        for index in charged {
            drop(self.refund(*index));
        }
        self.show_refunded(charged);
    }

    /// Removes refunded units from the answers.
    fn show_refunded(&mut self, refunded: &[usize]) {
        for index in refunded {
            if let Some(level) = self.0.get_mut(*index)
                && let LevelState::Answered(answer) = &mut level.state
            {
                answer.remove_charge(level.cost);
            }
        }
    }

    /// Decides by the answers. A level without an answer was not asked.
    fn decide(self) -> Decision {
        let mut builder = DecisionBuilder::new();
        for (index, level) in self.0.into_iter().enumerate() {
            let limiter: &RateLimiter = level.limiter.borrow();
            let quotas = level.quotas.as_ref().unwrap_or(&limiter.quotas);
            let answer = match level.state {
                LevelState::Answered(answer) => answer,
                _ => Answer::default(),
            };
            if let Some(on_failure) = &limiter.on_failure
                && answer.source() != Source::Fallback
            {
                let outages = &on_failure.store_outages;
                outages.record_decision(&limiter.name, answer.source());
            }
            let name = limiter.level_name();
            if index == 0 {
                builder.start(quotas, level.cost, name, level.key);
                builder.set_answer(answer);
            } else {
                builder.add_level(quotas, level.cost, name, level.key, answer);
            }
        }
        builder.decide_levels();
        builder.finish()
    }
}

impl Levels<RateLimiter> {
    /// Asks the groups in turn, then decides the levels that fall back. Refunds what was charged if a later
    /// group refuses or fails.
    async fn ask_in_turn(
        mut self,
        groups: SmallVec<[Indices; 1]>,
    ) -> Result<Decision, LevelsError> {
        let max_age = if groups.len() > 1 {
            MAX_AGE_IN_SEVERAL_GROUPS
        } else {
            Duration::MAX
        };
        let mut charged = Indices::new();
        for group in groups {
            let PendingAnswers { future, sent } = self.ask(&group);
            let answers = future.await;
            match self.answered(&group, &sent, answers, max_age) {
                GroupOutcome::Admitted => charged.extend(group),
                GroupOutcome::Refused => {
                    self.refund_all(&charged).await;
                    return Ok(self.decide());
                }
                GroupOutcome::Failed => {
                    if let Err(failure) = self.apply_policies(&group) {
                        self.refund_all(&charged).await;
                        return Err(failure);
                    }
                }
            }
        }
        let fell_back = self.fall_back();
        if !matches!(fell_back, Ok(true)) {
            self.refund_all(&charged).await;
        }
        fell_back.map(|_| self.decide())
    }

    /// Refunds what groups were charged. A refund that fails leaves the charge for its window.
    async fn refund_all(&mut self, charged: &[usize]) {
        let refunds = charged.iter().filter_map(|index| self.refund(*index));
        join(refunds.collect()).await;
        self.show_refunded(charged);
    }
}

/// Waits for all of these futures at once.
async fn join(mut pending: Vec<StoreFuture<()>>) {
    poll_fn(|cx| {
        pending.retain_mut(|future| Pin::new(future).poll(cx).is_pending());
        if pending.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// Runs a check in a task, so that it goes on if the caller is dropped. Answers at once if the store does.
///
/// Outside of a tokio runtime there are no tasks, and dropping the caller ends the check.
fn detach(
    check: impl Future<Output = Result<Decision, LevelsError>> + Send + 'static,
) -> LevelsProgress {
    let mut check = Box::pin(check);
    let mut cx = Context::from_waker(Waker::noop());
    if let Poll::Ready(checked) = check.as_mut().poll(&mut cx) {
        return LevelsProgress::Done(checked);
    }
    let Ok(runtime) = Handle::try_current() else {
        return LevelsProgress::Pending(check);
    };
    let task = runtime.spawn(check);
    LevelsProgress::Pending(Box::pin(async move {
        task.await
            .unwrap_or_else(|_| Err(LevelsError::at(0, task_dropped())))
    }))
}

fn task_dropped() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the task of a check of several keys was dropped (runtime shut down?): the check may or may not have \
         been charged",
    )
}
