//! The counting rules of every algorithm, in memory and in Redis.

#[cfg(all(feature = "calendar", feature = "redis"))]
#[macro_use]
#[path = "../support/each_algorithm.rs"]
mod each_algorithm;
#[cfg(feature = "redis")]
#[path = "../support/spans.rs"]
mod spans;
#[path = "../support/mod.rs"]
mod support;

#[cfg(all(feature = "axum-08", feature = "redis"))]
mod admin;
#[cfg(feature = "redis")]
mod advisories;
mod allocations;
mod boundary;
mod bounds;
#[cfg(all(feature = "calendar", feature = "redis"))]
mod calendar;
#[cfg(feature = "redis")]
mod conformance;
#[cfg(feature = "redis")]
mod contention;
#[cfg(feature = "redis")]
mod free;
mod gcra;
mod interleavings;
mod overruns;
#[cfg(all(feature = "calendar", feature = "redis"))]
mod parity;
mod refunds;
#[cfg(feature = "redis")]
mod shares;
#[cfg(feature = "redis")]
mod soft;
#[cfg(feature = "redis")]
mod totals;
#[cfg(feature = "redis")]
mod waiting;
