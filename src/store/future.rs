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
pub struct StoreFuture<T = Answers> {
    state: State<T>,
    /// Records the outcome, or, on drop, that the caller gave up. `None` for a future that was ready.
    pub(super) recorder: Option<OutcomeRecorder>,
}

enum State<T> {
    /// `None` after completion.
    Ready(Option<Result<T, Error>>),
    Channel(oneshot::Receiver<Result<T, Error>>),
    Boxed(Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>),
}

/// Sends the answer of a [`StoreFuture`]: see [`StoreFuture::channel`].
///
/// If it is dropped without an answer, the caller gets an error of kind [`Unavailable`](crate::ErrorKind::Unavailable).
#[derive(Debug)]
pub struct Answerer<T>(oneshot::Sender<Result<T, Error>>);

impl<T> Answerer<T> {
    /// Sends the answer. Does nothing if the caller gave up.
    pub fn answer(self, answer: Result<T, Error>) {
        let _ = self.0.send(answer);
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
        Self::new(State::Ready(Some(answer)))
    }

    /// Boxes a future.
    pub fn boxed(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self::new(State::Boxed(Box::pin(future)))
    }

    /// Creates the future of an answer that another task sends. Takes no box.
    pub fn channel() -> (Answerer<T>, Self) {
        let (sender, receiver) = oneshot::channel();
        (Answerer(sender), Self::new(State::Channel(receiver)))
    }

    #[inline]
    fn new(state: State<T>) -> Self {
        Self {
            state,
            recorder: None,
        }
    }

    /// Takes the future. What is left is over.
    pub(super) fn take(&mut self) -> Self {
        mem::replace(self, Self::new(State::Ready(None)))
    }

    /// Returns the answer if it is ready without waiting, else this future again.
    ///
    /// # Errors
    ///
    /// Returns the future if it was not created by [`ready`](Self::ready), or was polled to its end.
    #[inline]
    pub fn try_ready(self) -> Result<Result<T, Error>, Self> {
        match self.state {
            State::Ready(Some(answer)) => Ok(answer),
            State::Ready(None) | State::Channel(_) | State::Boxed(_) => Err(self),
        }
    }

    /// Returns whether the answer is an error, if it is ready.
    pub(super) fn outcome_if_ready(&self) -> Option<Result<(), &Error>> {
        match &self.state {
            State::Ready(Some(answer)) => Some(answer.as_ref().map(drop)),
            State::Ready(None) | State::Channel(_) | State::Boxed(_) => None,
        }
    }

    /// Waits for the answer, which stays here: to return it would copy it in each future that it passes.
    #[inline]
    pub(crate) async fn answered(&mut self) -> Result<&mut T, Error> {
        poll_fn(|cx| self.poll_answer(cx)).await;
        let answer = self.answered_now();
        answer.unwrap_or_else(|| polled_after_completion("StoreFuture"))
    }

    /// Returns the answer, which stays here, if it is ready without waiting.
    #[inline]
    pub(crate) fn answered_now(&mut self) -> Option<Result<&mut T, Error>> {
        match &mut self.state {
            State::Ready(Some(Ok(answer))) => Some(Ok(answer)),
            State::Ready(Some(Err(error))) => Some(Err(error.clone())),
            State::Ready(None) | State::Channel(_) | State::Boxed(_) => None,
        }
    }

    /// Waits for the answer, which stays here.
    #[inline]
    pub(crate) fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let answer = match &mut self.state {
            State::Ready(_) => return Poll::Ready(()),
            State::Channel(answer) => {
                ready!(Pin::new(answer).poll(cx)).unwrap_or_else(|_| Err(sender_dropped()))
            }
            State::Boxed(future) => ready!(future.as_mut().poll(cx)),
        };
        if let Some(recorder) = self.recorder.take() {
            recorder.record(answer.as_ref().map(drop));
        }
        self.state = State::Ready(Some(answer));
        Poll::Ready(())
    }
}

// A ready answer is never pinned.
impl<T> Unpin for StoreFuture<T> {}

impl<T> Future for StoreFuture<T> {
    type Output = Result<T, Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.poll_answer(cx));
        match mem::replace(&mut self.state, State::Ready(None)) {
            State::Ready(Some(answer)) => Poll::Ready(answer),
            _ => polled_after_completion("StoreFuture"),
        }
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
    /// Creates the recorder of a check that starts now.
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
        let state = match self.state {
            State::Ready(Some(_)) => "ready",
            State::Ready(None) => "done",
            State::Channel(_) => "waiting",
            State::Boxed(_) => "boxed",
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
        let (answerer, waiting) = StoreFuture::channel();
        answerer.answer(Ok(7));
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
