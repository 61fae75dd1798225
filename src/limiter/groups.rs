//! Levels in several [groups](crate::Store::atomic_group) of a store, such as slots of a cluster: asked in turn, and
//! refunded if a later group refuses or fails.
//!
//! A task does this, so that it goes on if the caller is dropped. A lost reply or a crash strands a charge for its window.
//!
//! A check that waits in line for slots holds those of the groups before. So all checks ask these groups in one order, else
//! two could wait for each other; and the wait ends with its caller.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::in_flight::SlotsOfCheck;
use super::limiter::RateLimiter;
use super::pending_check::{
    CheckError, Checked, Indices, LevelState, Limiters, PendingCheck, PendingLevel, PendingLevels,
    mismatch,
};
use crate::decision::{Answers, LevelData, Source};
use crate::error::{Error, ErrorKind};
use crate::store::{PendingAnswers, StoreFuture, join_all};

/// A check whose groups are asked in turn.
pub(super) type GroupsFuture = Pin<Box<dyn Future<Output = CheckedGroups> + Send>>;

/// The indices of the levels of each group.
type Groups = SmallVec<[Indices; 1]>;

/// The result, and the permits of an admitted check.
pub(super) type CheckedGroups = (Checked, Option<Box<SlotsOfCheck>>);

/// The longest time that a refusal is remembered if the levels of a check are in several groups.
///
/// The refusal may come from another such check, which was charged in one group and refunded when the next
/// group refused.
const MAX_AGE_IN_SEVERAL_GROUPS: Duration = Duration::from_millis(100);

/// Asks the groups of a check in turn.
pub(super) fn ask_in_turn(check: PendingCheck, limiters: &impl Limiters) -> GroupsFuture {
    let limiters = (0..check.added).filter_map(|index| limiters.limiter(index).cloned());
    let limiters = OwnedLimiters(limiters.collect());
    let mut check = check;
    let (caller, is_gone) = oneshot::channel();
    let checked = detached(async move {
        let checked = check.ask_groups(&limiters, is_gone).await;
        (checked, check.take_permits())
    });
    Box::pin(async move {
        let _caller = caller;
        checked.await
    })
}

/// The limiters of a check that goes on without its caller.
struct OwnedLimiters(Vec<RateLimiter>);

impl Limiters for OwnedLimiters {
    fn limiter(&self, level: usize) -> Option<&RateLimiter> {
        self.0.get(level)
    }
}

/// Runs a check in a task, so that it goes on if the caller is dropped. Is ready at once if the store is.
///
/// Outside of a tokio runtime there are no tasks, and dropping the caller ends the check.
async fn detached(check: impl Future<Output = CheckedGroups> + Send + 'static) -> CheckedGroups {
    let mut check = Box::pin(check);
    if let Poll::Ready(checked) = check.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return checked;
    }
    let Ok(runtime) = Handle::try_current() else {
        return check.await;
    };
    let task = runtime.spawn(check);
    task.await
        .unwrap_or_else(|_| (Err(CheckError::at(0, task_dropped())), None))
}

impl PendingCheck {
    /// Returns whether the levels to ask are in several groups.
    pub(super) fn are_in_groups(&self, limiters: &impl Limiters) -> bool {
        are_several(limiters, &self.levels, self.decision.levels())
    }

    /// Returns whether the store has failed because it has found out that the levels to ask are in several groups. It
    /// has decided nothing then.
    #[cold]
    pub(super) fn is_divided(&self, limiters: &impl Limiters, error: &Error) -> bool {
        error.kind() == ErrorKind::Unsupported && self.are_in_groups(limiters)
    }

    /// Asks the groups in turn, then decides the levels that fall back. Refunds what was charged if a later group
    /// refuses or fails.
    async fn ask_groups(
        &mut self,
        limiters: &impl Limiters,
        mut caller_is_gone: oneshot::Receiver<Infallible>,
    ) -> Checked {
        if self.repeat_refusals(limiters) {
            return self.decide(limiters);
        }
        // The next group is the last.
        let mut groups = self.later_groups(limiters);
        let mut max_age = match groups.len() {
            0 | 1 => Duration::MAX,
            _ => MAX_AGE_IN_SEVERAL_GROUPS,
        };
        let mut charged = Indices::new();
        while let Some(group) = groups.pop() {
            self.set_state(&group, || LevelState::ToAsk);
            let accepted = match self.ask_store(limiters) {
                None => Ok(()),
                Some(PendingAnswers { mut future, sent }) => {
                    let waits = self
                        .slots
                        .as_ref()
                        .is_some_and(|slots| slots.waits_in_line());
                    let answers = poll_fn(|cx| match Pin::new(&mut future).poll(cx) {
                        Poll::Pending if waits => {
                            let is_gone = Pin::new(&mut caller_is_gone).poll(cx);
                            is_gone.map(|_| None)
                        }
                        answers => answers.map(Some),
                    });
                    let Some(answers) = answers.await else {
                        self.slots = None;
                        self.refund_all(limiters, &charged).await;
                        return Err(CheckError::at(0, task_dropped()));
                    };
                    self.answered(limiters, &sent, answers, max_age)
                }
            };
            match accepted.and_then(|()| self.verify(&group)) {
                Ok(()) if self.decision.are_admitted() => {
                    self.set_state(&group, || LevelState::Answered);
                    charged.extend(group);
                }
                Ok(()) => {
                    self.refund_all(limiters, &charged).await;
                    return self.decide(limiters);
                }
                Err(error) if self.is_divided(limiters, &error) => {
                    groups.extend(self.later_groups(limiters));
                    max_age = MAX_AGE_IN_SEVERAL_GROUPS;
                }
                Err(error) => {
                    self.fail(&error);
                    if let Err(failure) = self.apply_policies(limiters) {
                        self.refund_all(limiters, &charged).await;
                        return Err(failure);
                    }
                }
            }
        }
        // A later group may have taken longer than the lease of the slots of an earlier one.
        if let Some(Err(error)) = self.slots.as_ref().map(|slots| slots.verify_held()) {
            self.slots = None;
            self.refund_all(limiters, &charged).await;
            return Err(CheckError::at(0, error));
        }
        let fell_back = self.fall_back(limiters);
        if !matches!(fell_back, Ok(true)) {
            self.refund_all(limiters, &charged).await;
        }
        fell_back?;
        self.decide(limiters)
    }

