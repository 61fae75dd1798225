//! Levels in several [groups](crate::Store::atomic_group) of a store, such as slots of a cluster: asked in turn, and
//! refunded if a later group refuses or fails.
//!
//! A task does this, so that it goes on if the caller is dropped. A lost reply or a crash strands a charge for its window.
//!
//! All checks with slots ask these groups in one order, else two could refuse each other again and again.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinError;

use super::in_flight::SlotsOfCheck;
use super::level::{Level, State, mismatch};
use super::pending_check::{CheckError, Checked, PendingCheck, checks, parts};
use crate::decision::{Answers, DecisionBuilder};
use crate::error::{Error, ErrorKind};
use crate::store::{PendingAnswers, join_all};

/// The result, and the permits of an admitted check.
type CheckedGroups = (Checked, Option<Box<SlotsOfCheck>>);

/// The longest time that a refusal is remembered if the levels of a check are in several groups.
///
/// The refusal may come from another such check, which was charged in one group and refunded when the next
/// group refused.
const MAX_AGE_IN_SEVERAL_GROUPS: Duration = Duration::from_millis(100);

/// Runs a check in a task, so that it goes on if the caller is dropped. Is ready at once if the store is. Fails if the task
/// is dropped.
///
/// Outside of a tokio runtime there are no tasks, and dropping the caller ends the check.
async fn detached(
    check: impl Future<Output = CheckedGroups> + Send + 'static,
) -> Result<CheckedGroups, JoinError> {
    let mut check = Box::pin(check);
    if let Poll::Ready(checked) = check.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return Ok(checked);
    }
    match Handle::try_current() {
        Ok(runtime) => runtime.spawn(check).await,
        Err(_) => Ok(check.await),
    }
}

impl PendingCheck {
    /// Asks the groups of the levels in turn, in a task that goes on if the caller is dropped.
    #[cold]
    pub(super) fn ask_in_turn(&mut self) -> Pin<Box<dyn Future<Output = Checked> + Send + '_>> {
        // The caller still knows whom to tell of an error if the task is dropped.
        let levels = self.levels.iter().map(Level::asked_anew).collect();
        let rest = Self::with(DecisionBuilder::default(), levels);
        let mut check = mem::replace(self, rest);
        let checked = detached(async move {
            let checked = check.ask_groups().await;
            (checked, check.take_permits())
        });
        Box::pin(async move {
            let (checked, permits) = match checked.await {
                Ok(ended) => ended,
                Err(_) => (Err(self.failure(task_dropped())), None),
            };
            self.slots = permits;
            checked
        })
    }

    /// Asks the groups in turn, then decides the levels that fall back. Refunds what was charged if a later group
    /// refuses or fails.
    async fn ask_groups(&mut self) -> Checked {
        if self.repeat_refusals() {
            return self.decide();
        }
        let ended = self.ask_each_group().await;
        if !matches!(ended, Ok(true)) {
            if ended.is_err() {
                self.slots = None;
            }
            // A refund that fails leaves the charge for its window.
            join_all(self.refunds()).await;
        }
        ended?;
        self.decide()
    }

    /// Asks one group after the other, until one refuses. Returns whether all are admitted.
    async fn ask_each_group(&mut self) -> Result<bool, CheckError> {
        let mut max_age = match self.are_in_groups() {
            false => Duration::MAX,
            true => MAX_AGE_IN_SEVERAL_GROUPS,
        };
        self.change_state(Level::is_to_ask, || State::InLaterGroup);
        while self.next_group() {
            let accepted = match self.slots.is_some() && self.asks_for_slots() {
                true => self.ask_for_slots().await,
                false => match self.ask_store() {
                    None => Ok(()),
                    Some(PendingAnswers { future, sent }) => {
                        let answers = future.await;
                        self.answered(&sent, answers, max_age)
                    }
                },
            };
            match accepted.and_then(|()| self.verify_asked()) {
                Ok(()) if self.decision.answers().are_admitted() => {
                    self.change_state(Level::is_to_ask, || State::Charged);
                }
                Ok(()) => return Ok(false),
                // The store has just found out that the levels are in several groups, and has decided nothing.
                Err(error) if self.is_divided(&error) => {
                    self.change_state(Level::is_to_ask, || State::InLaterGroup);
                    max_age = MAX_AGE_IN_SEVERAL_GROUPS;
                }
                Err(error) => {
                    self.fail(&error);
                    self.apply_policies()?;
                }
            }
        }
        // A later group may have taken longer than the lease of the slots of an earlier one.
        if let Some(slots) = &self.slots {
            let held = slots.verify_held();
            held.map_err(|error| self.failure(error))?;
        }
        self.fall_back()
    }

    /// Chooses the group to ask next, by the order of the levels. In a check with slots, groups have one order for all
    /// checks. Groups that take no slots are last then, so that no rate is charged long before its check has its slots.
    fn next_group(&mut self) -> bool {
        let levels = self.levels.iter().zip(self.decision.levels());
        let waiting = levels.filter(|(level, _)| level.waits_for_group());
        let mut groups =
            waiting.filter_map(|(level, data)| Some((!level.takes_slots(), level.group(data)?)));
        let next = match self.slots {
            Some(_) => groups.min(),
            None => groups.next(),
        };
        let Some((_, group)) = next else { return false };
        for (level, data, _) in parts(&mut self.levels, &mut self.decision) {
            if level.waits_for_group() && level.group(data) == Some(group) {
                level.state = State::ToAsk;
            }
        }
        true
    }

    /// Fails if there is not one answer for each quota that was asked. If it is refused, some may be missing.
    fn verify_asked(&mut self) -> Result<(), Error> {
        let are_admitted = self.decision.answers().are_admitted();
        for (level, data, answer) in parts(&mut self.levels, &mut self.decision) {
            let (answered, quotas) = (answer.quotas().len(), data.quotas());
            if level.is_to_ask() && answered != quotas && (answered > 0 || are_admitted) {
                return Err(mismatch((answered, quotas)));
            }
        }
        Ok(())
    }

    fn change_state(&mut self, is_such: impl Fn(&Level) -> bool, state: impl Fn() -> State) {
        for level in self.levels.iter_mut().filter(|level| is_such(level)) {
            level.state = state();
        }
    }

    /// Repeats the remembered refusals of all groups. Returns whether there are any.
    fn repeat_refusals(&mut self) -> bool {
        let Some(first) = self.levels.first() else {
            return false;
        };
        let checks = checks(&self.levels, self.decision.levels(), Level::is_to_ask);
        let mut answers = Answers::empty(checks.len());
        let store = &first.limiter.0.store;
        let is_refused = store.repeat_refusals(&checks, &mut answers);
        drop(checks);
        if is_refused {
            self.set_answers(answers, Level::is_to_ask);
        }
        is_refused
    }
}

fn task_dropped() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the task of a check of several keys was dropped (runtime shut down?): the check may or may not have \
         been charged",
    )
}
