//! Quotas in flight: slots that processes hold at the same time.

#[path = "../support/mod.rs"]
mod support;

mod parity;
mod stored;
