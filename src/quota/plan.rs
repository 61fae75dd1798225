//! The plan of a key: the quotas of a tenant, looked up for each request.

use std::error::Error as StdError;

use super::quota::Quota;
use super::quotas::Quotas;

type BoxError = Box<dyn StdError + Send + Sync>;

/// The quotas of one key, as [`quotas_for`](crate::RateLimitLayer::quotas_for) looks them up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Plan {
    /// The quotas of the layer.
    #[default]
    Default,
    /// Not counted, like a [skipped](crate::RateLimitLayer::skip) request.
    Exempt,
    /// Quotas that replace the layer's. An empty list admits everything.
    Quotas(Quotas),
}

/// Types that convert to a [`Plan`]: the closure of
/// [`quotas_for`](crate::RateLimitLayer::quotas_for) returns one.
///
/// | type | plan |
/// |---|---|
/// | [`Plan`] | itself |
/// | [`Quota`], [`Quotas`], an array, slice or `Vec` of quotas | these quotas |
/// | `Option` of one of these | `None`: the quotas of the layer |
/// | `Result` of one of these | `Err`: the [failure policy](crate::FailurePolicy) of the layer applies |
pub trait IntoPlan {
    /// Converts to a plan.
    ///
    /// # Errors
    ///
    /// Returns the error of a failed lookup.
    fn into_plan(self) -> Result<Plan, BoxError>;
}

impl IntoPlan for Plan {
    fn into_plan(self) -> Result<Plan, BoxError> {
        Ok(self)
    }
}

macro_rules! impl_into_plan {
    ($($type:ty)*) => {$(
        impl IntoPlan for $type {
            fn into_plan(self) -> Result<Plan, BoxError> {
                Ok(Plan::Quotas(self.into()))
            }
        }
    )*};
}

impl_into_plan!(Quota Quotas Vec<Quota> &[Quota]);

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
