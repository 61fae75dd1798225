//! The protocol of the script: key names, calls, replies and errors.
//!
//! The format is documented in `lua/README.md`.

mod call_number;
mod call_plan;
mod counts;
mod decode;
mod encode;
pub(super) mod errors;
mod fields;
mod key_names;
mod last_reply;
mod packed_counter;
mod server_clock;
mod server_name;

pub(super) use call_number::CallNumber;
pub(super) use call_plan::BatchEntry;
pub(super) use counts::{Count, Value};
pub(super) use decode::{EntryAnswers, decode_replies};
pub(super) use encode::{MAX_ENTRY_UNITS, encode_adjust, encode_checks};
pub use key_names::HashTags;
#[cfg(feature = "cluster")]
pub(super) use key_names::SLOTS;
pub(super) use key_names::{KeyNames, key_slot, member};
pub(super) use server_clock::ServerClock;
#[cfg(feature = "sentinel")]
pub(super) use server_name::SENTINEL;
pub(super) use server_name::ServerName;
#[cfg(feature = "cluster")]
pub(super) use server_name::{CLUSTER, CLUSTER_NODE};
