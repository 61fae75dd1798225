//! Leases: units of busy keys that this process takes in advance, and uses from memory.
//!
//! A limiter with a lease of D counts with windows of W + D. A unit may be used until 0.8 D after the request
//! that charged it was sent, by the clock of this process; the rest covers two clocks that are slewed in opposite
//! directions. So all uses within a span of W were charged within a span of W + D, which the store bounds.
//!
//! A grant is one charge of the store. A check takes units of a grant. When the grant ends, what is left
//! returns to the store under the receipt of its charge.

mod grant;
mod lease;
mod limit_part;
mod round_trip;
mod table;
mod times;
mod use_rate;

pub(super) use lease::{HeldUnits, Lease};
