//! The router with the limit, as in any service. Only the quotas, the key, the cost and the share come from the page
//! with each request. Each lease has a router of its own.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::routing::get;
use axum::{Extension, Router};
use tollgate::{
    DecisionView, Headers, IetfDraft, Key, Quotas, RateLimitLayer, RateLimiter, Store, key,
};

use crate::counted::{CountedStore, Counts};

/// The name of the limiter: all playgrounds on one Redis share its counts.
const NAME: &str = "playground";

/// The key, quotas, cost and share of one request.
#[derive(Clone)]
pub(crate) struct RequestSettings {
    pub(crate) key: Key,
    pub(crate) quotas: Quotas,
    pub(crate) cost: u32,
    pub(crate) share: Option<&'static str>,
}

impl RequestSettings {
    pub(crate) fn into_request(self) -> Request {
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(self);
        request
    }
}

/// The router with one lease.
pub(crate) struct Limited {
    pub(crate) router: Router,
    pub(crate) limiter: RateLimiter,
    pub(crate) counts: Counts,
}

impl Limited {
    pub(crate) fn new(store: Arc<dyn Store>, (id, lease): (&str, Duration)) -> Self {
        // All limiters of a name should have the same lease.
        let name = match lease {
            Duration::ZERO => NAME.to_owned(),
            _ => format!("{NAME}-lease-{id}"),
        };
        let counts = Counts::default();
        let limit = layer(CountedStore::new(store, counts.clone()), name).lease(lease);
        Self {
            limiter: limit.limiter().clone(),
            router: Router::new().route("/", get(handler)).layer(limit),
            counts,
        }
    }
}

fn layer(store: CountedStore, name: String) -> RateLimitLayer {
    // An empty list admits everything. Each request brings its own quotas.
    RateLimitLayer::new(store, [])
        .name(name)
        // The page shows both header families.
        .headers(Headers::default().and(Headers::ietf(IetfDraft::Draft11)))
        .key(key::from_fn(|parts| Some(settings(parts)?.key.clone())))
        .cost(|parts: &Parts| settings(parts).map_or(1, |settings| settings.cost))
        .share(|parts: &Parts| settings(parts)?.share)
        .quotas_for(|_, parts| {
            let quotas = settings(parts).map(|settings| settings.quotas.clone());
            async move { quotas }
        })
}

fn settings(parts: &Parts) -> Option<&RequestSettings> {
    parts.extensions.get()
}

/// Puts the decision into the response, for the report.
async fn handler(
    Extension(decision): Extension<DecisionView>,
) -> (Extension<DecisionView>, &'static str) {
    (Extension(decision), "ok\n")
}
