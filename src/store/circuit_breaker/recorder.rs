//! Reports the outcome of one request to the circuit breaker.

use super::circuit_breaker::{CircuitBreaker, Operation};
use crate::decision::Source;
use crate::error::Error;
use crate::telemetry::StoreMeter;

/// Reports how a pending request ends: with an outcome, or, on drop, with a caller that gave up.
pub(in crate::store) struct OutcomeRecorder<T> {
    circuit_breaker: CircuitBreaker,
    partition: usize,
    operation: Operation,
    /// By the clock of the circuit breaker.
    started_at: u64,
    /// Returns where an answer came from.
    source: fn(&T) -> Source,
    is_recorded: bool,
}

impl<T> OutcomeRecorder<T> {
    /// Creates the recorder of a request that starts now.
    pub(in crate::store) fn new(
        circuit_breaker: &CircuitBreaker,
        partition: usize,
        operation: Operation,
        source: fn(&T) -> Source,
    ) -> Self {
        Self {
            circuit_breaker: circuit_breaker.clone(),
            partition,
            operation,
            started_at: circuit_breaker.now(),
            source,
            is_recorded: false,
        }
    }

    /// Reports the outcome.
    pub(in crate::store) fn record(mut self, outcome: &Result<T, Error>) {
        self.is_recorded = true;
        let outcome = outcome.as_ref().map(self.source);
        self.circuit_breaker
            .record(self.partition, self.operation, outcome);
    }
}

impl<T> Drop for OutcomeRecorder<T> {
    fn drop(&mut self) {
        // Waits that callers cut short count as well: else a hanging store would look fast.
        if StoreMeter::LISTENS && self.operation != Operation::Adjust {
            self.circuit_breaker.record_wait(self.started_at);
        }
        if !self.is_recorded {
            self.circuit_breaker
                .record_abandoned(self.partition, self.operation, self.started_at);
        }
    }
}
