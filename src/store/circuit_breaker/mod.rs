//! Protection against a failing store: a deadline, a circuit breaker, and counts to fall back on.
//!
//! These files know the counts in memory, and nothing of the [`Store`](crate::Store) trait.

mod breaker;
mod circuit_breaker;
mod settings;

pub(super) use breaker::Permit;
pub use circuit_breaker::CircuitBreaker;
pub(super) use circuit_breaker::Operation;
