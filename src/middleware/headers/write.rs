//! Writes the headers of a decision.

use std::time::Duration;

use http::HeaderMap;

use super::dialect::{Headers, IetfDraft, ResetFormat, Tightness};
use super::{draft_11, drafts_03_to_07, x_ratelimit};
use crate::decision::Source;
use crate::limiter::DecisionView;

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
        let wait = decision.retry_after().unwrap_or_default();
        self.write_beside(Tightness::Tightest, &decision.visible(), wait, headers);
    }

    /// Writes the headers of a decision without hidden levels to a response that inner layers may have written to.
    ///
    /// `wait` is the longest wait that the response tells: of a hidden level, or of another layer. No reset is shorter. Zero
    /// for an admitted request. Returns the format of `X-RateLimit-Reset`, if it was written.
    pub(in crate::middleware) fn write_beside(
        &self,
        place: Tightness,
        decision: &DecisionView,
        wait: Duration,
        headers: &mut HeaderMap,
    ) -> Option<ResetFormat> {
        if decision.source() == Source::None {
            return None;
        }
        let reported = decision.reported()?;
        let shown = decision.header_quota()?;
        let reset = self.x_ratelimit.filter(|_| place == Tightness::Tightest);
        if let Some(format) = reset {
            x_ratelimit::write(format, shown, wait, headers);
        }
        match self.ietf {
            None => {}
            Some(IetfDraft::Draft11) => draft_11::append(decision, wait, headers),
            Some(draft) => drafts_03_to_07::write(draft, place, decision, reported, wait, headers),
        }
        reset
    }

    /// Only one of several layers can write such a field.
    pub(in crate::middleware) fn has_single_values(&self) -> bool {
        self.x_ratelimit.is_some() || self.ietf.is_some_and(|draft| draft != IetfDraft::Draft11)
    }
}

/// Raises the resets that inner layers have written to at least this wait: a layer outside has no units left for as long. The
/// format is that of `X-RateLimit-Reset`, if a layer has written it.
pub(in crate::middleware) fn raise_resets(
    format: Option<ResetFormat>,
    wait: Duration,
    headers: &mut HeaderMap,
) {
    if let Some(format) = format {
        x_ratelimit::raise(format, wait, headers);
    }
    drafts_03_to_07::raise(wait, headers);
    draft_11::raise(wait, headers);
}
