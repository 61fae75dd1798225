//! The textbook's sorted set in a middleware function, as in many services.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};

use crate::support::textbook::Textbook;
use crate::workload::Workload;

pub(super) async fn layer(router: Router, workload: &Workload, redis: &str) -> Router {
    let textbook = Textbook::connect(redis, workload.limit, workload.window).await;
    router.layer(from_fn_with_state(Arc::new(textbook), limit))
}

async fn limit(State(textbook): State<Arc<Textbook>>, request: Request, next: Next) -> Response {
    let key = format!("ratelimit:{}", super::key(request.headers()));
    if textbook.check(&key).await {
        next.run(request).await
    } else {
        StatusCode::TOO_MANY_REQUESTS.into_response()
    }
}
