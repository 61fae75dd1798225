//! What the answer to a request tells its client, and what it makes of the charge.

use std::sync::Arc;
use std::time::Duration;

use http::header::LOCATION;
use http::{HeaderValue, Response};
use http_body::{Body, SizeHint};

use super::config::LayerConfig;
use super::headers::{Place, encoded, inner_remaining, refill_time};
use super::rejection::{Rejection, WouldReject};
use super::reservation::Reservation;
use super::reservation::settle_later;
use crate::decision::{Decision, DecisionView, QuotaDecision};

/// What is kept of a request while the service answers it.
pub(crate) struct ResponseFinisher {
    gate: Arc<LayerConfig>,
    tell: Tell,
    /// Whether the request is a HEAD.
    is_head: bool,
}

pub(super) enum Tell {
    Admitted(Held),
    Spared(Rejection),
}

/// Who holds what was charged.
pub(super) enum Held {
    DirectSend(Decision),
    /// The handler does too.
    Shared(Reservation),
}

impl ResponseFinisher {
    pub(super) fn new(gate: Arc<LayerConfig>, tell: Tell, is_head: bool) -> Self {
        Self {
            gate,
            tell,
            is_head,
        }
    }

    /// Writes the headers, and settles the charge by the answer.
    pub(crate) fn on_answer<B: Body>(self, mut response: Response<B>) -> Response<B> {
        let Self {
            gate,
            tell,
            is_head,
        } = self;
        match tell {
            Tell::Admitted(held) => {
                gate.write_headers(held.view(), &mut response);
                match &gate.settle {
                    None => response,
                    Some(settle) => {
                        let (parts, body) = response.into_parts();
                        // A router outside may drop the content of a HEAD response only later.
                        let size = if is_head {
                            SizeHint::with_exact(0)
                        } else {
                            body.size_hint()
                        };
                        let used = settle(held.view(), &parts, size);
                        held.settle(&gate, used);
                        Response::from_parts(parts, body)
                    }
                }
            }
            Tell::Spared(rejection) => {
                gate.announce(rejection, &mut response);
                response
            }
        }
    }
}

impl Held {
    fn view(&self) -> &DecisionView {
        match self {
            Self::DirectSend(decision) => decision.view(),
            Self::Shared(reservation) => reservation.decision(),
        }
    }

    fn settle(self, gate: &Arc<LayerConfig>, used: u32) {
        match self {
            Self::DirectSend(decision) => settle_later(gate, decision, used),
            Self::Shared(reservation) => reservation.settle(used),
        }
    }
}

impl LayerConfig {
    /// Writes the headers of an admitted request. A layer further in, or a service that has a limit of
    /// its own, is tighter if it has refused the request or tells of fewer units.
    fn write_headers<B>(&self, decision: &DecisionView, response: &mut Response<B>) {
        if self.dry_run.is_some() {
            return;
        }
        let remaining = decision.remaining();
        let rejected = response.extensions().get::<Rejection>().cloned();
        let is_behind = rejected.as_ref().is_some_and(Rejection::is_refused)
            || self.wording.has_single_values()
                && inner_remaining(response.headers())
                    .is_some_and(|inner| inner <= u64::from(remaining));
        let place = if is_behind {
            Place::Behind
        } else {
            Place::Tightest
        };
        // A client that is told to have nothing left might not go where it is sent.
        if remaining > 0 || !is_redirect(response) {
            self.wording.write(decision, place, response.headers_mut());
        }
        if let (Some(rejection), Some(wait)) = (rejected, wait_for_as_much(decision)) {
            rejection.lengthen_wait(wait, response.headers_mut());
        }
    }

    /// Tells of a request that a dry run let through.
    fn announce<B>(&self, rejection: Rejection, response: &mut Response<B>) {
        let header = self.dry_run.as_ref().and_then(|run| run.header.clone());
        let limiter = HeaderValue::from_str(&encoded(rejection.limiter()));
        if let (Some(header), Ok(limiter)) = (header, limiter) {
            response.headers_mut().append(header, limiter);
        }
        response
            .extensions_mut()
            .insert(WouldReject::new(rejection));
    }
}

fn is_redirect<B>(response: &Response<B>) -> bool {
    response.status().is_redirection() && response.headers().contains_key(LOCATION)
}

/// A request that a layer further in has rejected is refused here if it comes again before this layer
/// has room for it: how long that takes, at least. `None` where there is room now.
fn wait_for_as_much(decision: &DecisionView) -> Option<Duration> {
    let wait = |quota: QuotaDecision<'_>| {
        let lacking = decision.cost().checked_sub(quota.remaining())?;
        // The first of them is on its way already.
        let others = refill_time(quota.quota(), lacking.checked_sub(1)?);
        Some(
            quota
                .reset_after()
                .saturating_add(others.unwrap_or_default()),
        )
    };
    decision.quotas().filter_map(wait).max()
}
