//! Servers as vendors rent them out, emulated by the server that is here: the promises hold on each.

#[path = "../support/spans.rs"]
mod spans;
#[path = "../support/mod.rs"]
mod support;

#[path = "../checks/contention/adversary.rs"]
mod adversary;
mod clock_argument;
mod hash_tags;
mod keys;
mod kits;
mod offer;
mod permissions;
#[path = "../checks/contention/runtime.rs"]
mod runtime;

use crate::support::algorithms::promised;
