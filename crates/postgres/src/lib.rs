#![doc = include_str!("../README.md")]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::print_stdout
    )
)]

mod connection;
mod doctor;
mod error;
mod names;
mod rows;

use std::sync::Arc;

use tollgate::Error;
use tollgate::store::Store;

pub use rows::{PostgresRows, PostgresStore};

/// Opens the store of a URL: `postgres://…` or `postgresql://…` here, and all others by
/// [`tollgate::store::from_url`]. So a service moves from Postgres to Redis by its configuration. Does not connect.
///
/// The tables and functions have to be there: see [`PostgresRows::migrate`].
///
/// # Errors
///
/// Returns an error of kind [`Misconfigured`](tollgate::ErrorKind::Misconfigured) if the URL is malformed. The text never
/// contains a part that could be a password.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let url = std::env::var("STORE").unwrap_or_else(|_| "postgres://shop@127.0.0.1/shop".into());
/// let store = tollgate_postgres::from_url(&url)?;
/// let limiter = tollgate::RateLimiter::new(store, tollgate::Quota::per_minute(100));
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
pub fn from_url(url: &str) -> Result<Arc<dyn Store>, Error> {
    match url.split_once(':') {
        Some(("postgres" | "postgresql", _)) => Ok(Arc::new(PostgresRows::open(url)?.into_store())),
        _ => {
            let store = tollgate::store::from_url(url);
            let store = store.map_err(|error| {
                Error::new(tollgate::ErrorKind::Misconfigured, error.to_string()).with_source(error)
            })?;
            Ok(Arc::new(store))
        }
    }
}
