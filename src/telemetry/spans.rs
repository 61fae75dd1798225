//! The span around the call of a store, and the fields that the span of a request may have.

use tracing::field::Empty;
use tracing::level_filters::LevelFilter;
use tracing::{Span, debug_span};

use super::outcome_label::OutcomeLabel;
use crate::decision::Source;

/// The span of a check that waits for its store. It closes when this is dropped.
pub(crate) struct CheckSpan(Span);

impl CheckSpan {
    #[inline]
    pub(crate) fn new(limiter: &str) -> Self {
        Self(debug_span!(
            target: "tollgate::check",
            "tollgate.check",
            limiter,
            outcome = Empty,
            source = Empty
        ))
    }

    #[inline]
    pub(crate) fn is_disabled(&self) -> bool {
        self.0.is_disabled()
    }

    pub(crate) fn record(&self, outcome: OutcomeLabel, source: Source, store: &str) {
        self.0.record("outcome", outcome.text());
        self.0.record("source", source.text(store));
    }
}

/// Records a check into the fields that the current span has declared, such as that of a request.
#[inline]
pub(super) fn record_in_current_span(
    limiter: &str,
    outcome: OutcomeLabel,
    source: &str,
    key_alias: impl FnOnce() -> Option<String>,
) {
    // Without a subscriber, nothing looks for the span.
    if LevelFilter::current() == LevelFilter::OFF {
        return;
    }
    let span = Span::current();
    if !span.is_disabled() {
        span.record("tollgate.limiter", limiter);
        span.record("tollgate.outcome", outcome.text());
        span.record("tollgate.source", source);
    }
    if span.has_field("tollgate.key_alias")
        && let Some(alias) = key_alias()
    {
        span.record("tollgate.key_alias", alias);
    }
}
