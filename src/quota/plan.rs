//! The quotas of one key: a tenant's plan, looked up for each request.

use std::error::Error as StdError;

use super::quota::Quota;
use super::quotas::Quotas;

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
