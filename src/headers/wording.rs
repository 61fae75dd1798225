//! How the headers of one layer are written: once what all answers have in common, then each answer.

use std::sync::Arc;

use http::HeaderMap;

use super::{Draft, Headers, draft11, early, x_ratelimit};
use crate::{DecisionView, Quota, QuotaDecision, Quotas, Source};

/// The headers of one layer, as far as they are the same on all answers.
#[derive(Debug)]
pub(crate) struct Wording {
    headers: Headers,
    limiter: Arc<str>,
    quotas: Quotas,
    policies: Option<Policies>,
}

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

impl Wording {
    pub(crate) fn new(headers: &Headers, limiter: &Arc<str>, quotas: &Quotas) -> Self {
        Self {
            headers: headers.clone(),
            limiter: Arc::clone(limiter),
            quotas: quotas.clone(),
            policies: headers.ietf.and_then(|draft| {
                let quotas: Vec<_> = quotas.iter().collect();
                Policies::new(draft, limiter, &quotas)
            }),
        }
    }

    /// Whether a client is told anything of a decision: where nobody counts, there is nothing to tell.
    pub(crate) fn tells_of(&self, decision: &DecisionView) -> bool {
        !self.headers.is_none() && decision.source() != Source::None
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
        let asked = || decision.quotas().map(|quota| quota.quota());
        let others;
        let policies = if asked().eq(self.quotas.iter()) {
            self.policies.as_ref()
        } else {
            others = Policies::new(draft, &self.limiter, &asked().collect::<Vec<_>>());
            others.as_ref()
        };
        if let Some(policies) = policies {
            policies.write(decision, reported, place, to);
        }
    }
}

impl Policies {
    fn new(draft: Draft, limiter: &str, quotas: &[&Quota]) -> Option<Self> {
        let nameless = |shape| early::Policies::new(shape, quotas).map(Self::Nameless);
        match draft {
            Draft::Draft03 => nameless(early::Shape::Three),
            Draft::Draft06 => nameless(early::Shape::Six),
            Draft::Draft07 => nameless(early::Shape::Seven),
            Draft::Draft11 => draft11::Policies::new(limiter, quotas).map(Self::Named),
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
