//! The layer: how requests become checks.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use tower_layer::Layer;

use crate::gate::{Gate, MissingKey};
use crate::key::{KeyExtractor, peer_ip};
use crate::{FailurePolicy, Headers, Quotas, RateLimit, RateLimiter, Store};

/// Puts a limit before a service: of a router, a route, or any other that takes HTTP requests.
///
/// Each request is charged to its key. When the quotas have room, it goes on, and its answer gets
/// `X-RateLimit-*` headers; else it is answered `429 Too Many Requests` with a `Retry-After`, and
/// the service is not called. In detail:
///
/// 1. The [key](Self::key) of the request is looked for. Without one it is answered 400, or 500 if
///    the server is not set up to know it; see [`on_missing_key`](Self::on_missing_key).
/// 2. Its [cost](Self::cost) is checked against all quotas, and charged if all admit it. If the
///    store fails, the counts of this process decide; see [`on_failure`](Self::on_failure).
/// 3. Admitted, the request goes on with a [`DecisionView`](crate::DecisionView) in its extensions,
///    for handlers. Its answer is passed on as it is but for the headers, its error untouched.
/// 4. Refused, the answer carries a [`Rejection`](crate::Rejection) in its extensions, for layers
///    outside.
///
/// The limiter lives in the layer: axum may clone layers and services as it likes, they share one
/// count. Cloning is cheap.
///
/// # Where to put it
///
/// [`Router::layer`](axum::Router::layer) limits all routes that were added before it, and the
/// fallback; `route_layer` spares what matches no route. On a `MethodRouter` it limits one route.
/// Two of them on one `MethodRouter` need a `tower::ServiceBuilder`, for type inference. A whole
/// `Router` that is wrapped from outside and handed to `axum::serve` needs
/// `map_response(|r| r.map(axum::body::Body::new))` around it.
///
/// # Examples
///
/// ```
/// use axum::{Router, routing::get};
/// use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
///
/// let store = MemoryStore::new();
///
/// let search = get(|| async { "found" }).layer(
///     RateLimitLayer::new(store.clone(), [Quota::per_second(5), Quota::per_day(2_000)])
///         .name("search")
///         .key(key::header("x-api-key"))
///         .cost(|parts: &http::request::Parts| if parts.uri.path().ends_with("/export") { 10 } else { 1 }),
/// );
///
/// let app: Router = Router::new()
///     .route("/search", search)
///     .layer(RateLimitLayer::new(store, Quota::per_minute(100)));
/// ```
#[derive(Clone)]
#[must_use = "a layer limits nothing until it is added to a service"]
pub struct RateLimitLayer {
    gate: Arc<Gate>,
}

impl RateLimitLayer {
    /// Limits requests by the address of their peer, one unit each.
    ///
    /// `store` is a [`RedisStore`](crate::RedisStore), a [`MemoryStore`](crate::MemoryStore) or any
    /// other; `quotas` is one [`Quota`](crate::Quota) or a list of them, which all must have room.
    pub fn new(store: impl Store, quotas: impl Into<Quotas>) -> Self {
        Self::from(RateLimiter::new(store, quotas))
    }

    /// Names the limiter, `default` unless said otherwise: a part of the stored key. Layers of one
    /// name and store share their counts; give each limit of its own a name of its own.
    pub fn name(self, name: impl Into<Arc<str>>) -> Self {
        self.with(|gate| gate.limiter = gate.limiter.clone().name(name))
    }

    /// Counts by `key`; by [`peer_ip`](crate::key::peer_ip) unless said otherwise.
    pub fn key(self, key: impl KeyExtractor) -> Self {
        self.with(|gate| gate.key = Arc::new(key))
    }

    /// Charges each request what `cost` says; one unit unless said otherwise.
    ///
    /// A cost of 0 goes on without being charged. One above a limit is refused without a
    /// `Retry-After`, since waiting would not help. A log takes at most 100 000 at once.
    pub fn cost<F>(self, cost: F) -> Self
    where
        F: Fn(&Parts) -> u32 + Send + Sync + 'static,
    {
        self.with(|gate| gate.cost = Some(Arc::new(cost)))
    }

    /// Decides what happens to requests without a key; they are refused unless said otherwise.
    pub fn on_missing_key(self, then: MissingKey) -> Self {
        self.with(|gate| gate.on_missing_key = then)
    }

    /// What becomes of requests while the store fails: they
    /// [fall back](FailurePolicy::fall_back) on the counts of this process unless said otherwise.
    pub fn on_failure(self, policy: FailurePolicy) -> Self {
        self.with(|gate| gate.limiter = gate.limiter.clone().on_failure(policy))
    }

    /// Tells clients of their limit by these headers; by [`Headers::x_ratelimit`] unless said
    /// otherwise.
    pub fn headers(self, headers: Headers) -> Self {
        self.with(|gate| gate.headers = headers)
    }

    fn with(mut self, change: impl FnOnce(&mut Gate)) -> Self {
        let gate = Arc::make_mut(&mut self.gate);
        change(gate);
        // Another layer than before, with a log of its own.
        gate.notices = Arc::default();
        self
    }
}

/// Lets a layer and whoever else has the limiter share its counts, where they use the same keys: an
/// extractor's `of` makes them. A limiter that was not told what to do when the store fails falls back.
impl From<RateLimiter> for RateLimitLayer {
    fn from(mut limiter: RateLimiter) -> Self {
        if !limiter.has_policy() {
            limiter = limiter.on_failure(FailurePolicy::fall_back());
        }
        Self {
            gate: Arc::new(Gate {
                limiter,
                key: Arc::new(peer_ip()),
                cost: None,
                on_missing_key: MissingKey::default(),
                headers: Headers::default(),
                notices: Arc::default(),
            }),
        }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, Arc::clone(&self.gate))
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RateLimitLayer").field(&self.gate).finish()
    }
}
