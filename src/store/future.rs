//! The future of a store's answer, and the recorder of its wait.

use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot;

use super::circuit_breaker::CircuitBreaker;
use crate::decision::Answers;
use crate::error::{Code, Error, polled_after_completion};
use crate::telemetry::{HAS_METRICS, WaitOutcome};

/// The future of a store's answers, or of the result of another request to a store.
///
/// A store in memory returns a [`ready`](Self::ready) future. A remote store returns a [`boxed`](Self::boxed) one, or the
/// [`channel`](Self::channel) of a task that answers.
///
/// # Panics
///
/// Panics if it is polled after completion.
#[must_use = "a store may be asked only when its future is awaited"]
pub struct StoreFuture<T = Answers>(pub(crate) FutureState<T>);

pub(crate) enum FutureState<T> {
    /// `None` after completion.
    Ready(Option<Result<T, Error>>),
    Waits(WaitingAnswer<T>),
}

/// An answer that a store did not have at once. Smaller than the answer.
pub(crate) struct WaitingAnswer<T> {
    sender: PendingAnswer<T>,
    /// Records the outcome, or, on drop, that the caller gave up.
    recorder: Option<OutcomeRecorder>,
}

enum PendingAnswer<T> {
    Task(oneshot::Receiver<Result<T, Error>>),
    Future(Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>),
}

/// Sends the outcome of a [`StoreFuture`]: see [`StoreFuture::channel`].
///
/// If it is dropped without an outcome, the caller gets an error of kind [`Unavailable`](crate::ErrorKind::Unavailable).
#[derive(Debug)]
pub struct OutcomeSender<T>(oneshot::Sender<Result<T, Error>>);

impl<T> OutcomeSender<T> {
    /// Sends the outcome. Does nothing if the caller gave up.
    pub fn send(self, outcome: Result<T, Error>) {
        let _ = self.0.send(outcome);
    }

    /// Returns whether the caller gave up, so that a request that was not sent yet is not needed.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.0.is_closed()
    }
}

/// Waits for all of these futures at once. Returns their outcomes in the same order.
pub(crate) async fn join_all<F: Future + Unpin>(pending: Vec<F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = pending.into_iter().map(Ok).collect();
    poll_fn(|cx| {
        let mut are_ready = Poll::Ready(());
        for waiting in &mut pending {
            if let Ok(future) = waiting {
                match Pin::new(future).poll(cx) {
                    Poll::Ready(outcome) => *waiting = Err(outcome),
                    Poll::Pending => are_ready = Poll::Pending,
                }
            }
        }
        are_ready
    })
    .await;
    pending.into_iter().filter_map(Result::err).collect()
}

impl<T> StoreFuture<T> {
    /// Creates a future that is ready at once.
    #[inline]
    pub fn ready(answer: Result<T, Error>) -> Self {
        Self(FutureState::Ready(Some(answer)))
    }

    /// Boxes a future.
    pub fn boxed(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self::waiting(PendingAnswer::Future(Box::pin(future)))
    }

    /// Creates the future of an outcome that another task sends. Takes no box.
    pub fn channel() -> (OutcomeSender<T>, Self) {
        let (sender, receiver) = oneshot::channel();
        let waiting = Self::waiting(PendingAnswer::Task(receiver));
        (OutcomeSender(sender), waiting)
    }

    fn waiting(sender: PendingAnswer<T>) -> Self {
        Self(FutureState::Waits(WaitingAnswer {
            sender,
            recorder: None,
        }))
    }

    /// Takes the future. What is left is over.
    pub(super) fn take(&mut self) -> Self {
        mem::replace(self, Self(FutureState::Ready(None)))
    }

    /// Returns the answer if it is ready without waiting, else this future again.
    ///
    /// # Errors
    ///
    /// Returns the future if it was not created by [`ready`](Self::ready), or was polled to its end.
    #[inline]
    pub fn try_ready(self) -> Result<Result<T, Error>, Self> {
        match self.0 {
            FutureState::Ready(Some(answer)) => Ok(answer),
            FutureState::Ready(None) | FutureState::Waits(_) => Err(self),
        }
    }

    /// Returns whether the answer is an error, if it is ready.
    pub(super) fn outcome_if_ready(&self) -> Option<Result<(), &Error>> {
        match &self.0 {
            FutureState::Ready(Some(answer)) => Some(answer.as_ref().map(drop)),
            FutureState::Ready(None) | FutureState::Waits(_) => None,
        }
    }

