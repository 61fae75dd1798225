//! The router with the limit, as in any service. Only the quotas, the key and the cost come from the page with each
//! request.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::routing::get;
use axum::{Extension, Router};
use tollgate::{DecisionView, Headers, IetfDraft, Key, Quotas, RateLimitLayer, Store, key};

/// The name of the limiter: all playgrounds on one Redis share its counts.
pub(crate) const NAME: &str = "playground";

/// The key, quotas and cost of one request.
#[derive(Clone)]
pub(crate) struct RequestSettings {
    pub(crate) key: Key,
    pub(crate) quotas: Quotas,
    pub(crate) cost: u32,
}

impl RequestSettings {
    pub(crate) fn into_request(self) -> Request {
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(self);
        request
    }
}

pub(crate) fn router(store: Arc<dyn Store>) -> Router {
    // An empty list admits everything. Each request brings its own quotas.
    let limit = RateLimitLayer::new(store, [])
        .name(NAME)
        // The page shows both header families.
        .headers(Headers::default().and(Headers::ietf(IetfDraft::Draft11)))
        .key(key::from_fn(|parts| Some(settings(parts)?.key.clone())))
        .cost(|parts: &Parts| settings(parts).map_or(1, |settings| settings.cost))
        .quotas_for(|_, parts| {
            let quotas = settings(parts).map(|settings| settings.quotas.clone());
            async move { quotas }
        });
    Router::new().route("/", get(handler)).layer(limit)
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
