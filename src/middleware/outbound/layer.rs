//! The layer around a client: it waits for a turn, sends, and obeys what the upstream says.

use std::time::Duration;

use http::header::HOST;
use http::request::Parts;
use http::response;
use http::uri::Authority;
use tower_layer::Layer;

use crate::key::{IntoKey, Key, KeyExtractor, from_fn, global};
use crate::limiter::{FailurePolicy, RateLimiter};
use crate::middleware::headers::Headers;
use crate::middleware::layer::RateLimitLayer;
use crate::middleware::service::{CloneService, RateLimit};

/// The default of [`OutboundLayer::wait_up_to`].
const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// A tower layer around an HTTP client: all processes stay below the limit of an upstream, and obey when it refuses.
///
/// It is a [`RateLimitLayer`] with other defaults, which also [observes](RateLimiter::observe) the responses:
///
/// 1. A request waits until its key is not paused and every quota admits it, for at most
///    [30 seconds](Self::wait_up_to). The key is the [host](Self::key) of the request.
/// 2. The client sends it. The headers of the response stay as the upstream has written them.
/// 3. If the response tells when to send again, such as a 429 with `Retry-After`, the key is paused until then:
///    in this process at once, in the others within a second. A process that has not asked for a second first
///    [reads](RateLimiter::pause) which keys are paused.
///
/// A request that would have to wait longer is not sent. It is answered at once with a 429, which has a
/// [`Rejection`](crate::Rejection) in its extensions. Nothing is sent twice: retries are the task of another layer,
/// around this one.
///
/// It wraps any service of [`http::Request`] that is `Clone` and answers with an [`http_body::Body`]: the client of
/// hyper-util, a channel of tonic, or reqwest in a `service_fn`. The guide's page
/// [Calling other services](crate::guide::upstreams) has examples.
///
/// # Examples
///
/// ```
/// use tollgate::{MemoryStore, OutboundLayer, Quota, RateLimiter, key};
///
/// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_second(10)).name("upstream");
/// // The upstream counts by the token of the caller.
/// let layer = OutboundLayer::new(limiter).key(key::header("authorization"));
/// ```
#[derive(Clone, Debug)]
#[must_use = "a layer limits nothing until it is added to a service"]
pub struct OutboundLayer(RateLimitLayer);

impl OutboundLayer {
    /// Creates a layer of a limiter. Give it a store that all processes share, and a little less than the limit of
    /// the upstream.
    ///
    /// While the store fails, each process [counts alone](crate::FailurePolicy::fall_back), unless the limiter has
    /// another policy. Keys that this process has paused stay paused.
    ///
    /// If the limiter [waits through outages](RateLimiter::wait_through_outages) and has no policy, a request waits until the
    /// store works again, for at most [`wait_up_to`](Self::wait_up_to): so the limit of the upstream holds over all processes
    /// during the outage, too. When the wait is over, the answer is that of
    /// [`closed`](crate::FailurePolicy::closed), a 503.
    pub fn new(mut limiter: RateLimiter) -> Self {
        if limiter.is_waiting_through_outages() && limiter.policy().is_none() {
            limiter = limiter.on_failure(FailurePolicy::closed());
        }
        let layer = RateLimitLayer::from(limiter).key(from_fn(host));
        Self::from(layer.wait_up_to(DEFAULT_WAIT))
    }

