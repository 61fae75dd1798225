//! The quotas of a key, looked up for each request.

use std::error::Error as StdError;
use std::pin::Pin;

use http::request::Parts;

use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::quota::{IntoPlan, Plan};

/// Looks up the plan of a key.
pub(crate) type PlanLookup = dyn Fn(&Key, &Parts) -> PlanFuture + Send + Sync;

pub(crate) type PlanFuture = Pin<Box<dyn Future<Output = Result<Plan, Error>> + Send>>;

/// Erases the types of a closure's future and of what it returns.
pub(super) fn boxed(future: impl Future<Output: IntoPlan> + Send + 'static) -> PlanFuture {
    Box::pin(async { future.await.into_plan().map_err(lookup_failed) })
}

fn lookup_failed(error: Box<dyn StdError + Send + Sync>) -> Error {
    // The text of a foreign error may name the key, or more.
    let text = "the quotas of a key could not be found";
    Error::new(ErrorKind::QuotasUnknown, text).with_boxed_source(error)
}
