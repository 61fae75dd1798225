//! The layer: the public builder of the middleware.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, Response, StatusCode, response};
use http_body::SizeHint;
use tower_layer::Layer;

use super::config::{LayerConfig, MissingKey};
use super::diagnostics::layer_created;
use super::headers::Headers;
use super::plan_lookup::plan_future;
use super::rejection::Rejection;
use super::service::RateLimit;
use crate::decision::DecisionView;
use crate::key::{Key, KeyExtractor};
use crate::limiter::{FailurePolicy, RateLimiter};
use crate::quota::{IntoPlan, Quotas};
use crate::store::Store;

/// Limits the requests to a service: a router, a route, or any other service of HTTP requests.
///
/// Each request is charged to its key. If the quotas admit it, the service is called, and the response gets
/// [headers](Self::headers) that report the client's limit. Otherwise the answer is `429 Too Many Requests`
/// with a `Retry-After`, and the service is not called. In detail:
///
/// 1. The layer extracts the [key](Self::key), unless the request is [skipped](Self::skip). A request
///    without a key is answered 400, or 500 if the server is not set up for this key; see
///    [`on_missing_key`](Self::on_missing_key).
/// 2. The [cost](Self::cost) is checked against all quotas of the layer, or [of the
///    key](Self::quotas_for), and charged if all of them admit it. If the store fails, the counts of this
///    process decide; see [`on_failure`](Self::on_failure).
/// 3. An admitted request reaches the service with a [`DecisionView`](crate::DecisionView) in its
///    extensions. Its response is unchanged but for the headers; an error of the service is unchanged too.
///    The charge may then be [settled](Self::settle), or earlier by the [handler](Self::reserve).
/// 4. The response to a rejected request has a [`Rejection`](crate::Rejection) in its extensions, for outer
///    layers. A [dry run](Self::dry_run) rejects nothing.
///
/// The layer owns the limiter: axum may clone layers and services freely, and all clones share one count.
/// Cloning is cheap.
///
/// # Where to put it
///
/// [`Router::layer`](axum::Router::layer) limits all routes added before it, and the fallback.
/// `route_layer` leaves out requests that match no route. On a `MethodRouter`, it limits one route; two
/// layers on one `MethodRouter` need a `tower::ServiceBuilder`, for type inference. A whole `Router` that
/// is wrapped and passed to `axum::serve` needs `map_response(|r| r.map(axum::body::Body::new))` around it.
/// A whole stack, with the reasons, is in the guide:
/// [where the layer goes](crate::guide::placement).
///
/// # Examples
///
/// ```
/// use axum::{Router, routing::get};
/// use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
///
/// let store = MemoryStore::new();
///
/// // Two routes share one limit. An export costs ten times as much as a search.
/// let search = RateLimitLayer::new(store.clone(), [Quota::per_second(20), Quota::per_day(2_000)])
///     .name("search")
///     .key(key::header("x-api-key"));
/// let export = search.clone().cost(|_| 10);
///
/// let app: Router = Router::new()
///     .route("/search", get(|| async { "found" }).layer(search))
///     .route("/search/{format}", get(|| async { "exported" }).layer(export))
///     .layer(RateLimitLayer::new(store, Quota::per_minute(100)));
/// ```
#[derive(Clone)]
#[must_use = "a layer limits nothing until it is added to a service"]
pub struct RateLimitLayer {
    config: Arc<LayerConfig>,
}

impl RateLimitLayer {
    /// Creates a layer that limits requests by the address of their peer. Each request costs one unit.
    ///
    /// `store` is a [`RedisStore`](crate::RedisStore), a [`MemoryStore`](crate::MemoryStore) or your own.
    /// `quotas` is one [`Quota`](crate::Quota) or a list of them, all of which must admit a request.
    pub fn new(store: impl Store, quotas: impl Into<Quotas>) -> Self {
        Self::from(RateLimiter::new(store, quotas))
    }

    /// Sets the name of the limiter, a part of the stored key. The default is `default`.
    ///
    /// Layers with the same name and store share their counts, so give each separate limit its own name.
    /// Clients see the name as that of a [policy](crate::Headers): two nested layers with the same name list
    /// two policies that clients cannot tell apart.
    pub fn name(self, name: impl Into<Arc<str>>) -> Self {
        self.with(|config| config.limiter = config.limiter.clone().name(name))
    }

    /// Sets the key to count by. The default is [`peer_ip`](crate::key::peer_ip).
    ///
    /// How to choose one is in the guide: [keys and proxies](crate::guide::keys).
    pub fn key(self, key: impl KeyExtractor) -> Self {
        self.with(|config| config.key = Arc::new(key))
    }

