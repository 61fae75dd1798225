//! One level of a layer: a limiter, and how it reads the key, the cost and the quotas from a request.

use std::any::type_name_of_val;
use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use http::request::Parts;
use http::response;
use http_body::SizeHint;

use super::diagnostics::LevelDiagnostics;
use super::skip::Skip;
use crate::error::{Error, ErrorKind, warning};
use crate::key::{Key, KeyError, KeyExtractor};
use crate::limiter::{DecisionView, RateLimiter};
use crate::quota::{IntoPlan, Plan, ShareId};

/// A limit of a layer with several limits: a limiter, a key, and optionally a cost, plans and a settlement.
///
/// [`RateLimitLayer::and_level`](crate::RateLimitLayer::and_level) adds it to a layer. All levels of a layer
/// are checked together: a request is charged to all of them, or to none.
///
/// For a level with only a limiter and a key, [`RateLimitLayer::and`](crate::RateLimitLayer::and) is shorter.
/// The guide's page [levels](crate::guide::levels) has whole layers.
///
/// # Examples
///
/// Each user may send 60 requests per minute, and each tenant may use 100 000 tokens per minute. The tenant
/// is charged the tokens that the client asks for:
///
/// ```
/// use tollgate::{Algorithm, Level, MemoryStore, Quota, RateLimitLayer, RateLimiter, key};
///
/// let store = MemoryStore::new();
/// let per_minute = Quota::per_minute(100_000).with_algorithm(Algorithm::SlidingBuckets(60));
/// let tokens = RateLimiter::new(store.clone(), per_minute).name("tokens");
///
/// let layer = RateLimitLayer::new(store, Quota::per_minute(60))
///     .name("user")
///     .key(key::header("x-api-key"))
///     .and_level(Level::new(tokens, key::header("x-tenant-id")).cost(|parts| {
///         let asked = parts.headers.get("x-max-tokens");
///         asked.and_then(|asked| asked.to_str().ok()?.parse().ok()).unwrap_or(1_000)
///     }));
/// ```
#[derive(Clone)]
#[must_use = "a level limits nothing until it is added to a layer"]
pub struct Level {
    pub(super) limiter: RateLimiter,
    /// Whether the limiter has the failure policy of the layer.
    pub(super) inherits_policy: bool,
    pub(super) key: Arc<dyn KeyExtractor>,
    /// The type of the extractor.
    pub(super) key_type: &'static str,
    pub(super) on_missing_key: MissingKey,
    /// Leaves this level out.
    pub(super) skip: Skip,
    /// The slots that a request takes of quotas in flight.
    pub(super) slots: u32,
    /// `None` for the cost of the layer.
    pub(super) cost: Option<Arc<CostFn>>,
    /// Whether the cost is at most what the quotas can admit.
    pub(super) clamps_cost: bool,
    pub(super) share: Option<Arc<ShareFn>>,
    pub(super) plan_lookup: Option<Arc<PlanLookup>>,
    pub(super) settle: Option<Arc<SettleFn>>,
    /// Whether no response tells the name and the numbers of this level.
    pub(super) is_hidden: bool,
    pub(super) diagnostics: Arc<LevelDiagnostics>,
}

type CostFn = dyn Fn(&Parts) -> u32 + Send + Sync;
type ShareFn = dyn Fn(&Parts) -> Option<ShareId> + Send + Sync;
type SettleFn = dyn Fn(&DecisionView, &response::Parts, SizeHint) -> u32 + Send + Sync;

/// The treatment of a request without a key; see
/// [`RateLimitLayer::on_missing_key`](crate::RateLimitLayer::on_missing_key).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// Rejects the request with 400, and names the missing part. It is the default, because otherwise a
    /// client could omit the key to avoid the limit.
    #[default]
    Reject,
    /// Leaves the limit out for this request. If a layer has no other limit, the request passes uncounted, and
    /// its extensions have no [`DecisionView`](crate::DecisionView). Use it only if another limit counts such
    /// requests.
    Exempt,
}

impl Level {
    /// Creates a level of a limiter and the extractor of its key.
    ///
    /// The limiter needs the same store as the layer. If it has no failure policy, it has the layer's.
    /// Without [`cost`](Self::cost), the level costs what the layer costs.
    pub fn new(limiter: RateLimiter, key: impl KeyExtractor) -> Self {
        Self {
            limiter,
            inherits_policy: false,
            key_type: type_name_of_val(&key),
            key: Arc::new(key),
            on_missing_key: MissingKey::default(),
            skip: Skip::default(),
            slots: 1,
            cost: None,
            clamps_cost: false,
            share: None,
            plan_lookup: None,
            settle: None,
            is_hidden: false,
            diagnostics: Arc::default(),
        }
    }

