//! Writes the headers of a decision.

use http::HeaderMap;

use super::dialect::{Headers, IetfDraft};
use super::{draft_11, drafts_03_to_07, x_ratelimit};
use crate::decision::{DecisionView, Source};

/// Whether a layer is tighter than the inner layers that have written to the same response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tightness {
    /// No inner layer is tighter: this layer replaces single values.
    Tightest,
    /// An inner layer is tighter: this layer only appends to lists.
    Behind,
}

impl Headers {
    /// Writes the headers of a decision to a response, for limits that a handler checks.
    ///
    /// Replaces single values, and appends to lists, as a [layer](crate::RateLimitLayer::headers) does. Writes
    /// nothing for a decision that nothing counted, and nothing about [hidden](crate::LevelCheck::hidden) levels. It does
    /// not write `Retry-After`: answer a refusal with [`Rejection::response`](crate::Rejection::response).
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
        self.write_beside(Tightness::Tightest, &decision.visible(), headers);
    }

    /// Writes the headers of a decision without hidden levels to a response that inner layers may have written to.
    pub(in crate::middleware) fn write_beside(
        &self,
        place: Tightness,
        decision: &DecisionView,
        headers: &mut HeaderMap,
    ) {
        if decision.source() == Source::None {
            return;
        }
        let (Some(reported), Some(shown)) = (decision.reported(), decision.header_quota()) else {
            return;
        };
        if let (Some(format), Tightness::Tightest) = (self.x_ratelimit, place) {
            x_ratelimit::write(format, shown, headers);
        }
        match self.ietf {
            None => {}
            Some(IetfDraft::Draft11) => draft_11::append(decision, headers),
            Some(draft) => drafts_03_to_07::write(draft, place, decision, reported, headers),
        }
    }

    /// Returns whether the dialect has fields with a single value, which only one of several layers can write.
    pub(in crate::middleware) fn has_single_values(&self) -> bool {
        self.x_ratelimit.is_some() || self.ietf.is_some_and(|draft| draft != IetfDraft::Draft11)
    }
}
