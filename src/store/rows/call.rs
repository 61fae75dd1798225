//! The call of a store: an operation on rows, and the caller who waits for its answer.

use super::requests::{Request, RowValue, ToWrite};
use super::row_name::RowName;
use crate::error::Error;
use crate::store::future::OutcomeSender;

/// An operation of a store on rows.
pub(super) trait Operation: Send + Sync + 'static {
    type Value: RowValue;
    type Answer: Send + Sync + 'static;

    fn names(&self) -> Vec<RowName>;

    /// Changes the values, which are in the order of the names. It may run again, with what is then read.
    fn run(
        &mut self,
        values: &mut [Self::Value],
        now: u64,
    ) -> (Result<Self::Answer, Error>, ToWrite);

    /// Called once, when the last run has happened, in the order in which the database has decided.
    fn take_effect(self, answer: &Self::Answer)
    where
        Self: Sized,
    {
        let _ = answer;
    }
}

/// An operation with its caller.
pub(super) struct Call<O: Operation> {
    operation: O,
    names: Vec<RowName>,
    answer: Option<Result<O::Answer, Error>>,
    caller: OutcomeSender<O::Answer>,
}

impl<O: Operation> Call<O> {
    pub(super) fn new(operation: O, caller: OutcomeSender<O::Answer>) -> Self {
        Self {
            names: operation.names(),
            operation,
            answer: None,
            caller,
        }
    }
}

impl<O: Operation> Request<O::Value> for Call<O> {
    fn names(&self) -> &[RowName] {
        &self.names
    }

    fn is_abandoned(&self) -> bool {
        self.caller.is_abandoned()
    }

    fn run(&mut self, values: &mut [O::Value], now: u64) -> ToWrite {
        let (answer, to_write) = self.operation.run(values, now);
        self.answer = Some(answer);
        to_write
    }

    fn finish(self: Box<Self>, outcome: Result<(), Error>) {
        let answer = match (outcome, self.answer) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(answer)) => answer,
            // Each request of a decided batch has run. The caller learns of a dropped call.
            (Ok(()), None) => return,
        };
        if let Ok(answer) = &answer {
            self.operation.take_effect(answer);
        }
        self.caller.send(answer);
    }
}
