//! What the doctor finds on real servers.

mod clusters;
#[expect(dead_code, reason = "the tests of tollgate need more of it")]
#[path = "../../../../tests/rented/offer.rs"]
mod offer;
mod rented;
mod servers;
mod support;
