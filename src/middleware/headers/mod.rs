//! The headers that report a limit to clients, with one file per dialect.
//!
//! This module uses no other module of the middleware.

mod dialect;
mod draft_11;
mod drafts_03_to_07;
pub(super) mod field_names;
mod numbers;
mod policy_names;
mod structured_fields;
#[cfg(test)]
mod tests;
mod times;
mod write;
mod x_ratelimit;

pub use dialect::{Headers, IetfDraft};
pub(super) use dialect::{ResetFormat, Tightness};
pub(super) use field_names::inner_remaining;
pub(super) use numbers::number_value;
#[cfg(test)]
pub(super) use policy_names::policy_names;
pub(super) use policy_names::violated_policies;
pub(super) use structured_fields::split_outside_strings;
pub(super) use times::{refill_time, whole_seconds};
pub(super) use write::raise_resets;