    /// Divides the levels to ask into groups, the first one last. They wait for their turn.
    fn later_groups(&mut self, limiters: &impl Limiters) -> Groups {
        let is_sorted = self.slots.is_some();
        let mut groups = groups(limiters, &self.levels, self.decision.levels(), is_sorted);
        self.set_state(groups.iter().flatten(), || LevelState::InLaterGroup);
        groups.reverse();
        groups
    }

    /// Fails if there is not one answer for each quota of a group. If it is refused, some may be missing.
    fn verify(&self, group: &[usize]) -> Result<(), Error> {
        for index in group {
            let level = self.decision.levels().get(*index);
            let (Some(level), Some(answer)) = (level, self.decision.answer(*index)) else {
                continue;
            };
            let (answered, quotas) = (answer.quotas().len(), level.quotas());
            if answered != quotas && (answered > 0 || self.decision.are_admitted()) {
                return Err(mismatch(answered, quotas));
            }
        }
        Ok(())
    }

    fn set_state<'a>(
        &mut self,
        indices: impl IntoIterator<Item = &'a usize>,
        state: impl Fn() -> LevelState,
    ) {
        for index in indices {
            self.levels.set_state(*index, state());
        }
    }

    /// Repeats the remembered refusals of all groups. Returns whether there are any.
    fn repeat_refusals(&mut self, limiters: &impl Limiters) -> bool {
        let Some(first) = limiters.limiter(0) else {
            return false;
        };
        let to_ask = |_, level: &PendingLevel| level.is_to_ask();
        let checks = self.checks(limiters, to_ask);
        let mut answers = Answers::empty(checks.len());
        let is_refused = first.0.store.repeat_refusals(&checks, &mut answers);
        drop(checks);
        if is_refused {
            self.set_answers(answers, to_ask);
        }
        is_refused
    }

    /// Refunds what groups were charged.
    async fn refund_all(&mut self, limiters: &impl Limiters, charged: &[usize]) {
        // A refund that fails leaves the charge for its window.
        let _ = join_all(self.refunds(limiters, charged)).await;
    }

    /// Returns the refunds of all that levels were charged, and removes the units from their answers.
    pub(super) fn refunds(
        &mut self,
        limiters: &impl Limiters,
        charged: &[usize],
    ) -> Vec<StoreFuture<()>> {
        let mut refunds = Vec::new();
        for index in charged {
            let check = self.checks(limiters, |other, _| other == *index);
            if let (Some(check), Some(limiter), Some(answer)) = (
                check.first(),
                limiters.limiter(*index),
                self.decision.answer(*index),
            ) && check.cost > 0
                && answer.source() != Source::None
            {
                let charged = check.cost.saturating_add(answer.extra_units());
                let refund = check.refund(answer, charged, check.cost);
                refunds.push(limiter.0.store.adjust(refund));
            }
            drop(check);
            self.decision.remove_charge(*index);
        }
        refunds
    }
}

/// Returns whether the levels to ask are in several groups.
pub(super) fn are_several(
    limiters: &impl Limiters,
    levels: &PendingLevels,
    data: &[LevelData],
) -> bool {
    let mut groups = group_of_each(limiters, levels, data);
    match groups.next() {
        Some((_, first)) => groups.any(|(_, group)| group != first),
        None => false,
    }
}

/// Returns the levels to ask, by groups: in the order in which the groups first occur, or sorted. Groups that take no slots
/// are last then, so that no rate is charged long before its check has its slots.
fn groups(
    limiters: &impl Limiters,
    levels: &PendingLevels,
    data: &[LevelData],
    is_sorted: bool,
) -> Groups {
    let mut groups: SmallVec<[(u64, Indices); 1]> = SmallVec::new();
    for (index, id) in group_of_each(limiters, levels, data) {
        match groups.iter_mut().find(|(other, _)| *other == id) {
            Some((_, group)) => group.push(index),
            None => groups.push((id, smallvec![index])),
        }
    }
    if is_sorted {
        let takes_slots = |index: &usize| levels.takes_slots(*index, limiters);
        groups.sort_by_cached_key(|(id, group)| (!group.iter().any(takes_slots), *id));
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// Returns the index and the group of each level to ask.
fn group_of_each<'a>(
    limiters: &'a impl Limiters,
    levels: &'a PendingLevels,
    data: &'a [LevelData],
) -> impl Iterator<Item = (usize, u64)> + 'a {
    data.iter().enumerate().filter_map(move |(index, data)| {
        let level = levels.get(index);
        let limiter = limiters.limiter(index).filter(|_| level.is_to_ask())?;
        let check = level.check(limiter, data)?;
        Some((index, limiter.0.store.atomic_group(check.subject)))
    })
}

fn task_dropped() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the task of a check of several keys was dropped (runtime shut down?): the check may or may not have \
         been charged",
    )
}
