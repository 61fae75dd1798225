//! The plan of a key, such as the quotas of a tenant.

use std::error::Error as StdError;

use super::quota::Quota;
use super::quotas::Quotas;

type BoxError = Box<dyn StdError + Send + Sync>;

/// The quotas of one key, such as those of a tenant.
///
/// A layer with [`quotas_for`](crate::RateLimitLayer::quotas_for) looks up the plan of each request's key.
///
/// # Examples
///
/// The plan of a row in a table of tenants:
///
/// ```
/// use tollgate::{Plan, Quota};
///
/// struct Tenant {
///     is_internal: bool,
///     per_minute: Option<u32>,
/// }
///
/// fn plan_of(tenant: &Tenant) -> Plan {
///     match tenant.per_minute {
///         _ if tenant.is_internal => Plan::Exempt,
///         Some(limit) => Plan::Quotas(Quota::per_minute(limit).into()),
///         None => Plan::Default,
///     }
/// }
///
/// let tenant = Tenant { is_internal: false, per_minute: Some(600) };
/// assert_eq!(plan_of(&tenant), Plan::Quotas(Quota::per_minute(600).into()));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Plan {
    /// The quotas of the layer.
    #[default]
    Default,
    /// No quotas: requests of this key pass and are not counted, like
    /// [skipped](crate::RateLimitLayer::skip) requests.
    Exempt,
    /// These quotas in place of the layer's. An empty list admits every request.
    Quotas(Quotas),
}

/// Types that convert to a [`Plan`].
///
/// The closure of [`quotas_for`](crate::RateLimitLayer::quotas_for) returns a future of one of these types:
///
/// | type | plan |
/// |---|---|
/// | [`Plan`] | the same plan |
/// | [`Quota`], [`Quotas`], an array, slice or `Vec` of quotas | these quotas |
/// | `Option` of one of these | for `None`, the quotas of the layer |
/// | `Result` of one of these | for `Err`, no plan: the [failure policy](crate::FailurePolicy) of the layer applies |
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
