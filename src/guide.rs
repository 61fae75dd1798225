//! Pages to read before a decision, rather than to look something up.

#[doc = include_str!("guide/choosing_an_algorithm.md")]
pub mod choosing_an_algorithm {}

#[doc = include_str!("guide/when_redis_fails.md")]
pub mod when_redis_fails {}
