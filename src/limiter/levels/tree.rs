//! Two or more levels of a check: which are asked, and what is known of each.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::level_check::LevelChecks;
use crate::decision::{Answer, Decision, DecisionBuilder, Source};
use crate::error::Error;
use crate::key::Key;
use crate::limiter::check::{answer_without_store, blocked, mismatch};
use crate::limiter::failure_policy::FailureAction;
use crate::limiter::lease::HeldUnits;
use crate::limiter::limiter::RateLimiter;
use crate::quota::Quotas;
use crate::store::{Check, PendingAnswers, SendMark, StoreFuture, Subject};

/// The state of a check of several keys after it was started.
pub(crate) enum LevelsProgress {
    Done(Result<Decision, LevelsError>),
    /// Waits for the store.
    Pending(PendingLevels),
}

impl LevelsProgress {
    /// Waits until the check is done.
    pub(super) async fn outcome(self) -> Result<Decision, LevelsError> {
        match self {
            Self::Done(checked) => checked,
            Self::Pending(check) => check.await,
        }
    }
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
    pub(super) fn at(index: usize, error: Error) -> Self {
        let failed = smallvec![index];
        Self { error, failed }
    }
}

/// Two or more levels, and what is known of each. `L` is a limiter, or a reference to one.
pub(super) struct Tree<L>(pub(super) SmallVec<[Level<L>; 4]>);

pub(super) struct Level<L> {
    pub(super) limiter: L,
    pub(super) key: Key,
    pub(super) cost: u32,
    /// The quotas in place of the limiter's own.
    pub(super) quotas: Option<Quotas>,
    pub(super) state: LevelState,
    /// The units that this process held for the level. They return unless the check is admitted.
    pub(super) held: Option<HeldUnits>,
}

pub(super) enum LevelState {
    NotAsked,
    Answered(Answer),
    /// The store, or the lookup of the quotas, has failed, and no policy was applied yet.
    Failed(Error),
    /// The level falls back because of this error, and was not decided yet.
    FallsBack(Error),
}

/// The outcome of one group of levels.
pub(super) enum GroupOutcome {
    Admitted,
    Refused,
    Failed,
}

impl<L: Borrow<RateLimiter>> Level<L> {
    pub(super) fn limiter(&self) -> &RateLimiter {
        self.limiter.borrow()
    }

    pub(super) fn quotas(&self) -> &Quotas {
        let limiter: &RateLimiter = self.limiter.borrow();
        self.quotas.as_ref().unwrap_or(&limiter.quotas)
    }

    pub(super) fn subject(&self) -> Subject<'_> {
        self.limiter().subject(self.quotas(), &self.key)
    }

    pub(super) fn check(&self) -> Check<'_> {
        self.subject().check(self.cost)
    }

    pub(super) fn answer(&self) -> Option<&Answer> {
        match &self.state {
            LevelState::Answered(answer) => Some(answer),
            LevelState::NotAsked | LevelState::Failed(_) | LevelState::FallsBack(_) => None,
        }
    }

    pub(super) fn is_refused(&self) -> bool {
        self.answer().is_some_and(|answer| !answer.is_admitted())
    }

    /// Logs that the store or the lookup of the quotas failed, and what the policy does.
    pub(super) fn record_failure(&self, error: &Error, action: FailureAction) {
        let limiter = self.limiter();
        if let Some(on_failure) = &limiter.on_failure {
            let outages = on_failure.outages_of(error);
            outages.record_failure(&limiter.name, action.text(), error);
        }
    }
}

impl<'a> Tree<&'a RateLimiter> {
    pub(super) fn new(levels: LevelChecks<'a>) -> Self {
        let levels = levels
            .into_iter()
            .inspect(|level| level.limiter.observe_check());
        let levels = levels.map(|level| Level {
            quotas: level
                .quotas
                .map(|quotas| level.limiter.counted(&quotas).into_owned()),
            limiter: level.limiter,
            key: level.key,
            cost: level.cost,
            state: match level.error {
                None => LevelState::NotAsked,
                Some(error) => LevelState::Failed(error),
            },
            held: None,
        });
        Self(levels.collect())
    }

