//! Protection against a failing store: a deadline, a circuit breaker, and fallback counts in memory.
//!
//! Nothing here depends on the [`Store`](crate::Store) trait.

mod breaker;
mod circuit_breaker;
mod watch;

pub(super) use breaker::Admission;
pub use circuit_breaker::CircuitBreaker;
