//! A world: processes with a runtime each, a network, a server, faults, clients, and what must hold.
//!
//! Everything runs on one thread. Nothing here sleeps, reads a real clock, or iterates over a hash map.

mod budgets;
mod clients;
mod faults;
mod holders;
mod ledger;
mod limits;
mod log;
mod network;
mod plan;
mod process;
mod promises;
mod readable;
mod record;
mod run;
mod shared;
mod stored;

pub use log::Report;
pub use plan::{Cast, ClientKind, FaultKind, Plan};
pub use run::run;
