//! The callers that wait for the answers to identical checks.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::decision::Answers;
use crate::error::Error;
use crate::store::future::OutcomeSender;
use crate::store::redis::real_time::{Moment, RunningTime};

/// The waiters of one entry, in order of arrival.
#[derive(Debug)]
pub(super) struct Waiters(SmallVec<[Waiter; 1]>);

/// A caller that waits for the answer to one check until its deadline.
#[derive(Debug)]
pub(super) struct Waiter {
    /// `None` once answered.
    answer: Option<OutcomeSender<Answers>>,
    /// The time from which the deadline counts.
    pub(super) since: Instant,
    /// By the clock of its queue.
    pub(super) deadline: RunningTime,
    /// Whether this is the second deadline.
    is_renewed: bool,
}

impl Waiters {
    pub(super) fn new(first: Waiter) -> Self {
        Self(SmallVec::from_buf([first]))
    }

    pub(super) fn push(&mut self, waiter: Waiter) {
        self.0.push(waiter);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn split_off_first(&mut self, count: usize) -> Self {
        Self(self.0.drain(..count).collect())
    }

    /// Fails the waiters whose deadline is at most `until`, and removes them and those that gave up.
    pub(super) fn retain_waiting(
        &mut self,
        until: RunningTime,
        late_error: &impl Fn(&mut Waiter) -> Option<Error>,
    ) {
        self.expire(until, late_error);
        self.0.retain(|waiter| waiter.waits_until().is_some());
    }

    /// Fails the waiters whose deadline is at most `until`, but for those that `late_error` has renewed. They keep their
    /// places. Returns the last error.
    pub(super) fn expire(
        &mut self,
        until: RunningTime,
        late_error: &impl Fn(&mut Waiter) -> Option<Error>,
    ) -> Option<Error> {
        let mut last = None;
        for waiter in &mut self.0 {
            if waiter.deadline <= until
                && waiter.waits_until().is_some()
                && let Some(error) = late_error(waiter)
            {
                waiter.answer(Err(error.clone()));
                last = Some(error);
            }
        }
        last
    }

    pub(super) fn next_deadline(&self) -> Option<RunningTime> {
        self.0.iter().filter_map(Waiter::waits_until).min()
    }

    /// Moves the waiters to a queue with another clock.
    pub(super) fn move_to(&mut self, from: Moment, to: Moment) {
        for waiter in &mut self.0 {
            let left = waiter.deadline.since(from.running);
            waiter.deadline = to.running.after(left);
        }
    }

    /// Answers the waiters in order of arrival.
    pub(super) fn answer(&mut self, answers: impl Iterator<Item = Result<Answers, Error>>) {
        for (waiter, answer) in self.0.iter_mut().zip(answers) {
            waiter.answer(answer);
        }
    }
}

impl Waiter {
    /// A caller that waits from now on for at most this long.
    pub(super) fn new(answer: OutcomeSender<Answers>, now: Moment, max_wait: Duration) -> Self {
        Self {
            answer: Some(answer),
            since: now.at,
            deadline: now.running.after(max_wait),
            is_renewed: false,
        }
    }

    /// Gives the caller another deadline, which begins now. Returns `false` if it has had one.
    pub(super) fn renew(&mut self, now: Moment, max_wait: Duration) -> bool {
        if self.is_renewed {
            return false;
        }
        self.since = now.at;
        self.deadline = now.running.after(max_wait);
        self.is_renewed = true;
        true
    }

    fn answer(&mut self, answer: Result<Answers, Error>) {
        if let Some(sender) = self.answer.take() {
            sender.send(answer);
        }
    }

    fn waits_until(&self) -> Option<RunningTime> {
        let answer = self.answer.as_ref()?;
        (!answer.is_abandoned()).then_some(self.deadline)
    }
}
