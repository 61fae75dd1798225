//! Writes the headers of one layer. The parts that are the same in all responses are prepared once.

use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use quick_cache::sync::Cache;
use smallvec::SmallVec;

use super::dialect::{Headers, IetfDraft};
use super::draft_11::Draft11Template;
use super::drafts_03_to_07::{EarlyDraft, EarlyDraftTemplate};
use super::{draft_11, drafts_03_to_07, x_ratelimit};
use crate::decision::{DecisionView, QuotaDecision, Source};
use crate::quota::{Quota, Quotas};

/// The prepared headers of one layer.
#[derive(Debug)]
pub(crate) struct Templates {
    headers: Headers,
    /// The maximum number of fields that a response gets.
    max_fields: usize,
    limiter: Arc<str>,
    quotas: Quotas,
    /// The template for `quotas`.
    template: Option<DraftTemplate>,
    plan_templates: OnceLock<PlanTemplates>,
}

/// The templates for the quotas of plans.
type PlanTemplates = Cache<SmallVec<[Quota; 2]>, Option<Arc<DraftTemplate>>>;

/// The maximum number of cached templates for plans. Services have few plans. If there are more, the templates
/// in use stay cached.
const MAX_PLANS: usize = 64;

/// Whether a layer is tighter than the inner layers that have written to the same response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// No inner layer is tighter: this layer replaces single values.
    Tightest,
    /// An inner layer is tighter: this layer only appends to lists.
    Behind,
}

/// The prepared fields of an IETF draft.
#[derive(Debug)]
enum DraftTemplate {
    Draft11(Draft11Template),
    Early(EarlyDraftTemplate),
}

impl Templates {
    pub(in crate::middleware) fn new(
        headers: &Headers,
        limiter: &Arc<str>,
        quotas: &Quotas,
    ) -> Self {
        Self {
            headers: headers.clone(),
            max_fields: max_fields(headers),
            limiter: Arc::clone(limiter),
            quotas: quotas.clone(),
            template: headers.ietf.and_then(|draft| {
                let quotas: Vec<_> = quotas.iter().collect();
                DraftTemplate::new(draft, limiter, &quotas)
            }),
            plan_templates: OnceLock::new(),
        }
    }

    /// Returns the template for quotas that are not the layer's own.
    fn plan_template(&self, draft: IetfDraft, quotas: &[Quota]) -> Option<Arc<DraftTemplate>> {
        let templates = self.plan_templates.get_or_init(|| Cache::new(MAX_PLANS));
        if let Some(template) = templates.get(quotas) {
            return template;
        }
        let listed: Vec<_> = quotas.iter().collect();
        let template = DraftTemplate::new(draft, &self.limiter, &listed).map(Arc::new);
        templates.insert(quotas.into(), template.clone());
        template
    }

    /// Returns whether a decision gets headers. If nothing counted it, there is nothing to report.
    fn reports(&self, decision: &DecisionView) -> bool {
        self.max_fields > 0 && decision.source() != Source::None
    }

    /// Returns whether the dialect has fields with a single value, which only one of several layers can write.
    pub(in crate::middleware) fn has_single_values(&self) -> bool {
        let is_list = self
            .headers
            .ietf
            .is_none_or(|draft| draft == IetfDraft::Draft11);
        self.headers.x_ratelimit.is_some() || !is_list
    }

    /// Writes the headers of a decision.
    pub(in crate::middleware) fn write(
        &self,
        decision: &DecisionView,
        place: Place,
        headers: &mut HeaderMap,
    ) {
        if !self.reports(decision) {
            return;
        }
        let Some(reported) = decision.reported() else {
            return;
        };
        // Reserves room once. Otherwise each field might grow the map.
        headers.reserve(self.max_fields);
        if let (Some(format), Place::Tightest) = (self.headers.x_ratelimit, place) {
            x_ratelimit::write(format, decision, reported, headers);
        }
        let Some(draft) = self.headers.ietf else {
            return;
        };
        let quotas = decision.quota_list();
        let plan_template;
        let template = if self.quotas.equals(quotas) {
            self.template.as_ref()
        } else {
            plan_template = self.plan_template(draft, quotas);
            plan_template.as_deref()
        };
        if let Some(template) = template {
            template.write(decision, reported, place, headers);
        }
    }
}

/// Returns the maximum number of fields of these headers.
fn max_fields(headers: &Headers) -> usize {
    let x_ratelimit = headers.x_ratelimit.map_or(0, |_| x_ratelimit::FIELDS);
    let ietf = headers.ietf.map_or(0, |draft| match draft {
        IetfDraft::Draft03 | IetfDraft::Draft06 | IetfDraft::Draft07 => drafts_03_to_07::FIELDS,
        IetfDraft::Draft11 => draft_11::FIELDS,
    });
    x_ratelimit + ietf
}

impl DraftTemplate {
    fn new(draft: IetfDraft, limiter: &str, quotas: &[&Quota]) -> Option<Self> {
        let early = |draft| EarlyDraftTemplate::new(draft, quotas).map(Self::Early);
        match draft {
            IetfDraft::Draft03 => early(EarlyDraft::Draft03),
            IetfDraft::Draft06 => early(EarlyDraft::Draft06),
            IetfDraft::Draft07 => early(EarlyDraft::Draft07),
            IetfDraft::Draft11 => Draft11Template::new(limiter, quotas).map(Self::Draft11),
        }
    }

    fn write(
        &self,
        decision: &DecisionView,
        reported: QuotaDecision<'_>,
        place: Place,
        headers: &mut HeaderMap,
    ) {
        match self {
            Self::Draft11(template) => template.append(decision, headers),
            Self::Early(template) => {
                template.append_policies(headers);
                if place == Place::Tightest {
                    template.write_numbers(decision, reported, headers);
                }
            }
        }
    }
}
