//! What stands between a request and the service: who asks, for how much, and whether it may.
//!
//! A layer and all its services have one gate.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{HeaderName, Method, Request, Response, StatusCode, response};
use http_body::SizeHint;

use super::check::CheckFuture;
use super::diagnostics::Diagnostics;
use super::headers::Headers;
use super::headers::Templates;
use super::plan_lookup::PlanLookup;
use super::rejection::Grpc;
use super::rejection::{Rejection, RejectionReason};
use super::reservation::Reservation;
use super::response::ResponseFinisher;
use super::response::{Held, Tell};
use crate::decision::{Decision, DecisionView, Source};
use crate::error::{Error, ErrorKind};
use crate::key::{KeyError, KeyErrorKind, KeyExtractor};
use crate::limiter::RateLimiter;
use crate::limiter::{CheckProgress, backoff_after};
use crate::middleware::rejection::unread_body;
use crate::telemetry::OutcomeLabel;

/// What a layer was told.
#[derive(Clone)]
pub(crate) struct LayerConfig {
    pub(crate) limiter: RateLimiter,
    pub(crate) key: Arc<dyn KeyExtractor>,
    pub(crate) on_missing_key: MissingKey,
    pub(crate) skip: Option<Arc<SkipFn>>,
    pub(crate) cost: Option<Arc<CostFn>>,
    pub(crate) plans: Option<Arc<PlanLookup>>,
    /// How long a request waits for its turn.
    pub(crate) patience: Duration,
    pub(crate) settle: Option<Arc<SettleFn>>,
    /// Whether handlers settle.
    pub(crate) reserves: bool,
    pub(crate) headers: Headers,
    /// Made of the headers, the limiter's name and its quotas.
    pub(crate) wording: Arc<Templates>,
    pub(crate) status: StatusCode,
    pub(crate) responder: Arc<ResponderFn>,
    /// Whether calls of gRPC are refused in the way of gRPC.
    pub(crate) grpc: bool,
    /// Whether a refusal that leaves a body unread announces the end of the connection.
    pub(crate) close_rejected_uploads: bool,
    pub(crate) dry_run: Option<DryRun>,
    pub(crate) notices: Arc<Diagnostics>,
}

pub(crate) type SkipFn = dyn Fn(&Parts) -> bool + Send + Sync;
pub(crate) type CostFn = dyn Fn(&Parts) -> u32 + Send + Sync;
pub(crate) type SettleFn = dyn Fn(&DecisionView, &response::Parts, SizeHint) -> u32 + Send + Sync;
pub(crate) type ResponderFn = dyn Fn(&Rejection) -> Response<Bytes> + Send + Sync;

/// How a layer that refuses nothing tells whom it would have refused.
#[derive(Clone, Debug, Default)]
pub(crate) struct DryRun {
    pub(crate) header: Option<HeaderName>,
}

/// What happens to a request without a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// It is answered 400, and told what is missing. The default: who could leave out the key would
    /// leave out the limit.
    #[default]
    Reject,
    /// It goes on without being counted, and without a
    /// [`DecisionView`](crate::DecisionView) in its extensions: where another layer limits it.
    Exempt,
}

/// What comes of a request at once.
pub(crate) enum Asked {
    Judged(Judged),
    /// To be judged later.
    Pending(CheckFuture),
}

/// What comes of a request in the end.
pub(crate) enum Judged {
    Passes(Pass),
    Rejected(Rejection),
}

/// Why a request goes on.
pub(crate) enum Pass {
    /// It is not counted.
    Exempt,
    Admitted(Decision),
    /// It would be rejected, were this not a dry run.
    Spared(Rejection),
}

