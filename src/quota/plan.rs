//! The quotas of one key: a tenant's plan, looked up for each request.

use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;

use http::request::Parts;

use super::quota::Quota;
use super::quotas::Quotas;
use crate::error::{Error, ErrorKind};
use crate::key::Key;

type BoxError = Box<dyn StdError + Send + Sync>;

/// What a key may do: what [`quotas_for`](crate::RateLimitLayer::quotas_for) finds out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Plan {
    /// The quotas of the layer.
    #[default]
    Default,
    /// Not counted, like a request that is [skipped](crate::RateLimitLayer::skip).
    Exempt,
    /// Quotas of its own, in place of the layer's. An empty list admits everything.
    Quotas(Quotas),
}

/// What can be made a [`Plan`]: what the closure of
/// [`quotas_for`](crate::RateLimitLayer::quotas_for) may return.
///
/// | type | plan |
/// |---|---|
/// | [`Plan`] | itself |
/// | [`Quota`], [`Quotas`], an array, slice or `Vec` of quotas | these quotas |
/// | `Option` of one of these | `None`: the layer's own |
/// | `Result` of one of these | `Err`: the layer does what its [policy](crate::FailurePolicy) says |
pub trait IntoPlan {
    /// Makes the plan.
    ///
    /// # Errors
    ///
    /// When it could not be found out.
    fn into_plan(self) -> Result<Plan, BoxError>;
}

impl IntoPlan for Plan {
    fn into_plan(self) -> Result<Plan, BoxError> {
        Ok(self)
    }
}

macro_rules! quotas {
    ($($type:ty)*) => {$(
        impl IntoPlan for $type {
            fn into_plan(self) -> Result<Plan, BoxError> {
                Ok(Plan::Quotas(self.into()))
            }
        }
    )*};
}

quotas!(Quota Quotas Vec<Quota> &[Quota]);

impl<const N: usize> IntoPlan for [Quota; N] {
    fn into_plan(self) -> Result<Plan, BoxError> {
        Ok(Plan::Quotas(self.into()))
    }
}

impl<P: IntoPlan> IntoPlan for Option<P> {
    fn into_plan(self) -> Result<Plan, BoxError> {
        self.map_or(Ok(Plan::Default), P::into_plan)
    }
}

impl<P: IntoPlan, E: Into<BoxError>> IntoPlan for Result<P, E> {
    fn into_plan(self) -> Result<Plan, BoxError> {
        self.map_err(E::into)?.into_plan()
    }
}

/// Finds the plan of a key.
pub(crate) type PlanFn = dyn Fn(&Key, &Parts) -> PlanFuture + Send + Sync;

pub(crate) type PlanFuture = Pin<Box<dyn Future<Output = Result<Plan, Error>> + Send>>;

/// Forgets of which type a future is, and what it makes the plan of.
pub(crate) fn boxed(future: impl Future<Output: IntoPlan> + Send + 'static) -> PlanFuture {
    Box::pin(async { future.await.into_plan().map_err(unknown) })
}

fn unknown(error: BoxError) -> Error {
    // The text of a foreign error may name the key, or more.
    let text = "the quotas of a key could not be found";
    Error::new(ErrorKind::QuotasUnknown, text).with_boxed_source(error)
}
