//! What the answer to a request tells its client, and what it makes of the charge.

use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, Response};

use super::Gate;
use crate::headers::{Place, encoded, value_of, whole_seconds};
use crate::reservation::settle_later;
use crate::{Decision, DecisionView, Rejection, Reservation, WouldReject};

/// What is kept of a request while the service answers it.
pub(crate) struct Telling {
    gate: Arc<Gate>,
    tell: Tell,
}

pub(super) enum Tell {
    Admitted {
        held: Held,
        /// Whether another layer outside has admitted the request before.
        is_nested: bool,
    },
    Spared(Rejection),
}

/// Who holds what was charged.
pub(super) enum Held {
    Alone(Decision),
    /// The handler does too.
    Shared(Reservation),
}

/// Left in the answer by a nested layer: how few units are left there.
#[derive(Clone, Copy)]
struct Told {
    remaining: u32,
}

impl Telling {
    pub(super) fn new(gate: Arc<Gate>, tell: Tell) -> Self {
        Self { gate, tell }
    }

    /// Writes the headers, and settles the charge by the answer.
    pub(crate) fn on_answer<B>(self, mut response: Response<B>) -> Response<B> {
        let Self { gate, tell } = self;
        match tell {
            Tell::Admitted { held, is_nested } => {
                gate.write_headers(held.view(), is_nested, &mut response);
                match &gate.settle {
                    None => response,
                    Some(settle) => {
                        let (parts, body) = response.into_parts();
                        let used = settle(held.view(), &parts);
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
            Self::Alone(decision) => decision.view(),
            Self::Shared(reservation) => reservation.decision(),
        }
    }

    fn settle(self, gate: &Arc<Gate>, used: u32) {
        match self {
            Self::Alone(decision) => settle_later(gate, decision, used),
            Self::Shared(reservation) => reservation.settle(used),
        }
    }
}

impl Gate {
    /// Writes the headers of an admitted request. A layer further in is tighter if it has refused it or
    /// left fewer units.
    fn write_headers<B>(
        &self,
        decision: &DecisionView,
        is_nested: bool,
        response: &mut Response<B>,
    ) {
        if self.dry_run.is_some() {
            return;
        }
        let extensions = response.extensions();
        let refused_inside = extensions
            .get::<Rejection>()
            .is_some_and(Rejection::is_limited);
        let told = extensions.get::<Told>().map(|told| told.remaining);
        let remaining = decision.remaining();
        let is_behind = refused_inside || told.is_some_and(|told| told <= remaining);
        let place = if is_behind {
            Place::Behind
        } else {
            Place::Tightest
        };
        self.wording.write(decision, place, response.headers_mut());
        if refused_inside {
            lengthen_retry_after(decision, response.headers_mut());
        }
        if is_nested && !is_behind && self.wording.tells_of(decision) {
            response.extensions_mut().insert(Told { remaining });
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

/// A request that a layer further in has refused is refused here if it comes again before this layer
/// has room for it.
fn lengthen_retry_after(decision: &DecisionView, headers: &mut HeaderMap) {
    let too_few = decision
        .quotas()
        .filter(|quota| quota.remaining() < decision.cost());
    let Some(wait) = too_few.map(|quota| quota.reset_after()).max() else {
        return;
    };
    let told = headers.get(RETRY_AFTER).and_then(seconds_of);
    if told.is_some_and(|told| told < wait) {
        headers.insert(RETRY_AFTER, value_of(whole_seconds(wait).max(1)));
    }
}

fn seconds_of(value: &HeaderValue) -> Option<Duration> {
    let seconds = value.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