impl LayerConfig {
    /// Finds out who asks and for how much, and asks the store.
    pub(crate) fn ask(self: &Arc<Self>, parts: &Parts) -> Asked {
        if self.skip.as_ref().is_some_and(|skip| skip(parts)) {
            return Asked::Judged(self.exempt());
        }
        let found = self.key.extract(parts);
        self.notices
            .look_at(self.limiter.label(), &*self.key, parts, &found);
        let key = match found {
            Ok(key) => key,
            Err(error) => return Asked::Judged(self.without_key(error)),
        };
        let cost = self.cost.as_ref().map_or(1, |cost| cost(parts));
        if let Some(plans) = &self.plans {
            let plan = plans(&key, parts);
            return Asked::Pending(CheckFuture::planning(self, plan, key, cost));
        }
        match self.limiter.start_check(key, cost) {
            CheckProgress::Done(decided) => match self.backoff_after(&decided, self.patience) {
                None => Asked::Judged(self.judge(decided)),
                Some(_) => Asked::Pending(CheckFuture::decided(self, decided)),
            },
            CheckProgress::Pending(check) => Asked::Pending(CheckFuture::checking(self, check)),
        }
    }

    /// How long to wait before asking again, with so much time left.
    pub(crate) fn backoff_after(
        &self,
        decided: &Result<Decision, Error>,
        left: Duration,
    ) -> Option<Duration> {
        // A dry run holds nobody up.
        if self.patience.is_zero() || self.dry_run.is_some() {
            return None;
        }
        backoff_after(decided.as_ref().ok()?, left)
    }

    pub(crate) fn exempt(&self) -> Judged {
        self.limiter.telemetry().exempt();
        Judged::Passes(Pass::Exempt)
    }

    fn without_key(&self, error: KeyError) -> Judged {
        match (error.kind(), self.on_missing_key) {
            (KeyErrorKind::Missing, MissingKey::Exempt) => return self.exempt(),
            (KeyErrorKind::Misconfigured, _) => {
                self.notices.key_unknown(self.limiter.label(), &error);
            }
            (KeyErrorKind::Missing | KeyErrorKind::Ambiguous, _) => {}
        }
        self.reject(RejectionReason::NoKey(error))
    }

    /// Lets a request through or not, when it is decided.
    pub(crate) fn judge(&self, decided: Result<Decision, Error>) -> Judged {
        match decided {
            // Where more is used than the limit, which was lowered, what costs nothing has no room
            // either, and need not have.
            Ok(decision) if decision.is_allowed() || costs_nothing(&decision) => {
                self.limiter
                    .telemetry()
                    .decided(OutcomeLabel::Admitted, &decision);
                Judged::Passes(Pass::Admitted(decision))
            }
            Ok(decision) => self.reject(RejectionReason::Refused(decision.into_view())),
            Err(error) => {
                if error.kind() == ErrorKind::CostTooLarge {
                    self.notices.cost_too_large(self.limiter.label(), &error);
                }
                self.reject(RejectionReason::Failed(error))
            }
        }
    }

    fn reject(&self, reason: RejectionReason) -> Judged {
        self.tell_of(&reason);
        let rejection = Rejection::new(self.limiter.label(), reason).with_status(self.status);
        if self.dry_run.is_some() {
            self.notices.would_reject(&rejection);
            Judged::Passes(Pass::Spared(rejection))
        } else {
            Judged::Rejected(rejection)
        }
    }

    fn tell_of(&self, reason: &RejectionReason) {
        let telemetry = self.limiter.telemetry();
        let or_would = |outcome| match self.dry_run {
            None => outcome,
            Some(_) => OutcomeLabel::WouldReject,
        };
        match reason {
            RejectionReason::Refused(decision) => {
                telemetry.decided(or_would(OutcomeLabel::Refused), decision);
            }
            RejectionReason::NoKey(error) => {
                telemetry.undecided(or_would(OutcomeLabel::NoKey), error, error.kind().text());
            }
            RejectionReason::Failed(error) => {
                telemetry.undecided(or_would(OutcomeLabel::Failed), error, error.kind().text());
            }
        }
    }

    /// What a rejected request is answered.
    pub(crate) fn refuse(&self, rejection: Rejection, parts: &Parts) -> Response<Bytes> {
        // The content type alone proves nothing: any client can send it.
        let grpc = if self.grpc { Grpc::of(parts) } else { None };
        let mut response = match grpc {
            None => (self.responder)(&rejection),
            Some(grpc) => grpc.reject(&rejection),
        };
        rejection.complete(&self.wording, &mut response);
        if self.close_rejected_uploads && unread_body::is_announced(parts) {
            unread_body::announce_close(response.headers_mut());
        }
        if parts.method == Method::HEAD {
            empty(&mut response);
        }
        response
    }

