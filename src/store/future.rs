//! The answer of a store, there at once or later.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot;

use crate::decision::Answer;
use crate::error::{Error, ErrorKind};

/// The future of a store's answer.
///
/// It is either ready when it is made, as a store in memory answers, or a boxed future.
#[must_use = "a store may be asked only when its future is awaited"]
pub struct StoreFuture<T = Answer>(State<T>);

enum State<T> {
    Ready(Result<T, Error>),
    Taken,
    Waiting(oneshot::Receiver<Result<T, Error>>),
    Boxed(Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>),
}

impl<T> StoreFuture<T> {
    /// An answer that is there.
    #[inline]
    pub fn ready(answer: Result<T, Error>) -> Self {
        Self(State::Ready(answer))
    }

    /// An answer that must be waited for.
    pub fn boxed(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self(State::Boxed(Box::pin(future)))
    }

    /// An answer that somebody else sends, without a box.
    pub(crate) fn waiting(answer: oneshot::Receiver<Result<T, Error>>) -> Self {
        Self(State::Waiting(answer))
    }

    /// The answer if it is there, else this future again.
    #[inline]
    pub(crate) fn try_ready(self) -> Result<Result<T, Error>, Self> {
        match self.0 {
            State::Ready(answer) => Ok(answer),
            State::Taken | State::Waiting(_) | State::Boxed(_) => Err(self),
        }
    }
}

// The value of a ready future is not pinned: it is moved out.
impl<T> Unpin for StoreFuture<T> {}

impl<T> Future for StoreFuture<T> {
    type Output = Result<T, Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Boxed(future) => return future.as_mut().poll(cx),
            State::Waiting(answer) => {
                let answer = ready!(Pin::new(answer).poll(cx));
                self.0 = State::Taken;
                return Poll::Ready(answer.unwrap_or_else(|_| Err(never_sent())));
            }
            State::Ready(_) | State::Taken => {}
        }
        match std::mem::replace(&mut self.0, State::Taken) {
            State::Ready(answer) => Poll::Ready(answer),
            _ => Poll::Ready(Err(Error::new(
                ErrorKind::InvalidReply,
                "a store's answer was asked for twice",
            ))),
        }
    }
}

fn never_sent() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the task that asks the store has ended, as its tokio runtime may have: whether the store was \
         asked is not known",
    )
}

impl<T> fmt::Debug for StoreFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.0 {
            State::Ready(_) => "ready",
            State::Taken => "taken",
            State::Waiting(_) => "waiting",
            State::Boxed(_) => "boxed",
        };
        f.debug_tuple("StoreFuture").field(&state).finish()
    }
}
