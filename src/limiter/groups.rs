//! Levels in several [groups](crate::Store::atomic_group) of a store, such as slots of a cluster: asked in turn, and
//! refunded if a later group refuses or fails.
//!
//! A task does this, so that it goes on if the caller is dropped. A lost reply or a crash strands a charge for its window.
//!
//! All checks with slots ask these groups in one order, else two could refuse each other again and again.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinError;

use super::asked_level::{AskedLevel, LevelState};
use super::checked::{CheckError, Checked};
use super::pending_check::{PendingCheck, asked};
use crate::decision::Answers;
use crate::error::{Code, Error};
use crate::store::join_all;

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
    check: impl Future<Output = Checked> + Send + 'static,
) -> Result<Checked, JoinError> {
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
    #[cold]
    pub(super) fn ask_in_turn(self) -> Pin<Box<dyn Future<Output = Checked> + Send>> {
        // The caller still knows whom to tell of an error if the task is dropped.
        let asked_anew = self.asked_anew();
        let checked = detached(self.ask_groups());
        Box::pin(async move {
            checked.await.unwrap_or_else(|_| {
                let text = "the task of a check of several keys was dropped (runtime shut down?): the check may or may \
                            not have been charged";
                let failure = asked_anew.failure(Error::coded(Code::TASK_DROPPED, text));
                Err(asked_anew.fail_with(failure))
            })
        })
    }

    /// Asks the groups in turn, then decides the levels that fall back. Refunds what was charged if a later group
    /// refuses or fails.
    async fn ask_groups(mut self) -> Checked {
        if let Some(answers) = self.remembered_refusals() {
            let to_ask = self.levels.iter_mut().filter(|level| level.is_to_ask());
            for (level, answer) in to_ask.zip(answers.into_answers()) {
                level.set_answer(answer);
            }
            return Ok(self.decide());
        }
        let ended = self.ask_each_group().await;
        if !matches!(ended, Ok(true)) {
            if ended.is_err() {
                self.slots = None;
            }
            // A refund that fails leaves the charge for its window.
            join_all(self.refunds()).await;
        }
        self.ended(ended.map(drop))
    }

    /// Stops at the first group that refuses. Returns whether all are admitted.
    async fn ask_each_group(&mut self) -> Result<bool, CheckError> {
        let mut max_age = if self.are_in_groups() {
            MAX_AGE_IN_SEVERAL_GROUPS
        } else {
            Duration::MAX
        };
        self.change_state(AskedLevel::is_to_ask, || LevelState::InLaterGroup);
        while self.next_group() {
            match self.ask(max_age).await {
                Ok(true) => self.change_state(AskedLevel::is_to_ask, || LevelState::Charged),
                Ok(false) => return Ok(false),
                // The store has just found out that the levels are in several groups, and has decided nothing.
                Err(error) if self.is_divided(&error) => {
                    self.change_state(AskedLevel::is_to_ask, || LevelState::InLaterGroup);
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
        let mut groups = self
            .levels
            .iter()
            .filter(|level| level.waits_for_group())
            .map(|level| (!level.takes_slots(), level.group()));
        let next = match self.slots {
            Some(_) => groups.min(),
            None => groups.next(),
        };
        let Some((_, group)) = next else { return false };
        self.change_state(
            |level| level.waits_for_group() && level.group() == group,
            || LevelState::ToAsk,
        );
        true
    }

    fn change_state(
        &mut self,
        is_such: impl Fn(&AskedLevel) -> bool,
        state: impl Fn() -> LevelState,
    ) {
        for level in self.levels.iter_mut().filter(|level| is_such(level)) {
            level.state = state();
        }
    }

    fn remembered_refusals(&self) -> Option<Answers> {
        let first = self.levels.first()?;
        let checks: Vec<_> = asked(&self.levels).map(AskedLevel::check).collect();
        first.limiter().0.store.repeat_refusals(&checks)
    }
}
