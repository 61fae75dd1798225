//! A request of a caller: what it does to the counters of its rows.

use tokio::sync::oneshot;
use tollgate::store::Counters;
use tollgate::{Error, Key};

use crate::names::RowName;

/// A request that waits for its turn.
///
/// It may run twice: if another process writes one of its rows meanwhile, the first run has not happened.
pub(crate) trait Request: Send {
    fn names(&self) -> &[RowName];

    /// Returns whether the caller has given up.
    fn is_abandoned(&self) -> bool;

    /// Changes the counters, which are in the order of the names. Returns whether they have to be written.
    fn run(&mut self, counters: &mut [Counters], now: u64) -> bool;

    /// Sends the caller the answer of the last run, or an error.
    fn finish(self: Box<Self>, outcome: Result<(), Error>);
}

/// A request with an answer of type `T`.
pub(crate) struct Call<T, F> {
    names: Vec<RowName>,
    run: F,
    answer: Option<T>,
    caller: oneshot::Sender<Result<T, Error>>,
}

/// The receiver of an answer.
pub(crate) type Waiting<T> = oneshot::Receiver<Result<T, Error>>;

impl<T, F> Call<T, F>
where
    F: FnMut(&mut [Counters], u64) -> (T, bool) + Send,
{
    /// Creates a request and the receiver of its answer.
    pub(crate) fn new<'a>(
        keys: impl IntoIterator<Item = (&'a Key, &'a Key)>,
        run: F,
    ) -> (Self, Waiting<T>) {
        let names = keys.into_iter();
        let names = names
            .map(|(limiter, key)| RowName::new(limiter, key))
            .collect();
        let (caller, waiting) = oneshot::channel();
        let answer = None;
        (
            Self {
                names,
                run,
                answer,
                caller,
            },
            waiting,
        )
    }
}

impl<T: Send, F> Request for Call<T, F>
where
    F: FnMut(&mut [Counters], u64) -> (T, bool) + Send,
{
    fn names(&self) -> &[RowName] {
        &self.names
    }

    fn is_abandoned(&self) -> bool {
        self.caller.is_closed()
    }

    fn run(&mut self, counters: &mut [Counters], now: u64) -> bool {
        let (answer, is_changed) = (self.run)(counters, now);
        self.answer = Some(answer);
        is_changed
    }

    fn finish(self: Box<Self>, outcome: Result<(), Error>) {
        let answer = match (outcome, self.answer) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(answer)) => Ok(answer),
            // The receiver then fails, as if this process had ended.
            (Ok(()), None) => return,
        };
        // A caller that gave up meanwhile needs no answer.
        let _ = self.caller.send(answer);
    }
}
