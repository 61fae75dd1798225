//! The plan of a key, such as the quotas of a tenant.

use std::error::Error as StdError;
use std::str::FromStr;

use super::quotas::Quotas;
use super::text::IN_FLIGHT;
use crate::error::ConfigError;

type BoxError = Box<dyn StdError + Send + Sync>;

/// The quotas of one key, such as a tenant's.
///
/// A layer with [`quotas_for`](crate::RateLimitLayer::quotas_for) looks up the plan of each request's key.
///
/// A plan parses from text, such as a column of a database: `default`, `exempt`, or [quotas](Quotas) like
/// `5/second, 2000/day`. With the feature `serde`, it deserializes from the same text, or from quotas in any of
/// their forms.
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
///         Some(limit) => Quota::per_minute(limit).into(),
///         None => Plan::Default,
///     }
/// }
///
/// let tenant = Tenant { is_internal: false, per_minute: Some(600) };
/// assert_eq!(plan_of(&tenant), Plan::from(Quota::per_minute(600)));
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

/// The text of [`Plan::Default`].
pub(super) const DEFAULT: &str = "default";

/// The text of [`Plan::Exempt`].
pub(super) const EXEMPT: &str = "exempt";

/// Parses `default`, `exempt`, or quotas like `5/second, 2000/day`.
///
/// Empty text is an error, because a missing setting would change the limit.
///
/// # Examples
///
/// ```
/// use tollgate::{Plan, Quota};
///
/// assert_eq!("exempt".parse::<Plan>()?, Plan::Exempt);
/// assert_eq!("600/minute".parse::<Plan>()?, Plan::from(Quota::per_minute(600)));
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
impl FromStr for Plan {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match text.trim() {
            DEFAULT => Ok(Self::Default),
            EXEMPT => Ok(Self::Exempt),
            trimmed if trimmed.contains('/') || trimmed.contains(IN_FLIGHT) => {
                trimmed.parse().map(Self::Quotas)
            }
            _ => Err(ConfigError::quota_part("plan", text, PLAN_RULE)),
        }
    }
}

const PLAN_RULE: &str =
    "a plan is default, exempt, or quotas like 5/second, 2000/day or 5 in-flight";

/// Types that convert to a [`Plan`].
///
/// The closure of [`quotas_for`](crate::RateLimitLayer::quotas_for) returns a future of one of these types:
///
/// | type | plan |
/// |---|---|
/// | [`Plan`] | the same plan |
/// | [`Quota`](crate::Quota), [`Quotas`], an array, slice or `Vec` of quotas | these quotas |
/// | `Option` of one of these | for `None`, the quotas of the layer |
/// | `Result` of one of these | for `Err`, no plan: the [failure policy](crate::FailurePolicy) of the layer applies |
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a plan",
    label = "the future of `quotas_for` returns this",
    note = "return a `Quota`, a list of them, `Quotas` or a `Plan`, an `Option` of these, or a `Result`",
    note = "for text from a database, write `text.parse::<Plan>()`; for a reference, clone the value"
)]
pub trait IntoPlan {
    /// Converts to a plan.
    ///
    /// # Errors
    ///
    /// Returns the error of a failed lookup.
    fn into_plan(self) -> Result<Plan, BoxError>;
}

#[diagnostic::do_not_recommend]
impl<P: Into<Plan>> IntoPlan for P {
    fn into_plan(self) -> Result<Plan, BoxError> {
        Ok(self.into())
    }
}

/// Makes a plan of [these quotas](Plan::Quotas).
impl<Q: Into<Quotas>> From<Q> for Plan {
    fn from(quotas: Q) -> Self {
        Self::Quotas(quotas.into())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Quota;

    #[test]
    fn a_plan_is_made_from_a_quota_or_a_list() {
        let quotas = [Quota::per_second(5), Quota::per_day(2_000)];
        let plan = Plan::Quotas(Quotas::from(&quotas));
        assert_eq!(Plan::from(quotas.clone()), plan);
        assert_eq!(Plan::from(quotas.to_vec()), plan);
        assert_eq!(Plan::from(Quotas::from(&quotas)), plan);
        let [quota, _] = quotas;
        assert_eq!(Plan::from(quota.clone()), Plan::Quotas(Quotas::from(quota)));
        // An empty list is a plan, too: it admits everything.
        assert_eq!(Plan::from([]), Plan::Quotas(Quotas::from([])));
    }

    #[test]
    fn a_plan_is_default_exempt_or_quotas() {
        let quotas = Quotas::from([Quota::per_second(5), Quota::per_day(2_000)]);
        for (text, plan) in [
            ("default", Plan::Default),
            (" exempt\n", Plan::Exempt),
            ("5/second, 2000/day", Plan::Quotas(quotas)),
        ] {
            assert_eq!(text.parse(), Ok(plan), "{text}");
        }
        for (text, rule) in [
            ("", "a plan is"),
            ("gold", "a plan is"),
            ("Exempt", "a plan is"),
            ("5/fortnight", "the window is"),
            ("exempt, 5/second", "a quota is"),
        ] {
            let error = text.parse::<Plan>().unwrap_err().to_string();
            assert!(error.contains(rule), "{text:?}: {error}");
        }
    }
}
