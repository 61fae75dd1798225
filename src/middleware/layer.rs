//! The layer, which is the builder of the middleware.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{StatusCode, response};
use http_body::SizeHint;
use tower_layer::Layer;

use super::config::LayerConfig;
use super::headers::Headers;
use super::level::{Level, MissingKey};
use super::outbound::Observer;
use super::rejection::{Rejection, plain_text};
use super::rejection_response::RejectionResponse;
use super::service::{CloneService, RateLimit};
use super::skip::Skip;
use crate::error::ConfigError;
use crate::key::{Key, KeyExtractor};
use crate::limiter::{DecisionView, FailurePolicy, RateLimiter};
use crate::quota::{BlockRule, IntoPlan, IntoQuotas, Quotas};
use crate::store::Store;

/// A tower layer that limits the requests to a service of HTTP requests, such as an axum router or route.
///
/// Each request is charged to its key, such as the client's address. If the quotas have room, the layer calls
/// the service, and adds [headers](Self::headers) that report the limit to the response. Otherwise it answers
/// `429 Too Many Requests` with a `Retry-After`, and does not call the service.
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
///
/// # How a request is processed
///
/// 1. **Key.** The layer extracts the [key](Self::key), unless the request is [skipped](Self::skip). A
///    request without a key is rejected with 400 by default; see [`on_missing_key`](Self::on_missing_key).
///    If the server is misconfigured, so that no request has a key, all requests are answered 500.
/// 2. **Check.** The layer checks the [cost](Self::cost) against its quotas, or against the quotas [of the
///    key](Self::quotas_for), and against the quotas of [other keys](Self::and). If all quotas admit it, it is
///    charged to all of them. If the store fails, the [failure policy](Self::on_failure) decides: by default,
///    with the counts of this process.
/// 3. **Admitted.** The service gets the request with a [`DecisionView`](crate::DecisionView) in its
///    extensions. The layer adds headers to the response and changes nothing else. The charge may be adjusted
///    to the actual cost: from the [response](Self::settle), or by the [handler](Self::reserve).
/// 4. **Rejected.** The response has a [`Rejection`](crate::Rejection) in its extensions, for outer layers. A
///    [dry run](Self::dry_run) rejects nothing.
///
/// Clones are cheap, and all clones share their counts. So axum may clone the layer and its services freely.
///
/// # Where to add it
///
/// - [`Router::layer`](axum::Router::layer) limits the fallback and all routes that were added before. On a nested
///   router, it limits unknown paths only if that router has a `fallback` of its own.
/// - [`Router::route_layer`](axum::Router::route_layer) does not limit requests that match no route.
/// - `get(handler).layer(..)` limits one route. For several layers on one route, pass a tuple,
///   `get(handler).layer((outer, inner))`, or a `tower::ServiceBuilder`: for `.layer(..).layer(..)`, Rust cannot
///   infer the error type in between.
/// - [`disable`](Self::disable) switches a layer off, in place of tower's `option_layer`.
/// - Around a whole `Router` that is passed to `axum::serve`, add
///   `map_response(|r| r.map(axum::body::Body::new))` as the outer layer.
///
/// [Placement](crate::guide::placement) in the guide shows a whole stack, with the reasons.
#[derive(Clone, Debug)]
#[doc(alias("throttle"))]
#[must_use = "a layer limits nothing until it is added to a service"]
pub struct RateLimitLayer {
    config: Arc<LayerConfig>,
}

impl RateLimitLayer {
    /// Creates a layer with the default settings of its methods: each request costs one unit, and is
    /// counted by the [address](crate::key::peer_ip) at the other end of its connection.
    ///
    /// `store` is a [`RedisStore`](crate::RedisStore), a [`MemoryStore`](crate::MemoryStore) or your own
    /// [`Store`]. `quotas` is one [`Quota`](crate::Quota) or a list of them. A request is admitted if all
    /// of them admit it. An empty list admits everything.
    pub fn new(store: impl Store, quotas: impl IntoQuotas) -> Self {
        Self::from(RateLimiter::new(store, quotas))
    }

    /// Creates a layer as [`new`](Self::new) does, from quotas that may be text, such as a setting.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is malformed, or if there is no quota.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{MemoryStore, RateLimitLayer};
    ///
    /// let setting = std::env::var("RATE_LIMIT").unwrap_or("100/minute".into());
    /// let layer = RateLimitLayer::try_new(MemoryStore::new(), setting)?;
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn try_new(
        store: impl Store,
        quotas: impl TryInto<Quotas, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Ok(Self::from(RateLimiter::try_new(store, quotas)?))
    }