    /// Records how the wait for the answer ends.
    pub(super) fn record_by(&mut self, recorder: OutcomeRecorder) {
        if let FutureState::Waits(waiting) = &mut self.0 {
            waiting.recorder = Some(recorder);
        }
    }
}

// A ready answer is never pinned.
impl<T> Unpin for StoreFuture<T> {}

impl<T> Future for StoreFuture<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match &mut self.0 {
            FutureState::Ready(answer) => answer.take(),
            FutureState::Waits(waiting) => Some(ready!(Pin::new(waiting).poll(cx))),
        };
        self.0 = FutureState::Ready(None);
        match answer {
            Some(answer) => Poll::Ready(answer),
            None => polled_after_completion("StoreFuture"),
        }
    }
}

impl<T> Future for WaitingAnswer<T> {
    type Output = Result<T, Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match &mut self.sender {
            PendingAnswer::Task(task) => {
                ready!(Pin::new(task).poll(cx)).unwrap_or_else(|_| Err(sender_dropped()))
            }
            PendingAnswer::Future(future) => ready!(future.as_mut().poll(cx)),
        };
        if let Some(recorder) = self.recorder.take() {
            recorder.record(answer.as_ref().map(drop));
        }
        Poll::Ready(answer)
    }
}

/// Records how a pending check ends: with an outcome, or, on drop, because its caller gave up.
pub(super) struct OutcomeRecorder {
    circuit_breaker: CircuitBreaker,
    is_probe: bool,
    /// By the clock of the circuit breaker.
    started_at: u64,
    wait_outcome: WaitOutcome,
}

impl OutcomeRecorder {
    #[inline]
    pub(super) fn new(circuit_breaker: &CircuitBreaker, is_probe: bool) -> Self {
        Self {
            circuit_breaker: circuit_breaker.clone(),
            is_probe,
            started_at: circuit_breaker.now(),
            wait_outcome: WaitOutcome::Abandoned,
        }
    }

    fn record(mut self, outcome: Result<(), &Error>) {
        self.wait_outcome = match &outcome {
            Ok(()) => WaitOutcome::Answered,
            Err(error) => WaitOutcome::Failed(error.kind()),
        };
        self.circuit_breaker.record_check(outcome, self.is_probe);
    }
}

impl Drop for OutcomeRecorder {
    fn drop(&mut self) {
        // Record waits of callers that gave up, too. Otherwise a store that hangs would look fast.
        if HAS_METRICS {
            let outcome = self.wait_outcome;
            self.circuit_breaker.record_wait(self.started_at, outcome);
        }
        if self.wait_outcome == WaitOutcome::Abandoned {
            self.circuit_breaker
                .record_abandoned(self.started_at, self.is_probe);
        }
    }
}

fn sender_dropped() -> Error {
    Error::coded(
        Code::TASK_DROPPED,
        "the store task was dropped (runtime shut down?): the check may or may not have been charged",
    )
}

impl<T> fmt::Debug for StoreFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.0 {
            FutureState::Ready(Some(_)) => "ready",
            FutureState::Ready(None) => "done",
            FutureState::Waits(_) => "waiting",
        };
        f.debug_tuple("StoreFuture").field(&state).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::task::Waker;

    use super::*;

    /// Polls a future that is ready, and returns the text of the panic of one more poll.
    fn panic_of_one_more_poll(mut future: StoreFuture<u32>) -> String {
        let mut context = Context::from_waker(Waker::noop());
        let mut poll = || Pin::new(&mut future).poll(&mut context);
        assert!(matches!(poll(), Poll::Ready(Ok(7))));
        let panic = catch_unwind(AssertUnwindSafe(poll)).unwrap_err();
        *panic.downcast::<String>().unwrap()
    }

    #[test]
    fn a_future_that_is_polled_after_completion_panics() {
        let (sender, waiting) = StoreFuture::channel();
        sender.send(Ok(7));
        for future in [
            StoreFuture::ready(Ok(7)),
            // This inner future would be ready on every poll.
            StoreFuture::boxed(poll_fn(|_| Poll::Ready(Ok(7)))),
            waiting,
        ] {
            assert_eq!(
                panic_of_one_more_poll(future),
                "`StoreFuture` polled after completion"
            );
        }
    }
}
