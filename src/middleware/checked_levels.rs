//! The levels of a request: key, cost and quotas of each.

use smallvec::SmallVec;

use super::config::LayerConfig;
use super::level::{Level, PlanFuture};
use crate::error::Error;
use crate::key::Key;
use crate::quota::{Plan, Quotas, ShareId};

/// The levels to check: those that are not left out.
pub(super) type CheckedLevels = SmallVec<[CheckedLevel; 1]>;

/// The key, the cost and the quotas of a request at one level.
pub(super) struct CheckedLevel {
    /// The index of the level in the layer.
    pub(super) place: usize,
    pub(super) key: Key,
    pub(super) cost: u32,
    pub(super) quotas: AppliedQuotas,
    pub(super) share: Option<ShareId>,
}

/// The quotas that apply at a level.
pub(super) enum AppliedQuotas {
    /// The limiter's quotas.
    Own,
    OfPlan(Quotas),
    LookingUp(PlanFuture),
    /// The plan leaves the level out.
    Exempt,
    Unknown(Error),
}

impl CheckedLevel {
    /// Returns whether a quota in flight applies.
    #[inline]
    pub(super) fn is_in_flight(&self, config: &LayerConfig) -> bool {
        self.quotas(config).has_slots()
    }

    /// Returns the quotas in flight. `None` if there are none.
    pub(super) fn slots_only(&self, config: &LayerConfig) -> Option<Quotas> {
        let quotas = self.quotas(config);
        if !quotas.has_slots() {
            return None;
        }
        let in_flight = quotas.iter().filter(|quota| quota.is_in_flight());
        Some(in_flight.cloned().collect())
    }

    #[inline]
    pub(super) fn quotas<'a>(&'a self, config: &'a LayerConfig) -> &'a Quotas {
        match &self.quotas {
            AppliedQuotas::OfPlan(quotas) => quotas,
            _ => config.level(self.place).limiter.quotas(),
        }
    }

    #[inline]
    pub(super) fn is_looking_up(&self) -> bool {
        matches!(self.quotas, AppliedQuotas::LookingUp(_))
    }
}

impl AppliedQuotas {
    /// Returns the quotas by the plan of a key.
    pub(super) fn found(level: &Level, plan: Result<Plan, Error>) -> Self {
        if plan.is_ok() {
            level.limiter.quotas_found();
        }
        match plan {
            Err(error) => Self::Unknown(error),
            Ok(Plan::Default) => Self::Own,
            Ok(Plan::Quotas(quotas)) => Self::OfPlan(quotas),
            Ok(Plan::Exempt) => {
                level.leave_out();
                Self::Exempt
            }
        }
    }
}
