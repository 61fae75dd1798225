//! What clients see: headers, rejections and nested limits, over HTTP.

#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "test-util")]
mod consistent;
#[cfg(feature = "test-util")]
mod hidden;
#[cfg(all(feature = "axum-08", feature = "redis"))]
mod http;
#[cfg(feature = "redis")]
mod nested;
mod refusals;
mod totals;
