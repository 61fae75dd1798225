//! How the headers of one layer are written: once what all answers have in common, then each answer.

use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use quick_cache::sync::Cache;
use smallvec::SmallVec;

use super::dialect::{Headers, IetfDraft};
use crate::decision::{DecisionView, QuotaDecision, Source};
use crate::middleware::headers::{draft_11 as draft11, drafts_03_to_07 as early, x_ratelimit};
use crate::quota::{Quota, Quotas};

/// The headers of one layer, as far as they are the same on all answers.
#[derive(Debug)]
pub(crate) struct Templates {
    headers: Headers,
    limiter: Arc<str>,
    quotas: Quotas,
    policies: Option<Policies>,
    of_plans: OnceLock<PlanTemplates>,
}

/// The policies of quotas that are not the layer's own.
type PlanTemplates = Cache<SmallVec<[Quota; 2]>, Option<Arc<Policies>>>;

/// Of how many lists of quotas that are not the layer's own the policies are kept: plans of tenants are
/// a few, and of those that are many the busiest stay.
const PLANS: usize = 64;

/// Where a layer stands among those that the answer has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// No layer further in is tighter: single values are this layer's, and replace those that are
    /// there.
    Tightest,
    /// A layer further in is tighter: only lists get longer.
    Behind,
}

#[derive(Debug)]
enum Policies {
    Named(draft11::Policies),
    Nameless(early::Policies),
}

impl Templates {
    pub(crate) fn new(headers: &Headers, limiter: &Arc<str>, quotas: &Quotas) -> Self {
        Self {
            headers: headers.clone(),
            limiter: Arc::clone(limiter),
            quotas: quotas.clone(),
            policies: headers.ietf.and_then(|draft| {
                let quotas: Vec<_> = quotas.iter().collect();
                Policies::new(draft, limiter, &quotas)
            }),
            of_plans: OnceLock::new(),
        }
    }

    /// The policies of quotas that are not the layer's own.
    fn policies_of(&self, draft: IetfDraft, quotas: &[Quota]) -> Option<Arc<Policies>> {
        let plans = self.of_plans.get_or_init(|| Cache::new(PLANS));
        if let Some(policies) = plans.get(quotas) {
            return policies;
        }
        let listed: Vec<_> = quotas.iter().collect();
        let policies = Policies::new(draft, &self.limiter, &listed).map(Arc::new);
        plans.insert(quotas.into(), policies.clone());
        policies
    }

    /// Whether a client is told anything of a decision: where nobody counts, there is nothing to tell.
    fn tells_of(&self, decision: &DecisionView) -> bool {
        !self.headers.is_none() && decision.source() != Source::None
    }

    /// Whether it has headers with room for one layer.
    pub(crate) fn has_single_values(&self) -> bool {
        let is_list = self
            .headers
            .ietf
            .is_none_or(|draft| draft == IetfDraft::Draft11);
        self.headers.x_ratelimit.is_some() || !is_list
    }

    /// Writes what a client is told of a decision.
    pub(crate) fn write(&self, decision: &DecisionView, place: Place, to: &mut HeaderMap) {
        if !self.tells_of(decision) {
            return;
        }
        let Some(reported) = decision.reported() else {
            return;
        };
        // Else each of them might have the map grow.
        to.reserve(self.headers.fields());
        if let (Some(reset), Place::Tightest) = (self.headers.x_ratelimit, place) {
            x_ratelimit::write(reset, decision, reported, to);
        }
        let Some(draft) = self.headers.ietf else {
            return;
        };
        let asked = decision.quota_list();
        let others;
        let policies = if self.quotas.equals(asked) {
            self.policies.as_ref()
        } else {
            others = self.policies_of(draft, asked);
            others.as_deref()
        };
        if let Some(policies) = policies {
            policies.write(decision, reported, place, to);
        }
    }
}

impl Policies {
    fn new(draft: IetfDraft, limiter: &str, quotas: &[&Quota]) -> Option<Self> {
        let nameless = |shape| early::Policies::new(shape, quotas).map(Self::Nameless);
        match draft {
            IetfDraft::Draft03 => nameless(early::Shape::Three),
            IetfDraft::Draft06 => nameless(early::Shape::Six),
            IetfDraft::Draft07 => nameless(early::Shape::Seven),
            IetfDraft::Draft11 => draft11::Policies::new(limiter, quotas).map(Self::Named),
        }
    }

    fn write(
        &self,
        decision: &DecisionView,
        reported: QuotaDecision<'_>,
        place: Place,
        to: &mut HeaderMap,
    ) {
        match self {
            Self::Named(policies) => policies.append(decision, to),
            Self::Nameless(policies) => policies.write(decision, reported, place, to),
        }
    }
}
