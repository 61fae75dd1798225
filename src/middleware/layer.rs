//! The layer: how requests become checks.

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
use super::diagnostics::note_layer;
use super::headers::Headers;
use super::headers::Templates;
use super::plan_lookup::boxed;
use super::rejection::{Rejection, plain_text};
use super::service::RateLimit;
use crate::decision::DecisionView;
use crate::key::Key;
use crate::key::{KeyExtractor, peer_ip};
use crate::limiter::{FailurePolicy, RateLimiter};
use crate::quota::{IntoPlan, Quotas};
use crate::store::Store;

/// Puts a limit before a service: of a router, a route, or any other that takes HTTP requests.
///
/// Each request is charged to its key. When the quotas have room, it goes on, and its answer gets
/// [headers](Self::headers) that tell where its client stands; else it is answered `429 Too Many
/// Requests` with a `Retry-After`, and the service is not called. In detail:
///
/// 1. The [key](Self::key) of the request is looked for, unless it is [skipped](Self::skip). Without one
///    it is answered 400, or 500 if the server is not set up to know it; see
///    [`on_missing_key`](Self::on_missing_key).
/// 2. Its [cost](Self::cost) is checked against all quotas, those of the layer or [of the
///    key](Self::quotas_for), and charged if all admit it. If the store fails, the counts of this process
///    decide; see [`on_failure`](Self::on_failure).
/// 3. Admitted, the request goes on with a [`DecisionView`](crate::DecisionView) in its extensions,
///    for handlers. Its answer is passed on as it is but for the headers, its error untouched. Then, or
///    when its handler knows better, the charge may be [settled](Self::settle).
/// 4. Refused, the answer carries a [`Rejection`](crate::Rejection) in its extensions, for layers
///    outside. A [dry run](Self::dry_run) refuses nothing.
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
/// `map_response(|r| r.map(axum::body::Body::new))` around it. A whole stack, with the reasons, is in
/// the guide: [where the layer goes](crate::guide::where_the_layer_goes).
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
    gate: Arc<LayerConfig>,
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
    /// name and store share their counts; give each limit of its own a name of its own. Clients see it
    /// too, as the name of a [policy](crate::Headers): of nested layers of one name, two policies are
    /// listed that they cannot tell apart.
    pub fn name(self, name: impl Into<Arc<str>>) -> Self {
        self.with(|gate| gate.limiter = gate.limiter.clone().name(name))
    }

    /// Counts by `key`; by [`peer_ip`](crate::key::peer_ip) unless said otherwise. Which to take is in the
    /// guide: [keys and proxies](crate::guide::keys_and_proxies).
    pub fn key(self, key: impl KeyExtractor) -> Self {
        self.with(|gate| gate.key = Arc::new(key))
    }

    /// Charges each request what `cost` says; one unit unless said otherwise.
    ///
    /// A cost of 0 goes on without being charged. One above a limit is refused without a
    /// `Retry-After`, since waiting would not help. A log takes at most 100 000 at once.
    ///
    /// Decide the cost by the route, not by the text of the path. The closure sees the path as the client
    /// spelled it. A handler on `/search/{format}` gets `export` from `/search/export` and from
    /// `/search/%65xport`, and `ends_with("/export")` is false for the second. Credit expensive handlers a
    /// route and a layer of their own, or look at axum's `MatchedPath` in the extensions. The same holds for
    /// a query.
    ///
    /// # Examples
    ///
    /// One limit for two routes, of which one costs ten units:
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
        self.with(|gate| gate.cost = Some(Arc::new(cost)))
    }

    /// Lets requests pass uncounted for which `skip` says so: health checks, or the preflights of
    /// [CORS](crate::cors::is_preflight).
    ///
    /// It is asked before the key is looked for. Such a request has no headers and no decision.
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
        self.with(|gate| gate.skip = Some(Arc::new(skip)))
    }

    /// Decides what happens to requests without a key; they are refused unless said otherwise.
    pub fn on_missing_key(self, then: MissingKey) -> Self {
        self.with(|gate| gate.on_missing_key = then)
    }

    /// Asks `quotas` for the quotas of each key, in place of those of the layer: a tenant's plan, from a
    /// database or, better, from a cache of it.
    ///
    /// The future answers what can be made a [`Plan`](crate::Plan): quotas, none for the layer's own, or
    /// that the key is exempt. Where it fails, the layer does what its
    /// [policy](Self::on_failure) says of a store that fails. So an error must be nothing that a client
    /// can cause: for a tenant that nobody knows, or that cannot be read, answer
    /// [`Plan::Default`](crate::Plan::Default). It is waited for as long as it takes: bound it where it
    /// asks somebody else.
    ///
    /// A change of plan takes effect with the next request and keeps the history, as far as windows and
    /// algorithms stay what they are. To look at such a key or reset it without a request, make a
    /// [`RateLimiter`] of its plan, with the store and the name of this layer.
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
        self.with(|gate| {
            gate.plans = Some(Arc::new(move |key, parts| boxed(quotas(key, parts))));
        })
    }

    /// Has requests wait for their turn rather than be refused, for as long as `patience` in all: around
    /// a client, which is to keep under the limit of an upstream.
    ///
    /// A request whose turn would come later is refused at once. While one waits, it holds what the
    /// service inside has set aside for it, and asks again each second at least, since units may be given
    /// back. Those that wait for one key are not in line: the first to ask when there is room again is let
    /// in. It needs a tokio runtime with time enabled. Before a server, rather refuse: who waits holds
    /// memory and a connection, and may be gone.
    ///
    /// The headers of a limit of one's own are no news to oneself: without them, those of the upstream are
    /// seen as it sent them.
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
    pub fn wait_up_to(self, patience: Duration) -> Self {
        self.with(|gate| gate.patience = patience)
    }

    /// Adjusts the charge to the actual cost that `settle` computes from the response: 0 refunds the
    /// request, more than was charged charges the rest, as far as there is room.
    ///
    /// The closure gets the decision, the head of the response and the size of its body. The head includes
    /// the headers of the limit, which tell how things stood before. The response does not wait for the
    /// store: a settlement there happens in the background, and if it fails, the charge stays. A response
    /// that never comes, since the service fails or the client is gone, keeps its charge. A cost that only
    /// the content tells is for the [handler](Self::reserve) to settle; where both settle, the first counts.
    ///
    /// **Recognize a refusal by its [`Rejection`], not by its status.** A layer further in leaves one in the
    /// extensions of every refusal. Its status says less: [`status`](Self::status), a
    /// [`responder`](Self::responder) or [`grpc`](Self::grpc) may make it any, 200 included, and a closure
    /// that takes it for a success refunds every refused attempt.
    ///
    /// **Charge by the size, not by `Content-Length`.** hyper and axum add that header outside of all
    /// layers, so it is missing here. The size is the body's
    /// [`size_hint`](http_body::Body::size_hint) at this layer, and 0 for a HEAD request. It is exact for a
    /// `String` or `Bytes`, and unknown for a stream. A compression layer inside leaves it unknown; one
    /// outside compresses after this layer has charged for the whole.
    ///
    /// A request of [cost](Self::cost) 0 passes any limit, and has nothing to settle: let it cost a unit at
    /// least before.
    ///
    /// # Examples
    ///
    /// A login that only failures count against:
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
    /// Downloads that are paid by the kilobyte. 64 are reserved, which is also the charge for a body of
    /// unknown size:
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
        self.with(|gate| gate.settle = Some(Arc::new(settle)))
    }

    /// Gives each request that passes a [`Reservation`](crate::Reservation), by which its handler settles
    /// what it has cost, also while or after it streams the answer.
    pub fn reserve(self) -> Self {
        self.with(|gate| gate.reserves = true)
    }

    /// What becomes of requests while the store fails: they
    /// [fall back](FailurePolicy::fall_back) on the counts of this process unless said otherwise.
    pub fn on_failure(self, policy: FailurePolicy) -> Self {
        self.with(|gate| gate.limiter = gate.limiter.clone().on_failure(policy))
    }

    /// Tells clients of their limit by these headers; by those of [`Headers::default`] unless said
    /// otherwise.
    pub fn headers(self, headers: Headers) -> Self {
        self.with(|gate| gate.headers = headers)
    }

    /// Answers requests that a quota has no room for with this status; with 429 unless said otherwise.
    pub fn status(self, status: StatusCode) -> Self {
        self.with(|gate| gate.status = status)
    }

    /// Answers requests that are not let through as `responder` says; by a short text unless said
    /// otherwise.
    ///
    /// The answer gets what it does not have of `Retry-After` and `Cache-Control: no-store`, and the
    /// [headers](Self::headers) of the limit. It should have the [status](Rejection::status) of the
    /// rejection. It is not asked for calls that [`grpc`](Self::grpc) answers.
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
        self.with(|gate| gate.responder = Arc::new(responder))
    }

    /// Rejects calls of gRPC as gRPC has it: HTTP status 200, no body, and `grpc-status` in the headers.
    ///
    /// For routes that serve nothing but gRPC, such as those of a tonic server. A client of gRPC takes a
    /// bare 429 for `UNAVAILABLE`, which many retry at once. Off by default: any client can send
    /// `content-type: application/grpc`, and on a REST route it would turn its 429 into a 200, which logs,
    /// metrics and layers outside take for a success.
    ///
    /// A call is a POST of content type `application/grpc`, `application/grpc-web` or
    /// `application/grpc-web-text`. It is answered in its own content type, whatever the
    /// [responder](Self::responder) and the [status](Self::status). Other requests get the ordinary
    /// rejection, since gRPC asks servers not to answer them with a 200. What a client sees is in the
    /// guide: [gRPC and clients](crate::guide::grpc_and_clients).
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
    pub fn grpc(self) -> Self {
        self.with(|gate| gate.grpc = true)
    }

    /// Announces the end of a connection on which a rejected request still sends its body: on by default.
    ///
    /// A rejection does not read the request body. A server of HTTP/1 then closes the connection, and hyper
    /// does so without a word: the client's next request on the kept connection fails with a broken pipe.
    /// So the rejection of an HTTP/1 request with a `Content-Length` above 0 or a `Transfer-Encoding` gets
    /// `Connection: close`. Requests of HTTP/2 and 3 never do, as only their stream ends.
    ///
    /// Switch it off where it costs more than it saves: behind a proxy that sends each request in one
    /// piece, it makes the proxy connect anew after each rejected upload, and inside of a layer that has
    /// read the body, nothing is left unread. Figures for nginx are in the guide:
    /// [where the layer goes](crate::guide::where_the_layer_goes#refused-uploads).
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
        self.with(|gate| gate.close_rejected_uploads = close)
    }

    /// Refuses nothing, but counts and tells all that would be refused: to see what a limit would do
    /// before it does it.
    ///
    /// Every ten seconds at most, a line in the log says how many requests would have been refused,
    /// and on level `debug` each is a line. Handlers find the [`DecisionView`] of such a request, layers
    /// outside a [`WouldReject`](crate::WouldReject) in its answer. Clients are told nothing, no headers
    /// of the limit either, unless by [a header](Self::dry_run_header), and nobody
    /// [waits](Self::wait_up_to) for a turn.
    pub fn dry_run(self) -> Self {
        self.with(|gate| {
            gate.dry_run.get_or_insert_default();
        })
    }

    /// Does what [`dry_run`](Self::dry_run) does, and adds this header, with the limiter's name, to the
    /// answers of requests that would have been refused.
    pub fn dry_run_header(self, name: HeaderName) -> Self {
        self.with(|gate| gate.dry_run.get_or_insert_default().header = Some(name))
    }

    /// Keeps so many of the keys that are refused most: see [`RateLimiter::track_refused`].
    pub fn track_refused(self, keys: NonZeroUsize) -> Self {
        self.with(|gate| gate.limiter = gate.limiter.clone().track_refused(keys))
    }

    /// The limiter that this layer asks: to look at its keys or [block](crate::Admin) them, and to count
    /// jobs together with requests.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.gate.limiter
    }

    fn with(mut self, change: impl FnOnce(&mut LayerConfig)) -> Self {
        let gate = Arc::make_mut(&mut self.gate);
        change(gate);
        gate.wording = Arc::new(wording_of(&gate.limiter, &gate.headers));
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
        note_layer();
        let headers = Headers::default();
        Self {
            gate: Arc::new(LayerConfig {
                wording: Arc::new(wording_of(&limiter, &headers)),
                limiter,
                key: Arc::new(peer_ip()),
                on_missing_key: MissingKey::default(),
                skip: None,
                cost: None,
                plans: None,
                patience: Duration::ZERO,
                settle: None,
                reserves: false,
                headers,
                status: StatusCode::TOO_MANY_REQUESTS,
                responder: Arc::new(plain_text),
                grpc: false,
                close_rejected_uploads: true,
                dry_run: None,
                notices: Arc::default(),
            }),
        }
    }
}

fn wording_of(limiter: &RateLimiter, headers: &Headers) -> Templates {
    Templates::new(headers, limiter.label(), limiter.quotas())
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
