//! Protection against a store that fails: a deadline, a circuit breaker, and counts to fall back on.

mod breaker;
mod circuit_breaker;
mod recorder;

pub use circuit_breaker::CircuitBreaker;
pub(crate) use recorder::GuardedAnswer;
