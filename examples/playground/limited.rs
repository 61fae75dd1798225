//! The limited router, like that of any service. Only its quotas, key and cost come from the page, and
//! may differ with each request.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::routing::get;
use axum::{Extension, Router};
use tollgate::{DecisionView, Headers, IetfDraft, Key, Quotas, RateLimitLayer, Store, key};

/// A part of the stored keys: all playgrounds on one Redis share it.
pub(crate) const NAME: &str = "playground";

/// The key, quotas and cost of one request.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) key: Key,
    pub(crate) quotas: Quotas,
    pub(crate) cost: u32,
}

impl Asked {
    pub(crate) fn into_request(self) -> Request {
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(self);
        request
    }
}

pub(crate) fn router(store: Arc<dyn Store>) -> Router {
    // The quotas of the layer admit everything; each request brings its own.
    let limit = RateLimitLayer::new(store, [])
        .name(NAME)
        // The page shows both families.
        .headers(Headers::default().and(Headers::ietf(IetfDraft::Draft11)))
        .key(key::from_fn(|parts| Some(asked(parts)?.key.clone())))
        .cost(|parts: &Parts| asked(parts).map_or(1, |asked| asked.cost))
        .quotas_for(|_, parts| {
            let quotas = asked(parts).map(|asked| asked.quotas.clone());
            async move { quotas }
        });
    Router::new().route("/", get(handler)).layer(limit)
}

fn asked(parts: &Parts) -> Option<&Asked> {
    parts.extensions.get()
}

/// Returns the decision on an admitted request, for the report.
async fn handler(
    Extension(decision): Extension<DecisionView>,
) -> (Extension<DecisionView>, &'static str) {
    (Extension(decision), "ok\n")
}
