//! The headers that tell a client its limit, one file per dialect.

mod dialect;
mod draft_11;
mod drafts_03_to_07;
pub(super) mod field_names;
mod field_syntax;
mod gcra_refill;
mod inner_remaining;
mod number;
pub(super) mod policy_names;
mod structured_fields;
mod templates;
#[cfg(test)]
mod tests;
mod x_ratelimit;

pub(super) use dialect::whole_seconds;
pub use dialect::{Headers, IetfDraft};
pub(super) use gcra_refill::drain_time;
pub(super) use inner_remaining::remaining_told;
pub(super) use number::value_of;
pub(super) use policy_names::{encoded, violated_policies};
pub(super) use templates::{Place, Templates};
