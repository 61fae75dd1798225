//! The effects of an [`Outcome`](super::outcome::Outcome) on the request and its response.
//!
//! A request that passes gets extensions before the service is called, and its response gets headers. For a
//! rejected request, this file creates the whole response.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, LOCATION};
use http::request::Parts;
use http::{Method, Response, StatusCode, response};
use http_body::{Body, SizeHint};

use super::config::LayerConfig;
use super::headers::{Headers, Tightness, inner_remaining, number_value, refill_time};
use super::outbound::Observer;
use super::outcome::Pass;
use super::permit::HeldPermit;
use super::rejection::{
    Grpc, Rejection, WouldReject, lengthen_retry_after, retry_after, unread_body,
};
use super::reservation::Reservation;
use crate::decision::QuotaDecision;
use crate::limiter::DecisionView;

/// Inserts the decision, the reservation and the permit into the extensions of a request that passes. Returns the finisher of
/// the response.
pub(super) fn prepare_request(
    config: &Arc<LayerConfig>,
    parts: &mut Parts,
    pass: Pass,
) -> ResponseFinisher {
    let Pass {
        decision,
        permit,
        would_reject,
    } = pass;
    if let Some(permit) = &permit {
        let handle = permit.handle(parts.extensions.get());
        parts.extensions.insert(handle);
    }
    let settles = config.settles();
    let mut decided = None;
    let mut reservation = None;
    if let Some(mut decision) = decision {
        if let Some(outer) = parts.extensions.get::<DecisionView>().cloned() {
            let diagnostics = &config.diagnostics;
            diagnostics.observe_nested(config.first.name(), decision.view(), &outer);
            decision.set_outer(outer);
        }
        parts.extensions.insert(decision.view().clone());
        if config.reserves || settles {
            decided = Some(decision.view().clone());
            let units = permit.as_ref().map(HeldPermit::units);
            reservation = Some(Reservation::new(config, decision, units));
        } else {
            decided = Some(decision.into_view());
        }
    }
    if config.reserves {
        // Replaces the reservation of an outer layer, which the handler must not settle.
        let own = reservation
            .clone()
            .unwrap_or_else(|| Reservation::unlimited(config));
        parts.extensions.insert(own);
    }
    ResponseFinisher {
        decided,
        headers: (!config.is_dry_run).then(|| config.headers.clone()),
        observer: config.observer.clone(),
        settles,
        reservation,
        would_reject,
        permit,
        method: parts.method.clone(),
    }
}

/// Adds headers to the response of the service and settles the charge. Does nothing if the request is exempt.
#[derive(Default)]
pub(super) struct ResponseFinisher {
    /// `None` if the request is exempt.
    decided: Option<DecisionView>,
    /// The headers to write. `None` in a dry run.
    headers: Option<Headers>,
    /// `Some` if the upstream may pause keys.
    observer: Option<Arc<Observer>>,
    /// Whether closures of the layer settle the charge by the response.
    settles: bool,
    /// The charge, if the handler or the response may settle it.
    reservation: Option<Reservation>,
    would_reject: Option<Box<Rejection>>,
    permit: Option<HeldPermit>,
    method: Method,
}

impl ResponseFinisher {
    /// Adds headers to the head of a response and settles the charge. Returns the permit that its body holds.
    pub(super) fn finish<B: Body>(
        mut self,
        head: &mut response::Parts,
        body: &B,
    ) -> Option<HeldPermit> {
        if let Some(rejection) = self.would_reject.take() {
            // The extensions of the response say that a request passed only because of a dry run.
            head.extensions.insert(WouldReject(*rejection));
        } else if let Some(decision) = &self.decided {
            // A layer of this crate around the client may have answered instead of the upstream.
            if let Some(observer) = &self.observer
                && head.extensions.get::<Rejection>().is_none()
            {
                observer.observe(decision, head);
            }
            if let Some(headers) = &self.headers {
                add_headers(headers, decision, head);
            }
            if let Some(reservation) = &self.reservation
                && self.settles
            {
                // An outer router may remove the body of a HEAD response only after this layer.
                let size = match self.method {
                    Method::HEAD => SizeHint::with_exact(0),
                    _ => body.size_hint(),
                };
                reservation.settle_by(head, size);
            }
        }
        let has_no_body = self.has_no_body(head.status);
        self.permit
            .filter(|_| !has_no_body && !body.is_end_stream())
    }

