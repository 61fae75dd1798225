//! The effects of an [`Outcome`] on the request and its response.
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
use super::headers::{Tightness, inner_remaining, refill_time};
use super::outcome::{Admission, Outcome};
use super::permit::HeldPermit;
use super::rejection::{Grpc, Rejection, RejectionReason, WouldReject, unread_body};
use super::reservation::Reservation;
use super::settlement::{response_costs, settle};
use crate::decision::{Decision, DecisionView, QuotaDecision};

/// Inserts the decision and the reservation into the extensions of a request.
///
/// Returns the finisher of the response. `None` if the request is exempt.
///
/// # Errors
///
/// Returns the rejection if the request must not reach the service.
pub(super) fn prepare_request(
    config: &Arc<LayerConfig>,
    parts: &mut Parts,
    outcome: Outcome,
) -> Result<Option<ResponseFinisher>, Rejection> {
    let mut permit = None;
    let passed = match outcome {
        Outcome::Rejected(rejection) => return Err(rejection),
        Outcome::Exempt => {
            insert_empty_reservation(config, parts, None);
            return Ok(None);
        }
        Outcome::Admitted(mut admission) => {
            permit = admission.permit.take();
            if let Some(permit) = &permit {
                let outer = parts.extensions.get();
                let handle = permit.handle(outer);
                parts.extensions.insert(handle);
            }
            insert_decision(config, parts, admission)
        }
        Outcome::DryRun(rejection) => {
            let decision = insert_refused_decision(parts, &rejection);
            insert_empty_reservation(config, parts, decision);
            Passed::DryRun(rejection)
        }
    };
    Ok(Some(ResponseFinisher {
        config: Arc::clone(config),
        passed,
        permit,
        is_head: parts.method == Method::HEAD,
        is_connect: parts.method == Method::CONNECT,
    }))
}

/// Inserts the decision of an admitted request, and a reservation if the layer reserves.
fn insert_decision(config: &Arc<LayerConfig>, parts: &mut Parts, admission: Admission) -> Passed {
    let mut decision = admission.decision;
    let outer = parts.extensions.get::<DecisionView>().cloned();
    if let Some(outer) = outer {
        config
            .diagnostics
            .observe_nested(&config.first.limiter.name, decision.view(), &outer);
        decision.set_outer(outer);
    }
    parts.extensions.insert(decision.view().clone());
    if !config.reserves {
        return Passed::Admitted(decision);
    }
    let reservation = Reservation::new(Arc::clone(config), decision);
    parts.extensions.insert(reservation.clone());
    Passed::Reserved(reservation)
}

/// Inserts the decision of a request that a quota refused in a dry run.
fn insert_refused_decision(parts: &mut Parts, rejection: &Rejection) -> Option<DecisionView> {
    let RejectionReason::Refused(decision) = rejection.reason() else {
        return None;
    };
    let mut decision = decision.clone();
    if let Some(outer) = parts.extensions.get::<DecisionView>() {
        decision.set_outer(outer.clone());
    }
    parts.extensions.insert(decision.clone());
    Some(decision)
}

/// Inserts a reservation without a charge if the layer reserves. It replaces the reservation of an outer
/// layer, which the handler must not settle.
fn insert_empty_reservation(
    config: &Arc<LayerConfig>,
    parts: &mut Parts,
    decision: Option<DecisionView>,
) {
    if config.reserves {
        let reservation = Reservation::without_charge(Arc::clone(config), decision);
        parts.extensions.insert(reservation);
    }
}

/// Adds headers to the response of the service and settles the charge.
pub(super) struct ResponseFinisher {
    config: Arc<LayerConfig>,
    passed: Passed,
    permit: Option<HeldPermit>,
    is_head: bool,
    is_connect: bool,
}

/// The reason why a request passed, with its charge.
enum Passed {
    Admitted(Decision),
    /// Admitted. The handler can settle the charge, too.
    Reserved(Reservation),
    DryRun(Rejection),
}

impl ResponseFinisher {
    /// Adds headers to the head of a response and settles the charge. Returns the permit that its body holds.
    pub(super) fn finish<B: Body>(
        self,
        head: &mut response::Parts,
        body: &B,
    ) -> Option<HeldPermit> {
        if self.config.observes {
            self.observe(head);
        }
        let has_no_body = self.has_no_body(head.status);
        let Self {
            config,
            passed,
            permit,
            ..
        } = self;
        // An outer router may remove the body of a HEAD response only after this layer.
        let size = || match self.is_head {
            true => SizeHint::with_exact(0),
            false => body.size_hint(),
        };
        match passed {
            Passed::Admitted(mut decision) => {
                add_headers(&config, decision.view(), head);
                if config.settles() {
                    let costs = response_costs(&config, decision.view(), head, size());
                    settle(&config, &mut decision, &costs);
                }
            }
            Passed::Reserved(reservation) => {
                let decision = reservation.decision();
                add_headers(&config, decision, head);
                if config.settles() {
                    let costs = response_costs(&config, decision, head, size());
                    reservation.settle_costs(&costs);
                }
            }
            // A request that passes only because of a dry run is told in the extensions of its response.
            Passed::DryRun(rejection) => {
                head.extensions.insert(WouldReject::new(rejection));
            }
        }
        permit.filter(|_| !has_no_body && !body.is_end_stream())
    }

