//! Writes the headers of one layer. The parts that are the same in all responses are prepared once.

use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use quick_cache::sync::Cache;

use super::dialect::{Headers, IetfDraft};
use super::draft_11::Draft11Template;
use super::drafts_03_to_07::{EarlyDraft, EarlyDraftTemplate};
use super::policy_list::{PolicyList, PolicyListOf};
use super::policy_names::{ListedLimit, listed_limits};
use super::{draft_11, drafts_03_to_07, x_ratelimit};
use crate::decision::{DecisionView, QuotaDecision, Source};
use crate::limiter::RateLimiter;
use crate::quota::{Quota, Quotas};

/// The prepared headers of one layer.
#[derive(Debug)]
pub(crate) struct Templates {
    headers: Headers,
    /// The maximum number of fields that a response gets.
    max_fields: usize,
    /// The limiters of all levels, with their own quotas.
    quotas: Box<[Quotas]>,
    /// The template for `quotas`.
    template: Option<DraftTemplate>,
    other_templates: OnceLock<OtherTemplates>,
}

/// The templates for the quotas of plans, and for requests that some levels left out.
type OtherTemplates = Cache<PolicyList, Option<Arc<DraftTemplate>>>;

/// The maximum number of templates in this cache. Services have few plans. If there are more, the templates in
/// use stay cached.
const MAX_OTHERS: usize = 64;

/// Whether a layer is tighter than the inner layers that have written to the same response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tightness {
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
    /// Prepares the headers of a layer with these limiters.
    pub(in crate::middleware) fn new<'a>(
        headers: &Headers,
        limiters: impl IntoIterator<Item = &'a RateLimiter>,
    ) -> Self {
        let limits = limiters
            .into_iter()
            .map(|limiter| (&*limiter.0.facts.name, limiter.quotas()));
        Self::of_limits(headers, limits)
    }

    /// Prepares the headers of limits: the name of each limiter, and its quotas.
    pub(in crate::middleware) fn of_limits<'a>(
        headers: &Headers,
        limits: impl IntoIterator<Item = (&'a str, &'a Quotas)>,
    ) -> Self {
        let limits: Vec<_> = limits.into_iter().collect();
        Self {
            headers: headers.clone(),
            max_fields: max_fields(headers),
            template: headers.ietf.and_then(|draft| {
                let listed = limits
                    .iter()
                    .map(|(limiter, quotas)| ListedLimit::new(limiter, quotas.iter()));
                DraftTemplate::new(draft, &listed.collect::<Vec<_>>())
            }),
            quotas: limits
                .into_iter()
                .map(|(_, quotas)| quotas.clone())
                .collect(),
            other_templates: OnceLock::new(),
        }
    }

    /// Prepares headers for decisions of any limits.
    pub(in crate::middleware) fn of_decisions(headers: &Headers) -> Self {
        Self::of_limits(headers, [])
    }

    /// Returns the template for a decision by other levels or quotas than the layer's own.
    #[cold]
    fn other_template(
        &self,
        draft: IetfDraft,
        decision: &DecisionView,
    ) -> Option<Arc<DraftTemplate>> {
        let templates = self.other_templates.get_or_init(|| Cache::new(MAX_OTHERS));
        let list = PolicyListOf(decision);
        if let Some(template) = templates.get(&list) {
            return template;
        }
        let template = DraftTemplate::new(draft, &listed_limits(decision)).map(Arc::new);
        templates.insert(list.to_owned(), template.clone());
        template
    }

    /// Returns whether a decision was made by all levels, each with its own quotas.
    fn lists(&self, decision: &DecisionView) -> bool {
        let levels = decision.levels();
        levels.len() == self.quotas.len()
            && levels
                .zip(&self.quotas)
                .all(|(level, quotas)| quotas == level.record().quotas())
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
        place: Tightness,
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
        if let (Some(format), Tightness::Tightest) = (self.headers.x_ratelimit, place) {
            x_ratelimit::write(format, decision, reported, headers);
        }
        let Some(draft) = self.headers.ietf else {
            return;
        };
        let other_template;
        let template = if self.lists(decision) {
            self.template.as_ref()
        } else {
            other_template = self.other_template(draft, decision);
            other_template.as_deref()
        };
        if let Some(template) = template {
            template.write(decision, reported, place, headers);
        }
    }
}

impl Headers {
    /// Writes the headers of a decision to a response, for limits that a handler checks.
    ///
    /// Replaces single values, and appends to lists, as a [layer](crate::RateLimitLayer::headers) does. Writes
    /// nothing for a decision that nothing counted. It does not write `Retry-After`: answer a refusal with
    /// [`Rejection::response`](crate::Rejection::response).
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Headers, MemoryStore, Quota, RateLimiter};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(10));
    /// let decision = limiter.check_n("acme", 3).await?;
    /// let mut headers = http::HeaderMap::new();
    /// Headers::default().write(decision.view(), &mut headers);
    /// assert_eq!(headers["x-ratelimit-remaining"], "7");
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn write(&self, decision: &DecisionView, headers: &mut HeaderMap) {
        Templates::of_decisions(self).write(decision, Tightness::Tightest, headers);
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
    fn new(draft: IetfDraft, limits: &[ListedLimit<'_>]) -> Option<Self> {
        let early = |draft| {
            let quotas: Vec<&Quota> = limits
                .iter()
                .flat_map(|limit| limit.quotas.clone())
                .collect();
            EarlyDraftTemplate::new(draft, &quotas).map(Self::Early)
        };
        match draft {
            IetfDraft::Draft03 => early(EarlyDraft::Draft03),
            IetfDraft::Draft06 => early(EarlyDraft::Draft06),
            IetfDraft::Draft07 => early(EarlyDraft::Draft07),
            IetfDraft::Draft11 => Draft11Template::new(limits).map(Self::Draft11),
        }
    }

    fn write(
        &self,
        decision: &DecisionView,
        reported: QuotaDecision<'_>,
        place: Tightness,
        headers: &mut HeaderMap,
    ) {
        match self {
            Self::Draft11(template) => template.append(decision, headers),
            Self::Early(template) => {
                template.append_policies(headers);
                if place == Tightness::Tightest {
                    template.write_numbers(decision, reported, headers);
                }
            }
        }
    }
}