    /// Returns whether no body follows the head, even if the service returns one (RFC 9110, sections 6.4.1 and 15.3.6).
    fn has_no_body(&self, status: StatusCode) -> bool {
        self.method == Method::HEAD
            || self.method == Method::CONNECT && status.is_success()
            || status.is_informational()
            || matches!(
                status,
                StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED
            )
    }
}

/// Adds the headers of an admitted request.
///
/// An inner layer or the service may have written headers of another limit. That limit is tighter if it
/// refused the request or reports no more units left than this one.
fn add_headers(dialects: &Headers, decision: &DecisionView, head: &mut response::Parts) {
    let visible = decision.visible();
    let remaining = visible
        .header_quota()
        .map_or(u32::MAX, |quota| quota.remaining());
    let wait = told_wait(decision, head);
    let response::Parts {
        status,
        headers,
        extensions,
        ..
    } = head;
    let mut inner_rejection = extensions.get_mut::<Rejection>();
    let inner_is_tighter = inner_rejection
        .as_ref()
        .is_some_and(|rejection| rejection.tells_refusal())
        || dialects.has_single_values()
            && inner_remaining(headers).is_some_and(|inner| inner <= u64::from(remaining));
    let place = if inner_is_tighter {
        Tightness::Behind
    } else {
        Tightness::Tightest
    };
    // A client that reads "0 remaining" might not follow the redirect.
    let is_redirect = status.is_redirection() && headers.contains_key(LOCATION);
    if remaining > 0 || !is_redirect {
        let reset = dialects.write_beside(place, &visible, wait.unwrap_or_default(), headers);
        if let (Some(rejection), Some(format)) = (&mut inner_rejection, reset) {
            rejection.told.reset = Some(format);
        }
    }
}

/// Returns the wait that the response to a rejected request tells, after this layer has lengthened it. `None` for other
/// responses, and without a `Retry-After` in seconds.
///
/// A request that an inner layer rejected was charged here. So was one that the service answers with a 429.
fn told_wait(decision: &DecisionView, head: &mut response::Parts) -> Option<Duration> {
    let headers = &mut head.headers;
    if let Some(rejection) = head.extensions.get_mut::<Rejection>() {
        rejection.lengthen_wait(retry_wait(decision), headers);
        return rejection.told.wait;
    }
    if head.status != StatusCode::TOO_MANY_REQUESTS {
        return None;
    }
    // The format of its own reset is not known, so that its numbers stay as they are.
    if inner_remaining(headers).is_none() {
        lengthen_retry_after(retry_wait(decision), headers);
    }
    retry_after(headers)
}

/// Returns the shortest wait until this layer can admit the same request again.
fn retry_wait(decision: &DecisionView) -> Duration {
    decision
        .quotas()
        .filter(|quota| quota.quota().is_rate())
        // A soft quota admits the next request, too.
        .filter(|quota| !quota.quota().is_soft())
        .filter_map(rate_wait)
        .max()
        .unwrap_or_default()
}

fn rate_wait(quota: QuotaDecision<'_>) -> Option<Duration> {
    let missing = quota.cost().checked_sub(quota.remaining())?;
    // The first missing unit returns after `reset_after`, and the others later.
    let others = refill_time(quota.quota(), missing.checked_sub(1)?);
    let first = quota.reset_after();
    Some(first.saturating_add(others.unwrap_or_default()))
}

pub(super) fn rejection_response(
    config: &LayerConfig,
    rejection: Rejection,
    parts: &Parts,
) -> Response<Bytes> {
    // Only if the layer serves gRPC: any client can send the content type of gRPC.
    let grpc = if config.grpc {
        Grpc::from_request(parts)
    } else {
        None
    };
    let mut response = match grpc {
        None => (config.responder)(&rejection),
        Some(grpc) => grpc.reject(&rejection),
    };
    rejection.complete(&config.headers, &mut response);
    if config.closes_rejected_uploads && unread_body::is_announced(parts) {
        unread_body::announce_close(response.headers_mut());
    }
    if parts.method == Method::HEAD {
        // The length of the body that is left out stays in the headers (RFC 9110, section 9.3.2).
        let body = mem::take(response.body_mut());
        let length = response.headers_mut().entry(CONTENT_LENGTH);
        length.or_insert_with(|| number_value(u64::try_from(body.len()).unwrap_or(u64::MAX)));
    }
    response
}