    /// Sets the cost of each request, computed from its head. The default is one unit.
    ///
    /// A request of cost 0 passes without a charge. A cost above a limit is refused without a
    /// `Retry-After`, since no wait would help. A log counts at most 100 000 units at once.
    ///
    /// Compute the cost from the route, not from the text of the path: the closure sees the path as the
    /// client spelled it. A handler on `/search/{format}` gets `export` from `/search/export` and from
    /// `/search/%65xport`, but `ends_with("/export")` is false for the second. Give expensive handlers their
    /// own route and layer, or read axum's `MatchedPath` from the extensions. The same holds for a query.
    ///
    /// # Examples
    ///
    /// One limit for two routes, one of which costs ten units:
    ///
    /// ```
    /// use axum::{Router, routing::get};
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer};
    ///
    /// let search = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100)).name("search");
    /// let export = search.clone().cost(|_| 10);
    ///
    /// let app: Router = Router::new()
    ///     .route("/search", get(|| async { "found" }).layer(search))
    ///     .route("/search/{format}", get(|| async { "exported" }).layer(export));
    /// ```
    ///
    /// One layer for a whole router, by matched path:
    ///
    /// ```
    /// use axum::extract::MatchedPath;
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer};
    ///
    /// let site = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100)).cost(|parts| {
    ///     match parts.extensions.get::<MatchedPath>() {
    ///         Some(route) if route.as_str() == "/search/{format}" => 10,
    ///         _ => 1,
    ///     }
    /// });
    /// ```
    pub fn cost<F>(self, cost: F) -> Self
    where
        F: Fn(&Parts) -> u32 + Send + Sync + 'static,
    {
        self.with(|config| config.cost = Some(Arc::new(cost)))
    }

    /// Exempts the requests for which `skip` returns `true`, such as health checks or
    /// [CORS preflights](crate::cors::is_preflight).
    ///
    /// `skip` is called before the key is extracted. A skipped request is not counted, and gets no headers
    /// and no decision.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60))
    ///     .skip(|parts| parts.uri.path() == "/healthz");
    /// ```
    pub fn skip<F>(self, skip: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        self.with(|config| config.skip = Some(Arc::new(skip)))
    }

    /// Sets what happens to requests without a key. By default they are rejected.
    pub fn on_missing_key(self, then: MissingKey) -> Self {
        self.with(|config| config.on_missing_key = then)
    }

    /// Looks up the quotas of each key, in place of the layer's: a tenant's plan, from a database or, better,
    /// from a cache of it.
    ///
    /// The future returns anything that converts into a [`Plan`](crate::Plan): quotas, `None` for the
    /// layer's own, or an exemption of the key. If it returns an error, the layer applies its
    /// [failure policy](Self::on_failure), as if the store had failed. So never return an error that a client
    /// can cause: for a tenant that is unknown or malformed, return
    /// [`Plan::Default`](crate::Plan::Default). The layer sets no deadline: add a timeout if the lookup
    /// calls another service.
    ///
    /// A new plan applies from the next request. Earlier units still count, as long as window and algorithm
    /// stay the same. To peek at such a key, or to reset or credit it, pass the quotas of its plan to
    /// [`Admin::quotas`](crate::Admin::quotas): `layer.limiter().admin().quotas(plan)`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use std::sync::Arc;
    /// use tollgate::{Key, MemoryStore, Quota, Quotas, RateLimitLayer, key};
    ///
    /// let tenant = key::header("x-tenant-id");
    /// let plans: HashMap<Key, Quotas> = HashMap::from([(
    ///     tenant.of("acme"),
    ///     Quotas::from([Quota::per_second(50), Quota::per_day(1_000_000)]),
    /// )]);
    /// let plans = Arc::new(plans);
    ///
    /// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60))
    ///     .key(tenant)
    ///     .quotas_for(move |key, _parts| {
    ///         let (plans, key) = (Arc::clone(&plans), key.clone());
    ///         async move { plans.get(&key).cloned() }
    ///     });
    /// ```
    pub fn quotas_for<F, R>(self, quotas: F) -> Self
    where
        F: Fn(&Key, &Parts) -> R + Send + Sync + 'static,
        R: Future<Output: IntoPlan> + Send + 'static,
    {
        self.with(|config| {
            config.plan_lookup = Some(Arc::new(move |key, parts| plan_future(quotas(key, parts))));
        })
    }

    /// Makes refused requests wait for their turn instead of rejecting them, for at most `max_wait` in all.
    /// For a client that must stay below the limit of an upstream.
    ///
    /// A request whose turn would come later than `max_wait` is rejected at once. A waiting request holds
    /// what the inner service reserved for it. It is checked again at least once a second, since units may
    /// be refunded. Waiting requests form no queue: after a refund, the first one to check again is admitted.
    /// Waiting needs a tokio runtime with time enabled.
    ///
    /// In front of a server, prefer to reject: a waiting request holds memory and a connection, and its
    /// client may have disconnected.
    ///
    /// Turn the headers off for an outgoing limit, as below: then the caller sees those of the upstream
    /// unchanged.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Headers, MemoryStore, Quota, RateLimitLayer, key};
    ///
    /// let upstream = RateLimitLayer::new(MemoryStore::new(), Quota::per_second(10))
    ///     .key(key::global())
    ///     .headers(Headers::none())
    ///     .wait_up_to(Duration::from_secs(30));
    /// ```
    pub fn wait_up_to(self, max_wait: Duration) -> Self {
        self.with(|config| config.max_wait = max_wait)
    }

    /// Adjusts the charge to the actual cost that `settle` computes from the response.
    ///
    /// A cost of 0 refunds the request. A cost above the charge is charged in addition, as long as the quotas
    /// have room.
    ///
    /// The closure gets the decision, the head of the response and the size of its body. The head includes
    /// the headers of the limit, which report the state before the settlement. The response does not wait for
    /// the store: the settlement runs in the background, and if it fails, the charge stays. If there is no
    /// response, because the service failed or the client disconnected, the charge stays too. If only the
    /// content tells the cost, let the [handler](Self::reserve) settle; if both settle, the first one counts.
    ///
    /// **Recognize a rejection by its [`Rejection`], not by its status.** Every rejection of an inner layer
    /// has one in its extensions. The status proves less: [`status`](Self::status), a
    /// [`responder`](Self::responder) or [`grpc`](Self::grpc) can make it any, even 200. A closure that takes
    /// such a response for a success refunds every rejected attempt.
    ///
    /// **Charge by the size, not by `Content-Length`.** hyper and axum add that header outside of all
    /// layers, so it is missing here. The size is the body's
    /// [`size_hint`](http_body::Body::size_hint) at this layer, and 0 for a HEAD request. It is exact for a
    /// `String` or `Bytes`, and unknown for a stream. An inner compression layer makes it unknown; an outer
    /// one compresses after this layer charged for the uncompressed size.
    ///
    /// A request of [cost](Self::cost) 0 passes any limit and has nothing to settle: charge at least one unit
    /// before.
    ///
    /// # Examples
    ///
    /// A login limit that only failures count against:
    ///
    /// ```
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer, Rejection};
    ///
    /// let login = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(5))
    ///     .name("login")
    ///     .settle(|_, head, _| {
    ///         let is_rejected = head.extensions.get::<Rejection>().is_some();
    ///         u32::from(is_rejected || !head.status.is_success())
    ///     });
    /// ```
    ///
    /// Downloads charged by the kilobyte. 64 are charged before, and kept for a body of unknown size:
    ///
    /// ```
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer};
    ///
    /// let downloads = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(100_000))
    ///     .name("kilobytes")
    ///     .cost(|_| 64)
    ///     .settle(|decision, _, size| match size.exact() {
    ///         Some(bytes) => u32::try_from(bytes.div_ceil(1_024)).unwrap_or(u32::MAX),
    ///         None => decision.cost(),
    ///     });
    /// ```
    pub fn settle<F>(self, settle: F) -> Self
    where
        F: Fn(&DecisionView, &response::Parts, SizeHint) -> u32 + Send + Sync + 'static,
    {
        self.with(|config| config.settle = Some(Arc::new(settle)))
    }

    /// Gives each request that passes a [`Reservation`](crate::Reservation), with which its handler settles
    /// the actual cost, even during or after a streamed response.
    pub fn reserve(self) -> Self {
        self.with(|config| config.reserves = true)
    }

    /// Sets what happens to requests while the store fails. By default they
    /// [fall back](FailurePolicy::fall_back) to the counts of this process.
    pub fn on_failure(self, policy: FailurePolicy) -> Self {
        self.with(|config| config.limiter = config.limiter.clone().on_failure(policy))
    }

    /// Sets the headers that report the limit to clients. The default is [`Headers::default`].
    pub fn headers(self, headers: Headers) -> Self {
        self.with(|config| config.headers = headers)
    }

    /// Sets the status of responses to requests that a quota refused. The default is 429.
    pub fn status(self, status: StatusCode) -> Self {
        self.with(|config| config.status = status)
    }

    /// Sets the function that makes the response to a rejected request. The default is a short text.
    ///
    /// The layer adds `Retry-After` and `Cache-Control: no-store` if they are missing, and the
    /// [headers](Self::headers) of the limit. The response should have the
    /// [status](Rejection::status) of the rejection. The responder is not called for calls that
    /// [`grpc`](Self::grpc) answers.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Response;
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60)).responder(|rejection| {
    ///     let mut response = Response::new("slow down\n");
    ///     *response.status_mut() = rejection.status();
    ///     response
    /// });
    /// ```
    pub fn responder<F, B>(self, responder: F) -> Self
    where
        F: Fn(&Rejection) -> Response<B> + Send + Sync + 'static,
        B: Into<Bytes>,
    {
        let responder = move |rejection: &Rejection| responder(rejection).map(B::into);
        self.with(|config| config.responder = Arc::new(responder))
    }

    /// Rejects gRPC calls in gRPC's form: HTTP status 200, no body, and `grpc-status` in the headers.
    ///
    /// For routes that serve only gRPC, such as those of a tonic server. A gRPC client takes a bare 429 for
    /// `UNAVAILABLE`, which many clients retry at once. Off by default: any client can send
    /// `content-type: application/grpc`, and on a REST route its 429 would become a 200, which logs, metrics
    /// and outer layers take for a success.
    ///
    /// A call is a POST of content type `application/grpc`, `application/grpc-web` or
    /// `application/grpc-web-text`. The rejection has the same content type, regardless of the
    /// [responder](Self::responder) and the [status](Self::status). Other requests get the ordinary
    /// rejection, since gRPC asks servers not to answer them with a 200. What clients see is in the guide:
    /// [gRPC and clients](crate::guide::clients).
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
    ///
    /// let limit = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60))
    ///     .key(key::header("x-api-key"))
    ///     .grpc();
    /// let server = tonic::transport::Server::builder().layer(limit);
    /// ```
    #[cfg(feature = "grpc")]
    #[cfg_attr(docsrs, doc(cfg(feature = "grpc")))]
    pub fn grpc(self) -> Self {
        self.with(|config| config.grpc = true)
    }

    /// Sends `Connection: close` with the rejection of an HTTP/1 upload. On by default.
    ///
    /// A rejection does not read the request body. An HTTP/1 server then closes the connection, and hyper
    /// does so without an announcement: the client's next request on that connection fails with a broken
    /// pipe. So the rejection of an HTTP/1 request with a `Content-Length` above 0 or a
    /// `Transfer-Encoding` gets `Connection: close`. HTTP/2 and HTTP/3 end only the stream, so their
    /// rejections never get it.
    ///
    /// Switch it off where it costs more than it saves. A proxy in front that sends each request in one piece
    /// would have to reconnect after each rejected upload. Inside a layer that has read the body, nothing is
    /// left unread. Figures for nginx are in the guide:
    /// [where the layer goes](crate::guide::placement#refused-uploads).
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer};
    ///
    /// let behind_nginx = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60))
    ///     .close_rejected_uploads(false);
    /// ```
    pub fn close_rejected_uploads(self, close: bool) -> Self {
        self.with(|config| config.close_rejected_uploads = close)
    }

    /// Rejects nothing, but counts and reports the requests that would be rejected, to try out a limit.
    ///
    /// At most every ten seconds, a log line reports how many requests would have been rejected; on level
    /// `debug`, each of them is a line. Handlers find the [`DecisionView`] of such a request, outer layers a
    /// [`WouldReject`](crate::WouldReject) in the extensions of its response. Clients see nothing, not even
    /// the headers of the limit, except [a header](Self::dry_run_header) that you choose. No request
    /// [waits](Self::wait_up_to) for its turn.
    pub fn dry_run(self) -> Self {
        self.with(|config| {
            config.dry_run.get_or_insert_default();
        })
    }

    /// Makes the layer a [dry run](Self::dry_run) that adds this header, with the limiter's name, to the
    /// responses of requests that would have been rejected.
    pub fn dry_run_header(self, name: HeaderName) -> Self {
        self.with(|config| config.dry_run.get_or_insert_default().header = Some(name))
    }

    /// Tracks this number of the keys that are refused most: see [`RateLimiter::track_refused`].
    pub fn track_refused(self, keys: NonZeroUsize) -> Self {
        self.with(|config| config.limiter = config.limiter.clone().track_refused(keys))
    }

    /// Returns the limiter of this layer, to peek at its keys, to [block](crate::Admin) them, or to count
    /// jobs together with requests.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.config.limiter
    }

    fn with(mut self, change: impl FnOnce(&mut LayerConfig)) -> Self {
        Arc::make_mut(&mut self.config).update(change);
        self
    }
}

/// Creates a layer that shares a limiter, with a job for example.
///
/// Both share the counts of the same keys; an extractor's `of` creates them. A limiter without a failure
/// policy falls back to the counts of this process.
impl From<RateLimiter> for RateLimitLayer {
    fn from(mut limiter: RateLimiter) -> Self {
        if !limiter.has_policy() {
            limiter = limiter.on_failure(FailurePolicy::fall_back());
        }
        layer_created();
        Self {
            config: Arc::new(LayerConfig::new(limiter)),
        }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, Arc::clone(&self.config))
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RateLimitLayer").field(&self.config).finish()
    }
}
