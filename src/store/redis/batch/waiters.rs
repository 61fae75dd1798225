//! Who waits for the answers to checks that are alike, and for how long.

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::decision::Answer;
use crate::error::Error;

/// The callers of one entry, in order of their arrival.
#[derive(Debug)]
pub(crate) struct Waiters(SmallVec<[Waiter; 1]>);

/// Who waits for the answer to one check, and until when.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// Gone when the caller has been answered.
    answer: Option<oneshot::Sender<Result<Answer, Error>>>,
    deadline: Instant,
}

impl Waiters {
    pub(crate) fn new(first: Waiter) -> Self {
        Self(SmallVec::from_buf([first]))
    }

    pub(crate) fn push(&mut self, caller: Waiter) {
        self.0.push(caller);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The first so many, who are no longer among these.
    pub(crate) fn split_off_first(&mut self, count: usize) -> Self {
        Self(self.0.drain(..count).collect())
    }

    /// Drops those who do not wait any more, and those who are late, who are told so.
    pub(crate) fn keep_waiting(&mut self, now: Instant, late: &impl Fn() -> Error) {
        self.expire(now, late);
        self.0.retain(|caller| caller.waits_until().is_some());
    }

    /// Tells those who are late; they keep their places.
    pub(crate) fn expire(&mut self, now: Instant, late: &impl Fn() -> Error) {
        for caller in &mut self.0 {
            if caller.deadline <= now {
                caller.tell(Err(late()));
            }
        }
    }

    /// Until when the first of those waits who still do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.0.iter().filter_map(Waiter::waits_until).min()
    }

    /// Tells each what came of its check.
    pub(crate) fn answer(self, answers: impl Iterator<Item = Result<Answer, Error>>) {
        for (mut caller, answer) in self.0.into_iter().zip(answers) {
            caller.tell(answer);
        }
    }
}

impl Waiter {
    pub(crate) fn new(answer: oneshot::Sender<Result<Answer, Error>>, deadline: Instant) -> Self {
        let answer = Some(answer);
        Self { answer, deadline }
    }

    fn tell(&mut self, answer: Result<Answer, Error>) {
        if let Some(caller) = self.answer.take() {
            // Who has gone does not miss it.
            let _ = caller.send(answer);
        }
    }

    fn waits_until(&self) -> Option<Instant> {
        let answer = self.answer.as_ref()?;
        (!answer.is_closed()).then_some(self.deadline)
    }
}