    pub(super) fn into_owned(self) -> Tree<RateLimiter> {
        let levels = self.0.into_iter().map(|level| Level {
            limiter: level.limiter.clone(),
            key: level.key,
            cost: level.cost,
            quotas: level.quotas,
            state: level.state,
            held: level.held,
        });
        Tree(levels.collect())
    }
}

impl<L: Borrow<RateLimiter>> Tree<L> {
    /// Answers the levels that need no store, and refuses those that are blocked or remembered as refused.
    pub(super) fn decide_without_store(&mut self) -> Result<(), LevelsError> {
        let mut lookups_failed = false;
        for (index, level) in self.0.iter_mut().enumerate() {
            lookups_failed |= matches!(level.state, LevelState::Failed(_));
            match answer_without_store(level.quotas(), level.cost) {
                Some(Ok(answer)) if matches!(level.state, LevelState::NotAsked) => {
                    level.state = LevelState::Answered(answer);
                }
                None | Some(Ok(_)) => {}
                Some(Err(error)) => return Err(LevelsError::at(index, error)),
            }
        }
        if self.refuse(|level| {
            let left = level.limiter().blocked_for(level.subject())?;
            Some(blocked(level.quotas(), level.cost, left))
        }) {
            return Ok(());
        }
        if lookups_failed {
            let all: Indices = (0..self.0.len()).collect();
            self.apply_policies(&all)?;
        }
        self.take_held();
        self.refuse(|level| match level.state {
            LevelState::NotAsked => level.limiter().store.remembered(level.check()),
            _ => None,
        });
        Ok(())
    }

    /// Answers the levels of which this process holds enough units.
    fn take_held(&mut self) {
        for level in &mut self.0 {
            let limiter: &RateLimiter = level.limiter.borrow();
            if let (LevelState::NotAsked, Some(lease)) = (&level.state, &limiter.lease)
                && let Some((answer, held)) = lease.take_level(level.check())
            {
                level.state = LevelState::Answered(answer);
                level.held = Some(held);
            }
        }
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
    pub(super) fn groups(&self) -> SmallVec<[Indices; 1]> {
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

    pub(super) fn at<'a>(&'a self, indices: &'a [usize]) -> impl Iterator<Item = &'a Level<L>> {
        indices.iter().filter_map(|index| self.0.get(*index))
    }

    pub(super) fn checks(&self, indices: &[usize]) -> SmallVec<[Check<'_>; 4]> {
        let levels = indices.iter().filter_map(|index| self.0.get(*index));
        levels.map(Level::check).collect()
    }

    /// Asks the store to decide one group.
    pub(super) fn ask(&self, group: &[usize]) -> PendingAnswers {
        let checks = self.checks(group);
        match self.at(group).next() {
            Some(first) => first.limiter().store.check_all(&checks),
            None => StoreFuture::ready(Ok(Vec::new())).into(),
        }
    }

    /// Stores the answers to one group.
    pub(super) fn answered(
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

    /// Decides by the answers. A level without an answer was not asked.
    pub(super) fn decide(self) -> Decision {
        let mut builder = DecisionBuilder::new();
        let levels = self.0.len();
        let is_admitted = (self.0.iter()).all(|level| !level.is_refused());
        for (index, level) in self.0.into_iter().enumerate() {
            let limiter: &RateLimiter = level.limiter.borrow();
            let quotas = level.quotas.as_ref().unwrap_or(&limiter.quotas);
            let mut answer = match level.state {
                LevelState::Answered(answer) => answer,
                _ => Answer::default(),
            };
            let mut grants = Vec::new();
            match level.held {
                // The answer has the units of the first grant.
                Some(held) if is_admitted => grants.extend(held.into_used().into_iter().skip(1)),
                Some(_) => answer.remove_charge(level.cost),
                None => {}
            }
            if let Some(on_failure) = &limiter.on_failure
                && answer.source() != Source::Fallback
            {
                let outages = &on_failure.store_outages;
                outages.record_decision(&limiter.name, answer.source());
            }
            let name = limiter.level_name();
            builder.set_level(index, quotas, level.cost, name, level.key, answer);
            if !grants.is_empty() {
                builder.set_grants(index, grants);
            }
        }
        builder.decide_levels(levels);
        builder.finish()
    }
}
