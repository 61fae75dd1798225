//! The protocol between limiters and a store, without a promise: it may change in any release.
//!
//! A database implements [`Rows`](super::Rows). Only a store that decides on its own server, as [`RedisStore`](super::RedisStore)
//! does, speaks this protocol. The kit, the doctor and the attacks of this repository depend on the exact version of the crate.

pub use super::block_list::BlockList;
pub use super::circuit_breaker::CircuitBreaker;
pub use super::counters::{CheckOutcome, Counters};
pub use super::future::{OutcomeSender, StoreFuture};
pub use super::real_time::timeout;
pub use super::refusal_cache::RefusalCache;
pub use super::requests::{Adjust, Block, Change, Check, OwnedAdjust, OwnedCheck, Subject};
pub use super::rows::for_kit as rows_for_kit;
pub use super::store::StoreParts;
pub use crate::decision::{Answer, Answers, Holding, QuotaAnswer, Receipt, StoreId};
pub use crate::key::Fingerprint;