    /// Sets the function that computes the cost at this level, as
    /// [`RateLimitLayer::cost`](crate::RateLimitLayer::cost) does for the layer.
    ///
    /// Such a level is settled on its own: by its [`settle`](Self::settle), or by
    /// [`Reservation::settle_level`](crate::Reservation::settle_level). The layer's
    /// [`settle`](crate::RateLimitLayer::settle) does not apply to it.
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// Lowers a cost that the quotas of this level can never admit to the highest cost that they can, as
    /// [`RateLimitLayer::clamp_cost`](crate::RateLimitLayer::clamp_cost) does for the layer.
    ///
    /// Use it for a level with [plans](Self::quotas_for): the same estimate then fits a small plan and a large one. Each level
    /// is clamped on its own, also if it costs what the layer costs.
    ///
    /// # Examples
    ///
    /// Each request reserves 1 000 tokens. A tenant with 500 tokens per minute reserves 500:
    ///
    /// ```
    /// use tollgate::{Level, MemoryStore, Quota, RateLimiter, key};
    ///
    /// let tokens = RateLimiter::new(MemoryStore::new(), Quota::per_minute(500)).name("tokens");
    /// let level = Level::new(tokens, key::header("x-tenant-id")).cost(|_| 1_000).clamp_cost();
    /// ```
    pub fn clamp_cost(mut self) -> Self {
        self.clamps_cost = true;
        self
    }

    /// Sets the function that tells the [share](crate::Quota::shares) of a request at this level, as
    /// [`RateLimitLayer::share`](crate::RateLimitLayer::share) does for the layer.
    pub fn share<N: AsRef<str>>(
        mut self,
        share: impl Fn(&Parts) -> Option<N> + Send + Sync + 'static,
    ) -> Self {
        self.share = Some(Arc::new(move |parts| {
            share(parts).map(|name| ShareId::of(name.as_ref()))
        }));
        self
    }

    /// Sets how many slots a request of any cost takes of each quota [in flight](crate::Quota::in_flight). The
    /// default is 1.
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// Sets the function that looks up the quotas of each key of this level, as
    /// [`RateLimitLayer::quotas_for`](crate::RateLimitLayer::quotas_for) does for the layer.
    ///
    /// The lookups of all levels run at the same time. [`Plan::Exempt`](crate::Plan::Exempt) leaves only this
    /// level out. If the lookup fails, this level follows the failure policy of its limiter, with the quotas of
    /// the limiter.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Level, MemoryStore, Quota, RateLimiter, key};
    ///
    /// let tenant = RateLimiter::new(MemoryStore::new(), Quota::per_minute(1_000)).name("tenant");
    /// let level = Level::new(tenant, key::header("x-tenant-id")).quotas_for(|key, _parts| {
    ///     let is_acme = *key == key::header("x-tenant-id").of("acme");
    ///     async move { is_acme.then(|| Quota::per_minute(50_000)) }
    /// });
    /// ```
    pub fn quotas_for<F, R>(mut self, quotas: F) -> Self
    where
        F: Fn(&Key, &Parts) -> R + Send + Sync + 'static,
        R: Future<Output: IntoPlan> + Send + 'static,
    {
        self.plan_lookup = Some(Arc::new(move |key: &Key, parts: &Parts| {
            plan_future(quotas(key, parts))
        }));
        self
    }

    /// Sets how this level treats requests without its key. By default, they are rejected with 400.
    ///
    /// [`MissingKey::Exempt`] leaves this level out. The other levels still limit the request.
    pub fn on_missing_key(mut self, then: MissingKey) -> Self {
        self.on_missing_key = then;
        self
    }

    /// Leaves this level out for the requests for which `skip` returns `true`. The other levels still limit them.
    ///
    /// `skip` is called before the key of this level is extracted. If every level is left out, the request passes uncounted.
    /// [`RateLimitLayer::skip`](crate::RateLimitLayer::skip) exempts requests from all levels.
    ///
    /// # Examples
    ///
    /// A limit of its own for exports, beside that of all requests. An export that one of them refuses is charged to neither:
    ///
    /// ```
    /// use tollgate::{Level, MemoryStore, Quota, RateLimitLayer, RateLimiter, key};
    ///
    /// let store = MemoryStore::new();
    /// let exports = RateLimiter::new(store.clone(), Quota::per_hour(10)).name("exports");
    ///
    /// let layer = RateLimitLayer::new(store, Quota::per_minute(600)).name("all").and_level(
    ///     Level::new(exports, key::peer_ip()).skip(|parts| parts.uri.path() != "/export"),
    /// );
    /// ```
    pub fn skip(mut self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.skip = Skip::new(skip);
        self
    }