    /// Switches the layer off: it passes every request on.
    ///
    /// It then extracts no key, does not ask its store, and adds no headers.
    ///
    /// Use it in place of `tower::util::option_layer` and `ServiceBuilder::option_layer`. These do not compile
    /// (E0271: type mismatch of `ResponseBody`), because the response body has different types with and without the
    /// layer.
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::{Router, routing::get};
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer};
    ///
    /// let is_production = std::env::var("APP_ENV").is_ok_and(|name| name == "production");
    ///
    /// let limit = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100));
    /// let limit = if is_production { limit } else { limit.disable() };
    /// let app: Router = Router::new().route("/", get(|| async { "ok" })).layer(limit);
    /// ```
    pub fn disable(self) -> Self {
        self.with(|config| config.enabled = false)
    }

    /// Sets the name of the limiter, which is a part of each stored key. The default is `default`.
    ///
    /// Layers with the same store and name share their counts, so give each separate limit its own name. If two
    /// nested layers have the same store, name and key, a request may be charged twice to the same count.
    ///
    /// Two layers of one store that keep the default name are logged once, unless they are clones or
    /// [have one limiter](Self::from).
    ///
    /// Clients may see the name, as the name of a policy in the [headers](crate::Headers), unless the limit is
    /// [hidden](Self::hidden).
    pub fn name(self, name: impl AsRef<str>) -> Self {
        self.level(|level| level.with_limiter(|limiter| limiter.name(name)))
    }

    /// Sets the extractor of the key, which decides who shares a count. The default is
    /// [`peer_ip`](crate::key::peer_ip), the address at the other end of the connection.
    ///
    /// A closure alone is not an extractor: write `.key(key::from_fn(|parts| ..))`. The module [`key`](mod@crate::key)
    /// lists the extractors, and [Keys](crate::guide::keys) in the guide helps to choose one.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
    ///
    /// let by_client = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60))
    ///     .key(key::client_ip().behind(["10.0.0.0/8"]));
    /// ```
    pub fn key(self, key: impl KeyExtractor) -> Self {
        self.level(|level| level.key(key))
    }

    /// Sets the function that computes the cost of a request from its head. The default is one unit.
    ///
    /// - A request of cost 0 is not charged. It passes even if more units are used than the limit, but not if the limit is
    ///   0 or the key is blocked. It takes its slots [in flight](crate::Quota::in_flight).
    /// - A request with a cost above a limit is refused without a `Retry-After`, since no wait helps, unless the layer
    ///   [clamps](Self::clamp_cost) it.
    /// - A log charges at most 100 000 units at once. A request with a higher cost is answered 500, and one
    ///   log line says so.
    ///
    /// **Compute the cost from the route, not from the path.** The closure sees the path as the client
    /// spelled it. For example, axum routes `/search/export` and `/search/%65xport` to the same handler, but
    /// `ends_with("/export")` is true only for the first. Give expensive handlers their own route and layer,
    /// or read axum's `MatchedPath` from the extensions. The same holds for the query. In a
    /// [nested](axum::Router::nest) router, the path also lacks the prefix; axum's `OriginalUri` has it.
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
    #[doc(alias("weight", "tokens"))]
    pub fn cost(self, cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.level(|level| level.cost(cost))
    }

    /// Lowers a cost that the quotas can never admit to the highest cost that they can. By default, such a request is refused.
    ///
    /// Use it if the cost is an estimate, and plans differ: [`cost`](Self::cost) does not know the plan. Without it, a tenant
    /// with a limit of 500 is refused for ever if each request reserves 1 000.
    ///
    /// - The cost is at most the lowest limit of the quotas that decide: of the [plan](Self::quotas_for), or of the
    ///   [fallback](FailurePolicy::replicas). [Soft](crate::Quota::soft) quotas and slots bound no cost.
    /// - It is also at most what the [share](Self::share) of the request can use, and the highest cost of the algorithm.
    /// - It is never lowered below 1. A limit of 0 refuses it.
    /// - A cost of the whole limit [needs an empty window](crate::guide::costs#costs-known-later).
    /// - It applies to the layer's own limit. For another level, call [`Level::clamp_cost`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(500))
    ///     .cost(|_| 1_000)
    ///     .clamp_cost()
    ///     .reserve();
    /// ```
    pub fn clamp_cost(self) -> Self {
        self.level(Level::clamp_cost)
    }

    /// Sets the function that tells which [share](crate::Quota::shares) of the layer's quotas a request belongs to. By
    /// default, requests belong to none.
    ///
    /// `None`, and a name that no quota has, leave a request without a share. Derive the share from what a client cannot
    /// choose, such as the route or its verified token: a client that may name its share may take the reserve of others.
    ///
    /// The name is a literal, or text that the function owns. It cannot be borrowed from the request: `.to_owned()`.
    ///
    /// Each [level](crate::Level::share) has a function of its own.
    ///
    /// # Examples
    ///
    /// A fifth of the limit is kept for requests that read:
    ///
    /// ```
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer, Share, key};
    ///
    /// let quota = Quota::per_minute(1_000).shares([Share::of("reads").reserve(200)]);
    /// let layer = RateLimitLayer::new(MemoryStore::new(), quota)
    ///     .key(key::header("x-api-key"))
    ///     .share(|parts| parts.method.is_safe().then_some("reads"));
    /// ```
    pub fn share<N: AsRef<str>>(
        self,
        share: impl Fn(&Parts) -> Option<N> + Send + Sync + 'static,
    ) -> Self {
        self.level(|level| level.share(share))
    }

    /// Sets how many slots a request of any cost takes of each quota [in flight](crate::Quota::in_flight). The
    /// default is 1.
    ///
    /// A request holds its slots until its response body ends, fails or is dropped, or until the service fails. A response
    /// without a body gives them back with its head: to HEAD and CONNECT, and with the status 101, 204, 205 or 304. A handler whose
    /// work goes on takes the permit by its [`PermitHandle`](crate::PermitHandle).
    ///
    /// # Examples
    ///
    /// At most five streams of each user at the same time, over all replicas:
    ///
    /// ```
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
    ///
    /// let quotas = [Quota::per_minute(600), Quota::in_flight(5)];
    /// let streams = RateLimitLayer::new(MemoryStore::new(), quotas).key(key::header("x-api-key"));
    /// ```
    pub fn slots(self, slots: u32) -> Self {
        self.level(|level| level.slots(slots))
    }

    /// Adds a limit with its own key, which must admit each request too: the tenant's, or the limit of the whole
    /// service.
    ///
    /// All limits of the layer are checked together. A request is charged to all of them, or to none, and with
    /// Redis it takes one round trip. The limiter needs the same store as the layer. A request costs there what
    /// it costs at this layer; for a limit with another cost, with plans or with another treatment of missing
    /// keys, use [`and_level`](Self::and_level).
    ///
    /// - Each limiter has its own name. By default it has the failure policy of this layer.
    /// - The other settings of the layer, such as [`name`](Self::name), [`key`](Self::key) and
    ///   [`quotas_for`](Self::quotas_for), apply to its own limit.
    /// - The [`Rejection`](crate::Rejection), the metrics and the log name the limiter that refused.
    /// - [Blocking](crate::Admin::block) a key of one limiter blocks it there.
    ///
    /// [Users, tenants and the whole service](crate::guide::levels) in the guide compares it with nested
    /// layers.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer, RateLimiter, key};
    ///
    /// let store = MemoryStore::new();
    /// let tenant = RateLimiter::new(store.clone(), Quota::per_minute(1_000)).name("tenant");
    /// let service = RateLimiter::new(store.clone(), Quota::per_second(20_000)).name("service");
    ///
    /// let layer = RateLimitLayer::new(store, Quota::per_minute(60))
    ///     .name("user")
    ///     .key(key::header("x-api-key"))
    ///     .and(tenant, key::header("x-tenant-id"))
    ///     .and(service, key::global());
    /// ```
    pub fn and(self, limiter: RateLimiter, key: impl KeyExtractor) -> Self {
        self.and_level(Level::new(limiter, key))
    }

    /// Adds a limit, as [`and`](Self::and) does, with its own cost, plans, treatment of missing keys or
    /// settlement: see [`Level`].
    pub fn and_level(self, level: Level) -> Self {
        self.with(|config| config.add(level))
    }

    /// Exempts the requests for which `skip` returns `true` from all levels of the layer, such as health checks or
    /// [CORS preflights](crate::cors::is_preflight). To leave out one level only, use [`Level::skip`].
    ///
    /// `skip` is called before the key is extracted. A skipped request is not counted. Its extensions have no
    /// decision, and its response no headers of the limit.
    ///
    /// In a router that is [nested](axum::Router::nest) at `/api`, the path of `/api/healthz` is `/healthz`. axum's
    /// `OriginalUri` in the extensions has the whole path.
    ///
    /// Do not skip by a header, which anyone can send. To exempt a network behind a proxy, ask
    /// [`client_ip`](crate::key::client_ip()) for the [address](crate::key::CheckedClientIp::address) of the client, as [in
    /// the cookbook](crate::guide::cookbook#an-exempt-network).
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60))
    ///     .skip(|parts| parts.uri.path() == "/healthz");
    /// ```
    #[doc(alias("exempt", "allow_list", "whitelist"))]
    pub fn skip(self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|config| config.skip = Skip::new(skip))
    }

    /// Sets how the layer treats requests without a key. By default, it rejects them with 400.
    pub fn on_missing_key(self, then: MissingKey) -> Self {
        self.level(|level| level.on_missing_key(then))
    }

    /// Sets the function that looks up the quotas of each key, such as the plan of a tenant.
    ///
    /// It is called for each request, so look up the plan in a cache rather than in a database. Its future
    /// returns anything that converts into a [`Plan`](crate::Plan): quotas, `None` for the quotas of the
    /// layer, or an exemption of the key.
    ///
    /// If it returns an error, the layer applies its [failure policy](Self::on_failure) with its own quotas,
    /// as if the store had failed. So do not return an error that a client can cause. For an unknown or
    /// malformed tenant, return [`Plan::Default`](crate::Plan::Default). The layer sets no deadline: add a
    /// timeout if the lookup calls another service.
    ///
    /// **It is a closure that returns a future, not an async closure.** `async |key, parts| ..` does not compile
    /// (E0308: one type is more general than the other): its future would borrow the key and the request, which do not
    /// live as long. Clone or read what the lookup needs, then return an `async move` block, as below.
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
        self.level(|level| level.quotas_for(quotas))
    }

    /// Delays refused requests until units are available, for at most `max_wait`, instead of rejecting them.
    ///
    /// For requests to an upstream, use [`OutboundLayer`](crate::OutboundLayer): it waits and obeys the upstream's
    /// answers. In front of a server, reject instead: a waiting request holds memory and a connection, and its client
    /// may have disconnected.
    ///
    /// - A request that needs a longer wait is rejected at once. `max_wait` counts from the call of the service. A
    ///   check that is under way when it ends has the [deadline](crate::RedisStore::deadline) of the store, 100 ms by
    ///   default: the answer may come that much later. A check that first reads the paused keys, as in an
    ///   [`OutboundLayer`](RateLimiter::pause), may take two deadlines.
    /// - A waiting request is checked again after its `retry_after`, and at least once per second, since units
    ///   may be refunded.
    /// - The requests of a process that wait for a key are admitted in the [order](crate::RateLimiter::until_ready) of
    ///   their arrival. One whose turn would certainly come too late is rejected at once.
    /// - While a request waits, it holds what the inner service has reserved for it, such as a permit of
    ///   tower's `ConcurrencyLimit`.
    ///
    /// Waiting needs a tokio runtime with timers. The response future panics if it has to wait without one.
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

    /// Adjusts the charge of a request to the actual cost, which `settle` computes from the response.
    ///
    /// `settle` gets the decision, the head of the response, and the [`SizeHint`] of its body. It returns the
    /// actual cost in units. A lower cost than the charge refunds the difference, and 0 refunds all of it. A
    /// higher cost charges the difference, [also beyond the limit](crate::guide::costs#usage-beyond-a-limit).
    ///
    /// - The settlement runs in the background, so the response does not wait for it. The headers of the
    ///   response report the state before the settlement.
    /// - The charge stays if the settlement fails. It also stays if there is no response, because the service
    ///   failed or the client disconnected.
    /// - A request of [cost](Self::cost) 0 has no charge to settle, and passes any limit but 0. Charge at least one
    ///   unit before the call.
    /// - If the cost follows from the content of the response, let the [handler](Self::reserve) settle. If
    ///   both do, the first settlement counts.
    ///
    /// **Recognize a rejection by its [`Rejection`], not by its status.** Each rejection of an inner layer has
    /// one in the extensions of the response. Its status can be anything, even 200, because of
    /// [`status`](Self::status), a [`responder`](Self::responder) or [`grpc`](Self::grpc). A closure that
    /// treats such a response as a success refunds every rejected attempt.
    ///
    /// **Charge by the size, not by `Content-Length`.** hyper and axum add that header outside of all layers,
    /// so it is missing here. The size is the [`size_hint`](http_body::Body::size_hint) of the body at this
    /// layer, and 0 for a HEAD request. It is exact for a `String` or `Bytes`, and unknown for a stream or for
    /// a body that an inner layer compresses. With an outer compression layer, it is the uncompressed size.
    ///
    /// # Examples
    ///
    /// A login limit that counts only failures:
    ///
    /// ```
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer, Rejection};
    ///
    /// let login = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(5))
    ///     .name("login")
    ///     .settle(|_, head, _| {
    ///         let is_rejected = head.extensions.get::<Rejection>().is_some();
    ///         u32::from(is_rejected || head.status.is_client_error())
    ///     });
    /// ```
    ///
    /// Downloads are charged by the KiB. 64 units are charged first, and they stay if the size is unknown. Each
    /// request costs at least 1: a HEAD request, a 304 and an empty answer have no body, and at 0 units a client
    /// could send any number of them:
    ///
    /// ```
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer};
    ///
    /// let downloads = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(100_000))
    ///     .name("kilobytes")
    ///     .cost(|_| 64)
    ///     .settle(|decision, _, size| match size.exact() {
    ///         Some(bytes) => u32::try_from(bytes.div_ceil(1_024).max(1)).unwrap_or(u32::MAX),
    ///         None => decision.cost(),
    ///     });
    /// ```
    pub fn settle<F>(self, settle: F) -> Self
    where
        F: Fn(&DecisionView, &response::Parts, SizeHint) -> u32 + Send + Sync + 'static,
    {
        self.level(|level| level.settle(settle))
    }

    /// Inserts a [`Reservation`](crate::Reservation) into the extensions of each request that passes, so that
    /// the handler can settle the actual cost.
    ///
    /// Use it if the cost is known only in the handler, or during a streamed response. If the cost follows
    /// from the head of the response, [`settle`](Self::settle) is simpler.
    pub fn reserve(self) -> Self {
        self.with(|config| config.reserves = true)
    }

    /// Sets the policy that decides requests while the store fails. The default is
    /// [`FailurePolicy::fall_back`]: the counts of this process decide.
    ///
    /// It also applies to the limiters that were [added](Self::and) without a policy of their own.
    #[doc(alias("fail_open", "fail_closed", "fallback"))]
    pub fn on_failure(self, policy: FailurePolicy) -> Self {
        self.with(|config| config.set_failure_policy(policy))
    }

    /// Lets this process take units of busy keys in advance, and admit requests from memory. By default, each
    /// request asks the store.
    ///
    /// **The limit is never exceeded**, but a key that uses its whole limit gets `limit / (window + lease)`. See
    /// [`RateLimiter::lease`] and [the guide](crate::guide::leases). At the end of a graceful shutdown, call
    /// `layer.limiter().release().await`, as [here](crate::guide::deployment#shutdown).
    ///
    /// `lease` is cut to a tenth of the shortest window, also of the quotas that
    /// [`quotas_for`](Self::quotas_for) returns. It applies to the first level. Limiters that are
    /// [added](Self::and) have leases of their own.
    pub fn lease(self, lease: Duration) -> Self {
        self.level(|level| level.with_limiter(|limiter| limiter.lease(lease)))
    }

    /// Holds the cost of each request until its response body ends, in place of charging it: what was not used returns, also if
    /// the process is killed. By default, the cost is charged, and what is not settled counts until its window ends.
    ///
    /// For streams that count against a budget, such as the tokens of a month. With [`reserve`](Self::reserve), the handler
    /// gets a [`Reservation`](crate::Reservation), and [adds](crate::Reservation::add) what it uses. If it never says a word,
    /// all of the cost is charged. See [`RateLimiter::reserve_lease`], which has the table of events, and
    /// [the guide](crate::guide::costs#charge-reserve-or-hold).
    ///
    /// `lease` is from 5 seconds to 10 minutes. It applies to the first level. Limiters that are [added](Self::and) have
    /// leases of their own.
    ///
    /// # Panics
    ///
    /// Panics if the lease is out of range.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer};
    ///
    /// let tokens = RateLimitLayer::new(MemoryStore::new(), Quota::total(50_000_000, Duration::from_secs(86_400)))
    ///     .name("tokens")
    ///     .cost(|_| 4_000)
    ///     .reserve_lease(Duration::from_secs(15))
    ///     .reserve();
    /// ```
    pub fn reserve_lease(self, lease: Duration) -> Self {
        self.level(|level| level.with_limiter(|limiter| limiter.reserve_lease(lease)))
    }

    /// Blocks keys that are refused too often, for longer each time. By default, only operators block keys.
    ///
    /// See [`BlockRule`] for the rule, and [the guide](crate::guide::security#growing-blocks) for the choice of the key:
    /// a block by address locks out everyone who shares the address. To see who would be blocked, run the layer as a
    /// [dry run](Self::dry_run) first, and watch the [top rejected keys](Self::track_rejected_keys). Refusals of a dry run do not count.
    ///
    /// It applies to the first level. Limiters that are [added](Self::and) have
    /// [rules of their own](RateLimiter::block_after).
    ///
    /// # Panics
    ///
    /// Panics if a value of the rule is out of range. For a rule from outside the program, call
    /// [`BlockRule::validated`](crate::BlockRule::validated) first.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{BlockRule, MemoryStore, Quota, RateLimitLayer, key};
    ///
    /// const HOUR: Duration = Duration::from_secs(3_600);
    ///
    /// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60))
    ///     .key(key::header("x-api-key"))
    ///     .block_after(BlockRule::refusals(600).block_for(HOUR).doubling().max_block(24 * HOUR));
    /// ```
    #[doc(alias("ban", "blocklist", "penalty"))]
    pub fn block_after(self, rule: BlockRule) -> Self {
        self.level(|level| level.with_limiter(|limiter| limiter.block_after(rule)))
    }

    /// Sets the headers that report the limit to clients. The default is `X-RateLimit-*`; see [`Headers`].
    pub fn headers(self, headers: Headers) -> Self {
        self.with(|config| config.headers = headers)
    }

    /// Hides the layer's own limit from clients: no response tells its name or its numbers. Other
    /// [levels](Self::and_level) stay visible.
    ///
    /// Use it for a limit that is not the client's own, such as the capacity of the whole service. A refusal tells its wait,
    /// and nothing else tells of it; see [`Level::hidden`]. In nested layers, a hidden limit neither adds nor
    /// replaces a header, whether it is the inner or the outer one; only the `Retry-After` and the resets of a 429 may be longer.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
    ///
    /// let service = RateLimitLayer::new(MemoryStore::new(), Quota::per_second(20_000))
    ///     .name("service")
    ///     .key(key::global())
    ///     .hidden();
    /// ```
    pub fn hidden(self) -> Self {
        self.level(Level::hidden)
    }

    /// Sets the status of the response to a refused request. The default is 429.
    ///
    /// Rejections for other reasons keep their status: see [`Rejection::status`]. With `StatusCode::OK`, a GraphQL
    /// service can put the refusal into the `errors` of its [body](Self::responder).
    pub fn status(self, status: StatusCode) -> Self {
        self.with(|config| config.status = status)
    }

    /// Sets the function that creates the response to a rejected request. By default, the body is a short text
    /// such as `rate limit exceeded`.
    ///
    /// **It answers every rejection, not only refusals.** A request without a key (400), a store that failed (503) and
    /// a misconfigured server (500) are rejected, too: [`Rejection::reason`] is the reason, and the rejection's
    /// `Display` is a text for clients. Return an `Option` to answer only some of them: `None` leaves the rejection to
    /// the default.
    ///
    /// It returns an [`http::Response`] with a text or bytes as its body or, with the feature `axum-08`, anything
    /// that implements axum's `IntoResponse`, such as a text, `Json(..)` or your own error type.
    ///
    /// **A response of status 200 gets the [status](Rejection::status) of the rejection**, such as 429: it is the
    /// status of a response that sets none, and clients would take it for a success. Any other status stays, as in
    /// `(StatusCode::FORBIDDEN, "slow down")`. To answer refused requests with 200, set
    /// [`status(StatusCode::OK)`](Self::status). A response with a header `grpc-status` also stays 200.
    ///
    /// The layer adds `Retry-After` and `Cache-Control: no-store` if they are missing, and the
    /// [headers](Self::headers) of the limit. For problem details, use [`problem_json`](crate::problem_json()). The
    /// function is not called for gRPC calls that [`grpc`](Self::grpc) answers.
    ///
    /// The body has to be in memory, as a text or `Json` is. A stream is left out, and one log line says
    /// so.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Response;
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60))
    ///     .responder(|rejection| Response::new(format!("{}: {rejection}\n", rejection.limiter())));
    /// ```
    ///
    /// Refusals only:
    ///
    /// ```
    /// use http::Response;
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer, RejectionReason};
    ///
    /// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60)).responder(|rejection| {
    ///     match rejection.reason() {
    ///         RejectionReason::Refused(decision) => {
    ///             Some(Response::new(format!("at most {} requests per minute\n", decision.limit())))
    ///         }
    ///         _ => None,
    ///     }
    /// });
    /// ```
    ///
    /// In axum:
    ///
    /// ```
    /// # #[cfg(feature = "axum-08")] {
    /// use axum::Json;
    /// use serde::Serialize;
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer, RejectionReason};
    ///
    /// #[derive(Serialize)]
    /// struct ApiError {
    ///     code: &'static str,
    ///     message: String,
    ///     retry_in: Option<f64>,
    /// }
    ///
    /// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60)).responder(|rejection| {
    ///     let code = match rejection.reason() {
    ///         RejectionReason::Refused(_) => "rate_limited",
    ///         RejectionReason::NoKey(_) if rejection.status() == 400 => "unidentified",
    ///         _ => "unavailable",
    ///     };
    ///     let retry_in = rejection.retry_after().map(|wait| wait.as_secs_f64());
    ///     Json(ApiError { code, message: rejection.to_string(), retry_in })
    /// });
    /// # }
    /// ```
    #[doc(alias("on_limit", "error_handler"))]
    pub fn responder<F, R, Form>(self, responder: F) -> Self
    where
        F: Fn(&Rejection) -> R + Send + Sync + 'static,
        R: RejectionResponse<Form>,
    {
        self.with(|config| {
            config.responder = Arc::new(move |rejection: &Rejection| {
                let response = responder(rejection).into_rejection_response();
                response.unwrap_or_else(|| plain_text()(rejection))
            });
        })
    }

    /// Rejects gRPC calls with a gRPC status: the response has HTTP status 200, no body, and `grpc-status` in
    /// its headers.
    ///
    /// Use it for routes that serve only gRPC, such as a tonic server's. Without it, a gRPC client
    /// maps the 429 to `UNAVAILABLE`, and many clients retry that at once.
    ///
    /// It is off by default, because any client can send `content-type: application/grpc`. On a REST route,
    /// its 429 would become a 200, and logs, metrics and outer layers would count it as a success.
    ///
    /// A gRPC call is a POST with the content type `application/grpc`, `application/grpc-web` or
    /// `application/grpc-web-text`. The rejection has the same content type, and ignores the
    /// [responder](Self::responder) and the [status](Self::status). Other requests get the usual rejection.
    /// [Clients](crate::guide::clients) in the guide shows the headers.
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

    /// Leaves out the `Connection: close` of rejected HTTP/1 uploads.
    ///
    /// A rejection does not read the request body, so an HTTP/1 server has to close the connection. hyper does
    /// this without an announcement, and then the next request of the client on that connection fails with a
    /// broken pipe. Therefore the layer adds the header to the rejection of each HTTP/1 request that has a
    /// `Transfer-Encoding` or a `Content-Length` above 0. HTTP/2 and HTTP/3 end only the stream, so they never
    /// get it.
    ///
    /// Leave it out
    ///
    /// - behind a proxy that sends each request in one piece: it would have to reconnect after each rejected
    ///   upload. [Placement](crate::guide::placement) in the guide has measurements with nginx;
    /// - inside of a layer that has already read the body.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer};
    ///
    /// let behind_nginx = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60))
    ///     .without_connection_close();
    /// ```
    pub fn without_connection_close(self) -> Self {
        self.with(|config| config.closes_rejected_uploads = false)
    }

    /// Makes the layer a dry run, which counts requests but rejects none, to try out a limit.
    ///
    /// It reports the requests that it would have rejected:
    ///
    /// - in the log: one line with their number, at most every ten seconds. With level `debug`, there is one
    ///   line for each of them;
    /// - to handlers: the refused [`DecisionView`], in the extensions of the request;
    /// - to outer layers: a [`WouldReject`](crate::WouldReject), in the extensions of the response.
    ///
    /// Clients see nothing, not even the headers of the limit. No request [waits](Self::wait_up_to), and
    /// [blocked](crate::Admin::block) keys pass, too.
    ///
    /// # Examples
    ///
    /// A header of your choice shows who would have been rejected:
    ///
    /// ```
    /// use axum::response::Response;
    /// use axum::{Router, middleware, routing::get};
    /// use http::HeaderValue;
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer, WouldReject};
    ///
    /// async fn show(mut response: Response) -> Response {
    ///     if response.extensions().get::<WouldReject>().is_some() {
    ///         response.headers_mut().insert("x-would-reject", HeaderValue::from_static("search"));
    ///     }
    ///     response
    /// }
    ///
    /// let limit = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(30)).name("search");
    /// let app: Router = Router::new()
    ///     .route("/search", get(|| async { "found" }))
    ///     .layer(limit.dry_run())
    ///     .layer(middleware::map_response(show));
    /// ```
    #[doc(alias("shadow", "report_only", "log_only"))]
    pub fn dry_run(self) -> Self {
        self.with(|config| config.is_dry_run = true)
    }

    /// Tracks the keys that this process refuses most often; see [`RateLimiter::track_rejected_keys`].
    pub fn track_rejected_keys(self, keys: NonZeroUsize) -> Self {
        self.level(|level| level.with_limiter(|limiter| limiter.track_rejected_keys(keys)))
    }

    /// Returns the limiter of this layer, to [inspect or block](crate::Admin) its keys, or to count jobs
    /// together with requests.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.config.first.limiter
    }

    /// Returns the limiters of all levels: first this layer's own, then those that were [added](Self::and).
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer, RateLimiter, key};
    ///
    /// let store = MemoryStore::new();
    /// let service = RateLimiter::new(store.clone(), Quota::per_second(20_000)).name("service");
    /// let layer = RateLimitLayer::new(store, Quota::per_minute(60)).and(service, key::global());
    ///
    /// let admins: Vec<_> = layer.limiters().map(|limiter| limiter.admin()).collect();
    /// assert_eq!(admins.len(), 2);
    /// ```
    pub fn limiters(&self) -> impl Iterator<Item = &RateLimiter> {
        self.config.levels().map(|level| &level.limiter)
    }

    /// Lets the responses of an upstream pause keys.
    /// Counts the first of these keys that has room, which nothing waits for.
    pub(super) fn pool(self, keys: Vec<Key>) -> Self {
        self.with(|config| {
            config.pool = Some(keys);
            config.max_wait = Duration::ZERO;
        })
    }

    pub(super) fn observing(self) -> Self {
        self.limiter().0.pauses.need_fresh_list();
        self.with(|config| config.observer = Some(Arc::default()))
    }

    pub(super) fn observe_by(self, change: impl FnOnce(&mut Observer)) -> Self {
        self.with(|config| change(Arc::make_mut(config.observer.get_or_insert_default())))
    }

    fn level(self, change: impl FnOnce(Level) -> Level) -> Self {
        self.with(|config| config.first = change(config.first.clone()))
    }

    fn with(mut self, change: impl FnOnce(&mut LayerConfig)) -> Self {
        Arc::make_mut(&mut self.config).update(change);
        self
    }
}

/// Creates a layer from a limiter, so that requests and jobs share their counts.
///
/// A job passes the same key as the layer: create it with the method `of` of the
/// [extractor](mod@crate::key). If the limiter has no failure policy, the layer
/// [falls back](FailurePolicy::fall_back) to the counts of this process. Requests
/// [wait](RateLimitLayer::wait_up_to) for the [`max_wait`](RateLimiter::max_wait) of the limiter, if it was set, and
/// its [`queue`](RateLimiter::queue) bounds how many.
impl From<RateLimiter> for RateLimitLayer {
    fn from(mut limiter: RateLimiter) -> Self {
        if limiter.policy().is_none() {
            limiter = limiter.on_failure(FailurePolicy::fall_back());
        }
        Self {
            config: Arc::new(LayerConfig::new(limiter)),
        }
    }
}

impl<S: CloneService> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        if self.config.enabled {
            for level in self.config.levels() {
                level.limiter.warn_about_conflict(Some(level.key_type));
                level.report_config_error(self.config.is_dry_run);
            }
        }
        RateLimit::new(inner, Arc::clone(&self.config))
    }
}
