//! The settings of one layer, shared by all its services.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::diagnostics::Diagnostics;
use super::headers::Headers;
use super::level::Level;
use super::outbound::Observer;
use super::rejection::{Rejection, plain_text};
use super::skip::Skip;
use crate::key::{Key, peer_ip};
use crate::limiter::{FailurePolicy, RateLimiter};

/// The settings of one layer.
#[derive(Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each one is a setting of its own"
)]
pub(super) struct LayerConfig {
    /// Whether requests are limited at all.
    pub(super) enabled: bool,
    /// The level of the layer's own limiter.
    pub(super) first: Level,
    /// The keys of which the layer's own limiter counts the first that has room, in place of the key of the request.
    pub(super) pool: Option<Vec<Key>>,
    /// The levels that were added to it.
    pub(super) others: Vec<Level>,
    /// Exempts requests from all levels.
    pub(super) skip: Skip,
    /// The maximum time that a refused request waits for units. Zero if it does not wait.
    pub(super) max_wait: Duration,
    pub(super) reserves: bool,
    pub(super) headers: Headers,
    pub(super) status: StatusCode,
    pub(super) responder: Arc<ResponderFn>,
    /// Whether gRPC calls are rejected with a gRPC status.
    pub(super) grpc: bool,
    /// Whether the rejection of an HTTP/1 upload has `Connection: close`.
    pub(super) closes_rejected_uploads: bool,
    /// `Some` if nothing is rejected.
    pub(super) is_dry_run: bool,
    /// `Some` if the service is a client, whose responses pause keys.
    pub(super) observer: Option<Arc<Observer>>,
    pub(super) diagnostics: Arc<Diagnostics>,
}

pub(super) type ResponderFn = dyn Fn(&Rejection) -> Response<Bytes> + Send + Sync;

impl LayerConfig {
    pub(super) fn new(limiter: RateLimiter) -> Self {
        let first = Level {
            inherits_policy: true,
            ..Level::new(limiter, peer_ip())
        };
        Self {
            enabled: true,
            pool: None,
            others: Vec::new(),
            skip: Skip::default(),
            max_wait: first.limiter.layer_max_wait(),
            reserves: false,
            headers: Headers::default(),
            status: StatusCode::TOO_MANY_REQUESTS,
            responder: Arc::new(plain_text()),
            grpc: false,
            closes_rejected_uploads: true,
            is_dry_run: false,
            observer: None,
            diagnostics: Arc::default(),
            first,
        }
    }

    pub(super) fn update(&mut self, change: impl FnOnce(&mut Self)) {
        change(self);
        // A changed layer logs its own findings.
        self.diagnostics = Arc::default();
        for level in self.levels_mut() {
            level.diagnostics = Arc::default();
        }
    }

    /// Adds a level. A limiter without a failure policy gets the layer's.
    pub(super) fn add(&mut self, mut level: Level) {
        if level.limiter.policy().is_none()
            && let Some(policy) = self.first.limiter.policy()
        {
            level.inherits_policy = true;
            level.limiter = level.limiter.on_failure(policy);
        }
        self.others.push(level);
    }

    /// Sets the failure policy of the layer's own limiter, and of those without a policy of their own.
    pub(super) fn set_failure_policy(&mut self, policy: FailurePolicy) {
        for level in self.levels_mut().filter(|level| level.inherits_policy) {
            level.limiter = level.limiter.clone().on_failure(policy);
        }
    }

    /// The layer's own level comes first.
    pub(super) fn levels(&self) -> impl Iterator<Item = &Level> + Clone {
        std::iter::once(&self.first).chain(&self.others)
    }

    #[inline]
    pub(super) fn settles(&self) -> bool {
        self.first.settle.is_some() || self.others.iter().any(|level| level.settle.is_some())
    }

    #[inline]
    pub(super) fn level(&self, place: usize) -> &Level {
        self.levels().nth(place).unwrap_or(&self.first)
    }

    /// A dry run delays no request.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        !self.max_wait.is_zero() && !self.is_dry_run
    }

    pub(super) fn shares_cost(&self, place: usize) -> bool {
        place == 0 || self.level(place).cost.is_none()
    }

    fn levels_mut(&mut self) -> impl Iterator<Item = &mut Level> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }
}

impl fmt::Debug for LayerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerConfig")
            .field("enabled", &self.enabled)
            .field("first", &self.first)
            .field("others", &self.others)
            .field("max_wait", &self.max_wait)
            .field("reserves", &self.reserves)
            .field("headers", &self.headers)
            .field("status", &self.status)
            .field("grpc", &self.grpc)
            .field("closes_rejected_uploads", &self.closes_rejected_uploads)
            .field("is_dry_run", &self.is_dry_run)
            .field("observes", &self.observer.is_some())
            .finish_non_exhaustive()
    }
}
