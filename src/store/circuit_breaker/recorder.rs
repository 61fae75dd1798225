//! The answer of a store, on its way past the guard.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::circuit_breaker::CircuitBreaker;
use crate::decision::Answer;
use crate::error::Error;
use crate::store::future::StoreFuture;
use crate::telemetry::StoreMeter;

/// The future of an answer, of which the guard hears.
pub(crate) struct GuardedAnswer {
    answer: StoreFuture,
    /// Until there is something to tell.
    watch: Option<OutcomeRecorder>,
}

impl GuardedAnswer {
    #[inline]
    pub(crate) fn ready(answer: Result<Answer, Error>) -> Self {
        Self {
            answer: StoreFuture::ready(answer),
            watch: None,
        }
    }

    pub(super) fn watched(answer: StoreFuture, watch: OutcomeRecorder) -> Self {
        let watch = Some(watch);
        Self { answer, watch }
    }

    /// The answer if it is there, else this future again.
    #[inline]
    #[expect(
        clippy::result_large_err,
        reason = "it is no error: to box it would be to allocate for each check of Redis"
    )]
    pub(crate) fn try_ready(self) -> Result<Result<Answer, Error>, Self> {
        let Self { answer, watch } = self;
        answer.try_ready().map_err(|answer| Self { answer, watch })
    }
}

impl Future for GuardedAnswer {
    type Output = Result<Answer, Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        if let Some(watch) = self.watch.take() {
            watch.end(&answer);
        }
        Poll::Ready(answer)
    }
}

/// Who tells the guard what came of a check.
pub(super) struct OutcomeRecorder {
    guard: CircuitBreaker,
    part: usize,
    is_probe: bool,
    has_ended: bool,
    /// By the clock of the guard.
    began: u64,
}

impl OutcomeRecorder {
    pub(super) fn new(guard: &CircuitBreaker, part: usize, is_probe: bool, began: u64) -> Self {
        Self {
            guard: guard.clone(),
            part,
            is_probe,
            has_ended: false,
            began,
        }
    }

    pub(super) fn end(mut self, answer: &Result<Answer, Error>) {
        self.has_ended = true;
        self.guard.note_end(self.part, self.is_probe, answer);
    }
}

impl Drop for OutcomeRecorder {
    fn drop(&mut self) {
        // Of who did not wait to the end too: else a store that hangs would look fast.
        if StoreMeter::IS_ENABLED {
            self.guard.note_time(self.began);
        }
        if self.has_ended {
            return;
        }
        if self.is_probe {
            self.guard.note_probe(self.part, None);
        } else {
            self.guard.note_given_up(self.part, self.began);
        }
    }
}
