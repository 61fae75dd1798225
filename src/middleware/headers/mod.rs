//! The headers that report a limit to clients, with one file per dialect.
//!
//! This module uses `decision` and `quota`, and no other module of the middleware.

mod dialect;
mod draft_11;
mod drafts_03_to_07;
pub(super) mod field_names;
mod field_syntax;
mod gcra_refill;
mod inner_remaining;
mod number_value;
mod policy_names;
mod structured_fields;
mod templates;
#[cfg(test)]
mod tests;
mod wait;
mod x_ratelimit;

pub use dialect::{Headers, IetfDraft};
pub(super) use gcra_refill::refill_time;
pub(super) use inner_remaining::inner_remaining;
pub(super) use number_value::number_value;
#[cfg(test)]
pub(super) use policy_names::policy_names;
pub(super) use policy_names::{encoded, violated_policies};
pub(super) use templates::{Place, Templates};
pub(super) use wait::whole_seconds;
