//! Groups of levels that are asked in turn, and refunds of what they charged.

use std::borrow::Borrow;
use std::future::Future;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::tree::{GroupOutcome, Indices, Level, LevelState, LevelsError, LevelsProgress, Tree};
use crate::decision::{Answer, Decision, Source};
use crate::error::{Error, ErrorKind};
use crate::limiter::limiter::RateLimiter;
use crate::store::{PendingAnswers, Refund, SendMark, StoreFuture, join_all};

/// The longest time that a refusal is remembered if the levels of a check are in several groups.
///
/// The refusal may come from another such check, which was charged in one group and refunded when the next
/// group refused.
const MAX_AGE_IN_SEVERAL_GROUPS: Duration = Duration::from_millis(100);

impl Tree<&RateLimiter> {
    pub(super) fn start(mut self) -> LevelsProgress {
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
                    if let Some(groups) = levels.groups_found_by(&answers) {
                        return detach(levels.ask_in_turn(groups)).outcome().await;
                    }
                    levels.finish(&group, &sent, answers)
                }))
            }
        }
    }
}

impl<L: Borrow<RateLimiter>> Tree<L> {
    /// Returns the groups if the store has found out by this error that there are several. It has decided
    /// nothing.
    fn groups_found_by(
        &self,
        answers: &Result<Vec<Answer>, Error>,
    ) -> Option<SmallVec<[Indices; 1]>> {
        let error = answers.as_ref().err()?;
        if error.kind() != ErrorKind::Unsupported {
            return None;
        }
        Some(self.groups()).filter(|groups| groups.len() > 1)
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
    pub(super) fn refund_fallback(&mut self, charged: &[usize]) {
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
}

impl Tree<RateLimiter> {
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

    /// Refunds what groups were charged.
    async fn refund_all(&mut self, charged: &[usize]) {
        let refunds = charged.iter().filter_map(|index| self.refund(*index));
        // A refund that fails leaves the charge for its window.
        let _ = join_all(refunds.collect()).await;
        self.show_refunded(charged);
    }
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