    /// Adjusts the charge of this level to the actual cost, which `settle` computes from the response, as
    /// [`RateLimitLayer::settle`](crate::RateLimitLayer::settle) does for the layer.
    ///
    /// The decision that `settle` gets has the [`cost`](DecisionView::cost) and the numbers of this level.
    pub fn settle<F>(mut self, settle: F) -> Self
    where
        F: Fn(&DecisionView, &response::Parts, SizeHint) -> u32 + Send + Sync + 'static,
    {
        self.settle = Some(Arc::new(settle));
        self
    }

    /// Hides this level from clients: no response tells its name or its numbers.
    ///
    /// Use it for a limit that is not the client's own, such as the capacity of the whole service: the headers would publish
    /// it, and how much of it others use.
    ///
    /// - The level limits as before. A refusal by it is a 429 with its `Retry-After`, and no reset is earlier. Nothing else
    ///   tells of it.
    /// - The headers of every dialect, the bodies of the crate and the details of gRPC have the visible levels only. So a 429
    ///   by a hidden level may report that units remain.
    /// - Logs, metrics, the [`Rejection`](crate::Rejection) and the [decision](crate::DecisionView) have it, for the service
    ///   itself. A [responder](crate::RateLimitLayer::responder) of your own should leave it out:
    ///   [`LevelDecision::is_hidden`](crate::LevelDecision::is_hidden).
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Level, MemoryStore, Quota, RateLimitLayer, RateLimiter, key};
    ///
    /// let store = MemoryStore::new();
    /// let service = RateLimiter::new(store.clone(), Quota::per_second(20_000)).name("service");
    ///
    /// let layer = RateLimitLayer::new(store, Quota::per_minute(60))
    ///     .name("user")
    ///     .key(key::header("x-api-key"))
    ///     .and_level(Level::new(service, key::global()).hidden());
    /// ```
    pub fn hidden(mut self) -> Self {
        self.is_hidden = true;
        self
    }

    pub(super) fn key(mut self, key: impl KeyExtractor) -> Self {
        self.key_type = type_name_of_val(&key);
        self.key = Arc::new(key);
        self
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.limiter.0.facts.name
    }

    pub(super) fn with_limiter(self, change: impl FnOnce(RateLimiter) -> RateLimiter) -> Self {
        let limiter = change(self.limiter);
        Self { limiter, ..self }
    }

    /// Logs that the extractor is misconfigured. If there is no subscriber yet, the first request logs it: an application may
    /// add its layers before it has a subscriber.
    pub(super) fn report_config_error(&self, is_dry_run: bool) {
        if let Some(error) = self.key.config_error()
            && tracing::enabled!(target: "tollgate::diagnostics", tracing::Level::ERROR)
        {
            self.report_no_key(is_dry_run, &error);
        }
    }

    pub(super) fn report_no_key(&self, is_dry_run: bool, error: &KeyError) {
        let diagnostics = &self.diagnostics.key_misconfigured;
        diagnostics.log(warning::NO_KEY, self.name(), is_dry_run, error);
    }

    /// The key is returned as the extractor returns it: to move a key takes time.
    #[inline]
    pub(super) fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        let extracted = self.key.extract(parts);
        let diagnostics = &self.diagnostics.misconfiguration;
        diagnostics.observe(self.name(), &*self.key, parts, &extracted);
        extracted
    }

    #[inline]
    pub(super) fn request_cost(&self, parts: &Parts, layer_cost: impl FnOnce() -> u32) -> u32 {
        match &self.cost {
            Some(cost) => cost(parts),
            None => layer_cost(),
        }
    }

    pub(super) fn leave_out(&self) {
        self.limiter.0.telemetry.record_exempt();
    }
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Level")
            .field("limiter", &self.limiter)
            .field("slots", &self.slots)
            .field("on_missing_key", &self.on_missing_key)
            .field("clamps_cost", &self.clamps_cost)
            .field("is_hidden", &self.is_hidden)
            .finish_non_exhaustive()
    }
}

/// The closure of [`quotas_for`](crate::RateLimitLayer::quotas_for).
type PlanLookup = dyn Fn(&Key, &Parts) -> PlanFuture + Send + Sync;

pub(super) type PlanFuture = Pin<Box<dyn Future<Output = Result<Plan, Error>> + Send>>;

fn plan_future(lookup: impl Future<Output: IntoPlan> + Send + 'static) -> PlanFuture {
    Box::pin(async { lookup.await.into_plan().map_err(lookup_failed) })
}

fn lookup_failed(error: Box<dyn StdError + Send + Sync>) -> Error {
    // The text of the source is not in the message, because it may contain the key.
    let text = "failed to look up the quotas of a key";
    Error::new(ErrorKind::QuotasUnknown, text).with_boxed_source(error)
}