    /// Holds the key of the layer's own limiter back if the upstream has told so.
    #[cold]
    fn observe(&self, head: &response::Parts) {
        let decision = match &self.passed {
            Passed::Admitted(decision) => decision.view(),
            Passed::Reserved(reservation) => reservation.decision(),
            Passed::DryRun(_) => return,
        };
        let limiter = &self.config.first.limiter;
        let mut levels = decision.levels();
        let own = levels.find(|level| level.place() == 0);
        // A layer of this crate around the client has answered instead of the upstream.
        let is_rejection = head.extensions.get::<Rejection>().is_some();
        if let Some(key) = own.and_then(|own| own.key()).filter(|_| !is_rejection) {
            limiter.observe_head(key, head.status, &head.headers);
        }
    }

    /// Returns whether no body follows the head, whatever the service returns (RFC 9110, sections 6.4.1 and 15.3.6).
    fn has_no_body(&self, status: StatusCode) -> bool {
        self.is_head
            || self.is_connect && status.is_success()
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
fn add_headers(config: &LayerConfig, decision: &DecisionView, head: &mut response::Parts) {
    if config.is_dry_run {
        return;
    }
    let remaining = decision.remaining();
    let inner_rejection = head.extensions.get::<Rejection>().cloned();
    let inner_is_tighter = inner_rejection.as_ref().is_some_and(Rejection::is_refused)
        || config.templates.has_single_values()
            && inner_remaining(&head.headers).is_some_and(|inner| inner <= u64::from(remaining));
    let place = if inner_is_tighter {
        Tightness::Behind
    } else {
        Tightness::Tightest
    };
    // A client that reads "0 remaining" might not follow the redirect.
    if remaining > 0 || !is_redirect(head) {
        config.templates.write(decision, place, &mut head.headers);
    }
    if let Some(rejection) = inner_rejection
        && let Some(wait) = retry_wait(decision)
    {
        rejection.lengthen_wait(wait, &mut head.headers);
    }
}

fn is_redirect(head: &response::Parts) -> bool {
    head.status.is_redirection() && head.headers.contains_key(LOCATION)
}

/// Returns the shortest wait until this layer can admit the same request again. `None` if it can now.
///
/// A request that an inner layer rejected was charged here. Without this wait, a client could retry too early
/// for this layer.
fn retry_wait(decision: &DecisionView) -> Option<Duration> {
    let wait = |quota: QuotaDecision<'_>| {
        let missing = quota.cost().checked_sub(quota.remaining())?;
        // The first missing unit returns after `reset_after`, and the others later.
        let others = refill_time(quota.quota(), missing.checked_sub(1)?);
        Some(
            quota
                .reset_after()
                .saturating_add(others.unwrap_or_default()),
        )
    };
    // A soft quota admits the next request, too.
    let rates = decision
        .quotas()
        .filter(|quota| !quota.quota().is_in_flight() && !quota.quota().is_soft());
    rates.filter_map(wait).max()
}

/// Creates the response to a rejected request.
pub(super) fn rejection_response(
    config: &LayerConfig,
    rejection: Rejection,
    parts: &Parts,
) -> Response<Bytes> {
    // Only if the layer serves gRPC: any client can send the content type of gRPC.
    let grpc = if config.grpc { Grpc::of(parts) } else { None };
    let mut response = match grpc {
        None => rejection.respond(&*config.responder),
        Some(grpc) => grpc.reject(&rejection),
    };
    rejection.complete(&config.templates, &mut response);
    if config.closes_rejected_uploads && unread_body::is_announced(parts) {
        unread_body::announce_close(response.headers_mut());
    }
    if parts.method == Method::HEAD {
        remove_body(&mut response);
    }
    response
}

/// Removes the body of a response to HEAD, and keeps its length in `Content-Length` (RFC 9110, section 9.3.2).
fn remove_body(response: &mut Response<Bytes>) {
    let body = mem::take(response.body_mut());
    let length = response.headers_mut().entry(CONTENT_LENGTH);
    length.or_insert_with(|| body.len().into());
}
