//! The headers that report a limit to clients, with one file per dialect.
//!
//! This module uses no other module of the middleware.

mod dialect;
mod draft_11;
mod drafts_03_to_07;
pub(super) mod field_names;
mod number_value;
mod policy_list;
mod policy_names;
mod structured_fields;
mod templates;
#[cfg(test)]
mod tests;
mod times;
mod x_ratelimit;

pub use dialect::{Headers, IetfDraft};
pub(super) use field_names::inner_remaining;
pub(super) use number_value::number_value;
pub(super) use policy_names::violated_policies;
#[cfg(test)]
pub(super) use policy_names::{ListedLimit, policy_names};
pub(super) use templates::{Templates, Tightness};
pub(super) use times::{refill_time, whole_seconds};
