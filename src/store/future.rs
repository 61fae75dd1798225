//! The future of a store's answer, and the recorder that learns its outcome.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot;

use super::circuit_breaker::{CircuitBreaker, Operation};
use super::refusal_cache::{Invalidation, SentCheck};
use crate::decision::Answer;
use crate::error::{Error, ErrorKind};
use crate::telemetry::StoreMeter;

/// The future of a store's answer.
///
/// It is either ready from the start, as in memory, or a boxed future.
#[must_use = "a store may be asked only when its future is awaited"]
pub struct StoreFuture<T = Answer> {
    state: State<T>,
    /// Learns the outcome, or on drop that the caller gave up. Ready futures have none. In a box, because
    /// a future is moved several times before it is polled.
    recorder: Option<Box<OutcomeRecorder<T>>>,
}

enum State<T> {
    Ready(Result<T, Error>),
    Taken,
    #[cfg_attr(
        not(feature = "redis"),
        expect(dead_code, reason = "only the Redis store answers from another task")
    )]
    Channel(oneshot::Receiver<Result<T, Error>>),
    Boxed(Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>),
}

impl<T> StoreFuture<T> {
    /// Creates a future that is ready.
    #[inline]
    pub fn ready(answer: Result<T, Error>) -> Self {
        Self::new(State::Ready(answer))
    }

    /// Boxes a future that has to be awaited.
    pub fn boxed(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self::new(State::Boxed(Box::pin(future)))
    }

    /// Creates the future of an answer that another task sends, without a box.
    #[cfg(feature = "redis")]
    pub(crate) fn waiting(answer: oneshot::Receiver<Result<T, Error>>) -> Self {
        Self::new(State::Channel(answer))
    }

    #[inline]
    fn new(state: State<T>) -> Self {
        Self {
            state,
            recorder: None,
        }
    }

    /// Reports the outcome of this pending future.
    pub(super) fn recorded_by(self, recorder: OutcomeRecorder<T>) -> Self {
        Self {
            recorder: Some(Box::new(recorder)),
            ..self
        }
    }

    /// Returns the answer if it is ready, else this future again.
    #[inline]
    pub(crate) fn try_ready(self) -> Result<Result<T, Error>, Self> {
        match self.state {
            State::Ready(answer) => Ok(answer),
            State::Taken | State::Channel(_) | State::Boxed(_) => Err(self),
        }
    }

    #[inline]
    fn poll_state(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, Error>> {
        match &mut self.state {
            State::Boxed(future) => return future.as_mut().poll(cx),
            State::Channel(answer) => {
                let answer = ready!(Pin::new(answer).poll(cx));
                self.state = State::Taken;
                return Poll::Ready(answer.unwrap_or_else(|_| Err(sender_dropped())));
            }
            State::Ready(_) | State::Taken => {}
        }
        match mem::replace(&mut self.state, State::Taken) {
            State::Ready(answer) => Poll::Ready(answer),
            _ => Poll::Ready(Err(Error::new(
                ErrorKind::InvalidReply,
                "a store future was polled after it completed",
            ))),
        }
    }
}

// The value of a ready future is not pinned: it is moved out.
impl<T> Unpin for StoreFuture<T> {}

impl<T> Future for StoreFuture<T> {
    type Output = Result<T, Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(self.poll_state(cx));
        if let Some(recorder) = self.recorder.take() {
            recorder.record(&answer);
        }
        Poll::Ready(answer)
    }
}

/// Reports how a pending request ends: with an outcome, or, on drop, with a caller that gave up.
pub(super) struct OutcomeRecorder<T> {
    circuit_breaker: CircuitBreaker,
    partition: usize,
    operation: Operation,
    /// By the clock of the circuit breaker.
    started_at: u64,
    cached: CachedRefusals,
    /// Returns the answer if the request is a check.
    answer: fn(&T) -> Option<&Answer>,
    is_recorded: bool,
}

/// What a request means for the refusals that this process remembers.
pub(super) enum CachedRefusals {
    Untouched,
    /// The answer may be one to remember, or ends what is remembered.
    Learn(SentCheck),
    /// The request returns units. Dropped when it ends.
    Invalidate(#[expect(dead_code, reason = "held for its Drop")] Invalidation),
}

impl<T> OutcomeRecorder<T> {
    /// Creates the recorder of a request that starts now.
    pub(super) fn new(
        circuit_breaker: &CircuitBreaker,
        partition: usize,
        operation: Operation,
        cached: CachedRefusals,
        answer: fn(&T) -> Option<&Answer>,
    ) -> Self {
        Self {
            circuit_breaker: circuit_breaker.clone(),
            partition,
            operation,
            started_at: circuit_breaker.now(),
            cached,
            answer,
            is_recorded: false,
        }
    }

    fn record(mut self, outcome: &Result<T, Error>) {
        self.is_recorded = true;
        self.circuit_breaker
            .record(self.partition, self.operation, outcome.as_ref().map(drop));
        let cached = mem::replace(&mut self.cached, CachedRefusals::Untouched);
        if let CachedRefusals::Learn(sent) = cached
            && let Some(answer) = outcome.as_ref().ok().and_then(self.answer)
        {
            sent.record(answer);
        }
    }
}

impl<T> Drop for OutcomeRecorder<T> {
    fn drop(&mut self) {
        // Waits that callers cut short count as well: else a hanging store would look fast.
        if StoreMeter::IS_ENABLED && self.operation != Operation::Adjust {
            self.circuit_breaker.record_wait(self.started_at);
        }
        if !self.is_recorded {
            self.circuit_breaker
                .record_abandoned(self.partition, self.operation, self.started_at);
        }
    }
}

fn sender_dropped() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the store task was dropped (runtime shut down?): the check may or may not have been charged",
    )
}

impl<T> fmt::Debug for StoreFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Ready(_) => "ready",
            State::Taken => "taken",
            State::Channel(_) => "waiting",
            State::Boxed(_) => "boxed",
        };
        f.debug_tuple("StoreFuture").field(&state).finish()
    }
}