    /// Puts a request together again, with the decision for its handler, and keeps what its answer
    /// is to tell.
    pub(crate) fn let_in<B>(
        self: &Arc<Self>,
        mut parts: Parts,
        body: B,
        pass: Pass,
    ) -> (Request<B>, Option<ResponseFinisher>) {
        let is_head = parts.method == Method::HEAD;
        let tell = match pass {
            Pass::Exempt => {
                self.reserve_nothing(&mut parts, None);
                None
            }
            Pass::Admitted(decision) => Some(self.hold(&mut parts, decision)),
            Pass::Spared(rejection) => {
                let shown = show_spared(&mut parts, &rejection);
                self.reserve_nothing(&mut parts, shown);
                Some(Tell::Spared(rejection))
            }
        };
        let telling = tell.map(|tell| ResponseFinisher::new(Arc::clone(self), tell, is_head));
        (Request::from_parts(parts, body), telling)
    }

    /// Gives a handler that settles what it asks for, and not the reservation of a layer outside.
    fn reserve_nothing(self: &Arc<Self>, parts: &mut Parts, shown: Option<DecisionView>) {
        if self.reserves {
            let nothing = Reservation::of_nothing(Arc::clone(self), shown);
            parts.extensions.insert(nothing);
        }
    }

    /// Shows the decision to the handler, and keeps hold of what was charged.
    fn hold(self: &Arc<Self>, parts: &mut Parts, mut decision: Decision) -> Tell {
        let outer = parts.extensions.get::<DecisionView>().cloned();
        if let Some(outer) = outer {
            self.notices
                .look_at_outer(self.limiter.label(), &decision, &outer);
            decision.set_outer(outer);
        }
        parts.extensions.insert(decision.view().clone());
        let held = if self.reserves {
            let reservation = Reservation::new(Arc::clone(self), decision);
            parts.extensions.insert(reservation.clone());
            Held::Shared(reservation)
        } else {
            Held::DirectSend(decision)
        };
        Tell::Admitted(held)
    }
}

/// Whether it asks for nothing, and nobody said that it may not.
fn costs_nothing(decision: &DecisionView) -> bool {
    decision.cost() == 0 && decision.source() != Source::Block
}

/// Shows the handler what would have been decided.
fn show_spared(parts: &mut Parts, rejection: &Rejection) -> Option<DecisionView> {
    let RejectionReason::Refused(decision) = rejection.reason() else {
        return None;
    };
    let mut shown = decision.clone();
    if let Some(outer) = parts.extensions.get::<DecisionView>() {
        shown.set_outer(outer.clone());
    }
    parts.extensions.insert(shown.clone());
    Some(shown)
}

/// Takes the content off an answer to HEAD, and leaves how long it would be (RFC 9110, section 9.3.2).
fn empty(response: &mut Response<Bytes>) {
    let content = mem::take(response.body_mut());
    let length = response.headers_mut().entry(CONTENT_LENGTH);
    length.or_insert_with(|| content.len().into());
}

impl fmt::Debug for LayerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            limiter,
            key: _,
            on_missing_key,
            skip: _,
            cost: _,
            plans: _,
            patience,
            settle: _,
            reserves,
            headers,
            wording: _,
            status,
            responder: _,
            grpc,
            close_rejected_uploads,
            dry_run,
            notices: _,
        } = self;
        f.debug_struct("LayerConfig")
            .field("limiter", limiter)
            .field("on_missing_key", on_missing_key)
            .field("patience", patience)
            .field("reserves", reserves)
            .field("headers", headers)
            .field("status", status)
            .field("grpc", grpc)
            .field("close_rejected_uploads", close_rejected_uploads)
            .field("dry_run", dry_run)
            .finish_non_exhaustive()
    }
}
