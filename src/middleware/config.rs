//! The settings of one layer, shared by all its services.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, Response, StatusCode, response};
use http_body::SizeHint;

use super::diagnostics::Diagnostics;
use super::headers::{Headers, Templates};
use super::plan_lookup::PlanLookup;
use super::rejection::{Rejection, plain_text};
use crate::decision::DecisionView;
use crate::key::{KeyExtractor, peer_ip};
use crate::limiter::RateLimiter;

/// The settings of one layer.
#[derive(Clone)]
pub(super) struct LayerConfig {
    pub(super) limiter: RateLimiter,
    pub(super) key: Arc<dyn KeyExtractor>,
    pub(super) on_missing_key: MissingKey,
    pub(super) skip: Option<Arc<SkipFn>>,
    pub(super) cost: Option<Arc<CostFn>>,
    pub(super) plan_lookup: Option<Arc<PlanLookup>>,
    /// The maximum time that a refused request waits for units. Zero if it does not wait.
    pub(super) max_wait: Duration,
    pub(super) settle: Option<Arc<SettleFn>>,
    pub(super) reserves: bool,
    pub(super) headers: Headers,
    /// Derived from `headers` and from the limiter's name and quotas.
    pub(super) templates: Arc<Templates>,
    pub(super) status: StatusCode,
    pub(super) responder: Arc<ResponderFn>,
    /// Whether gRPC calls are rejected with a gRPC status.
    pub(super) grpc: bool,
    /// Whether the rejection of an HTTP/1 upload has `Connection: close`.
    pub(super) close_rejected_uploads: bool,
    /// `Some` if nothing is rejected.
    pub(super) dry_run: Option<DryRun>,
    pub(super) diagnostics: Arc<Diagnostics>,
}

pub(super) type SkipFn = dyn Fn(&Parts) -> bool + Send + Sync;
pub(super) type CostFn = dyn Fn(&Parts) -> u32 + Send + Sync;
pub(super) type SettleFn = dyn Fn(&DecisionView, &response::Parts, SizeHint) -> u32 + Send + Sync;
pub(super) type ResponderFn = dyn Fn(&Rejection) -> Response<Bytes> + Send + Sync;

/// The settings of a dry run.
#[derive(Clone, Debug, Default)]
pub(super) struct DryRun {
    /// The header that is added to the response of a request that would have been rejected.
    pub(super) header: Option<HeaderName>,
}

/// The treatment of a request without a key; see
/// [`RateLimitLayer::on_missing_key`](crate::RateLimitLayer::on_missing_key).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// Rejects the request with 400, and names the missing part. It is the default, because otherwise a
    /// client could omit the key to avoid the limit.
    #[default]
    Reject,
    /// Passes the request to the service without counting it. Its extensions have no
    /// [`DecisionView`](crate::DecisionView). Use it only if another layer limits such requests.
    Exempt,
}

impl LayerConfig {
    pub(super) fn new(limiter: RateLimiter) -> Self {
        let headers = Headers::default();
        Self {
            templates: Arc::new(templates(&limiter, &headers)),
            limiter,
            key: Arc::new(peer_ip()),
            on_missing_key: MissingKey::default(),
            skip: None,
            cost: None,
            plan_lookup: None,
            max_wait: Duration::ZERO,
            settle: None,
            reserves: false,
            headers,
            status: StatusCode::TOO_MANY_REQUESTS,
            responder: Arc::new(plain_text),
            grpc: false,
            close_rejected_uploads: true,
            dry_run: None,
            diagnostics: Arc::default(),
        }
    }

    /// Changes settings, and rebuilds the values that are derived from them.
    pub(super) fn update(&mut self, change: impl FnOnce(&mut Self)) {
        change(self);
        self.templates = Arc::new(templates(&self.limiter, &self.headers));
        // A changed layer logs its own findings.
        self.diagnostics = Arc::default();
    }
}

fn templates(limiter: &RateLimiter, headers: &Headers) -> Templates {
    Templates::new(headers, &limiter.name, limiter.quotas())
}

impl fmt::Debug for LayerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            limiter,
            key: _,
            on_missing_key,
            skip: _,
            cost: _,
            plan_lookup: _,
            max_wait,
            settle: _,
            reserves,
            headers,
            templates: _,
            status,
            responder: _,
            grpc,
            close_rejected_uploads,
            dry_run,
            diagnostics: _,
        } = self;
        f.debug_struct("LayerConfig")
            .field("limiter", limiter)
            .field("on_missing_key", on_missing_key)
            .field("max_wait", max_wait)
            .field("reserves", reserves)
            .field("headers", headers)
            .field("status", status)
            .field("grpc", grpc)
            .field("close_rejected_uploads", close_rejected_uploads)
            .field("dry_run", dry_run)
            .finish_non_exhaustive()
    }
}