    /// Sends each request by the first of these keys that has room: a pool of credentials of one upstream.
    ///
    /// The limiter counts each key alone. A key that is used up, or that the upstream has paused, is passed over. A 429 pauses
    /// the key that was chosen and no other one. The layers and the client inside find the choice in the extensions of the
    /// request: [`DecisionView::alternative`](crate::DecisionView::alternative) is its index in this list.
    ///
    /// The keys are names, such as `key-1`: they are stored, so do not pass the credentials themselves. A pool has 1 to 8
    /// keys. It replaces the [key](Self::key) of a request, and a [wait](Self::wait_up_to): if all keys refuse, the request is
    /// answered with a 429 at once, with the shortest of their waits. See
    /// [`RateLimiter::check_first`](crate::RateLimiter::check_first) for the rules, and what a limiter cannot have.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{DecisionView, MemoryStore, OutboundLayer, Quota, RateLimiter};
    ///
    /// const TOKENS: [&str; 2] = ["secret-a", "secret-b"];
    ///
    /// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(50)).name("upstream");
    /// let layer = OutboundLayer::new(limiter).first_of(["key-a", "key-b"]);
    ///
    /// /// Called by the client, inside of the layer.
    /// fn token<B>(request: &http::Request<B>) -> Option<&'static str> {
    ///     let decision = request.extensions().get::<DecisionView>()?;
    ///     TOKENS.get(decision.alternative()?).copied()
    /// }
    /// ```
    pub fn first_of<K: IntoKey>(self, keys: impl IntoIterator<Item = K>) -> Self {
        let keys = keys.into_iter().map(IntoKey::into_key).collect();
        Self(self.0.key(global()).pool(keys))
    }

    /// Sets the key of a request. The default is its host, without a port and in lower case. Requests without one, such
    /// as those of a tonic channel, share one key.
    ///
    /// Choose what the upstream counts by, such as the token of the caller. [`key::from_fn`](crate::key::from_fn) reads
    /// it by a closure.
    pub fn key(self, key: impl KeyExtractor) -> Self {
        Self(self.0.key(key))
    }

    /// Lets an answer pause a key of another limiter, in place of the key of its request.
    ///
    /// For an upstream with several limits that says which one has refused: the closure reads it from the head of the answer,
    /// and returns the key that the answer is about. `None` stands for the key of the request. Call this once for each such
    /// limiter, and [add](RateLimitLayer::and) the limiter to the layer, so that its pauses refuse the requests.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::response::Parts;
    /// use tollgate::{Key, MemoryStore, OutboundLayer, Quota, RateLimitLayer, RateLimiter, key};
    ///
    /// let store = MemoryStore::new();
    /// let routes = RateLimiter::new(store.clone(), Quota::per_second(5)).name("routes");
    /// let global = RateLimiter::new(store, Quota::per_second(50)).name("global");
    ///
    /// // Discord limits each route, and the bot as a whole.
    /// let levels = RateLimitLayer::from(routes)
    ///     .key(key::from_fn(|parts| parts.uri.path().to_owned()))
    ///     .and(global.clone(), key::global());
    /// let layer = OutboundLayer::from(levels).pause_instead(global, |head: &Parts| {
    ///     head.headers.contains_key("x-ratelimit-global").then(Key::global)
    /// });
    /// ```
    pub fn pause_instead(
        self,
        limiter: RateLimiter,
        key: impl Fn(&response::Parts) -> Option<Key> + Send + Sync + 'static,
    ) -> Self {
        Self(self.0.observe_by(|observer| observer.add(limiter, key)))
    }

    /// Sets how long a request waits at most. The default is 30 seconds, so that a caller with a timeout of its own
    /// is answered first.
    pub fn wait_up_to(self, max_wait: Duration) -> Self {
        Self(self.0.wait_up_to(max_wait))
    }
}

/// Observes the responses, with the settings of a layer: its key, wait, costs, levels and settlements. It adds no headers.
///
/// A response pauses the key of the layer's own limiter, not those of the levels that were
/// [added](RateLimitLayer::and), unless [`pause_instead`](OutboundLayer::pause_instead) says so.
impl From<RateLimitLayer> for OutboundLayer {
    fn from(layer: RateLimitLayer) -> Self {
        Self(layer.headers(Headers::none()).observing())
    }
}

impl<S: CloneService> Layer<S> for OutboundLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        self.0.layer(inner)
    }
}

fn host(parts: &Parts) -> Key {
    let authority = parts
        .uri
        .authority()
        .cloned()
        .or_else(|| host_header(parts));
    let host = authority.as_ref().map_or("", Authority::host);
    // A trailing dot says that the name is complete, and is no part of it.
    match host.strip_suffix('.').unwrap_or(host) {
        "" => Key::global(),
        host => Key::from(host.to_ascii_lowercase()),
    }
}

fn host_header(parts: &Parts) -> Option<Authority> {
    Authority::try_from(parts.headers.get(HOST)?.as_bytes()).ok()
}
