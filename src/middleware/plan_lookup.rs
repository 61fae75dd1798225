//! The lookup of the plan of a key.

use std::error::Error as StdError;
use std::pin::Pin;

use http::request::Parts;

use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::quota::{IntoPlan, Plan};

/// The closure of [`quotas_for`](crate::RateLimitLayer::quotas_for).
pub(super) type PlanLookup = dyn Fn(&Key, &Parts) -> PlanFuture + Send + Sync;

pub(super) type PlanFuture = Pin<Box<dyn Future<Output = Result<Plan, Error>> + Send>>;

/// Boxes the future of a lookup and converts its output.
pub(super) fn plan_future(lookup: impl Future<Output: IntoPlan> + Send + 'static) -> PlanFuture {
    Box::pin(async { lookup.await.into_plan().map_err(lookup_failed) })
}

fn lookup_failed(error: Box<dyn StdError + Send + Sync>) -> Error {
    // The text of the source is not in the message, because it may contain the key.
    let text = "failed to look up the quotas of a key";
    Error::new(ErrorKind::QuotasUnknown, text).with_boxed_source(error)
}
