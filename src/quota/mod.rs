//! Quotas: a limit of units per window, and the algorithm that counts them.
//!
//! Depends only on `error`.

mod algorithm;
mod blocking;
mod plan;
mod quota;
mod quotas;
#[cfg(feature = "serde")]
mod serde;
mod text;

pub use algorithm::{Algorithm, AlgorithmFacts, Promise};
pub use blocking::Blocking;
pub use plan::{IntoPlan, Plan};
pub use quota::Quota;
pub use quotas::{IntoQuotas, Quotas};
#[cfg(feature = "redis")]
pub(crate) use text::parse_duration;
