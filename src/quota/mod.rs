//! Quotas: a limit of units per window, and the algorithm that counts them.
//!
//! Depends only on `error`.

mod algorithm;
mod block_rule;
#[cfg_attr(not(feature = "calendar"), path = "calendar/disabled.rs")]
mod calendar;
mod calendar_windows;
mod number;
#[cfg(feature = "calendar")]
mod per_calendar;
mod plan;
mod quota;
mod quotas;
#[cfg(feature = "serde")]
mod serde;
mod shares;
mod text;
mod total;
mod written_rate;

pub use algorithm::Algorithm;
pub use block_rule::BlockRule;
#[cfg(feature = "redis")]
pub(crate) use calendar::Calendar;
pub(crate) use calendar_windows::{AlignedWindow, longest_window};
pub(crate) use number::parse_number;
pub use plan::{IntoPlan, Plan};
pub(crate) use quota::MAX_WINDOW;
pub use quota::Quota;
pub use quotas::{IntoQuotas, Quotas};
pub use shares::Share;
pub(crate) use shares::{ShareId, Shares, fnv_1a};
#[cfg(feature = "redis")]
pub(crate) use text::parse_duration;
